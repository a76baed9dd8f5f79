"""If, Loop and Scan: results, types of results, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import OptionalType, SequenceType, TensorType, Type
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate

VECTOR = TensorType("float32", (3,))
COUNT, FLAG = TensorType("int64", ()), TensorType("bool", ())
X = np.array([1.0, 2.0, -1.0], np.float32)


def sub(types: Sequence[Type], build: Callable[..., Sequence[Any]]) -> Graph:
    inputs = [Value(t) for t in types]
    return Graph(inputs, build(*inputs))


def body(state: Sequence[Type], build: Callable[..., Sequence[Any]]) -> Graph:
    return sub([COUNT, FLAG, *state], build)


def run(outputs: Any, inputs: Sequence[Value] = (), feeds: Sequence[Any] = ()) -> list[Any]:
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    results = evaluate(Graph(inputs, outputs), feeds)
    for value, result in zip(outputs, results, strict=True):
        if isinstance(value.type, TensorType):
            assert result.dtype == value.dtype.numpy
            if value.shape is not None:
                assert len(value.shape) == result.ndim
                assert all(isinstance(d, DimExpr) or d == n for d, n in zip(value.shape, result.shape, strict=True))
    return results


def constant(array: Any) -> Any:
    return F.constant(value=np.asarray(array))


# --- If -------------------------------------------------------------------------------------------


def test_if_takes_one_branch() -> None:
    cond = Value(FLAG, "cond")
    x = Value(VECTOR, "x")
    y = F.if_(cond, x, then_branch=sub([VECTOR], lambda a: [F.neg(a)]), else_branch=sub([VECTOR], lambda a: [a]))
    assert y.type == VECTOR
    assert np.array_equal(run(y, [cond, x], [np.array(True), X])[0], -X)
    assert np.array_equal(run(y, [cond, x], [np.array(False), X])[0], X)


def test_if_does_not_run_the_other_branch() -> None:
    cond, x = Value(FLAG, "cond"), Value(VECTOR, "x")
    labels = constant(np.array([7]))
    fails = sub([VECTOR], lambda a: [F.negative_log_likelihood_loss(F.reshape(a, np.array([1, 3])), labels)])
    fine = sub([VECTOR], lambda a: [F.reduce_sum(a, keepdims=False)])
    y = F.if_(cond, x, then_branch=fails, else_branch=fine)
    assert run(y, [cond, x], [np.array(False), X]) == [2.0]
    with pytest.raises(RuntimeFailure, match="label"):
        run(y, [cond, x], [np.array(True), X])


def test_if_joins_the_types_of_its_branches() -> None:
    cond = Value(FLAG, "cond")

    def pair(first: Any, second: Any) -> tuple[Type, ...]:
        y = F.if_(cond, then_branch=sub([], lambda: [constant(first)]), else_branch=sub([], lambda: [constant(second)]))
        return y.type  # type: ignore[no-any-return]

    assert pair(np.zeros((2, 3)), np.ones((2, 3))) == TensorType("float64", (2, 3))
    joined: Any = pair(np.zeros((2, 3)), np.ones((2, 4)))
    assert joined.shape[0] == 2
    assert isinstance(joined.shape[1], DimExpr)
    assert pair(np.zeros(2), np.ones((2, 2))).shape is None  # type: ignore[attr-defined]
    same: Any = pair(np.array([4, 5]), np.array([4, 5]))
    assert same.constants == (4, 5)
    other: Any = pair(np.array([4, 5]), np.array([4, 6]))
    assert other.value is None
    with pytest.raises(TypeMismatch, match="float64"):
        pair(np.zeros(2), np.zeros(2, np.float32))


def test_a_known_condition_decides_the_type() -> None:
    y = F.if_(
        constant(True),
        then_branch=sub([], lambda: [constant(np.zeros((2, 3)))]),
        else_branch=sub([], lambda: [constant(np.zeros(5, np.float32))]),
    )
    assert y.type == TensorType("float64", (2, 3))


def test_if_infers_its_branches_on_the_captures_given() -> None:
    cond, x = Value(FLAG, "cond"), Value(TensorType("float32", ("N", 4)), "x")
    declared = TensorType("float32", (symbol("rows"), symbol("columns")))
    double = sub([declared], lambda a: [F.concat(a, a, axis=0), F.shape(a)])
    y, shape = F.if_(cond, x, then_branch=double, else_branch=double)
    assert y.shape == (2 * symbol("N"), 4)
    assert shape.tensor.value == (symbol("N"), 4)


def test_if_refuses_misfits() -> None:
    cond, x = Value(FLAG, "cond"), Value(VECTOR, "x")
    one, two = sub([VECTOR], lambda a: [a]), sub([VECTOR], lambda a: [a, a])
    with pytest.raises(TypeMismatch, match="1 and 2 outputs"):
        F.if_(cond, x, then_branch=one, else_branch=two)
    with pytest.raises(TypeMismatch, match="1 operand, 0 given"):
        F.if_(cond, then_branch=one, else_branch=one)
    with pytest.raises(TypeMismatch, match="does not fit"):
        F.if_(cond, Value(TensorType("int64", (3,))), then_branch=one, else_branch=one)
    with pytest.raises(TypeMismatch, match="bool scalar"):
        F.if_(Value(TensorType("bool", (2,))), x, then_branch=one, else_branch=one)


# --- Loop -----------------------------------------------------------------------------------------


ACCUMULATE = body([VECTOR, VECTOR], lambda i, c, s, w: [c, F.add(s, w), F.mul(s, w)])


@in_one_item()
@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("cond", [None, True])
def test_loop_carries_and_stacks(trips: int, cond: bool | None) -> None:
    flag = None if cond is None else np.array(cond)
    final, products = F.loop(np.array(trips), flag, X, X, body=ACCUMULATE, captures=1)
    assert products.shape == (trips, 3)
    state, stacked = run([final, products])
    assert np.array_equal(state, X * (trips + 1))
    assert stacked.shape == (trips, 3)
    assert np.array_equal(stacked, np.array([X * X * (i + 1) for i in range(trips)], np.float32).reshape(trips, 3))


def test_loop_stops_when_its_condition_falls() -> None:
    doubling = body([VECTOR], lambda i, c, s: [F.less(F.reduce_sum(s, keepdims=False), np.float32(20)), F.add(s, s), i])
    for m in (None, np.array(100)):
        final, counts = F.loop(m, None, X, body=doubling)
        assert isinstance(counts.shape[0], DimExpr)
        state, indices = run([final, counts])
        assert np.array_equal(state, X * 32)
        assert indices.tolist() == [0, 1, 2, 3, 4]


def test_loop_that_never_starts_returns_its_initial_state() -> None:
    final, products = F.loop(np.array(9), np.array(False), X, X, body=ACCUMULATE, captures=1)
    assert products.shape == (0, 3)
    state, stacked = run([final, products])
    assert np.array_equal(state, X)
    assert stacked.shape == (0, 3)


def test_empty_scan_outputs_take_the_shape_of_the_operands() -> None:
    m, x = Value(COUNT, "m"), Value(TensorType("float32", ("N", 2)), "x")
    declared = TensorType("float32", (symbol("a"), symbol("b")))
    twice = body([declared], lambda i, c, s: [c, s, F.concat(s, s, axis=1), F.non_zero(s)])
    _, doubled, places = F.loop(m, None, x, body=twice)
    assert doubled.shape[1:] == (symbol("N"), 4)
    got, none = run([doubled, places], [m, x], [np.array(0), np.zeros((7, 2), np.float32)])
    assert got.shape == (0, 7, 4)
    assert none.shape == (0, 2, 0)  # how many elements are not zero is unknown without an iteration


def test_trip_count_is_symbolic_when_the_limit_is() -> None:
    x = Value(TensorType("float32", ("N", 3)), "x")
    count = F.squeeze(F.slice(F.shape(x), np.array([0]), np.array([1])), np.array([0]))
    _, products = F.loop(count, None, X, X, body=ACCUMULATE, captures=1)
    assert products.shape == (symbol("N"), 3)
    assert run(products, [x], [np.zeros((5, 3), np.float32)])[0].shape == (5, 3)


def test_a_growing_state_has_an_unknown_dimension() -> None:
    item = constant(np.zeros(1, np.float32))
    grow = body([TensorType("float32", (symbol("n"),))], lambda i, c, s: [c, F.concat(s, item, axis=0)])
    final = F.loop(np.array(4), None, X, body=grow)
    assert isinstance(final.shape[0], DimExpr)
    assert run(final)[0].shape == (7,)


def test_unknown_dimensions_spread_until_nothing_changes() -> None:
    """b takes a's shape, c takes b's: two iterations until c differs from its start."""
    kind = TensorType("float32", (symbol("n"),))
    shift = body([kind, kind, kind], lambda i, c, x, y, z: [c, F.concat(x, x, axis=0), x, y])
    a, b, c = F.loop(np.array(2), None, X, X, X, body=shift)
    assert all(isinstance(v.shape[0], DimExpr) for v in (a, b, c))
    assert len({v.shape for v in (a, b, c)}) == 3
    assert [v.shape for v in run([a, b, c])] == [(12,), (6,), (3,)]


def test_a_state_of_changing_rank_has_an_unknown_shape() -> None:
    wrap = body([TensorType("float32")], lambda i, c, s: [c, F.unsqueeze(s, np.array([0]))])
    final = F.loop(np.array(2), None, X, body=wrap)
    assert final.shape is None
    assert run(final)[0].shape == (1, 1, 3)


def test_carried_values_are_not_known() -> None:
    add = body([COUNT], lambda i, c, s: [c, F.add(s, np.array(1))])
    final = F.loop(np.array(3), None, np.array(5), body=add)
    assert final.tensor.value is None
    assert run(final) == [8]


def test_scan_outputs_of_changing_shape_are_refused() -> None:
    grow = body([TensorType("float32", (symbol("n"),))], lambda i, c, s: [c, F.concat(s, s, axis=0), s])
    _, stacked = F.loop(np.array(2), None, X, body=grow)
    with pytest.raises(RuntimeFailure, match="changes its shape"):
        run(stacked)


def test_iteration_and_condition_declared_with_one_dimension() -> None:
    one = sub(
        [TensorType("int64", (1,)), TensorType("bool", (1,)), TensorType("int64", (1,))],
        lambda i, c, s: [c, F.add(s, i), i],
    )
    final, counts = F.loop(np.array([3]), np.array([True]), np.array([10]), body=one)
    assert counts.shape == (3, 1)
    state, indices = run([final, counts])
    assert state.tolist() == [13]
    assert indices.tolist() == [[0], [1], [2]]


@in_one_item()
@pytest.mark.parametrize("kind", [SequenceType(VECTOR), OptionalType(VECTOR), OptionalType(SequenceType(VECTOR))])
def test_sequences_and_optionals_pass_through(kind: Type) -> None:
    value, cond = Value(kind, "value"), Value(FLAG, "cond")
    same = body([kind], lambda i, c, s: [c, s])
    looped = F.loop(np.array(2), None, value, body=same)
    chosen = F.if_(cond, looped, then_branch=sub([kind], lambda s: [s]), else_branch=sub([kind], lambda s: [s]))
    assert looped.type == kind
    assert chosen.type == kind
    held = [X, X] if isinstance(kind, SequenceType) else None
    assert run(chosen, [value, cond], [held, np.array(True)])[0] is held


def test_a_sequence_becomes_optional_when_it_starts_as_one() -> None:
    kind = SequenceType(VECTOR)
    swap = body([OptionalType(kind), kind], lambda i, c, s, w: [c, w])
    start, other = Value(OptionalType(kind)), Value(kind)
    assert F.loop(np.array(2), None, start, other, body=swap, captures=1).type == OptionalType(kind)


def test_loop_refuses_misfits() -> None:
    with pytest.raises(TypeMismatch, match="are captures"):
        F.loop(np.array(2), None, X, body=ACCUMULATE, captures=1)
    cast = body([VECTOR], lambda i, c, s: [c, F.cast(s, to="float64")])
    with pytest.raises(TypeMismatch, match=r"float32.* before an iteration, but float64"):
        F.loop(np.array(2), None, X, body=cast)
    with pytest.raises(TypeMismatch, match="scalar"):
        F.loop(np.array([1, 2]), None, X, X, body=ACCUMULATE, captures=1)
    narrow = body([TensorType("float32", (symbol("n"),))], lambda i, c, s: [c, F.add(s, constant(X))])
    with pytest.raises(TypeMismatch, match=r"in a subgraph: shapes \[4\] and \[3\]"):
        F.loop(np.array(2), None, np.zeros(4, np.float32), body=narrow)


# --- Scan -----------------------------------------------------------------------------------------


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
CUMULATE = sub([VECTOR, VECTOR], lambda s, x: (lambda t: [t, t])(F.add(s, x)))


@in_one_item()
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("out_axis", [0, 1, -1, -2])
@pytest.mark.parametrize("out_backwards", [False, True])
def test_scan_axes_and_directions(axis: int, backwards: bool, out_axis: int, out_backwards: bool) -> None:
    given = ROWS if axis in (0, -2) else ROWS.T.copy()
    final, sums = F.scan(
        X, given, body=CUMULATE, num_scan_inputs=1,
        scan_input_axes=(axis,), scan_input_directions=(int(backwards),),
        scan_output_axes=(out_axis,), scan_output_directions=(int(out_backwards),),
    )  # fmt: skip
    wanted = X + np.cumsum(ROWS[::-1] if backwards else ROWS, axis=0)
    state, stacked = run([final, sums])
    assert np.array_equal(state, wanted[-1])
    wanted = wanted[::-1] if out_backwards else wanted
    assert np.array_equal(stacked, wanted if out_axis in (0, -2) else wanted.T)


def test_scan_without_state_over_two_inputs() -> None:
    dot = sub([VECTOR, VECTOR, VECTOR], lambda a, b, w: [F.reduce_sum(a * b * w, keepdims=False)])
    y = F.scan(ROWS, ROWS[::-1].copy(), X, body=dot, num_scan_inputs=2, captures=1)
    assert y.shape == (4,)
    assert np.array_equal(run(y)[0], (ROWS * ROWS[::-1] * X).sum(axis=1))


def test_scan_length_is_symbolic_and_may_be_zero() -> None:
    xs = Value(TensorType("float32", ("T", 3)), "xs")
    final, sums = F.scan(X, xs, body=CUMULATE, num_scan_inputs=1)
    assert final.shape == (3,)
    assert sums.shape == (symbol("T"), 3)
    state, stacked = run([final, sums], [xs], [np.zeros((0, 3), np.float32)])
    assert np.array_equal(state, X)
    assert stacked.shape == (0, 3)
    across = F.scan(X, xs, body=CUMULATE, num_scan_inputs=1, scan_output_axes=(-1,))[1]
    assert run(across, [xs], [np.zeros((0, 3), np.float32)])[0].shape == (3, 0)


def test_scan_refuses_misfits() -> None:
    pair = sub([VECTOR, VECTOR], lambda a, b: [F.add(a, b)])
    with pytest.raises(TypeMismatch, match="one length, but have 4, 5"):
        F.scan(ROWS, np.zeros((5, 3), np.float32), body=pair, num_scan_inputs=2)
    with pytest.raises(TypeMismatch, match="entries"):
        F.scan(X, ROWS, body=CUMULATE, num_scan_inputs=1, scan_input_axes=(0, 1))
    with pytest.raises(TypeMismatch, match="0 and 1"):
        F.scan(X, ROWS, body=CUMULATE, num_scan_inputs=1, scan_output_directions=(2,))
    with pytest.raises(TypeMismatch, match="are scanned"):
        F.scan(X, ROWS, body=CUMULATE, num_scan_inputs=1, captures=2)
    with pytest.raises(TypeMismatch, match="axis 2"):
        F.scan(X, ROWS, body=CUMULATE, num_scan_inputs=1, scan_input_axes=(2,))
    a, b = (Value(TensorType("float32", (n, 3))) for n in ("A", "B"))
    y = F.scan(a, b, body=pair, num_scan_inputs=2)
    with pytest.raises(RuntimeFailure, match="must have one length"):
        run(y, [a, b], [ROWS, ROWS[:2]])
