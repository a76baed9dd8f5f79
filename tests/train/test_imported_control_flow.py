"""Train imported files with If, Loop and Scan: modes and weights inside the subgraphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.gradcheck import check_gradient
from graphkit.passes.core.sweep import all_nodes
from graphkit.passes.training.to_training import is_in_training, to_inference
from graphkit.train import imported

node = helper.make_node
RNG = np.random.default_rng(5)


def info(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name: str, array: Any, kind: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array, kind), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "foreign", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def statistics() -> list[onnx.TensorProto]:
    return [tensor("scale", [1.5, 0.5]), tensor("shift", [0.1, -0.2]), tensor("mean", [0.3, 0.0]),
            tensor("var", [1.0, 2.0])]  # fmt: skip


def norm(x: str, y: str, training: bool = False) -> onnx.NodeProto:
    outputs = [y, f"{y}_mean", f"{y}_var"] if training else [y]
    return node("BatchNormalization", [x, "scale", "shift", "mean", "var"], outputs, momentum=0.5,
                training_mode=int(training))  # fmt: skip


def in_if(training: bool) -> onnx.ModelProto:
    """y = flag ? BatchNormalization(x) @ w : x @ w, w an initialiser of each branch."""
    then = helper.make_graph(
        [norm("x", "n", training), node("MatMul", ["n", "w"], ["t"])], "then", [], [info("t", ["N", 3])],
        [tensor("w", RNG.standard_normal((2, 3)))],
    )  # fmt: skip
    other = helper.make_graph(
        [node("MatMul", ["x", "w"], ["e"])], "else", [], [info("e", ["N", 3])],
        [tensor("w", RNG.standard_normal((2, 3)))],
    )  # fmt: skip
    return model(
        [node("If", ["flag"], ["y"], name="choice", then_branch=then, else_branch=other)],
        [info("flag", [], TensorProto.BOOL), info("x", ["N", 2])], [info("y", ["N", 3])], statistics(),
    )  # fmt: skip


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((8, 2)).astype(np.float32), rng.standard_normal((8, 3)).astype(np.float32)


@pytest.mark.parametrize("training", [False, True])
def test_normalisation_in_branch_learns_if_taken(training: bool, tmp_path: Path) -> None:
    net = gk.load(in_if(training))
    assert is_in_training(net.graph) == training
    assert set(net.trainable) == {"scale", "shift", "w", "w_1"}
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.05))
    x, target = batch()
    mean, var = net.params["mean"].copy(), net.params["var"].copy()
    weights = {n: net.params[n].copy() for n in ("w", "w_1")}

    trainer.step({"flag": np.array(False), "x": x}, target)
    np.testing.assert_array_equal(net.params["mean"], mean)
    np.testing.assert_array_equal(net.params["var"], var)
    still = [n for n, a in weights.items() if np.array_equal(net.params[n], a)]
    assert len(still) == 1

    trainer.step({"flag": np.array(True), "x": x}, target)
    np.testing.assert_allclose(net.params["mean"], 0.5 * mean + 0.5 * x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(net.params["var"], 0.5 * var + 0.5 * x.var(0), rtol=1e-5)
    assert not any(np.array_equal(net.params[n], a) for n, a in weights.items())

    losses = [float(trainer.step({"flag": np.array(True), "x": x}, target)) for _ in range(20)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path)
    saved = gk.load(tmp_path)
    assert not is_in_training(saved.graph)
    saved.save(tmp_path / "net.onnx")
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "x": x}
        assert gk.verify(saved, feeds, against=tmp_path / "net.onnx").passed
        scores = (x - net.params["mean"]) / np.sqrt(net.params["var"] + 1e-5)
        hidden = scores * net.params["scale"] + net.params["shift"] if flag else x
        results = [hidden @ net.params[n] for n in ("w", "w_1")]
        given = saved.run(feeds)["y"]
        assert any(np.allclose(given, r, rtol=1e-4, atol=1e-5) for r in results)


def test_frozen_normalisation_in_branch_keeps_statistics() -> None:
    net = gk.load(in_if(True))
    before = {n: a.copy() for n, a in net.params.items()}
    x, target = batch()
    gk.Trainer(net, "mse", gk.optim.SGD(0.1), train=["w*"]).step({"flag": np.array(True), "x": x}, target)
    changed = {n for n in before if not np.array_equal(before[n], net.params[n])}
    assert len(changed) == 1
    assert changed < {"w", "w_1"}


def in_loop(kind: str) -> onnx.ModelProto:
    """h = BatchNormalization(h) three times: over the slices of x by Scan, or over x itself by Loop."""
    if kind == "Loop":
        body = helper.make_graph(
            [norm("h", "n"), node("Add", ["n", "x"], ["next"]), node("Identity", ["cond"], ["again"])], "body",
            [info("i", [], TensorProto.INT64), info("cond", [], TensorProto.BOOL), info("h", ["N", 2])],
            [info("again", [], TensorProto.BOOL), info("next", ["N", 2])],
        )  # fmt: skip
        nodes = [node("Loop", ["three", "", "x"], ["y"], body=body)]
        return model(nodes, [info("x", ["N", 2])], [info("y", ["N", 2])], [*statistics(), tensor("three", 3, np.int64)])
    body = helper.make_graph(
        [norm("slice", "n"), node("Add", ["n", "h"], ["next"]), node("Identity", ["n"], ["out"])], "body",
        [info("h", ["N", 2]), info("slice", ["N", 2])], [info("next", ["N", 2]), info("out", ["N", 2])],
    )  # fmt: skip
    nodes = [node("Scan", ["start", "x"], ["y", "ys"], body=body, num_scan_inputs=1)]
    return model(
        nodes, [info("start", ["N", 2]), info("x", [3, "N", 2])],
        [info("y", ["N", 2]), info("ys", [3, "N", 2])], statistics(),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_normalisation_in_loop_updates_statistics_each_iteration(kind: str, tmp_path: Path) -> None:
    net = gk.load(in_loop(kind))
    start = {n: a.copy() for n, a in net.params.items()}
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 8, 2) if kind == "Scan" else (8, 2)).astype(np.float32)
    feeds = {"x": x} | ({"start": np.zeros((8, 2), np.float32)} if kind == "Scan" else {})
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.02), output="y")
    target = rng.standard_normal((8, 2)).astype(np.float32)
    losses = [float(trainer.step(feeds, target))]

    mean, var, h = start["mean"], start["var"], x
    for i in range(3):
        seen = x[i] if kind == "Scan" else h
        mean, var = 0.5 * mean + 0.5 * seen.mean(0), 0.5 * var + 0.5 * seen.var(0)
        normal = (seen - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-5) * start["scale"] + start["shift"]
        h = normal + x if kind == "Loop" else normal
    np.testing.assert_allclose(net.params["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(net.params["var"], var, rtol=1e-4, atol=1e-6)
    losses += [float(trainer.step(feeds, target)) for _ in range(19)]
    assert losses[-1] < losses[0]

    trainer.save(tmp_path)
    saved = gk.load(tmp_path)
    assert list(saved.outputs) == list(net.outputs)
    assert gk.verify(saved, feeds).passed


def test_gradient_in_branch_uses_dropout_mask() -> None:
    then = helper.make_graph(
        [node("Mul", ["x", "w"], ["m"]), node("Dropout", ["m", "ratio"], ["t"])], "then", [], [info("t", ["N", 64])]
    )
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [info("e", ["N", 64])])
    proto = model(
        [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        [info("flag", [], TensorProto.BOOL), info("x", ["N", 64])], [info("y", ["N", 64])],
        [tensor("w", np.ones(64)), tensor("ratio", 0.5)],
    )  # fmt: skip
    net = gk.load(proto)
    x = np.ones((1, 64), np.float32)
    trainer = gk.Trainer(net, lambda y, target: gk.reduce_sum(y - target, keepdims=False), gk.optim.SGD(1.0),
                         targets={"target": net.output_types["y"]}, seed=3)  # fmt: skip
    loss = float(trainer.step({"flag": np.array(True), "x": x}, np.zeros((1, 64), np.float32)))
    step = 1.0 - net.params["w"]
    assert set(np.unique(step)) == {0.0, 2.0}
    assert loss == pytest.approx(step.sum())


def test_to_inference_removes_random_state_from_subgraphs() -> None:
    then = helper.make_graph([node("Dropout", ["x", "ratio", "on"], ["t"])], "then", [], [info("t", ["N", 4])])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [info("e", ["N", 4])])
    net = gk.load(
        model(
            [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
            [info("flag", [], TensorProto.BOOL), info("x", ["N", 4])],
            [info("y", ["N", 4])],
            [tensor("ratio", 0.5), tensor("on", True, bool)],
        )
    )
    assert is_in_training(net.graph)
    assert any(v.role == "rng" for v in net.graph.inputs)
    with pytest.raises(gk.errors.UsageError, match="draws random numbers"):
        gk.verify(net)
    plain = gk.Model.from_graph(to_inference(net.graph), {})
    assert not is_in_training(plain.graph)
    assert not any(v.role == "rng" for v in plain.graph.inputs)
    assert gk.verify(plain, {"flag": np.array(True)}).passed


# --- weights in Constant nodes of subgraphs -----------------------------------------------------------


def constant(name: str, array: Any, kind: Any = np.float32) -> onnx.NodeProto:
    return node("Constant", [], [name], value=tensor(name, array, kind))


def recurrent_branch(name: str, units: int, table: str | None) -> onnx.GraphProto:
    """An LSTM over x whose weights are concatenated slices of Constant nodes, and a layer of the outer graph."""
    rng = np.random.default_rng(units)
    weights = [constant(f"{name}.ih", rng.standard_normal((4 * units, 2)) * 0.4),
               constant(f"{name}.hh", rng.standard_normal((4 * units, units)) * 0.4)]  # fmt: skip
    nodes = [*weights, constant(f"{name}.zero", [0], np.int64)]
    bounds = [0, units, 3 * units, 4 * units]
    for i, bound in enumerate(bounds):
        nodes.append(constant(f"{name}.{i}", [bound], np.int64))
    for kind in ("ih", "hh"):
        parts = []
        for first, last in ((0, 1), (2, 3), (1, 2)):
            part = f"{name}.{kind}.{first}"
            bounds_of = [f"{name}.{first}", f"{name}.{last}", f"{name}.zero"]
            nodes.append(node("Slice", [f"{name}.{kind}", *bounds_of], [part]))
            parts.append(part)
        nodes.append(node("Concat", parts, [f"{name}.{kind}.cat"], axis=0))
        nodes.append(node("Unsqueeze", [f"{name}.{kind}.cat", f"{name}.zero"], [f"{name}.{kind}.gates"]))
    nodes += [
        node("LSTM", ["x", f"{name}.ih.gates", f"{name}.hh.gates"], ["", f"{name}.last"], hidden_size=units),
        node("Squeeze", [f"{name}.last", f"{name}.zero"], [f"{name}.h"]),
        constant(f"{name}.w", rng.standard_normal((units, 2))),
        node("MatMul", [f"{name}.h", f"{name}.w"], [f"{name}.m"]),
        node("MatMul", [f"{name}.m", table or f"{name}.m"], [f"{name}.y"]),
    ]
    return helper.make_graph(nodes, name, [], [info(f"{name}.y", None)])


def chosen_by_rate() -> onnx.ModelProto:
    """Recurrent networks in the branches of an If, as in voice detectors. Both read a Constant of the outer graph."""
    return model(
        [
            constant("table", np.array([[1.0, -0.5], [0.25, 1.0]])),
            node("If", ["fast"], ["y"], then_branch=recurrent_branch("a", 3, "table"),
                 else_branch=recurrent_branch("b", 4, "table")),
        ],
        [info("x", [5, "N", 2]), info("fast", [], TensorProto.BOOL)], [info("y", ["N", 2])], [],
    )  # fmt: skip


def test_weights_in_constant_nodes_of_branches_become_parameters(tmp_path: Path) -> None:
    net = gk.load(chosen_by_rate())
    with pytest.raises(gk.errors.UsageError, match="constants_to_parameters"):
        gk.Trainer(net, "mse")
    opened = imported.constants_to_parameters(net)
    assert set(opened.trainable) == {"table", "a.ih", "a.hh", "a.w", "b.ih", "b.hh", "b.w"}
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((5, 3, 2)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    for fast in (True, False):
        feeds = {"x": x, "fast": np.array(fast)}
        opened = imported.constants_to_parameters(net)
        np.testing.assert_allclose(opened.run(feeds)["y"], net.run(feeds)["y"], rtol=1e-5, atol=1e-6)
        check_gradient(opened, feeds, wrt=["x", *opened.trainable], directions=1).raise_if_failed()
        untouched = {n: opened.params[n].copy() for n in opened.trainable if n[0] == ("b" if fast else "a")}
        trainer = gk.Trainer(opened, "mse", gk.optim.Adam(0.01))
        losses = [float(trainer.step(feeds, target)) for _ in range(20)]
        assert losses[-1] < losses[0]
        # Adam does not change parameters with zero gradients, so those of the other branch stay.
        for name, array in untouched.items():
            np.testing.assert_array_equal(opened.params[name], array)
    opened.save(tmp_path / "net.onnx")
    again = gk.load(tmp_path / "net.onnx")
    assert set(again.trainable) == set(opened.trainable)
    for fast in (True, False):
        assert gk.verify(again, {"x": x, "fast": np.array(fast)}, against=tmp_path / "net.onnx").passed


def test_weights_in_nested_subgraphs_become_parameters() -> None:
    body = helper.make_graph(
        [constant("deep", np.array([[0.5, 0.1], [-0.2, 0.4]])), node("MatMul", ["h", "deep"], ["next"]),
         node("Identity", ["cond"], ["again"])], "body",
        [info("i", [], TensorProto.INT64), info("cond", [], TensorProto.BOOL), info("h", ["N", 2])],
        [info("again", [], TensorProto.BOOL), info("next", ["N", 2])],
    )  # fmt: skip
    then = helper.make_graph(
        [constant("trips", 3, np.int64), node("Loop", ["trips", "", "x"], ["t"], body=body)], "then", [],
        [info("t", ["N", 2])],
    )  # fmt: skip
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [info("e", ["N", 2])])
    net = gk.load(
        model(
            [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
            [info("flag", [], TensorProto.BOOL), info("x", ["N", 2])],
            [info("y", ["N", 2])],
            [],
        )
    )
    opened = imported.constants_to_parameters(net)
    assert opened.trainable == ("deep",)
    assert not any(n.outputs[0].name == "deep" for n in all_nodes(opened.graph))
    x = np.array([[1.0, 2.0]], np.float32)
    deep = opened.params["deep"]
    np.testing.assert_allclose(opened.run({"flag": np.array(True), "x": x})["y"], x @ deep @ deep @ deep, rtol=1e-5)
    check_gradient(opened, {"flag": np.array(True), "x": x}, wrt=["deep", "x"]).raise_if_failed()
