"""Pushes and pulls of arrays in a local store are operations of the engine: their number, order, errors and threads."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import InputError, RuntimeFailure, UsageError
from graphkit.executor.run import array_queue
from graphkit.executor.run import engine as engines
from graphkit.nd.runtime import queue

nd = gk.nd


def store_of(**values: Any) -> Any:
    kv = gk.kvstore.create("local")
    kv.init(list(values), list(values.values()))
    return kv


def descend(_key: str, gradient: Any, weight: Any) -> None:
    weight -= 0.5 * gradient


def operations(call: Callable[[], Any]) -> Counter[str]:
    """Return how many operations of each name a call pushes."""
    nd.waitall()
    found: list[engines.Work] = []
    engines.record(found)
    try:
        call()
        nd.waitall()
    finally:
        engines.record(None)
    return Counter(work.operation for work in found)


@contextmanager
def late(value: float, size: int = 3) -> Iterator[nd.NDArray]:
    """An array that is not computed before the end of the block."""
    x, go = nd.zeros(size), threading.Event()

    def compute() -> None:
        assert go.wait(60)
        x._data[:] = value

    queue().push_call("late", compute, (), (x._memory.state,))
    try:
        yield x
    finally:
        go.set()


def failing() -> nd.NDArray:
    return gk.gather(nd.ones((2, 3)), nd.array([5]), axis=0).reshape(3)


@pytest.fixture(autouse=True)
def _no_errors_of_other_tests() -> Iterator[None]:
    yield
    with contextlib.suppress(RuntimeFailure):
        nd.waitall()


def test_a_pull_of_several_arrays_is_one_operation() -> None:
    kv = store_of(v=nd.ones((2, 3)), w=nd.ones(4))
    into = [nd.zeros((2, 3)), [nd.zeros(4), nd.zeros(4)]]
    for _ in range(2):  # the second pull finds the stored arrays
        assert operations(lambda: kv.pull(["v", "w"], into)) == {"pull": 1}
    assert into[0].asnumpy().tolist() == [[1] * 3] * 2
    assert into[1][1].asnumpy().tolist() == [1] * 4
    assert operations(lambda: kv.pull(["v", "w"], [into[0], into[1][0]])) == {"pull": 1}


def test_a_push_of_several_keys_is_one_operation() -> None:
    kv, g = store_of(v=nd.ones(2), w=nd.full((3,), 2.0)), [nd.ones(2), nd.ones(3)]
    kv.set_updater(descend)
    for _ in range(2):
        assert operations(lambda: kv.push(["v", "w"], g)) == {"push": 1}
    assert kv.pull("w").tolist() == [1] * 3
    plain = store_of(v=nd.zeros(2), w=nd.zeros(3))
    assert operations(lambda: plain.push(["v", "w"], g)) == {"push": 1}
    assert plain.pull("w").tolist() == [1] * 3


def test_a_push_of_large_arrays_is_several_operations() -> None:
    keys = ["u", "v", "w"]
    kv, g = store_of(**{k: nd.zeros(1 << 20) for k in keys}), nd.ones(1 << 20)
    kv.set_updater(descend)
    assert operations(lambda: kv.push(keys, [g] * 3)) == {"push": 2}
    assert [kv.pull(k)[-1] for k in keys] == [-0.5] * 3


def test_values_of_devices_are_added_by_the_engine() -> None:
    kv, g = store_of(w=nd.zeros(3)), nd.ones(3)
    assert operations(lambda: kv.push("w", [g, g, g])) == {"Add": 2, "push": 1}
    assert kv.pull("w").tolist() == [3] * 3
    assert operations(lambda: kv.push("w", g)) == {"push": 1}
    assert operations(lambda: kv.pushpull("sum", [g, g], [nd.zeros(3), nd.zeros(3)])) == {"pushpull": 1}


def test_a_failed_operation_of_a_push_is_that_of_its_key_only() -> None:
    kv, g = store_of(u=nd.ones(3), v=nd.ones(3), w=nd.ones(3)), nd.ones(3)

    def update(key: str, gradient: Any, weight: Any) -> None:
        weight -= 0.5 * (failing() if key == "v" else gradient)

    kv.set_updater(update)
    kv.push(["u", "v", "w"], [g, g, g])
    with pytest.raises(RuntimeFailure, match="Gather: gather"):
        kv.wait("v")
    assert kv.pull("u", nd.zeros(3)).asnumpy().tolist() == [0.5] * 3
    assert kv.pull("w", nd.zeros(3)).asnumpy().tolist() == [0.5] * 3


def test_an_updater_may_read_elements() -> None:
    kv, g, read = store_of(v=nd.ones(2), w=nd.ones(2)), nd.ones(2), []

    def update(key: str, gradient: Any, weight: Any) -> None:
        descend(key, gradient, weight)
        read.append(weight.asnumpy().tolist())

    kv.set_updater(update)
    kv.push(["v", "w"], [g, g])
    assert read == [[0.5] * 2] * 2


def test_a_thread_reads_what_an_updater_has_computed() -> None:
    kv, g, read = store_of(w=nd.ones(2)), nd.ones(2), []

    def update(key: str, gradient: Any, weight: Any) -> None:
        made = gradient * 3.0

        def read_it() -> None:
            read.append(made.asnumpy().tolist())
            made.__iadd__(1.0)  # an operation of another thread, after that of this one

        other = threading.Thread(target=read_it)
        other.start()
        other.join()
        weight -= made

    kv.set_updater(update)
    kv.push("w", g)
    assert read == [[3.0] * 2]
    assert kv.pull("w").tolist() == [-3.0] * 2


def test_the_updater_gets_arrays_of_the_kind_that_was_pushed() -> None:
    kv, kinds = store_of(w=nd.zeros(3)), []
    kv.set_updater(lambda key, pushed, stored: kinds.append((key, type(pushed), type(stored))))
    kv.push("w", nd.ones(3))
    kv.push("w", np.ones(3, np.float32))
    kv.push("w", [nd.ones(3), np.ones(3, np.float32)])
    kv.push("w", gk.kvstore.RowSparse([0], np.ones(1, np.float32)))
    assert kinds == [
        ("w", nd.NDArray, nd.NDArray), *[("w", np.ndarray, np.ndarray)] * 2, ("w", gk.kvstore.RowSparse, np.ndarray)
    ]  # fmt: skip


@pytest.mark.parametrize("optimizer", [False, True])
def test_push_and_pull_return_before_the_value_is_computed(optimizer: bool) -> None:
    kv, into = store_of(w=nd.ones(3)), nd.zeros(3)
    if optimizer:
        kv.set_optimizer(gk.optim.SGD(0.5))
    else:
        kv.set_updater(descend)
    with late(4) as g:
        kv.push("w", g)
        kv.pull("w", into)
        assert kv.pushpull("w", nd.full((3,), 2.0), into) is into
    assert into.asnumpy().tolist() == [-2] * 3


@pytest.mark.parametrize("optimizer", [False, True])
def test_the_error_of_a_pushed_array_names_its_operator_at_the_next_wait(optimizer: bool) -> None:
    kv, into = store_of(w=nd.ones(3), v=nd.ones(3)), nd.zeros(3)
    if optimizer:
        kv.set_optimizer(gk.optim.SGD(0.5))
    else:
        kv.set_updater(descend)
    kv.push(["w", "v"], [failing(), nd.ones(3)])
    kv.push("w", nd.ones(3))
    kv.pull("w", into)
    waits = (into.asnumpy, kv.wait, kv.barrier, lambda: kv.wait("w"), lambda: kv.pull(["v", "w"]))
    for wait in (*waits, lambda: kv.row_sparse_pull("w", [0]), lambda: kv.push("w", np.ones(3, np.float32))):
        with pytest.raises(RuntimeFailure, match=r"Gather: .*index 5 .* is outside axis 0"):
            wait()
    kv.wait("v")
    assert kv.pull("v").tolist() == [0.5] * 3
    kv.set_updater(lambda key, pushed, stored: stored.__setitem__(slice(None), pushed))
    kv.push("w", nd.full((3,), 7.0))
    assert kv.pull("w", into).asnumpy().tolist() == [7] * 3


def test_the_error_of_an_optimizer_names_the_key() -> None:
    class Rate(gk.optim.SGD):
        def rate(self, step: int) -> float:
            raise ValueError("no rate")

    kv = store_of(w=nd.ones(3))
    kv.set_optimizer(Rate(0.5))
    kv.push("w", nd.ones(3))
    with pytest.raises(ValueError, match="no rate") as caught:
        kv.wait("w")
    assert "update of key 'w'" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("optimizer", [False, True])
@pytest.mark.parametrize("limit", ["_AHEAD_OPERATIONS", "_AHEAD_BYTES"])
def test_pushes_without_waits_do_not_fill_memory(optimizer: bool, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kv, settled = store_of(w=nd.ones(3)), []
    if optimizer:
        kv.set_optimizer(gk.optim.SGD(0.5))
    nd.waitall()
    monkeypatch.setattr(array_queue, limit, 100)
    monkeypatch.setattr(queue(), "settle", lambda: settled.append(queue().pending))
    with late(4) as g:
        for _ in range(110):
            kv.push("w", g)
    assert settled
    assert settled[0] <= 102


def test_later_changes_of_arrays_do_not_reach_the_store() -> None:
    kv, w, g = store_of(w=nd.ones(3)), nd.zeros(3), nd.ones(3)
    with late(2) as first:
        kv.push("w", first)
        kv.pull("w", w)
        first += 5
        w += 10
        kv.pull("w", g)
    kv.push("w", nd.full((3,), 3.0))
    assert (w.asnumpy().tolist(), g.asnumpy().tolist(), kv.pull("w").tolist()) == ([12] * 3, [2] * 3, [3] * 3)


def test_numpy_and_engine_take_turns_on_a_key() -> None:
    kv, into = store_of(w=np.ones(3, np.float32)), nd.zeros(3)
    kv.set_updater(descend)
    with late(2) as g:
        kv.push("w", g)
        thread = threading.Thread(target=kv.push, args=("w", np.full(3, 4, np.float32)))
        thread.start()
    thread.join(60)
    kv.push("w", g)
    kv.pull("w", into)
    assert (into.asnumpy().tolist(), kv.pull("w").tolist()) == ([-3] * 3, [-3] * 3)
    store = store_of(w=nd.ones(3))
    store.push("w", nd.ones(3))
    store.push("w", np.full(3, 5, np.float32))
    store.pull("w", into)
    assert into.asnumpy().tolist() == [5] * 3


def test_a_push_of_numpy_elements_waits_for_readers_of_the_value() -> None:
    kv, held, x = store_of(w=nd.ones(3)), [], nd.full((3,), 2.0)
    kv.set_updater(lambda key, pushed, stored: held.append(stored))
    kv.push("w", x)
    x.attach_grad()
    with nd.record():
        y = nd.hybridize(lambda a, b: a * b)(x, held[0])  # computed when it is read
    kv.set_updater(descend)
    kv.push("w", np.full(3, 8, np.float32))
    assert y.asnumpy().tolist() == [2] * 3
    with pytest.raises(UsageError, match="was written after it was recorded"):
        y.backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "complex64"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("shape", [(), (2, 5)])
def test_sums_have_the_bits_of_a_store_of_numpy_arrays(dtype: str, count: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    values = [(rng.standard_normal(shape) * 40).astype(kind) for _ in range(count)]
    kv, plain, into = store_of(w=nd.array(values[0], kind)), store_of(w=values[0]), nd.zeros(shape, kind)
    kv.push("w", [nd.array(v, kind) for v in values])
    plain.push("w", values)
    kv.pull("w", into)
    assert (into.dtype, into.shape) == (kind, shape)
    assert into.asnumpy().tobytes() == kv.pull("w").tobytes() == plain.pull("w").tobytes()


def test_an_optimizer_has_the_bits_and_states_of_numpy_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start = {"a": rng.standard_normal((3, 2)).astype(np.float32), "b": np.ones(2), "c": np.float32(3)}
    kv, plain = store_of(**{k: nd.array(v, v.dtype) for k, v in start.items()}), store_of(**start)
    for store in (kv, plain):
        store.set_optimizer(gk.optim.Adam(0.1))
    for _ in range(3):
        given = [np.array(rng.standard_normal(v.shape), v.dtype) for v in start.values()]
        plain.push(list(start), given)
        kv.push(list(start), [nd.array(g.T, g.dtype).T for g in given])
    for name, store in (("nd", kv), ("np", plain)):
        store.save_optimizer_states(tmp_path / name)
    assert (tmp_path / "nd").read_bytes() == (tmp_path / "np").read_bytes()
    for found, expected in zip(kv.pull(list(start)), plain.pull(list(start)), strict=True):
        assert found.tobytes() == expected.tobytes()
    kv.load_optimizer_states(tmp_path / "np")


def test_several_threads_push_to_one_key() -> None:
    kv = store_of(w=nd.zeros(3))

    def add(_key: str, pushed: nd.NDArray, stored: nd.NDArray) -> None:
        found = stored + pushed
        time.sleep(1e-4)  # so that other threads run
        stored[:] = found

    kv.set_updater(add)
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait(60)
        for _ in range(50):
            kv.push("w", nd.ones(3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kv.pull("w").tolist() == [200] * 3


@pytest.mark.parametrize("background", [False, True])
def test_one_call_of_the_updater_at_a_time(background: bool) -> None:
    """A push of numpy arrays waits while the updater runs for another key, on another thread or one of the engine."""
    kv = store_of(a=np.zeros(3), b=np.zeros(3))
    inside, two, running = threading.Event(), threading.Event(), []

    class Updater:
        runs_in_background = background

        def __call__(self, key: str, pushed: np.ndarray, stored: np.ndarray) -> None:
            running.append(key)
            if len(running) > 1:
                two.set()
            inside.set()
            two.wait(0.2)
            running.remove(key)

    kv.set_updater(Updater())
    first = threading.Thread(target=kv.push, args=("a", (nd.ones if background else np.ones)(3, "float64")))
    first.start()
    assert inside.wait(60)
    kv.push("b", np.ones(3))
    first.join(60)
    assert not two.is_set()


def test_a_thread_finds_the_array_that_another_one_made_meanwhile() -> None:
    kv, into = store_of(w=nd.ones(3)), nd.zeros(3)

    class Lock:
        def __enter__(self) -> None:
            kv._lock = before
            kv.push("w", nd.full((3,), 2.0))

        def __exit__(self, *_error: object) -> None:
            return

    before, kv._lock = kv._lock, Lock()
    assert kv.pull("w", into).asnumpy().tolist() == [2] * 3


def test_a_pull_finds_a_value_that_another_thread_replaced_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    kv, into = store_of(w=nd.ones(3)), nd.zeros(3)
    kv.pull("w", into)
    has_type_of = kv._has_type_of

    def then_push(key: str, array: nd.NDArray) -> bool:
        found: bool = has_type_of(key, array)
        monkeypatch.undo()
        kv.push("w", np.full(3, 2, np.float32))
        return found

    monkeypatch.setattr(kv, "_has_type_of", then_push)
    assert kv.pull("w", into).asnumpy().tolist() == [2] * 3


def test_pushes_are_not_recorded() -> None:
    kv, w = store_of(w=nd.ones(3)), nd.full((3,), 4.0)
    kv.set_updater(descend)
    w.attach_grad()
    with nd.record():
        y = w * 2.0
        kv.push("w", w)
        kv.push("w", [y, y, y])
        with pytest.raises(UsageError, match="cannot be written while operations are recorded"):
            kv.pull("w", w)
        assert gk.kvstore.create().pushpull("sum", y, nd.zeros(3, "float64")).asnumpy().tolist() == [8] * 3
    y.backward()
    assert w.grad.asnumpy().tolist() == [2] * 3
    assert kv.pull("w").tolist() == [-13] * 3


@pytest.mark.parametrize("optimizer", [None, gk.optim.SGD(0.5)])
def test_a_hybridized_function_cannot_push(optimizer: Any) -> None:
    kv, g = store_of(w=nd.ones(3)), nd.ones(3)
    if optimizer is not None:
        kv.set_optimizer(optimizer)

    @nd.hybridize
    def f(x: Any) -> Any:
        kv.push("w", g)
        return x * 2.0

    with pytest.raises(UsageError, match="a hybridized function cannot write to arrays"):
        f(nd.ones(3))


def test_wrong_arrays_change_nothing() -> None:
    kv = store_of(v=nd.ones(3), w=nd.ones(3))
    for wrong in (nd.ones(2), nd.ones(3, "float64"), [nd.ones(3), nd.ones(2)]):
        with pytest.raises(InputError, match="key 'w' is float32"):
            kv.push(["v", "w"], [nd.zeros(3), wrong])
    for wrong in (nd.ones(3, "bool"), [nd.ones(3, "bool")] * 2):
        with pytest.raises(InputError, match="a store cannot sum bool"):
            kv.pushpull("b", wrong, nd.ones(3, "bool"))
    with pytest.raises(InputError, match="the array to write to is int32"):
        kv.pushpull("w", nd.ones(3), nd.ones(3, "int32"))
    with pytest.raises(InputError, match="key 'p' is float32"):
        kv.pushpull("p", [nd.ones(3), nd.ones(2)], nd.ones(3))
    assert kv.pull("v").tolist() == [1] * 3


def test_an_array_of_another_dtype_is_pulled_to() -> None:
    kv, into = store_of(w=nd.ones(3)), nd.zeros(3, "float64")
    kv.pull("w", into)
    assert (into.asnumpy().tolist(), into.dtype) == ([1] * 3, np.float64)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_child_of_a_fork_can_push_while_another_thread_did() -> None:
    kv, inside, go = store_of(w=nd.ones(3), v=nd.ones(3)), threading.Event(), threading.Event()

    def updater(key: str, pushed: nd.NDArray, stored: nd.NDArray) -> None:
        if key == "v":
            inside.set()
            assert go.wait(60)
        stored += pushed

    kv.set_updater(updater)
    thread = threading.Thread(target=kv.push, args=("v", nd.ones(3)))
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        kv.push("w", nd.ones(3))
        os._exit(0 if kv.pull("w").tolist() == [2] * 3 else 1)
    go.set()
    thread.join(60)
    assert os.waitpid(child, 0)[1] == 0


def test_an_assignment_of_numpy_elements_copies_them_once() -> None:
    x, value = nd.zeros(1 << 18), np.ones(1 << 18, np.float32)
    tracemalloc.start()
    try:
        x[:] = value
        assert tracemalloc.get_traced_memory()[1] < 1.5 * value.nbytes
    finally:
        tracemalloc.stop()
    assert x.asnumpy().all()
