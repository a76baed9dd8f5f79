"""Control flow with data-dependent sizes runs natively, with the results of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from compiled_graph import COUNT, ROW, STACKING, Native, body, draw, value

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

pytestmark = pytest.mark.usefixtures("strict")


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
def test_stacks_of_run_time_length(optimize: bool) -> None:
    """Zero iterations, one, more than ever before, and fewer again. Later nodes read the stack."""
    m, x, w = value("m", dtype="int64"), value("x", 3), value("w", 3)
    final, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    table = F.mat_mul(stack, F.transpose(stack))
    outputs = [
        final, stack, F.relu(stack), F.shape(stack), F.reduce_sum(stack, np.array([0])), table,
        F.reshape(stack, np.array([-1])), F.concat(stack, stack, axis=1), F.softmax(F.transpose(stack), axis=0),
    ]  # fmt: skip
    run = Native([m, x, w], outputs, optimize=optimize)
    rng = np.random.default_rng(0)
    for trips in [3, 0, 1, 40, 7, 0, 40, *rng.integers(0, 60, 6)]:
        run(trips, draw(rng, 3), np.abs(draw(rng, 3)) * 0.1)


def test_a_condition_ends_the_loop() -> None:
    x, w = value("x", 3), value("w", 3)
    final, stack = F.loop(None, None, x, w, body=STACKING, captures=1)
    run = Native([x, w], [final, stack, F.reduce_mean(stack, np.array([1]))])
    for step, trips in ((20, 2), (0.5, 19), (0.01, 901), (3, 4)):
        assert run(np.zeros(3, np.float32), np.full(3, step, np.float32))[1].shape == (trips, 3)


@in_one_item()
@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("written", [0, 1])
def test_scan_over_a_stack(read: int, written: int) -> None:
    m, x, w = value("m", dtype="int64"), value("x", 3), value("w", 3)
    _, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    a, s = Value(ROW), Value(ROW)
    step = Graph([a, s], [F.tanh(F.add(a, s)), F.mul(a, s), F.reduce_sum(s, keepdims=False)])
    outputs = F.scan(
        w, stack, body=step, num_scan_inputs=1, scan_input_directions=[read], scan_output_directions=[written, 1]
    )
    run = Native([m, x, w], list(outputs))
    rng = np.random.default_rng(read + 2 * written)
    for trips in (5, 0, 1, 17, 5):
        run(trips, draw(rng, 3), draw(rng, 3))


def test_scans_over_lengths_that_differ_are_refused() -> None:
    m, x, w, xs = value("m", dtype="int64"), value("x", 3), value("w", 3), value("xs", 4, 3)
    _, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    a, b = Value(ROW), Value(ROW)
    y = F.scan(stack, xs, body=Graph([a, b], [F.add(a, b)]), num_scan_inputs=2)
    run = Native([m, x, w, xs], [y])
    rng = np.random.default_rng(1)
    arrays = draw(rng, 3), draw(rng, 3) * 0, draw(rng, 4, 3)
    run(4, *arrays)
    with pytest.raises(RuntimeFailure, match=r"one length, but have (4 and 5|5 and 4)"):
        run.executor.run(dict(zip(run.graph.input_names, (np.array(5), *arrays), strict=True)))
    run(4, *arrays)


def test_states_that_grow_and_shrink() -> None:
    m, x, y = value("m", dtype="int64"), value("x", "n", 2), value("y", 3)
    inner = TensorType("float32", ("k", 2)), TensorType("float32", ("j",))
    grown = body(
        inner,
        lambda i, c, s, t: [
            c,
            F.concat(s, F.exp(F.neg(F.slice(s, np.array([0]), np.array([1])))), axis=0),
            F.slice(t, np.array([1]), np.array([100])),
            F.reduce_sum(s, keepdims=False),
        ],
    )
    s, t, sums = F.loop(m, None, x, y, body=grown)
    run = Native([m, x, y], [s, t, sums, F.reduce_max(s, np.array([1]))])
    rng = np.random.default_rng(2)
    for trips in (2, 0, 3, 1, 9, 2):
        assert run(trips, draw(rng, 2, 2), draw(rng, 3))[0].shape == (2 + trips, 2)


def test_a_window_at_a_place_that_the_run_tells() -> None:
    xs, m = value("xs", 6, 3), value("m", dtype="int64")
    rows = TensorType("float32", (6, 3))

    def build(i: Any, c: Any, s: Any, v: Any) -> list[Any]:
        start = F.unsqueeze(i, np.array([0]))
        window = F.slice(v, start, F.add(start, np.array([2])))
        return [c, F.add(s, F.reduce_sum(window, np.array([0]), keepdims=False))]

    y = F.loop(m, None, np.zeros(3, np.float32), xs, body=body([ROW, rows], build), captures=1)
    run = Native([xs, m], [y])
    rng = np.random.default_rng(3)
    for trips in (0, 4, 6, 5):
        run(draw(rng, 6, 3), trips)


@in_one_item()
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_of_a_stack(dtype: str) -> None:
    m, x, w, place = value("m", dtype="int64"), value("x", 3), value("w", 3), value("place", dtype=dtype)
    _, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    run = Native([m, x, w, place], [F.gather(stack, place, axis=0), F.gather(stack, F.neg(place), axis=-2)])
    zeros, steps = np.zeros(3, np.float32), np.full(3, 0.25, np.float32)
    for trips, index in ((4, 3), (4, 0), (9, 7), (4, 1)):
        row, back = run(trips, zeros, steps, np.array(index, dtype))
        np.testing.assert_array_equal(row, steps * index)
        np.testing.assert_array_equal(back, steps * (trips - index if index else 0))
    for trips, index in ((4, 4), (0, 0), (4, -5)):
        arrays = (np.array(trips), zeros, steps, np.array(index, dtype))
        with pytest.raises(RuntimeFailure, match=f"gather.*: index {index} is outside of an axis of size {trips}"):
            run.executor.run(dict(zip(run.graph.input_names, arrays, strict=True)))


def test_loops_in_loops() -> None:
    """The inner trips depend on the outer iteration; its stack is reduced, and its rows are scanned, inside."""
    m, x = value("m", dtype="int64"), value("x", 3)

    def inner(s: Any, count: Any) -> Any:
        _, stack = F.loop(count, None, s, s, body=STACKING, captures=1)
        total, _ = gk.scan(lambda carry, row: (F.add(carry, F.sin(row)), None), s, stack)
        return F.add(total, F.reduce_sum(stack, np.array([0]), keepdims=False))

    outer = body([ROW], lambda i, c, s: [c, F.tanh(inner(s, i)), inner(s, F.sub(np.int64(3), i))])
    final, stack = F.loop(m, None, x, body=outer)
    run = Native([m, x], [final, stack])
    rng = np.random.default_rng(4)
    for trips in (3, 0, 5, 1):
        run(trips, draw(rng, 3))


def test_stacks_of_stacks() -> None:
    m, k, x = value("m", dtype="int64"), value("k", dtype="int64"), value("x", 3)
    counted = body([ROW, ROW], lambda i, c, s, w: [c, F.add(s, w), s])

    def build(i: Any, c: Any, s: Any, count: Any) -> list[Any]:
        final, stack = F.loop(count, None, s, s, body=counted, captures=1)
        return [c, F.tanh(final), stack]

    final, stack = F.loop(m, None, x, k, body=body([ROW, COUNT], build), captures=1)
    run = Native([m, k, x], [final, stack, F.transpose(stack, perm=[1, 0, 2])])
    rng = np.random.default_rng(5)
    for trips, inner in ((2, 3), (4, 1), (2, 3), (3, 0), (0, 3), (0, 0)):
        assert run(trips, inner, draw(rng, 3))[1].shape == (trips, inner if trips else 0, 3)


def test_scan_outputs_that_change_their_shape_are_refused() -> None:
    m, x = value("m", dtype="int64"), value("x", 3)
    counted = body([ROW, ROW], lambda i, c, s, w: [c, F.add(s, w), s])
    outer = body([ROW], lambda i, c, s: [c, s, F.loop(i, None, s, s, body=counted, captures=1)[1]])
    run = Native([m, x], [F.loop(m, None, x, body=outer)[1]])
    run(1, np.ones(3, np.float32))
    with pytest.raises(RuntimeFailure, match=r"changes its shape between iterations: from \[0, 3\] to \[1, 3\]"):
        run.executor.run({"m": np.array(2), "x": np.ones(3, np.float32)})
    run(1, np.ones(3, np.float32))


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
def test_branches_that_return_run_time_sizes(optimize: bool) -> None:
    p, m, x, w = value("p", dtype="bool"), value("m", dtype="int64"), value("x", 3), value("w", 3)
    _, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    double, same, fixed = gk.cond(
        p,
        lambda: (F.concat(stack, stack, axis=0), stack, F.reshape(x, np.array([1, 3]))),
        lambda: (F.exp(stack), F.neg(stack), F.concat(stack, stack, axis=1)),
    )
    outputs = [double, same, F.reduce_sum(double, np.array([0])), F.shape(fixed), fixed]
    run = Native([p, m, x, w], outputs, optimize=optimize)
    rng = np.random.default_rng(6)
    for taken, trips in ((True, 3), (False, 3), (True, 0), (False, 8), (True, 8)):
        run(taken, trips, draw(rng, 3), np.abs(draw(rng, 3)) * 0.1)


def test_a_branch_in_a_loop_changes_the_state() -> None:
    x, m = value("x", "n", 2), value("m", dtype="int64")

    def build(i: Any, c: Any, s: Any) -> list[Any]:
        odd = F.equal(F.mod(i, np.int64(2)), np.int64(1))
        return [c, gk.cond(odd, lambda: F.concat(s, s, axis=0), lambda: F.tanh(s))]

    y = F.loop(m, None, x, body=body([TensorType("float32", ("k", 2))], build))
    run = Native([x, m], [y])
    rng = np.random.default_rng(7)
    for trips in (0, 1, 5, 2, 6):
        run(draw(rng, 2, 2), trips)


def test_states_that_rotate_keep_their_bits() -> None:
    """Two buffers take turns; a state may be another one's old value, and may stay as it is."""
    m, x, y, z = value("m", dtype="int64"), value("x", 3), value("y", 3), value("z", 3)
    turn = body([ROW, ROW, ROW], lambda i, c, a, b, k: [c, b, F.add(a, k), k, b])
    outputs = F.loop(m, None, x, y, z, body=turn)
    run = Native([m, x, y, z], list(outputs))
    rng = np.random.default_rng(8)
    for trips in range(6):
        arrays = [draw(rng, 3) for _ in range(3)]
        kept = [a.copy() for a in arrays]
        run(trips, *arrays)
        assert all(np.array_equal(a, b) for a, b in zip(arrays, kept, strict=True))


