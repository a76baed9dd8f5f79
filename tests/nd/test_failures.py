"""Errors of operations surface at the next wait, and stay with their arrays; arrays are freed when they are dropped."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import graphkit as gk
from graphkit.errors import RuntimeFailure

nd = gk.nd


def failing() -> gk.nd.NDArray:
    """An array whose operation fails in the background."""
    return gk.gather(nd.ones((2, 2)), nd.array([5]), axis=0)


@pytest.fixture(autouse=True)
def _no_errors_of_other_tests() -> Iterator[None]:
    with contextlib.suppress(RuntimeFailure):
        nd.waitall()
    return


def test_each_wait_for_a_failed_array_raises() -> None:
    bad = failing()
    for wait in (bad.wait_to_read, bad.asnumpy, bad.wait_to_write, lambda: float(bad[0, 0])):
        with pytest.raises(RuntimeFailure, match=r"Gather: .*index 5 .* is outside axis 0"):
            wait()
    assert "failed" in repr(bad)


def test_operations_on_failed_arrays_fail_too() -> None:
    bad = failing()
    later = gk.relu(bad * 2.0)[0]
    target = nd.zeros((1, 2))
    target += bad
    part = nd.zeros((3, 2))
    part[1:2] = bad
    for x in (later, target, part, part.copy(), part[0]):
        with pytest.raises(RuntimeFailure, match="Gather"):
            x.asnumpy()
    assert (nd.ones(3) + 1).asnumpy().tolist() == [2, 2, 2]


def test_writing_all_elements_makes_a_failed_array_usable() -> None:
    bad = failing()
    bad[:, :1] = 4
    with pytest.raises(RuntimeFailure, match="Gather"):
        bad.asnumpy()
    bad[:] = 3
    assert bad.asnumpy().tolist() == [[3, 3]]


def test_waitall_raises_the_oldest_error_once() -> None:
    first, second = failing(), gk.gather(nd.ones((3, 1)), nd.array([7]), axis=0)
    with pytest.raises(RuntimeFailure, match="index 5"):
        nd.waitall()
    nd.waitall()
    with pytest.raises(RuntimeFailure, match="index 7"):
        second.asnumpy()
    with pytest.raises(RuntimeFailure, match="index 5"):
        first.asnumpy()


def test_the_oldest_error_is_of_the_operation_that_was_called_first() -> None:
    queue, second_failed = nd.runtime.queue(), threading.Event()
    first, second = queue.state(), queue.state()

    def fail_first() -> None:
        assert second_failed.wait(60)
        raise ValueError("called first")

    def fail_second() -> None:
        raise ValueError("called second")

    queue.push_call("first", fail_first, [], [first])
    queue.push_call("second", fail_second, [], [second])
    queue.push_call("after second", second_failed.set, [], [second])
    with pytest.raises(ValueError, match="called first"):
        nd.waitall()


def test_errors_of_deferred_calls_surface_at_waits() -> None:
    w = nd.ones((2, 2))
    w.attach_grad()
    pick = nd.hybridize(lambda x, i: gk.gather(x, i, axis=0))
    with nd.record():
        y = pick(w, nd.array([5]))
    with pytest.raises(RuntimeFailure, match="index 5"):
        y.asnumpy()
    with nd.record():
        y = pick(w, nd.array([5]))
    y.backward()
    with pytest.raises(RuntimeFailure, match="index 5"):
        w.grad.asnumpy()


class _Fails(gk.Op):
    """An operator without a kernel, whose reference fails for negative elements."""

    inputs = ("x",)

    def infer(self, x: Any) -> Any:
        return x

    def reference(self, xp: Any, x: Any) -> Any:
        if (x < 0).any():
            raise ValueError("a negative element")
        return x + 1


@pytest.fixture
def fails() -> Iterator[Any]:
    from graphkit.ops import registry

    gk.op(_Fails)
    yield registry.function_of(_Fails)
    registry.remove(_Fails)


def test_operators_without_a_kernel(fails: Any) -> None:
    x = nd.array([1.0, 2.0])
    assert fails(x).asnumpy().tolist() == [2, 3]
    bad = fails(-x)
    for _ in range(2):
        with pytest.raises(gk.GraphkitError, match="a negative element"):
            (bad + 1).asnumpy()
    assert fails(x).asnumpy().tolist() == [2, 3]


def test_a_failed_array_keeps_no_frames(fails: Any) -> None:
    def call() -> tuple[Any, weakref.ref[Any]]:
        held = nd.ones(3)
        bad = fails(-held)
        with pytest.raises(gk.GraphkitError):
            bad.asnumpy()
        return bad, weakref.ref(held)

    bad, held = call()
    gc.collect()
    nd.runtime.queue().settle()
    nd.ones(1) + 1.0  # a push releases what finished operations held
    gc.collect()
    assert held() is None
    with pytest.raises(gk.GraphkitError):
        bad.asnumpy()


def test_arrays_are_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        x = nd.ones((50, 50))
        x.attach_grad()
        arrays = []
        with nd.record():
            y = gk.tanh(x @ x)
            z = nd.hybridize(gk.relu)(y * 2.0)
            arrays += [y, z]
            loss = gk.reduce_sum(z)
        loss.backward()
        references = [weakref.ref(a) for a in (*arrays, loss)]
        memory = [weakref.ref(a._data) for a in (*arrays, loss)]
        nd.waitall()
        del y, z, loss, arrays
        assert all(r() is None for r in references)
        nd.waitall()
        assert all(r() is None for r in memory)
        with nd.record():
            pair = nd.hybridize(lambda v: (v * 2.0, v + 1.0))(x)  # never computed
        references = [weakref.ref(a._data) for a in pair]
        del pair
        assert all(r() is None for r in references)
        with nd.record():
            kept, dropped = nd.hybridize(lambda v: (v * 2.0, v + 1.0))(x)
        del dropped
        assert kept.asnumpy()[0, 0] == 2
        with nd.record():
            dropped = gk.exp(x) * 2.0
        memory = [weakref.ref(dropped._data)]
        nd.waitall()
        del dropped
        nd.waitall()
        assert memory[0]() is None
    finally:
        gc.enable()
