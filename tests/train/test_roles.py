"""The roles of tensors in files: given by the exporter, or found by use. Untrainable ones can be selected by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.cli import invoke
from graphkit.errors import UsageError
from graphkit.frontend.summary import frozen
from graphkit.onnx_io.initializers import ZERO_STATE
from graphkit.train.imported import constants_to_parameters

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 5, 4)).astype(np.float32), np.arange(6) % 3


def tensor(name: str, *shape: int, zero: bool = False) -> TensorProto:
    drawn = np.zeros(shape) if zero else RNG.standard_normal(shape) * 0.3
    return numpy_helper.from_array(drawn.astype(np.float32), name)


def recurrent(kinds: dict[str, str], *, zero: bool = True, shared: bool = False, where: str = "value_info") -> Any:
    """An LSTM whose input has a buffer added, with initial states, and a temperature of rank 0 on its logits.

    kinds: what the exporter says, by name. shared: the initial state is also added to something. where: which of the
    file's lists say it.
    """
    nodes = [
        helper.make_node("Add", ["x", "positions"], ["moved"]),
        helper.make_node("Transpose", ["moved"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["turned", "w", "r", "b", "", "h0", "h0"], ["", "last"], hidden_size=8),
        helper.make_node("Squeeze", ["last", "axes"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc", "bias"], ["scores"], transB=1),
        helper.make_node("Mul", ["scores", "logit_scale"], ["scaled"]),
    ]
    end = "scaled"
    if shared:
        nodes += [
            helper.make_node("ReduceSum", ["h0"], ["rest"], keepdims=0),
            helper.make_node("Add", ["scaled", "rest"], ["y"]),
        ]
        end = "y"
    stored = [
        tensor("positions", 1, 5, 4), tensor("w", 1, 32, 4), tensor("r", 1, 32, 8), tensor("b", 1, 64),
        tensor("h0", 1, 6, 8, zero=zero), tensor("fc", 3, 8), tensor("bias", 3),
        numpy_helper.from_array(np.array(1.3, np.float32), "logit_scale"),
        numpy_helper.from_array(np.array([0]), "axes"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 5, 4])],
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, [6, 3])], stored,
    )  # fmt: skip
    for name, kind in kinds.items():
        if where == "value_info":
            found = graph.value_info.add()
            (source,) = (t for t in stored if t.name == name)
            found.CopyFrom(helper.make_tensor_value_info(name, source.data_type, list(source.dims)))
        else:
            (found,) = (t for t in graph.initializer if t.name == name)
        found.metadata_props.add(key=KIND, value=kind)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def moved(net: gk.Model, **options: Any) -> set[str]:
    """Return the parameters that two steps change."""
    before = {name: np.array(net.params[name]) for name in net.params}
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.5), **options)
    for _ in range(2):
        trainer.step(X, Y)
    return {name for name in net.params if (np.array(net.params[name]) != before[name]).any()}


LEARNED = {"w", "r", "b", "fc", "bias"}


@pytest.mark.parametrize("where", ["value_info", "initializer"])
def test_roles_of_the_exporter_are_used(where: str) -> None:
    kinds = {"positions": "BUFFER", "fc": "PARAMETER", "logit_scale": "PARAMETER"}
    net = gk.load(recurrent(kinds, where=where))
    assert frozen(net.graph) == {"positions": "a buffer of the file", "h0": ZERO_STATE}
    assert set(net.trainable) == LEARNED | {"logit_scale"}
    assert moved(net) == LEARNED | {"logit_scale"}


def test_roles_follow_from_use_without_exporter() -> None:
    net = gk.load(recurrent({}))
    assert frozen(net.graph) == {"h0": ZERO_STATE}
    assert moved(net) == LEARNED | {"positions"}


@pytest.mark.parametrize("options", [{"zero": False}, {"shared": True}])
def test_initial_states_that_are_learned(options: dict[str, bool]) -> None:
    """Initial states are parameters if they are not zero, or if something else reads them."""
    assert "h0" in moved(gk.load(recurrent({}, **options)))


def test_train_selects_untrainable_parameter_by_name() -> None:
    model = recurrent({"positions": "BUFFER"})
    assert moved(gk.load(model), train=["*"]) == LEARNED
    assert moved(gk.load(model), train=["positions", "h0"]) == {"positions", "h0"}
    assert moved(gk.load(model), train=["*", "positions"], freeze=["fc"]) == {*LEARNED, "positions"} - {"fc"}


def test_a_scalar_becomes_a_parameter_by_its_name() -> None:
    net = gk.load(recurrent({}))
    with pytest.raises(UsageError, match=r"constant, which constants_to_parameters\(net, \['logit_scale'\]\) turns"):
        gk.Trainer(net, "softmax_cross_entropy", train=["logit_scale"])
    opened = constants_to_parameters(net, ["logit_scale"])
    np.testing.assert_allclose(opened.run({"x": X})["scaled"], net.run({"x": X})["scaled"], rtol=1e-5, atol=1e-6)
    assert moved(opened) == {*LEARNED, "positions", "logit_scale"}
    with pytest.raises(UsageError, match="has no float constant 'logit_scal'; did you mean 'logit_scale'"):
        constants_to_parameters(net, ["logit_scal"])


@pytest.mark.parametrize("suffix", [".json", ".onnx"])
def test_saved_models_keep_untrained_roles(tmp_path: Path, suffix: str) -> None:
    net = gk.load(recurrent({"positions": "BUFFER", "logit_scale": "PARAMETER"}))
    net.save(tmp_path / f"net{suffix}")
    again = gk.load(tmp_path / f"net{suffix}")
    assert frozen(again.graph) == frozen(net.graph)
    assert again.trainable == net.trainable


def test_commands_report_untrained_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(recurrent({"positions": "BUFFER"}), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    assert invoke(["inspect", str(tmp_path / "net.onnx")]) == 0
    note = "not trained: positions (a buffer of the file), h0 (the zero initial state of a recurrent layer)"
    assert note in capsys.readouterr().out
    data = str(tmp_path / "data.npz")
    train = ["train", str(tmp_path / "net.onnx"), "--data", data, "--valid", data, "--batch-size", "6"]
    assert invoke([*train, "--train", "logit_scale", "--train", "positions", "-o", str(tmp_path / "run")]) == 0
    assert note in capsys.readouterr().err
    first, last = gk.load(tmp_path / "net.onnx"), gk.load(tmp_path / "run")
    assert float(last.params["logit_scale"]) != np.float32(1.3)
    assert (np.array(last.params["positions"]) != np.array(first.params["positions"])).any()
    assert (np.array(last.params["fc"]) == np.array(first.params["fc"])).all()
