"""Deferred calls of hybridized functions: after errors and interrupts, with several threads, and in a fork."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.nd import calls, hybrid

nd = gk.nd
backward = importlib.import_module("graphkit.nd.backward")  # nd.backward is a function


def recorded() -> tuple[Any, Any]:
    """Return a variable, and the result of a deferred call that reads it: eights, with the gradient 4."""
    w = nd.full((2, 3), 2.0)
    w.attach_grad()
    f = nd.hybridize(lambda v: v * v + 4.0)
    with nd.record():
        return w, f(w)


def interrupted_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the first call of a function end with KeyboardInterrupt."""
    original, remaining = getattr(owner, name), [KeyboardInterrupt()]

    def function(*arguments: Any) -> Any:
        if remaining:
            raise remaining.pop()
        return original(*arguments)

    monkeypatch.setattr(owner, name, function)


@pytest.mark.parametrize(("owner", "name"), [(hybrid, "compiled"), (calls.Call, "run_into")])
def test_an_interrupted_read_leaves_the_call_deferred(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    w, y = recorded()
    interrupted_once(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):
        y.asnumpy()
    assert y.asnumpy().tolist() == [[8, 8, 8]] * 2
    y.backward()
    assert w.grad.asnumpy().tolist() == [[4, 4, 4]] * 2


@in_one_item()
@pytest.mark.parametrize(("owner", "name"), [(backward, "compiled"), (calls.Call, "run_into")])
@pytest.mark.parametrize("read_first", [False, True])
def test_an_interrupted_backward_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, read_first: bool
) -> None:
    monkeypatch.setattr(backward, "_programs", {})
    w, y = recorded()
    interrupted_once(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):
        y.backward()
    if read_first:
        assert y.asnumpy().tolist() == [[8, 8, 8]] * 2
    y.backward()
    assert w.grad.asnumpy().tolist() == [[4, 4, 4]] * 2
    assert y.asnumpy().tolist() == [[8, 8, 8]] * 2


def test_an_interrupted_write_keeps_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    w, y = recorded()
    interrupted_once(monkeypatch, hybrid, "compiled")
    with pytest.raises(KeyboardInterrupt):
        w[:] = 7
    w[:] = 7
    assert y.asnumpy().tolist() == [[8, 8, 8]] * 2


@pytest.mark.parametrize("owner", [hybrid, backward])
def test_other_threads_read_while_a_program_is_compiled(monkeypatch: pytest.MonkeyPatch, owner: Any) -> None:
    monkeypatch.setattr(backward, "_programs", {})
    w, y = recorded()
    found: list[Any] = []
    readers = [threading.Thread(target=lambda: found.append(y.asnumpy().tolist())) for _ in range(2)]
    original = owner.compiled

    def compiled(*arguments: Any) -> Any:
        for thread in readers:
            if thread.ident is None:
                thread.start()
        readers[0].join(0.2)
        return original(*arguments)

    monkeypatch.setattr(owner, "compiled", compiled)
    y.backward() if owner is backward else y.wait_to_read()
    for thread in readers:
        thread.join()
    assert found == [[[8, 8, 8]] * 2] * 2
    if owner is backward:
        assert w.grad.asnumpy().tolist() == [[4, 4, 4]] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    _, y = recorded()
    begun, original = threading.Event(), calls.Call

    def slow(*arguments: Any) -> Any:
        begun.set()
        threading.Event().wait(0.2)
        return original(*arguments)

    monkeypatch.setattr(calls, "Call", slow)
    thread = threading.Thread(target=y.asnumpy)
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        right = y.asnumpy().tolist() == [[8, 8, 8]] * 2
        right = right and (nd.ones((3, 1, 7)) - 3.0).asnumpy().max() == -2
        os._exit(0 if right else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_head_gradient_may_be_the_head() -> None:
    w, y = recorded()
    y.backward(y)
    assert w.grad.asnumpy().tolist() == [[32, 32, 32]] * 2
    assert y.asnumpy().tolist() == [[8, 8, 8]] * 2


def test_writing_a_result_makes_backward_fail() -> None:
    @nd.hybridize
    def f(v: Any) -> Any:
        y = gk.exp(v)
        return y, y * 2.0

    x = nd.ones(3)
    x.attach_grad()
    with nd.record():
        y, z = f(x)
    y[:] = 5  # the gradient of z reads y
    with pytest.raises(gk.errors.UsageError, match="was written after it was recorded"):
        z.backward()


def test_variables_as_heads_have_own_programs() -> None:
    w = nd.ones(2)
    w.attach_grad()
    for x in (nd.ones(3), nd.ones(5), nd.ones(3, "float64")):
        x.attach_grad()
        with nd.record():
            y = gk.reduce_sum(w * w)
        x.grad[:] = 7
        nd.backward([y, x])
        assert x.grad.asnumpy().tolist() == [1] * len(x)
        x.grad[:] = 7
        x.backward()
        np.testing.assert_array_equal(x.grad.asnumpy(), np.ones(x.shape, x.dtype), strict=True)


def test_many_recorded_calls_of_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of readers is pruned when it has doubled, not in each call."""
    w = nd.ones(2)
    w.attach_grad()
    f: Callable[..., Any] = nd.hybridize(lambda v: v * 2.0)
    lists: list[Any] = []
    with nd.record():
        kept = []
        for _ in range(200):
            kept.append(f(w))
            if not lists or lists[-1] is not w._memory.readers:
                lists.append(w._memory.readers)
        assert len(kept) == 200
        assert len(lists) < 10
        kept.clear()
        for _ in range(1000):
            f(w)
    assert len(w._memory.readers) < 500
