"""Loops in blocks have the same results, and the gradient stores the states at the borders of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.block_loops import block_loops
from graphkit.passes.control.merge import merge_control

RNG = np.random.default_rng(2)


def float64(*shape: Any, name: str) -> Value:
    return Value(TensorType("float64", shape), name)


def draw(*shape: int) -> np.ndarray:
    return 0.5 * RNG.standard_normal(shape)


def named(graph: Graph, name: str) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == name]


def same_results_and_gradients(graph: Graph, arrays: Sequence[np.ndarray], block: Any) -> Graph:
    """The blocked graph with the gradients of all outputs by all float inputs, equal to those of `graph`."""
    blocked = block_loops(graph, block)
    for before, after in zip(graph.outputs, blocked.outputs, strict=True):
        assert str(after.type) == str(before.type)
    complete = []
    for g in (graph, blocked):
        wrt = [v for v in g.inputs if v.dtype.is_float]
        complete.append(Graph(g.inputs, [*g.outputs, *gradient(g.outputs, wrt)]))
    wanted, found = (evaluate(g, arrays) for g in complete)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    merged = merge_control(complete[1])
    for a, b in zip(wanted, evaluate(merged, arrays), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    return merged


def in_onnx_runtime(graph: Graph, arrays: Sequence[np.ndarray]) -> None:
    feeds = {graph.name_of(v): a for v, a in zip(graph.inputs, arrays, strict=True)}
    found = OnnxRuntimeModel(export(graph, {}), threads=1).run(feeds)
    for ours, theirs in zip(evaluate(graph, arrays), found.values(), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-9, atol=1e-11)


def recurrent(length: Any, reverse: bool = False) -> Graph:
    x, h, w = float64(length, 3, name="x"), float64(3, name="h"), float64(3, name="w")

    def step(c: Value, v: Value) -> tuple[Value, Value]:
        after = F.tanh(F.add(F.mul(c, w), v))
        return after, F.mul(after, c)

    return Graph([x, h, w], [*gk.scan(step, h, x, reverse)])


@in_one_item("values")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("length", "block"), [(12, 3), (12, "sqrt"), (7, 3), (7, "sqrt"), (7, 1), (3, 5), (1, "sqrt")])
def test_scans_of_known_length(length: int, block: Any, reverse: bool) -> None:
    arrays = [draw(length, 3), draw(3), draw(3)]
    in_onnx_runtime(same_results_and_gradients(recurrent(length, reverse), arrays, block), arrays)


@in_one_item("values")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8])
def test_scans_of_any_length(length: int, reverse: bool) -> None:
    arrays = [draw(length, 3), draw(3), draw(3)]
    found = same_results_and_gradients(recurrent("T", reverse), arrays, 3)
    if length > 3:
        in_onnx_runtime(found, arrays)


@in_one_item()
@pytest.mark.parametrize("length", [6, 7, "T"])
def test_axes_and_directions(length: Any) -> None:
    row, scalar = TensorType("float64", (3,)), TensorType("float64", ())
    a, b, x, y, w = Value(row), Value(scalar), Value(row), Value(scalar), Value(row)
    results = [F.sin(F.add(a, F.mul(x, w))), F.mul(b, y), F.mul(F.mul(x, y), a), F.exp(F.mul(b, w))]
    inputs = [
        float64(3, name="a"), float64(name="b"), float64(3, length, name="x"), float64(length, name="y"),
        float64(3, name="w"),
    ]  # fmt: skip
    outputs = F.scan(
        *inputs, body=Graph([a, b, x, y, w], results), num_scan_inputs=2, captures=1, scan_input_axes=(-1, 0),
        scan_input_directions=(0, 1), scan_output_axes=(-1, 1), scan_output_directions=(1, 0),
    )  # fmt: skip
    size = length if isinstance(length, int) else 5
    same_results_and_gradients(Graph(inputs, outputs), [draw(3), np.array(1.3), draw(3, size), draw(size), draw(3)], 2)


def test_what_is_stacked() -> None:
    graph = same_results_and_gradients(recurrent(12), [draw(12, 3), draw(3), draw(3)], 4)
    forward, backward = named(graph, "Scan")
    # The last state, the outputs, and the states at the borders of blocks. No values of single iterations are stacked.
    assert [str(v.type) for v in forward.outputs] == ["float64[3]", "float64[3, 4, 3]", "float64[3, 3]"]
    again, reverse = named(backward.op.body, "Scan")  # type: ignore[attr-defined]
    assert {str(v.type) for v in again.outputs} >= {"float64[4, 3]"}
    assert reverse.op.scan_input_directions[0] == 1  # type: ignore[attr-defined]


def test_second_order_keeps_the_blocks() -> None:
    x, h, w = float64(6, 2, name="x"), float64(2, name="h"), float64(2, name="w")
    last = gk.fold(lambda c, v: F.tanh(F.add(F.mul(c, w), v)), h, x)
    inputs, arrays = [x, h, w], [draw(6, 2), draw(2), draw(2)]
    found = []
    for graph in (Graph(inputs, [last]), block_loops(Graph(inputs, [last]), 3)):
        first = gradient(graph.outputs, inputs)
        second = gradient([F.mul(g, g) for g in first], inputs)
        found.append(evaluate(Graph(inputs, second), arrays))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-12)


def test_blocks_of_blocks() -> None:
    x, h, w = float64(12, 2, name="x"), float64(2, name="h"), float64(2, name="w")
    plain, deep = (
        gk.fold(lambda c, v: F.tanh(F.add(F.mul(c, w), v)), h, x),
        gk.fold(
            lambda c, rows: gk.fold(lambda d, v: F.tanh(F.add(F.mul(d, w), v)), c, rows, recompute=2),
            h,
            F.reshape(x, np.array([2, 6, 2])),
            recompute=1,
        ),
    )
    inputs, arrays = [x, h, w], [draw(12, 2), draw(2), draw(2)]
    found = [evaluate(Graph(inputs, gradient([y], inputs)), arrays) for y in (plain, deep)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)


def test_files(tmp_path: Path) -> None:
    """JSON keeps the mark, ONNX has no word for it: the blocks stay there, and the memory of the gradient is lost."""
    net = gk.Model.from_graph(block_loops(recurrent(6), 3), {})
    net.save(tmp_path / "net.json")
    for loaded, mark in ((gk.load(tmp_path / "net.json"), True), (gk.load(net.to_onnx()), False)):
        (outer,) = named(loaded.graph, "Scan")
        assert outer.op.recompute is mark  # type: ignore[attr-defined]
        assert len(named(outer.op.body, "Scan")) == 1  # type: ignore[attr-defined]


def power(limit: Any, bound: float) -> tuple[list[Value], Value]:
    x, w = float64(3, name="x"), float64(3, name="w")
    norm = lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), np.float64(bound))  # noqa: E731
    y: Value = gk.while_loop(norm, lambda s: F.add(F.mul(s, w), F.sin(s)), x, limit)
    return [x, w], y


@in_one_item("values")
@pytest.mark.parametrize("limit", [None, 0, 5, 7, "m"])
@pytest.mark.parametrize("bound", [-1.0, 20.0, 1e9])
def test_while_loops(limit: Any, bound: float) -> None:
    if limit is None and bound > 1e8:
        bound = 1e5
    arrays = [np.array([1.0, -0.7, 0.5]), np.array([1.5, 1.25, -1.75])]
    m = Value(TensorType("int64", ()), "m")
    inputs, y = power(m if limit == "m" else limit, bound)
    inputs, arrays = ([m, *inputs], [np.array(6), *arrays]) if limit == "m" else (inputs, arrays)
    in_onnx_runtime(same_results_and_gradients(Graph(inputs, [y]), arrays, 3), arrays)


def test_a_body_that_reads_the_number_of_its_iteration() -> None:
    m, x = Value(TensorType("int64", ()), "m"), float64(3, name="x")
    i, going, s = Value(TensorType("int64", (1,))), Value(TensorType("bool", ())), Value(TensorType("float64", (3,)))
    body = Graph([i, going, s], [going, F.sin(F.add(s, F.cast(i, to=s.dtype)))])
    same_results_and_gradients(Graph([m, x], [F.loop(m, None, x, body=body)]), [np.array(7), draw(3)], 3)


def test_the_states_of_a_while_loop_are_kept_once_per_block() -> None:
    inputs, y = power(None, 1e9)
    graph = same_results_and_gradients(Graph(inputs, [y]), [np.full(3, 0.5), np.full(3, 1.5)], 4)
    forward, backward = named(graph, "Loop")
    assert len(forward.outputs) == 2
    assert len(named(backward.op.body, "Loop")) == 2  # type: ignore[attr-defined]


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"need a known number of iterations.*give the number"):
        block_loops(recurrent("T"), "sqrt")
    inputs, y = power(None, 1.0)
    with pytest.raises(UsageError, match="need a known number of iterations"):
        block_loops(Graph(inputs, [y]), "sqrt")
    for wrong in (0, 2.5, True, "root"):
        with pytest.raises(UsageError, match="positive number of iterations or 'sqrt'"):
            block_loops(recurrent(4), wrong)  # type: ignore[arg-type]


def test_what_is_scanned_needs_a_known_rank() -> None:
    x, shape = gk.input("x", ["T", 3]), gk.input("shape", ["k"], dtype="int64")
    _, rows = gk.scan(lambda carry, row: (carry, F.reshape(row, shape)), F.constant(value=np.float32(0)), x)
    with pytest.raises(UsageError, match="known rank"):
        gk.block_loops(gk.Model({"rows": rows}, name="net"), 4)