def test_states_that_stay_are_not_copied() -> None:
    """They are not copied in iterations, and large ones not between the two buffers."""
    m, x, w = value("m", dtype="int64"), value("x", 3), value("w", 3, 3)
    square = TensorType("float32", (3, 3))
    product = body([ROW, square], lambda i, c, s, k: [c, F.tanh(F.mat_mul(s, k)), k])
    y, same = F.loop(m, None, x, w, body=product)
    run = Native([m, x, w], [y, same])
    rng = np.random.default_rng(9)
    run(5, draw(rng, 3), draw(rng, 3, 3))
    with gk.profile() as profile:
        run(5, draw(rng, 3), draw(rng, 3, 3))
    calls = {o.operator: o.calls for o in profile.operators}
    assert calls.pop("Loop") == 1
    assert calls.pop("copy") == 1  # the state that stays is a result
    assert set(calls.values()) == {5}


def test_states_that_are_stacked_are_written_once() -> None:
    m, x, w = value("m", dtype="int64"), value("x", 3), value("w", 3)

    def build(i: Any, c: Any, s: Any, v: Any) -> list[Any]:
        after = F.tanh(F.add(s, v))
        return [c, after, after, F.mul(after, s)]

    last, stack, other = F.loop(m, None, x, w, body=body([ROW, ROW], build), captures=1)
    a, s = Value(ROW), Value(ROW)
    after = F.tanh(F.add(a, s))
    step = Graph([a, s], [after, after])
    scans = [
        F.scan(x, stack, body=step, num_scan_inputs=1, scan_output_directions=[d], scan_input_directions=[d])
        for d in (0, 1)
    ]
    run = Native([m, x, w], [last, stack, other, *scans[0], *scans[1]])
    rng = np.random.default_rng(13)
    for trips in (0, 1, 5, 33, 2):
        run(trips, draw(rng, 3), draw(rng, 3))
    with gk.profile() as profile:
        run(20, draw(rng, 3), draw(rng, 3))
    assert "copy" not in {o.operator for o in profile.operators}


