"""Unread results of control flow, states that serve themselves, and operands that nothing reads disappear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.prune import prune_control

VECTOR, COUNT, FLAG = TensorType("float64", (3,)), TensorType("int64", ()), TensorType("bool", ())
X, W = np.array([1.0, 2.0, -1.0]), np.array([0.5, -1.0, 2.0])


def only(graph: Graph, name: str) -> Node:
    (node,) = [n for n in graph.nodes if n.op.name == name]
    return node


def pruned(inputs: list[Value], outputs: list[Value], arrays: list[Any]) -> Graph:
    """The pruned graph, which computes the same."""
    before = Graph(inputs, outputs)
    after = prune_control(before)
    for a, b in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    assert after.output_names == before.output_names
    return after


def scan(reverse: bool = False) -> tuple[list[Value], Any]:
    x, w, u = Value(TensorType("float64", (4, 3)), "x"), Value(VECTOR, "w"), Value(VECTOR, "u")
    y = Value(TensorType("float64", (3, 4)), "y")

    def step(c: Any, e: Any) -> Any:
        kept, alone = c
        return (F.add(F.mul(kept, w), e[0]), F.mul(alone, u)), (F.sin(kept), F.mul(e[1], alone))

    results = gk.scan(step, (w, u), (x, y), reverse, axis=(0, 1), out_axis=(1, 0))
    return [x, y, w, u], results


ROWS = np.arange(12.0).reshape(4, 3)


@in_one_item()
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    inputs, ((kept, _), (sines, _)) = scan(reverse)
    graph = pruned(inputs, [kept, sines], [ROWS, ROWS.T, X, W])
    node = only(graph, "Scan")
    op: Any = node.op
    assert [v.name for v in node.inputs if v is not None] == ["w", "x", "w"]
    assert (len(node.outputs), op.num_scan_inputs, op.captures) == (2, 1, 1)
    assert (op.scan_input_axes, op.scan_output_axes) == ((0,), (1,))
    assert op.scan_input_directions == op.scan_output_directions == (int(reverse),)


def test_states_that_results_depend_on_stay() -> None:
    inputs, (_, (_, products)) = scan()
    node = only(pruned(inputs, [products], [ROWS, ROWS.T, X, W]), "Scan")
    assert [v.name for v in node.inputs if v is not None] == ["u", "y", "u"]


def test_one_scan_input_tells_the_iterations() -> None:
    inputs, ((_, alone), _) = scan()
    node = only(pruned(inputs, [alone], [ROWS, ROWS.T, X, W]), "Scan")
    assert [v.name for v in node.inputs if v is not None] == ["u", "x", "u"]


def test_what_is_read_entirely_stays_as_it_is() -> None:
    inputs, (last, stacks) = scan()
    graph = Graph(inputs, [*last, *stacks])
    assert only(prune_control(graph), "Scan") is only(graph, "Scan")


def test_the_condition_of_a_loop_keeps_its_states() -> None:
    i, going, s, t, u = Value(COUNT), Value(FLAG), Value(VECTOR), Value(VECTOR), Value(VECTOR)
    again = F.less(F.reduce_sum(t, keepdims=False), np.float64(9))
    body = Graph([i, going, s, t, u], [again, F.add(s, u), F.add(t, t), F.exp(s), F.mul(s, t)])
    x, w = Value(VECTOR, "x"), Value(VECTOR, "w")
    final, _, _, products = F.loop(None, None, w, x, w, body=body, captures=1)
    for outputs, states in (([final], 2), ([products], 2)):
        node = only(pruned([x, w], outputs, [X, W]), "Loop")
        assert len(node.inputs) == 2 + states + 1
        assert len(node.outputs) == states + (outputs == [products])
        assert "Exp" not in {n.op.name for n in node.op.body.nodes}  # type: ignore[attr-defined]
    first = F.loop(np.array(5), None, w, x, w, body=body, captures=1)[1]
    node = only(pruned([x, w], [first], [X, W]), "Loop")
    assert [v.name for v in node.inputs[2:] if v is not None] == ["x"]


@in_one_item()
@pytest.mark.parametrize("taken", [True, False])
def test_if(taken: bool) -> None:
    p, x, w = Value(FLAG, "p"), Value(VECTOR, "x"), Value(VECTOR, "w")
    first, _ = gk.cond(p, lambda: (F.exp(x), F.mul(x, w)), lambda: (F.neg(x), w))
    node = only(pruned([p, x, w], [first], [np.array(taken), X, W]), "If")
    assert [v.name for v in node.inputs if v is not None] == ["p", "x"]
    assert len(node.outputs) == 1


def test_subgraphs_are_entered() -> None:
    x, w = Value(TensorType("float64", (2, 4, 3)), "x"), Value(VECTOR, "w")
    inner = lambda c, v: (F.mul(c, v), F.exp(v))  # noqa: E731
    last = gk.fold(lambda c, rows: gk.scan(inner, c, rows)[0], w, x)
    body: Graph = only(pruned([x, w], [last], [np.stack([ROWS, ROWS]), W]), "Scan").op.body  # type: ignore[attr-defined]
    assert len(only(body, "Scan").outputs) == 1
