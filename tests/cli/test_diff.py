"""graphkit diff: tables, JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk

Call = Callable[..., tuple[int, str, str]]


def network(alpha: float = 0.1, shift: float = 0.0, depth: int = 1) -> gk.Model:
    w = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32) + np.float32(shift)
    h = gk.mat_mul(gk.input("x", ["N", 3]), gk.parameter("w", [3, 4]), name="product")
    h = gk.leaky_relu(h, alpha=alpha, name="leaky")
    for _ in range(depth):
        h = gk.tanh(h)
    return gk.Model({"y": h}, params={"w": w}, meta={"author": "me"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    network().save("net.json")
    network().save("net.onnx", opset=17)
    network(alpha=0.2).save("alpha.json")
    network(shift=0.5).save("tuned.json")
    return tmp_path


def test_equal_models(call: Call, folder: Path) -> None:
    code, out, _ = call("diff", "net.json", "net.onnx")
    assert code == 0
    assert out.splitlines()[0] == "A: net.json, 3 nodes"
    assert out.splitlines()[1] == "B: net.onnx, 3 nodes, 3 matched"
    assert out.splitlines()[-1] == "equal: 3 nodes, 1 weight"
    code, out, err = call("diff", "net.json", "net.onnx", "x:2,3", "--run")
    assert code == 0, err
    assert out.splitlines()[-1] == "equal: 3 nodes, 1 weight and equal outputs"


def test_a_changed_attribute(call: Call, folder: Path) -> None:
    code, out, _ = call("diff", "net.json", "alpha.json")
    assert code == 1
    assert out.splitlines()[-1] == "different: 1 changed node"
    assert "leaky  LeakyRelu  attribute alpha  0.1  0.2" in out


def test_changed_weights_and_outputs(call: Call, folder: Path) -> None:
    code, out, _ = call("diff", "net.json", "tuned.json", "--run", "--fill", "ones")
    assert code == 1
    assert "12 of 12 elements differ, by up to 0.5 (" in out
    assert out.splitlines()[-1] == "different: 1 differing weight, outputs: FAILED"
    assert call("diff", "net.json", "tuned.json", "--run", "--atol", "10")[1].endswith(
        "different: 1 differing weight\n"
    )


def test_json_has_everything(call: Call, folder: Path) -> None:
    network(depth=40).save("deep.json")
    code, out, _ = call("diff", "net.json", "deep.json")
    assert code == 1
    assert "... and 19 more (--all)" in out
    assert "more" not in call("diff", "net.json", "deep.json", "--all")[1]
    code, out, _ = call("diff", "net.json", "deep.json", "--run", "--json")
    told = json.loads(out)
    assert code == 1
    assert (told["schema"], told["a"], told["equal"], told["same_structure"]) == (
        "graphkit.diff",
        "net.json",
        False,
        False,
    )
    assert (told["nodes"], told["matched"], len(told["only_b"])) == ([3, 42], 3, 39)
    assert told["behaviour"]["verdict"] == "FAILED"
    assert json.loads(call("diff", "net.json", "net.onnx", "--json")[1])["equal"] is True


def test_run_folders_are_compared(call: Call, folder: Path) -> None:
    for name, shift in (("one", 0.0), ("two", 0.0), ("three", 0.5)):
        Path(name).mkdir()
        network(shift=shift).save(f"{name}/model.json")
    assert call("diff", "one", "two")[0] == 0
    network(shift=1.0).save("two/best.json")
    code, out, err = call("diff", "one", "two", "--json")
    assert code == 1
    assert "two: using the best model" in err
    told = json.loads(out)
    assert told["same_structure"]
    assert [w["elements"]["max_abs"] for w in told["weights"]] == [pytest.approx(1.0)]
    assert call("diff", "one", "three")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["net.json", "absent.json"], 2, "no such file"),
        (["-", "-"], 2, "only one of both models can be read from stdin"),
        (["net.json", "alpha.json", "x:2,3"], 2, "only work with --run"),
        (["net.json", "alpha.json", "z:2,3", "--run"], 2, "no input 'z'"),
        (["net.json", "damaged.onnx"], 4, "damaged.onnx"),
    ],
)
def test_errors(call: Call, folder: Path, arguments: list[str], code: int, message: str) -> None:
    Path("damaged.onnx").write_bytes(Path("net.onnx").read_bytes()[:100])
    found, _, err = call("diff", *arguments)
    assert (found, message in err) == (code, True), err
    found, out, _ = call("diff", *arguments, "--json")
    assert found == code
    assert json.loads(out)["exit_code"] == code


def test_a_run_that_compares_nothing_fails(call: Call, folder: Path) -> None:
    x = gk.input("x", ["N", 2])
    gk.Model({"y": gk.sqrt(gk.neg(gk.abs(x)) - 1.0)}).save("nan.json")
    assert call("diff", "nan.json", "nan.json")[0] == 0
    code, out, _ = call("diff", "nan.json", "nan.json", "--run")
    assert code == 1
    assert "all elements are NaN" in out
    assert out.splitlines()[-1] == "different: outputs: NOT TESTED"


def test_control_characters_of_names_are_escaped(call: Call, folder: Path) -> None:
    gk.Model({"y": gk.relu(gk.input("x\x1b[31m", [2]))}).save("evil.json")
    code, out, _ = call("diff", "evil.json", "net.json")
    assert code == 1
    assert "\x1b" not in out
