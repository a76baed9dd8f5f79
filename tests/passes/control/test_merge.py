"""Nodes of control flow with the same operands are merged: conditions, results and cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control
from graphkit.passes.core.sweep import operators

X = np.array([0.5, -1.0, 2.0], np.float32)


def vector() -> Value:
    return Value(TensorType("float32", (3,)))


def scaled(v: Value, by: float) -> Value:
    made: Value = F.mul(F.exp(v), F.constant(value=np.float32(by)))
    return made


def branching(count: int) -> Graph:
    """Return a graph of several Ifs. Every second result is also a result of another If."""
    p, x = Value(TensorType("bool", ()), "p"), vector()

    def branch(number: float) -> Graph:
        v = vector()
        return Graph([v], [scaled(v, number), scaled(v, number + 1)])

    results = [F.if_(p, x, then_branch=branch(k), else_branch=branch(-k)) for k in range(count)]
    return Graph([p, x], [v for pair in results for v in pair])


@pytest.mark.parametrize("count", [0, 1])
def test_a_graph_with_less_than_two_is_returned_as_it_is(count: int) -> None:
    """Also where it has equal nodes, which common subexpression elimination would merge."""
    graph = branching(count)
    x = graph.inputs[1]
    graph = graph.replace(outputs=[*graph.outputs, scaled(x, 2), scaled(x, 2)])
    assert merge_control(graph) is graph


def loop(m: Value, start: Value, build: Callable[[Value], list[Value]]) -> tuple[Value, ...]:
    number, going, state = Value(TensorType("int64", ())), Value(TensorType("bool", ())), vector()
    body = Graph([number, going, state], [going, *build(state)])
    return Node(F.loop.op(body=body), [m, None, start]).outputs


def looping(count: int) -> Graph:
    """Return loops of two kinds, alternating. Each stacks its own values."""
    m, x = Value(TensorType("int64", ()), "m"), vector()
    carried = (lambda s: F.tanh(s), lambda s: F.sin(s))
    results = [
        loop(m, x, lambda s, k=k: [carried[k % 2](s), scaled(s, k // 2), scaled(s, k)])  # type: ignore[misc]
        for k in range(count)
    ]
    return Graph([m, x], [v for values in results for v in values])


@in_one_item()
@pytest.mark.parametrize(("build", "first", "left"), [(branching, np.array(True), 1), (looping, np.array(3), 2)])
def test_results_are_those_of_the_graph_as_it_stands(build: Callable[[int], Graph], first: Any, left: int) -> None:
    graph = build(7)
    merged = merge_control(graph)
    assert sum(operators(merged)[name] for name in ("If", "Loop")) == left
    for flag in (first, np.zeros_like(first)):
        for found, wanted in zip(evaluate(merged, [flag, X]), evaluate(graph, [flag, X]), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_equal_results_are_computed_once() -> None:
    (node,) = (n for n in merge_control(branching(5)).nodes if n.op.name == "If")
    # exp(x) times -4 to 5. Each branch needs six of them.
    assert len(node.outputs) == 10
    (graph, _) = node.op.subgraphs().values()
    assert sum(n.op.name == "Mul" for n in graph.nodes) == 6


@in_one_item()
@pytest.mark.parametrize("build", [branching, looping])
def test_work_is_linear(build: Callable[[int], Graph], steps: Any) -> None:
    few, many = build(20), build(80)
    assert steps(lambda: merge_control(many)) < 6 * steps(lambda: merge_control(few))


def test_scans_in_other_directions_stay_apart() -> None:
    h, x = Value(TensorType("float32", ()), "h"), vector()
    carry, row = (Value(TensorType("float32", ()), name) for name in ("carry", "row"))
    total = F.add(carry, row)
    body = Graph([carry, row], [total, total])
    scans = [F.scan(h, x, body=body, num_scan_inputs=1, scan_input_directions=(way,)) for way in (0, 1, 0)]
    graph = Graph([h, x], [sums for _, sums in scans])
    merged = merge_control(graph)
    assert sum(node.op.name == "Scan" for node in merged.nodes) == 2
    for expected, found in zip(*(evaluate(g, [np.float32(1), X]) for g in (graph, merged)), strict=True):
        np.testing.assert_array_equal(found, expected)