def test_results_that_nobody_reads_and_results_read_twice() -> None:
    p, m, x, w = value("p", dtype="bool"), value("m", dtype="int64"), value("x", 3), value("w", 3)
    grow = TensorType("float32", ("k", 3))

    def build(i: Any, c: Any, s: Any, g: Any, v: Any) -> list[Any]:
        more = F.concat(g, F.unsqueeze(s, np.array([0])), axis=0)
        return [c, F.tanh(F.add(s, v)), more, s, F.reduce_sum(more, np.array([0]), keepdims=False)]

    final, grown, stack, sums = F.loop(
        m, None, x, np.zeros((0, 3), np.float32), w, body=body([ROW, grow, ROW], build), captures=1
    )
    a, b, c, d = gk.cond(
        p, lambda: (grown, F.exp(x), F.neg(stack), x), lambda: (stack, F.neg(x), F.exp(stack), F.exp(x))
    )
    rng = np.random.default_rng(14)
    for outputs in ([stack, stack], [final], [sums, grown, sums], [a], [b], [c, a, c], [d, d], [F.shape(c)]):
        inputs = [v for v in (p, m, x, w) if v in _reached(outputs)]
        run = Native(inputs, outputs)
        for taken, trips in ((True, 4), (False, 0), (False, 7), (True, 0)):
            given = {p: taken, m: trips, x: draw(rng, 3), w: draw(rng, 3)}
            run(*(given[v] for v in inputs))


