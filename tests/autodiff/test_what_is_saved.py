"""The values that the forward loop stacks for the backward loop, and the states of the backward loop, in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control


def float64(*shape: Any, name: str) -> Value:
    return Value(TensorType("float64", shape), name)


def pair(outputs: list[Value], wrt: list[Value], inputs: list[Value], kind: str = "Scan") -> tuple[Node, Node]:
    """The forward loop, which runs once, and the backward one."""
    graph = merge_control(Graph(inputs, [*outputs, *gradient(outputs, wrt)]))
    forward, backward = (n for n in graph.nodes if n.op.name == kind)
    return forward, backward


def stacks(forward: Node, own: int) -> list[str]:
    """Return the types of the stacked values. The first `own` outputs are the results of the loop itself."""
    return sorted(str(v.type) for v in forward.outputs[own:])


def states(node: Node) -> tuple[Value | None, ...]:
    op: Any = node.op
    return node.inputs[: len(node.inputs) - op.num_scan_inputs - op.captures]


def test_sums_save_nothing() -> None:
    x, h = float64("T", 3, name="x"), float64(3, name="h")
    last = gk.fold(lambda c, v: F.add(c, F.mul(v, np.float64(2))), h, x)
    forward, backward = pair([last], [x, h], [x, h])
    assert stacks(forward, 1) == []
    # It scans x for the number of iterations, and reads none of it.
    assert backward.op.num_scan_inputs == 1  # type: ignore[attr-defined]


def test_slices_are_read_from_where_they_are() -> None:
    x, w = float64("T", 3, name="x"), float64(3, name="w")
    forward, backward = pair([gk.map(lambda v: F.mul(v, w), x)], [w], [x, w])
    assert len(forward.outputs) == 1
    assert x in backward.inputs


def test_captures_are_not_stacked_and_their_gradients_are_summed_as_states() -> None:
    x, h = float64("T", 4, name="x"), float64(4, name="h")
    w, b = float64(4, 4, name="w"), float64(4, name="b")
    last = gk.fold(lambda c, v: F.tanh(F.add(F.mat_mul(F.add(c, v), F.transpose(w)), b)), h, x)
    forward, backward = pair([last], [w, b], [x, h, w, b])
    # Beside the result: the operand of the product, and that of tanh'. No [T, 4, 4].
    assert stacks(forward, 1) == ["float64[T, 4]", "float64[T, 4]"]
    assert len(states(backward)) == 3
    assert {str(v.type) for v in backward.outputs} == {"float64[4]", "float64[4, 4]"}
    body: Graph = backward.op.body  # type: ignore[attr-defined]
    for position in (1, 2):
        update = body.outputs[position].node
        assert update is not None
        assert update.op.name == "Add"
        assert update.inputs[0] is body.inputs[position]
        assert (0, 0) in update.op.inplace  # type: ignore[attr-defined]


def test_what_captures_decide_is_computed_again() -> None:
    x, w = float64("T", 3, name="x"), float64(3, name="w")
    last = gk.fold(lambda c, v: F.add(F.mul(c, F.exp(F.sin(w))), v), float64_zeros(), x)
    forward, backward = pair([last], [x, w], [x, w])
    assert stacks(forward, 1) == ["float64[T, 3]"]
    body: Graph = backward.op.body  # type: ignore[attr-defined]
    assert "Exp" in {n.op.name for n in body.nodes}


def float64_zeros() -> Value:
    zeros: Value = F.constant(value=np.zeros(3))
    return zeros


def test_only_shapes_are_needed_of_some() -> None:
    x, h = float64("T", 2, "N", name="x"), float64(2, 1, name="h")
    last = gk.fold(lambda c, v: F.add(c, F.reduce_sum(F.add(F.mul(v, v), c), np.array([1]))), h, x)
    forward, _ = pair([last], [x, h], [x, h])
    assert stacks(forward, 1) == [], "the squares are reduced, of which backward needs the shape; x has it"


def test_views_are_not_stacked_beside_what_they_show() -> None:
    x, h = float64("T", 4, name="x"), float64(4, name="h")

    def step(c: Value, v: Value) -> Value:
        e = F.exp(F.add(c, v))
        square = F.reshape(e, np.array([2, 2]))
        result: Value = F.reshape(F.add(F.mat_mul(square, square), square), np.array([4]))
        return result

    forward, _ = pair([gk.fold(step, h, x)], [x, h], [x, h])
    assert stacks(forward, 1) == ["float64[T, 4]"]


def test_states_of_integers_decide_and_are_not_differentiated() -> None:
    x = float64(3, name="x")
    end = gk.while_loop(
        lambda s: F.less(s[0], np.int64(5)), lambda s: (F.add(s[0], np.int64(1)), F.mul(s[1], s[1])), (np.int64(0), x)
    )
    forward, backward = pair([end[1]], [x], [x], "Loop")
    assert len(forward.outputs) == 3
    assert len(backward.outputs) == 1


def test_the_number_of_an_iteration_is_counted_back() -> None:
    x, m = float64(3, name="x"), Value(TensorType("int64", ()), "m")
    i, going, s = Value(TensorType("int64", ())), Value(TensorType("bool", ())), Value(TensorType("float64", (3,)))
    body = Graph([i, going, s], [going, F.mul(s, F.cast(F.add(F.mul(s, s), F.cast(i, to=s.dtype)), to=s.dtype))])
    y = F.loop(m, None, x, body=body)
    forward, _ = pair([y], [x], [x, m], "Loop")
    assert all(v.dtype.is_float for v in forward.outputs)


def test_branches_in_loops_stack_zeros_where_the_other_was_taken() -> None:
    x, w = float64("T", 3, name="x"), float64(3, name="w")

    def step(c: Value, v: Value) -> Value:
        positive = F.greater(F.reduce_sum(v, keepdims=False), np.float64(0))
        chosen: Value = gk.cond(positive, lambda: F.sqrt(F.mul(v, w)), lambda: F.add(c, v))
        return chosen

    last = gk.fold(step, float64_zeros(), x)
    graph = merge_control(Graph([x, w], [last, *gradient([last], [x, w])]))
    rows = np.array([[4.0, 1.0, 9.0], [-1.0, -1.0, -1.0], [-2.0, 0.0, 0.0]])
    _, dx, dw = evaluate(graph, [rows, np.ones(3)])
    # The root is taken in the first iteration alone; 0 / 0 there would show as NaN in the others.
    np.testing.assert_allclose(dx, [[0.25, 0.5, 1 / 6], [1, 1, 1], [1, 1, 1]])
    np.testing.assert_allclose(dw, [1.0, 0.5, 1.5])


def test_zero_iterations_stack_nothing_and_give_zeros() -> None:
    x, w = float64(3, name="x"), float64(3, name="w")
    y = gk.while_loop(lambda s: F.less(F.reduce_max(s, keepdims=False), np.float64(0)), lambda s: F.log(F.mul(s, w)), x)
    graph = merge_control(Graph([x, w], [y, *gradient([y], [x, w])]))
    forward = next(n for n in graph.nodes if n.op.name == "Loop")
    inside = Graph([x, w], forward.outputs[1:])
    arrays = [np.ones(3), np.zeros(3)]
    assert [a.shape for a in evaluate(inside, arrays)] == [(0, 3), (0, 3)]
    _, dx, dw = evaluate(graph, arrays)
    np.testing.assert_array_equal(dx, np.ones(3))
    np.testing.assert_array_equal(dw, np.zeros(3))


def test_rows_that_are_looked_up_are_scattered_once(check: Any) -> None:
    """If a loop reads a table row by row, it does not sum gradients of the table's size."""
    ids, h, table = Value(TensorType("int64", ("T",)), "ids"), float64(3, name="h"), float64(50, 3, name="table")

    def step(c: Value, i: Value) -> Value:
        result: Value = F.tanh(F.add(F.mul(c, F.gather(table, i, axis=0)), F.gather(table, np.int64(7), axis=0)))
        return result

    last = gk.fold(step, h, ids)
    _, backward = pair([last], [h, table], [ids, h, table])
    body: Graph = backward.op.body  # type: ignore[attr-defined]
    assert not [n for n in body.nodes if any(v.shape == (50, 3) for v in n.outputs)]
    arrays = [np.array([3, 49, 7, 3, 0]), np.full(3, 0.5), np.random.default_rng(0).standard_normal((50, 3))]
    check([ids, h, table], last, arrays)


def test_rows_in_a_while_loop_and_other_reads_of_the_same_capture(check: Any) -> None:
    x, w = float64("T", 2, name="x"), float64(2, name="w")
    whole = lambda i, c: F.add(F.mul(F.gather(x, i, axis=0), c), F.reduce_mean(F.sin(x), np.array([0]), keepdims=False))  # noqa: E731
    size = F.squeeze(F.shape(x, start=0, end=1))
    end = gk.while_loop(
        lambda s: F.less(s[0], size), lambda s: (F.add(s[0], np.int64(1)), whole(s[0], s[1])), (np.int64(0), w)
    )
    check([x, w], end[1], [np.random.default_rng(1).standard_normal((4, 2)), np.array([0.7, -0.4])])
    dx, _ = gradient([end[1]], [x, w])
    assert evaluate(Graph([x, w], [dx]), [np.zeros((0, 2)), np.ones(2)])[0].shape == (0, 2)
