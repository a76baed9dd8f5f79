"""Subgraphs get the types of their actual operands, for which a device prepares its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.control.specialise import specialise_subgraphs
from graphkit.passes.core.bind import bind

COUNT, FLAG = TensorType("int64", ()), TensorType("bool", ())


def subgraph(types: Sequence[TensorType], build: Callable[..., Sequence[Value]]) -> Graph:
    inputs = [Value(t) for t in types]
    return Graph(inputs, build(*inputs))


def only(graph: Graph, name: str) -> Node:
    (node,) = (n for n in graph.nodes if n.op.name == name)
    return node


def test_a_body_gets_the_types_of_what_goes_in() -> None:
    open_row = TensorType("float32", ("n",))
    body = subgraph([COUNT, FLAG, open_row, open_row], lambda i, c, s, w: [c, F.add(s, w)])
    x, w = Value(TensorType("float32", ("m",)), "x"), Value(TensorType("float32", ("m",)), "w")
    total = F.loop(np.array(3), None, x, w, body=body, captures=1)
    graph, unspecialised = specialise_subgraphs(bind(Graph([x, w], [total]), {"x": (5,)}))
    loop = only(graph, "Loop")
    assert not unspecialised
    assert [str(v.type) for v in loop.op.body.inputs] == ["int64[]", "bool[]", "float32[5]", "float32[5]"]
    assert str(loop.output.type) == "float32[5]"


def test_a_state_that_grows_has_no_size_in_the_body() -> None:
    open_row = TensorType("float32", ("n",))
    body = subgraph([COUNT, FLAG, open_row], lambda i, c, s: [c, F.concat(s, s, axis=0)])
    x = Value(TensorType("float32", (2,)), "x")
    graph, unspecialised = specialise_subgraphs(Graph([x], [F.loop(np.array(3), None, x, body=body)]))
    state = only(graph, "Loop").op.body.inputs[2]
    assert not unspecialised
    assert state.rank == 1
    assert not state.tensor.is_static
    np.testing.assert_array_equal(evaluate(graph, [np.ones(2, np.float32)])[0], np.ones(16, np.float32))


def test_a_branch_that_types_rule_out_is_left_and_named() -> None:
    row = TensorType("float32", ("a", "b"))
    fits = subgraph([row], lambda v: [F.reduce_sum(v, keepdims=False)])
    refuses = subgraph([row], lambda v: [F.reduce_sum(F.mat_mul(v, v), keepdims=False)])
    flag, x = Value(FLAG, "flag"), Value(row, "x")
    outer = Graph([flag, x], [F.if_(flag, x, then_branch=fits, else_branch=refuses)])
    graph, unspecialised = specialise_subgraphs(bind(outer, {"x": (2, 3)}))
    node = only(graph, "If")
    assert list(unspecialised) == [(node, "else_branch")]
    assert "MatMul" in unspecialised[node, "else_branch"]
    assert str(node.op.then_branch.inputs[0].type) == "float32[2, 3]"
    assert node.op.else_branch.inputs[0].type != node.op.then_branch.inputs[0].type


def test_subgraphs_of_subgraphs_are_rewritten_too() -> None:
    open_row = TensorType("float32", ("n",))

    def inner(v: Value) -> Any:
        size = F.shape(v)
        grown = F.add(v, F.cast(F.reshape(size, np.array([1])), to="float32"))
        return F.if_(F.greater(F.reduce_max(v, keepdims=False), np.float32(0)), grown, **dict.fromkeys(
            ("then_branch", "else_branch"), subgraph([open_row], lambda a: [F.mul(a, F.cast(F.shape(a), to="float32"))])
        ))  # fmt: skip

    body = subgraph([COUNT, FLAG, open_row], lambda i, c, s: [c, inner(s)])
    x = Value(TensorType("float32", (4,)), "x")
    given = Graph([x], [F.loop(np.array(2), None, x, body=body)])
    graph, unspecialised = specialise_subgraphs(given, CLEANUP)
    inside = only(graph, "Loop").op.body
    assert not unspecialised
    branch = only(inside, "If").op.then_branch
    # In both, values that depend only on shapes are constants.
    assert "Shape" not in {n.op.name for g in (inside, branch) for n in g.nodes}
    array = np.array([1, -2, 3, 0.5], np.float32)
    np.testing.assert_array_equal(evaluate(graph, [array])[0], evaluate(given, [array])[0])


def test_a_graph_without_subgraphs_is_itself() -> None:
    x = Value(TensorType("float32", (4,)), "x")
    graph = Graph([x], [F.relu(x)])
    assert specialise_subgraphs(graph, CLEANUP) == (graph, {})