def _reached(outputs: Sequence[Value]) -> set[Value]:
    found: set[Value] = set()
    waiting = [*outputs]
    while waiting:
        v = waiting.pop()
        found.add(v)
        waiting += [] if v.node is None else v.node.operands
    return found


def test_rows_without_elements() -> None:
    m, x = value("m", dtype="int64"), value("x", "n", 3)
    final, stack = F.loop(m, None, x, body=body([TensorType("float32", ("n", 3))], lambda i, c, s: [c, F.neg(s), s]))
    run = Native([m, x], [final, stack, F.reduce_sum(stack, np.array([1]))])
    rng = np.random.default_rng(15)
    for trips, rows in ((3, 0), (0, 0), (3, 2), (0, 2)):
        run(trips, draw(rng, rows, 3))


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "uint64", "float64"])
def test_element_types(dtype: str) -> None:
    m, x = value("m", dtype="int64"), value("x", 2, 3, dtype=dtype)
    kind = TensorType(dtype, ("k", 3))
    grown = body([kind, kind], lambda i, c, s, v: [c, F.concat(v, s, axis=0), F.gather(s, i, axis=0)])
    final, stack = F.loop(m, None, x, x, body=grown, captures=1)
    run = Native([m, x], [final, stack, F.transpose(stack)])
    array = np.arange(6).reshape(2, 3).astype(TensorType(dtype, ()).dtype.numpy)
    for trips in (2, 0, 5):
        run(trips, array)


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("ranked", [True, False])
def test_scans_along_an_axis_behind_others_of_size_one(ranked: bool, optimize: bool, monkeypatch: Any) -> None:
    """Slices of x: [1, n, 3] along axis 1 are contiguous, but the number of iterations is not that of axis 0."""
    monkeypatch.delenv("GRAPHKIT_STRICT")
    shape = (1, "N", 3) if ranked else None
    s, x = value("s", 1, 3), Value(TensorType("float32", shape), "x")
    before, row = Value(TensorType("float32", (1, 3))), Value(TensorType("float32", (1, 3) if ranked else None))
    total = F.add(before, row)
    outputs = F.scan(
        s, x, body=Graph([before, row], [total, total]), num_scan_inputs=1, scan_input_axes=(1,), scan_output_axes=(1,)
    )
    run = Native([s, x], list(outputs), optimize=optimize)
    rng = np.random.default_rng(0)
    for length in (5, 1, 0, 8):
        run(draw(rng, 1, 3), draw(rng, 1, length, 3))
    assert not optimize or not run.program.fallbacks


def test_rows_that_change_their_shape_name_the_loop() -> None:
    m, x = value("m", dtype="int64"), value("x", "N")
    grows = body([TensorType("float32", ("N",))], lambda i, going, s: [going, F.concat(s, s, axis=0), s])
    run = Native([m, x], list(F.loop(m, None, x, body=grows, name="grower")))
    with pytest.raises(RuntimeFailure, match=r"^grower.*changes its shape between iterations: from \[2\] to \[4\]"):
        run.executor.run({"m": np.array(3), "x": np.ones(2, np.float32)})
