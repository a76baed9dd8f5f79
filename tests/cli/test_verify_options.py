"""graphkit verify: --against, --engine, --bisect and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

import graphkit as gk
from graphkit.cli import invoke


def saved(path: Path, seed: int = 0) -> str:
    h = gk.tanh(gk.nn.linear(gk.input("x", ["N", 4]), 5, name="fc1"))
    gk.Model({"y": gk.nn.linear(h, 3, name="fc2")}, seed=seed, name="net").save(path)
    return str(path)


def changed(source: str, path: Path, weight: str = "fc2_weight") -> str:
    proto = gk.load(source).to_onnx()
    tensor = next(item for item in proto.graph.initializer if item.name == weight)
    array = numpy_helper.to_array(tensor).copy()
    array[1, 2] += 0.5
    tensor.CopyFrom(numpy_helper.from_array(array, weight))
    path.write_bytes(proto.SerializeToString())
    return str(path)


def test_output_without_options_has_only_the_known_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["verify", saved(tmp_path / "net.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["schema", "version", "passed", "verdict", "opset", "guesses", "outputs"]
    assert invoke(["verify", str(tmp_path / "net.onnx")]) == 0
    assert capsys.readouterr().out.startswith("graphkit against ONNX Runtime\n")


def test_two_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, same = saved(tmp_path / "a.onnx"), saved(tmp_path / "b.json")
    other = saved(tmp_path / "c.onnx", seed=1)
    assert invoke(["verify", first, "--against", same]) == 0
    out = capsys.readouterr().out
    assert f"{first} against {same}" in out
    assert out.endswith("\nPASSED\n")
    assert invoke(["verify", first, "--against", other]) == 1
    assert "FAILED" in capsys.readouterr().out
    for engine in ("graphkit", "onnxruntime"):
        assert invoke(["verify", first, "--against", same, "--engine", engine, "--against-engine", engine]) == 0
        assert invoke(["verify", first, "--engine", engine]) == 0
    assert invoke(["verify", first, "--against", other, "--json"]) == 1
    capsys.readouterr()


def test_run_folder_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": gk.nn.linear(x, 3, name="fc")}, seed=0)
    net.save(tmp_path / "before.onnx")
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1))
    trainer.step(np.ones((8, 4), np.float32), np.zeros(8, np.int64))
    trainer.save(tmp_path / "run")
    assert invoke(["verify", str(tmp_path / "before.onnx"), "--against", str(tmp_path / "run"), "--bisect"]) == 1
    out = capsys.readouterr().out
    assert "node fc (Gemm)" in out
    assert "parameter 'fc_weight': 12 of 12 elements differ" in out
    net.save(tmp_path / "after.onnx")
    assert invoke(["verify", str(tmp_path / "after.onnx"), "--against", str(tmp_path / "run"), "--bisect"]) == 0


def test_bisect_names_the_node_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = saved(tmp_path / "net.onnx")
    other = changed(first, tmp_path / "other.onnx")
    suspect = tmp_path / "suspect.onnx"
    assert invoke(["verify", first, "--bisect"]) == 0
    assert capsys.readouterr().out == "3 values compared: PASSED\n"
    assert invoke(["verify", first, "--against", other, "--bisect", "-o", str(suspect)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith(f"node fc2 (Gemm): {first} (graphkit) against {other} (ONNX Runtime)\n")
    assert "given equal inputs, this node returns different results" in captured.out
    assert "parameter 'fc2_weight': 1 of 15 elements differ" in captured.out
    assert captured.out.endswith("3 values compared: FAILED\n")
    assert f"wrote {suspect}" in captured.err
    command = next(line for line in captured.out.splitlines() if line.startswith("shown by: "))
    assert invoke(command.removeprefix("shown by: graphkit ").split()) == 1
    assert [node.op.name for node in gk.load(suspect).graph.nodes] == ["Gemm"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("suspect")) == [
        "suspect-against.onnx", "suspect.npz", "suspect.onnx",
    ]  # fmt: skip


def test_bisect_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = saved(tmp_path / "net.onnx")
    other = changed(first, tmp_path / "other.onnx")
    assert invoke(["verify", first, "--bisect", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["verdict"], found["found"], found["compared"]) == (
        "graphkit.bisect",
        "PASSED",
        None,
        3,
    )
    assert invoke(["verify", first, "--bisect", "--json", "--against", other]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["found"]["kind"], found["found"]["node"], found["found"]["operator"]) == ("node", "fc2", "Gemm")
    assert found["found"]["isolated"][0]["passed"] is False


def test_bisect_of_nothing_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gk.Model({"y": gk.sqrt(gk.input("x", [3]))}).save(tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.full(3, -1, np.float32))
    assert invoke(["verify", str(tmp_path / "net.onnx"), f"x={tmp_path / 'x.npy'}", "--bisect"]) == 1
    assert capsys.readouterr().out.endswith("0 values compared: NOT TESTED\n")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-o", "out.onnx"], 2, "only --bisect writes a file"),
        (["--bisect", "-o", "out.json"], 2, "must end in .onnx"),
        (["--bisect", "-o", "none/out.onnx"], 2, "there is no folder none"),
        (["--bisect", "--strict-tolerance"], 2, "cannot be combined with --bisect"),
        (["--against", "none.onnx"], 2, "none.onnx: no such file"),
        (["--against", "damaged.onnx"], 4, "damaged.onnx"),
        (["--engine", "torch"], 2, "torch"),
    ],
)
def test_wrong_options(
    options: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.onnx").write_bytes(b"\x08\x08\x12\x04damage")
    assert invoke(["verify", saved(tmp_path / "net.onnx"), *options]) == code
    assert message in capsys.readouterr().err
