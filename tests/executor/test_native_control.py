"""Control flow whose sizes only a run tells, in the native program: equal to the reference, and without fallbacks."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.errors import RuntimeFailure, UnsupportedError
from graphkit.executor.params import ParamStore
from graphkit.executor.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import SequenceType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without a native kernel is an error."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")


COUNT, FLAG = TensorType("int64", ()), TensorType("bool", ())
ROW = TensorType("float32", (3,))


def value(name: str, *shape: Any, dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def body(states: Sequence[TensorType], build: Callable[..., Sequence[Any]]) -> Graph:
    inputs = [Value(COUNT, "i"), Value(FLAG, "going"), *(Value(t) for t in states)]
    return Graph(inputs, build(*inputs))


def below(bound: float) -> Callable[[Any], Any]:
    return lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), np.float32(bound))


class Native:
    """A graph compiled once; every call compares with the reference."""

    def __init__(self, inputs: Sequence[Value], outputs: Sequence[Any], *, optimize: bool = True):
        self.graph = Graph(inputs, outputs)
        self.executor = Executor(self.graph, ParamStore({}), optimize=optimize, threads=2)

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        feeds = dict(zip(self.graph.input_names, map(np.asarray, arrays), strict=True))
        got = list(self.executor.run(feeds).values())
        wanted = evaluate(self.graph, list(feeds.values()))
        for a, b in zip(got, wanted, strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            if a.dtype == np.float32:
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
            else:
                np.testing.assert_array_equal(a, b)
        return got

    @property
    def program(self) -> Any:
        assert self.executor._latest is not None
        return self.executor._latest


STACKING = body([ROW, ROW], lambda i, c, s, w: [F.less(F.reduce_max(s, keepdims=False), np.float32(9)), F.add(s, w), s])


@pytest.mark.parametrize("optimize", [True, False])
def test_stacks_of_run_time_length(optimize: bool) -> None:
    """Zero trips, one, more than ever before, and fewer again, with what follows the stack in the graph."""
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
    with pytest.raises(RuntimeFailure, match=r"lengths (4 and 5|5 and 4)"):
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
    """Neither in the iterations nor, as large ones, from one buffer to the other."""
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


def test_memory_stays_for_the_next_run() -> None:
    m, x, w = value("m", dtype="int64"), value("x", 3), value("w", 3)
    _, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    run = Native([m, x, w], [F.relu(stack)])
    zeros = np.zeros(3, np.float32)

    def addresses() -> list[int]:
        (instance,) = run.program._idle
        return [np.frombuffer(instance.native.read(s, 4)[0], np.uint8).ctypes.data for s in slots]

    run(50, zeros, zeros)
    slots = sorted(run.program.emitter.slots.values())
    before = addresses()
    assert len(before) == 2
    for trips in (50, 3, 49, 50):
        run(trips, zeros, zeros)
        assert addresses() == before


def test_a_failing_kernel_leaves_nothing_behind() -> None:
    m, xs = value("m", dtype="int64"), value("xs", 4, 3)
    rows = TensorType("float32", (4, 3))
    picked = body([rows], lambda i, c, v: [c, F.gather(v, i, axis=0)])
    stack = F.loop(m, None, xs, body=picked, captures=1)
    run = Native([m, xs], [F.neg(stack)])
    xs_array = draw(np.random.default_rng(10), 4, 3)
    for _ in range(3):
        run(4, xs_array)
        with pytest.raises(RuntimeFailure, match="body/"):
            run.executor.run({"m": np.array(6), "xs": xs_array})


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_of_failed_runs_is_freed() -> None:
    m, xs = value("m", dtype="int64"), value("xs", 4, 1 << 18)
    rows = TensorType("float32", (4, 1 << 18))
    picked = body([rows], lambda i, c, v: [c, F.neg(F.gather(v, i, axis=0))])
    executor = Executor(Graph([m, xs], [F.neg(F.loop(m, None, xs, body=picked, captures=1))]), ParamStore({}))
    feeds = {"m": np.array(5), "xs": np.zeros((4, 1 << 18), np.float32)}

    def fail(times: int) -> int:
        for _ in range(times):
            with pytest.raises(RuntimeFailure):
                executor.run(feeds)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = fail(3)
    # Each run stacks 4 MiB before it fails. A memory checker may hold back 256 MiB of what was freed.
    assert fail(100) - before < 320 << 20


def test_concurrent_runs() -> None:
    m, x, w = value("m", dtype="int64"), value("x", 3), value("w", 3)
    final, stack = F.loop(m, None, x, w, body=STACKING, captures=1)
    grad = gradient([F.reduce_sum(F.mul(stack, stack))], [x, w])
    graph = Graph([m, x, w], [final, F.mat_mul(stack, F.transpose(stack)), *grad])
    executor = Executor(graph, ParamStore({}), threads=1)
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            arrays = [np.array(rng.integers(0, 30)), draw(rng, 3), np.abs(draw(rng, 3)) * 0.1]
            got = executor.run(dict(zip(graph.input_names, arrays, strict=True)))
            for a, b in zip(got.values(), evaluate(graph, arrays), strict=True):
                if a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-4):
                    failures.append(f"{a} {b}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_python_steps_and_native_ones_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """NonZero is computed by reference; what follows it is not."""
    monkeypatch.delenv("GRAPHKIT_STRICT")
    x, p = value("x", 4, 3), value("p", dtype="bool")
    places = F.transpose(F.non_zero(x))
    picked = F.gather_nd(x, places)
    stacked = gk.scan(lambda carry, v: (F.add(carry, v), F.mul(v, v)), np.float32(0), picked)
    chosen = gk.cond(p, lambda: F.exp(picked), lambda: F.neg(x))
    outputs = [places, picked, *stacked, chosen, F.unique(picked)[0]]
    graph = Graph([x, p], outputs)
    executor = Executor(graph, ParamStore({}))
    rng = np.random.default_rng(11)
    for taken in (True, False):
        for kept in (0.5, 0.0, 1.0, 0.5):
            arrays = [draw(rng, 4, 3) * (rng.random((4, 3)) < kept), np.array(taken)]
            got = executor.run(dict(zip(graph.input_names, arrays, strict=True)))
            for a, b in zip(got.values(), evaluate(graph, arrays), strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert executor._latest is not None
    assert [f.split(" ")[1] for f in executor._latest.fallbacks] == ["(NonZero)", "(Unique)"]


def test_a_step_inside_a_loop_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone runs by reference, with sizes that it decides; the plan names it, and strict runs refuse it."""
    m, x = value("m", dtype="int64"), value("x", 3)

    def build(i: Any, c: Any, s: Any) -> list[Any]:
        places = F.non_zero(F.relu(s))
        picked = F.gather(s, F.squeeze(places, np.array([0])), axis=0)
        smaller = F.sub(s, np.float32(0.5))
        return [c, smaller, F.reduce_sum(picked, keepdims=False), F.hardmax(F.unsqueeze(i, [0]) + 0.5)]

    graph = Graph(
        [m, x], list(F.loop(m, None, x, body=body([ROW], lambda i, c, s: build(F.cast(i, to=s.dtype), c, s))))
    )
    executor = Executor(graph, ParamStore({}))
    feeds = {"m": np.array(4), "x": np.array([0.4, 1.2, 7], np.float32)}
    with pytest.raises(UnsupportedError, match=r"loop/body/non_zero \(NonZero\), loop/body/hardmax \(Hardmax\)$"):
        executor.run(feeds)
    assert executor.plan.fallbacks == ("loop/body/non_zero (NonZero)", "loop/body/hardmax (Hardmax)")
    monkeypatch.delenv("GRAPHKIT_STRICT")
    for trips in (4, 0, 1, 20):
        feeds["m"] = np.array(trips)
        got = executor.run(feeds)
        for a, b in zip(got.values(), evaluate(graph, list(feeds.values())), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_sequences_keep_a_loop_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    m, x, many = value("m", dtype="int64"), value("x", 3), Value(SequenceType(ROW), "many")
    both = body([SequenceType(ROW), ROW], lambda i, c, s, v: [c, s, F.add(v, v)])  # type: ignore[list-item]
    executor = Executor(Graph([m, x, many], [*F.loop(m, None, many, x, body=both)][::-1]), ParamStore({}))
    ones = np.ones(3, np.float32)
    feeds = {"m": np.array(4), "x": ones, "many": [ones]}
    with pytest.raises(UnsupportedError, match=r"loop \(Loop: only tensors of numbers are carried"):
        executor.run(feeds)
    monkeypatch.delenv("GRAPHKIT_STRICT")
    np.testing.assert_array_equal(next(iter(executor.run(feeds).values())), 16 * ones)


# --- gradients ------------------------------------------------------------------------------------


def lstm_cell(x: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, Any]:
    gates = F.add(F.mat_mul(F.concat(x, h, axis=-1), w), b)
    i, f, g, o = F.split(gates, num_outputs=4, axis=-1)
    c = F.add(F.mul(F.sigmoid(f), c), F.mul(F.sigmoid(i), F.tanh(g)))
    return F.mul(F.sigmoid(o), F.tanh(c)), c


def lstm_arrays(steps: int, batch: int) -> list[np.ndarray]:
    rng = np.random.default_rng(steps + 7 * batch)
    return [draw(rng, *s) for s in ((steps, batch, 4), (9, 20), (20,), (batch, 5), (batch, 5))]


def lstm_inputs() -> list[Value]:
    return [value("xs", "T", "N", 4), value("w", 9, 20), value("b", 20), value("h", "N", 5), value("c", "N", 5)]


def test_lstm_in_a_scan() -> None:
    inputs = xs, w, b, h, c = lstm_inputs()

    def step(carry: Any, x: Any) -> Any:
        carry = lstm_cell(x, *carry, w, b)
        return carry, carry[0]

    (last, _), ys = gk.scan(step, (h, c), xs)
    loss = F.add(F.reduce_sum(F.mul(ys, ys), keepdims=False), F.reduce_sum(last, keepdims=False))
    run = Native(inputs, [loss, *gradient([loss], inputs)])
    for steps, batch in ((6, 3), (1, 2), (6, 3)):
        run(*lstm_arrays(steps, batch))


def test_lstm_in_a_loop() -> None:
    """Data decide the number of iterations."""
    inputs = xs, w, b, h, c = lstm_inputs()
    bound, x = value("bound"), F.gather(xs, np.int64(0), axis=0)

    def holds(state: Any) -> Any:
        return F.less(F.reduce_sum(F.mul(state[1], state[1]), keepdims=False), bound)

    last, cell = gk.while_loop(holds, lambda s: lstm_cell(x, *s, w, b), (h, c), maximum_iterations=12)
    loss = F.add(F.reduce_sum(F.mul(last, cell), keepdims=False), F.reduce_sum(cell, keepdims=False))
    run = Native([*inputs, bound], [loss, *gradient([loss], inputs[1:])])
    for limit in (0.0, 12.0, 1e9, 20.0):
        run(*lstm_arrays(2, 3), np.float32(limit))


def test_gradient_of_an_imported_loop() -> None:
    """The number of iterations comes from the data; the file has neither shapes for it nor gradients."""
    x, w = gk.input("x", [2, 3]), gk.input("w", [3, 3])
    y = gk.while_loop(below(30.0), lambda s: F.add(F.mat_mul(s, w), x), x, maximum_iterations=9)
    net = gk.load(gk.Model(F.identity(F.reduce_sum(F.mul(y, y), keepdims=False), name="loss")).to_onnx())
    derived = gk.grad(net, of=net.outputs[0], wrt=["x", "w"])
    executor = derived.compile()
    rng = np.random.default_rng(16)
    for scale in (0.1, 1.0, 10.0):
        feeds = {"x": draw(rng, 2, 3) * np.float32(scale), "w": draw(rng, 3, 3)}
        got = executor.run(feeds)
        wanted = evaluate(derived.graph, [feeds[name] for name in derived.graph.input_names])
        for a, b in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_branches_in_a_loop() -> None:
    inputs = x, w, bound = value("x", "N", 3), value("w", 3, 3), value("bound")

    def step(s: Any) -> Any:
        rising = F.greater(F.reduce_sum(s, keepdims=False), np.float32(0.5))
        return gk.cond(rising, lambda: F.mat_mul(s, w), lambda: F.add(F.sin(s), F.reduce_sum(w, np.array([0]))))

    y = gk.while_loop(lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), bound), step, x, maximum_iterations=6)
    loss = F.reduce_sum(F.mul(y, y), keepdims=False)
    run = Native(inputs, [loss, *gradient([loss], [x, w])])
    rng = np.random.default_rng(12)
    for limit in (0.0, 5.0, 40.0, 1e9):
        run(draw(rng, 2, 3), draw(rng, 3, 3), np.float32(limit))


