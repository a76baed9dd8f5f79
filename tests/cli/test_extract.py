"""graphkit extract: files, verification and messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.ir.graph import Graph, Value, give_name

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A small network with an index in its middle: y = table[argmax(x w)] + bias."""
    x = gk.input("x", ["N", 6])
    bias = gk.input("bias", ["N", 4])
    scores = gk.relu(gk.mat_mul(x, gk.parameter("w", [6, 5])), name="scores")
    best = gk.arg_max(scores, axis=1, keepdims=False, name="best")
    rows = gk.gather(gk.parameter("table", [5, 4]), best, name="rows")
    model = gk.Model({"y": rows + bias}, seed=0, meta={"author": "me"})
    model.save(tmp_path / "net.json")
    model.save(tmp_path / "net.onnx")
    return tmp_path


@pytest.mark.parametrize("source", ["net.json", "net.onnx"])
@pytest.mark.parametrize("target", ["part.json", "part.onnx"])
def test_a_part_is_written_and_verified(call: Call, net: Path, source: str, target: str) -> None:
    """The indices that the part reads are those that the whole model computes: others would be out of range."""
    code, out, err = call("extract", net / source, "--input", "best", "--input", "bias", "-o", net / target)
    assert code == 0, out + err
    assert "PASSED" in out
    assert f"wrote {net / target}" in err
    part = gk.load(net / target)
    assert part.input_types == {"best": gk.TensorType("int64", ["N"]), "bias": gk.TensorType("float32", ["N", 4])}
    assert list(part.params) == ["table"]
    assert part.meta["author"] == "me"
    if target.endswith(".onnx"):
        onnx.checker.check_model(str(net / target), full_check=True)


def test_default_inputs_and_json(call: Call, net: Path) -> None:
    code, out, _ = call("extract", net / "net.onnx", "x:3,6", "--output", "scores", "-o", net / "p.onnx", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["schema"], told["verified"], told["passed"]) == ("graphkit.extract", True, True)
    assert told["inputs"] == {"x": "float32[N, 6]"}
    assert told["outputs"][0]["shape"] == [3, 5]
    assert (told["nodes"], told["nodes_of_model"]) == (2, 5)
    code, out, _ = call(
        "extract", net / "net.onnx", "--output", "scores", "-o", net / "p.onnx", "--no-verify", "--json"
    )
    assert code == 0
    assert json.loads(out)["verified"] is False
    assert json.loads(out)["outputs"] == {"scores": "float32[N, 5]"}


def test_opset_of_the_file(call: Call, net: Path) -> None:
    arguments = ("extract", net / "net.json", "--output", "scores", "--opset", "17")
    assert call(*arguments, "-o", net / "p.onnx")[0] == 0
    assert onnx.load(net / "p.onnx").opset_import[0].version == 17
    code, _, err = call(*arguments, "-o", net / "p.json")
    assert code == 2
    assert "--opset only works with an .onnx file" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["net.json", "-o", "p.onnx"], 2, "give --input NAME, --output NAME, or both"),
        (["net.json", "--output", "scores", "-o", "p.txt"], 2, "must end in .onnx or .json"),
        (["net.json", "--output", "score", "-o", "p.onnx"], 2, "did you mean 'scores'"),
        (["node.json", "--output", "act", "-o", "p.onnx"], 2, "'act' is a node; name one of its results: 'y1'"),
        (["net.json", "--input", "best", "-o", "p.onnx"], 2, "'y' also needs 1 further input: 'bias'"),
        (["net.json", "--output", "scores", "-o", "no/p.onnx"], 5, "cannot be written"),
        (["absent.json", "--output", "scores", "-o", "p.onnx"], 2, "no such file"),
        (["damaged.onnx", "--output", "scores", "-o", "p.onnx"], 4, "damaged.onnx"),
    ],
)  # fmt: skip
def test_errors(
    call: Call, net: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(net)
    node = gk.relu(gk.input("x", [2]), name="act").node
    give_name(node.output, "y1")
    gk.Model({"y": gk.neg(node.output)}).save("node.json")
    Path("damaged.onnx").write_bytes(Path("net.onnx").read_bytes()[:200])
    found, _, err = call("extract", *arguments)
    assert (found, message in err) == (code, True), err
    found, out, _ = call("extract", *arguments, "--json")
    assert found == code
    assert json.loads(out)["exit_code"] == code
    assert not [path for path in Path().iterdir() if path.name.startswith(("p.", ".p"))]


def test_a_file_that_exists_is_replaced_only_by_a_whole_part(call: Call, net: Path) -> None:
    before = (net / "net.onnx").read_bytes()
    assert call("extract", net / "net.onnx", "--input", "nothing", "-o", net / "net.onnx")[0] == 2
    assert (net / "net.onnx").read_bytes() == before
    assert call("extract", net / "net.onnx", "--output", "scores", "-o", net / "net.onnx")[0] == 0
    assert gk.load(net / "net.onnx").outputs == ("scores",)


def test_states_that_are_not_updated_are_told(call: Call, tmp_path: Path) -> None:
    x = Value(gk.TensorType("float32", [2]), "x")
    state = Value(gk.TensorType("float32", [2]), "state", role="state")
    h = gk.tanh(x, name="h")
    graph = Graph([x, state], [gk.relu(h, name="r") + state], [(state, state + x)], output_names=["y"])
    gk.Model.from_graph(graph, {"state": np.zeros(2, np.float32)}).save(tmp_path / "net.json")
    code, out, err = call("extract", tmp_path / "net.json", "--input", "h", "-o", tmp_path / "p.json", "--json")
    assert code == 0
    assert "not updated in the part, because their new values need other inputs: state" in err
    assert json.loads(out)["not_updated"] == ["state"]


@pytest.mark.full
def test_ctrl_c_leaves_nothing(net: Path) -> None:
    command = [sys.executable, "-P", "-m", "graphkit", "extract", "net.json", "--output", "scores", "-o", "p.onnx"]
    for delay in (0.05, 0.3, 0.6, 0.9, 1.2):
        job = subprocess.Popen(command, cwd=net, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            job.wait(delay)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGINT)
        job.wait(60)
        if (net / "p.onnx").exists():
            onnx.checker.check_model(str(net / "p.onnx"))
        assert not list(net.glob(".p*"))
