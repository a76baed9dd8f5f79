"""The first node that makes a NaN or an infinity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import graphkit as gk
from graphkit.cli import cli
from graphkit.errors import InputError
from graphkit.ops import F

NAN, INF = float("nan"), float("inf")


def model(build: Any, *shape: Any) -> gk.Model:
    x = gk.input("x", shape or ["N"])
    return gk.Model({"y": build(x)}, name="net")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape or (3,), np.float32)


def test_a_node_in_a_chain() -> None:
    net = model(lambda x: F.relu(F.mul(F.log(F.sub(x, 2.0, name="less"), name="bad"), 2.0)))
    found = gk.find_nonfinite(net, {"x": ones()})
    assert found is not None
    assert (found.kind, found.name, found.nan, found.infinite, found.place) == ("node", "bad", 3, 0, ())
    assert "'bad' Log" in str(found)
    assert gk.find_nonfinite(net, {"x": ones() * 4}) is None


def test_nan_of_infinities() -> None:
    """A mask may contain -inf. But if a whole row is -inf, the softmax is NaN, and is reported."""
    mask = np.array([[0, -np.inf], [0, 0]], np.float32)

    def build(x: Any) -> Any:
        return F.softmax(F.where(F.greater(x, 0.0), F.add(x, mask), np.float32(-np.inf), name="mask"), name="soft")

    net = model(build, 2, 2)
    assert gk.find_nonfinite(net, {"x": ones(2, 2)}) is None
    found = gk.find_nonfinite(net, {"x": -ones(2, 2)})
    assert found is not None
    assert (found.name, found.nan) == ("soft", 4)


def test_inputs_and_parameters() -> None:
    x = gk.input("x", ["N", 2])
    net = gk.Model({"y": gk.nn.linear(x, 3, name="fc")}, name="net")
    found = gk.find_nonfinite(net, {"x": np.array([[NAN, 1]], np.float32)})
    assert found is not None
    assert (found.kind, found.name) == ("input", "x")
    found = gk.find_nonfinite(net, {"x": np.array([[INF, 1]], np.float32)})
    assert found is not None
    assert (found.kind, found.infinite) in (("input", 1), ("node", 3))
    weight = net.params["fc_weight"].copy()
    weight[0, 0] = NAN
    net.params["fc_weight"] = weight
    found = gk.find_nonfinite(net, {"x": ones(1, 2)})
    assert found is not None
    assert (found.kind, found.name, found.nan) == ("parameter", "fc_weight", 1)
    with pytest.raises(InputError, match=r"^input 'x' \(float32\[N, 2\]\) is not given$"):
        gk.find_nonfinite(net, {})


def test_the_iteration_of_a_loop_and_the_branch_of_an_if() -> None:
    x = gk.input("x", [5])

    def body(carry: Any, item: Any) -> tuple[Any, Any]:
        root = gk.cond(F.greater(item, 0.0), lambda: F.mul(carry, item), lambda: F.sqrt(item, name="root"))
        return root, root

    _, ys = gk.scan(body, F.constant(value=np.float32(1)), x)
    net = gk.Model({"ys": ys}, name="net")
    found = gk.find_nonfinite(net, {"x": np.array([1, 2, 3, -4, -5], np.float32)})
    assert found is not None
    assert found.name == "root"
    scan, branch = found.place
    assert scan.startswith("iteration 3 of node 'scan'")
    assert branch.startswith("the else_branch of")


def test_command(tmp_path: Path) -> None:
    net = model(lambda x: F.sqrt(F.sub(x, 1.5), name="root"), 3)
    net.save(tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", ones())
    arguments = ["run", str(tmp_path / "net.onnx"), f"x={tmp_path / 'x.npy'}", "--check-nan"]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.return_value == 1
    assert "not finite: node 'root' Sqrt" in result.output
    result = CliRunner().invoke(cli, [*arguments, "--json"], standalone_mode=False)
    assert result.return_value == 1
    origin = json.loads(result.stdout)["nonfinite"]
    assert (origin["kind"], origin["name"], origin["nan"]) == ("node", "root", 3)
    np.save(tmp_path / "x.npy", ones() * 2)
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.return_value == 0
    assert "all values are finite" in result.output


def test_an_input_of_another_size_is_refused() -> None:
    net = gk.Model({"y": F.mat_mul(gk.input("x", ["N", 3]), np.ones((3, 2), np.float32))})
    with pytest.raises(InputError, match="axis 1 is 4, not 3"):
        gk.find_nonfinite(net, {"x": np.ones((2, 4), np.float32)})