def test_loops_in_a_loop() -> None:
    inputs = x, w = value("x", 2), value("w", 2)

    def outer(s: Value) -> Value:
        inner = gk.while_loop(below(2.0), lambda t: F.add(F.mul(t, w), s), F.sin(s), maximum_iterations=4)
        return F.add(F.mul(F.tanh(inner), s), s)

    y = gk.while_loop(below(20.0), outer, x, maximum_iterations=3)
    run = Native(inputs, [y, *gradient([F.reduce_sum(y)], [x, w])])
    run(np.array([0.8, -0.6], np.float32), np.array([1.4, 1.2], np.float32))
    run(np.array([9.0, -0.6], np.float32), np.array([1.4, 1.2], np.float32))


def test_second_order() -> None:
    inputs = x, w = value("x", 3), value("w", 3)
    y = gk.while_loop(below(10.0), lambda s: F.add(F.mul(s, w), F.sin(s)), x, maximum_iterations=5)
    (dx,) = gradient([F.reduce_sum(F.mul(y, y))], [x])
    run = Native(inputs, [y, dx, *gradient([F.reduce_sum(F.mul(dx, dx))], [x, w])])
    for scale in (0.1, 0.9, 5.0):
        run(np.array([1.0, -0.7, 0.5], np.float32) * np.float32(scale), np.array([1.5, 1.25, -1.75], np.float32))


def test_rows_of_a_profile_have_names_of_their_own() -> None:
    p, m, x, w = value("p", dtype="bool"), value("m", dtype="int64"), value("x", 3), value("w", 3)
    final, _ = F.loop(m, None, x, w, body=STACKING, captures=1)
    y = gk.cond(p, lambda: F.exp(final), lambda: F.exp(F.neg(final)), name="choice")
    run = Native([p, m, x, w], [y])
    arrays = 4, np.zeros(3, np.float32), np.ones(3, np.float32)
    with gk.profile() as profile:
        run(True, *arrays)
        run(False, *arrays)
    names = [e["args"]["node"] for e in profile.trace()["traceEvents"] if "node" in e.get("args", {})]
    assert any(name.startswith("choice/then/") for name in names)
    assert any(name.startswith("choice/else/") for name in names)
    assert any("/body/" in name for name in names)
