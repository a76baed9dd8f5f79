"""Constant folding."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.core.match import array_of
from graphkit.passes.simplify.fold import fold


def f32(*shape: Any) -> TensorType:
    return TensorType("float32", shape)


def const(*values: float) -> Value:
    return F.constant(value=np.array(values, np.float32))


def ops_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_constants_fold_and_names_stay() -> None:
    x = Value(f32(2), "x")
    graph = Graph([x], [F.add(x, F.exp(F.neg(const(1, 2)))), F.neg(const(3))], output_names=["y", "z"])
    folded = fold(graph)
    assert ops_of(folded).count("Constant") == 2
    assert set(ops_of(folded)) == {"Add", "Constant"}
    assert folded.output_names == ("y", "z")
    given = [np.ones(2, np.float32)]
    for found, wanted in zip(evaluate(folded, given), evaluate(graph, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_known_integers_fold_although_data_is_unknown() -> None:
    x = Value(f32(3, 4), "x")
    shape = F.concat(F.shape(x), np.array([1]), axis=0)
    folded = fold(Graph([x], [F.reshape(x, shape), F.size(x)]))
    assert set(ops_of(folded)) == {"Reshape", "Constant"}
    size = array_of(folded.outputs[1])
    assert size is not None
    assert size.dtype == np.int64
    assert size == 12


def test_symbolic_shapes_stay() -> None:
    x = Value(f32("N", 4), "x")
    assert "Shape" in ops_of(fold(Graph([x], [F.shape(x)])))


def test_random_nodes_stay() -> None:
    graph = Graph([], [F.add(F.random_normal(shape=(2,)), const(1, 1))])
    assert "RandomNormal" in ops_of(fold(graph))
    rng = Value(TensorType("uint64", (2,)), "rng", role="rng")
    assert "RandomNormal" in ops_of(fold(Graph([rng], [F.random_normal(rng, shape=(2,))])))


def test_size_bound() -> None:
    small = F.expand(const(1), np.array([10]))
    large = F.expand(const(1), np.array([1 << 10, 1 << 10]))
    assert ops_of(fold(Graph([], [small]))) == ["Constant"]
    assert "Expand" in ops_of(fold(Graph([], [large])))
    assert ops_of(fold(Graph([], [large]), size_limit=1 << 23)) == ["Constant"]
    weights = F.constant(value=np.ones((1 << 10, 1 << 9), np.float32))
    assert ops_of(fold(Graph([], [F.transpose(weights)]))) == ["Constant"]


def test_failing_nodes_stay() -> None:
    out_of_range = F.gather(const(1, 2), F.constant(value=np.full(100, 7)))
    assert "Gather" in ops_of(fold(Graph([], [out_of_range])))


def test_constant_condition_takes_the_branch() -> None:
    x = Value(f32(2), "x")
    branches = []
    for build in (F.neg, F.exp):
        inner = Value(f32(2))
        branches.append(Graph([inner], [build(inner)]))
    chosen = F.if_(np.array(False), x, then_branch=branches[0], else_branch=branches[1])
    assert ops_of(fold(Graph([x], [chosen]))) == ["Exp"]
    p = Value(TensorType(DType.BOOL, ()), "p")
    both = F.if_(p, x, then_branch=branches[0], else_branch=branches[1])
    assert ops_of(fold(Graph([x, p], [both]))) == ["If"]


def test_branches_are_folded_but_not_what_a_loop_carries() -> None:
    x, p = Value(f32(2), "x"), Value(TensorType(DType.BOOL, ()), "p")
    branches = []
    for _ in range(2):
        inner = Value(f32(2))
        branches.append(Graph([inner], [F.add(inner, F.neg(const(1, 2)))]))
    folded = fold(Graph([x, p], [F.if_(p, x, then_branch=branches[0], else_branch=branches[1])]))
    (node,) = folded.nodes
    assert all(set(ops_of(g)) == {"Add", "Constant"} for g in node.op.subgraphs().values())

    # The state is declared with one element and grows: its Shape is not constant.
    count, keep, state = Value(TensorType("int64", ())), Value(TensorType(DType.BOOL, ())), Value(f32(1))
    grown = F.concat(state, F.cast(F.shape(state), to="float32"), axis=0)
    body = Graph([count, keep, state], [keep, grown])
    start = Value(f32(1), "start")
    graph = Graph([start], [F.loop(np.array(3), None, start, body=body)])
    given = [np.zeros(1, np.float32)]
    np.testing.assert_array_equal(evaluate(fold(graph), given)[0], np.array([0, 1, 2, 3], np.float32))


def test_long_chain() -> None:
    value = const(1.0)
    for _ in range(5_000):
        value = F.neg(value)
    assert ops_of(fold(Graph([], [value]))) == ["Constant"]
