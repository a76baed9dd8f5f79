"""Arrays from one process to another: in order, of any size and type, while both continue to compute."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from jobs import finish, start

from graphkit.dist.wire import messages
from graphkit.dist.wire.messages import Kind, Messages
from graphkit.errors import RuntimeFailure

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3), np.array(True), np.zeros((0, 4)), np.arange(5),
    np.ones((2, 2, 2), ml_dtypes.bfloat16), np.arange(12.0).reshape(3, 4).T, np.array([np.nan, np.inf]),
]  # fmt: skip


def kinds(arrays):
    return [Kind(array.dtype, array.ndim) for array in arrays]


@pytest.mark.parametrize("inline", [0, 40, 1 << 20])
@pytest.mark.parametrize("part", [1, 7, 1 << 30])
def test_arrays_arrive_as_they_were(on_ranks, monkeypatch, part, inline):
    monkeypatch.setattr(messages, "_PART", part)
    monkeypatch.setattr(messages, "_INLINE", inline)

    def work(store):
        post, other = store.transport.messages, 1 - store.rank
        post.send(other, ARRAYS)
        post.send(other, [])
        post.send(other, [np.array(store.rank)])
        arrivals = [post.expect(other, k) for k in (kinds(ARRAYS), [], [Kind(np.dtype(int), 0)])]
        found = [post.receive(arrival, "what is sent") for arrival in arrivals]
        post.settle()
        return found

    for rank, (found, nothing, (number,)) in enumerate(on_ranks(work)):
        for array, expected in zip(found, ARRAYS, strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
        assert nothing == []
        assert number == 1 - rank


def test_lanes_do_not_wait_for_each_other(on_ranks):
    def work(store):
        post = store.transport.messages
        if store.rank == 0:
            for lane in (0, 1, 0):
                post.send(1, [np.array(lane)], lane)
            post.settle()
            return None
        arrivals = [post.expect(0, [Kind(np.dtype(int), 0)], lane) for lane in (1, 0, 0)]
        return [int(post.receive(arrival, "a number")[0]) for arrival in arrivals]

    assert on_ranks(work)[1] == [1, 0, 0]


def test_a_value_in_the_place_of_another_one(on_ranks):
    """The error names the value on both sides."""

    def work(store):
        if store.rank == 0:
            store.transport.messages.send(1, [np.array(0)], label=7)
            store.transport.messages.settle()
            return
        arrival = store.transport.messages.expect(0, [Kind(np.dtype(int), 0)], label=8)
        with pytest.raises(RuntimeFailure, match="value 7 of rank 0 arrived instead of value 8"):
            store.transport.messages.receive(arrival, "a number")

    on_ranks(work)


def test_who_has_failed_does_nothing_any_more(on_ranks):
    def work(store):
        store.transport.messages.fail(ValueError("no"), "in a test")
        for call in (
            lambda: store.transport.messages.send(1, []),
            lambda: store.transport.messages.expect(1, []),
            store.barrier,
        ):
            with pytest.raises(RuntimeFailure, match="rank 0 failed in a test: ValueError: no"):
                call()

    def only_the_first(store):
        if store.rank == 0:
            work(store)

    on_ranks(only_the_first)


def test_an_error_of_a_transfer_keeps_its_type_and_cause(on_ranks, monkeypatch):
    class Failing:
        def Test(self):  # noqa: N802 - MPI's name
            raise MemoryError

    def work(store):
        post = store.transport.messages
        monkeypatch.setattr(store.transport.communicator, "start_receive", lambda *_: Failing())
        arrival = post.expect(1 - store.rank, [Kind(np.dtype(int), 0)])
        with pytest.raises(RuntimeFailure, match=r"will not arrive: MemoryError$") as caught:
            post.receive(arrival, "a number")
        assert isinstance(caught.value.__cause__, MemoryError)

    on_ranks(work)


def test_the_thread_ends_with_a_message_still_expected(on_ranks):
    def work(store):
        post = store.transport.messages
        arrival = post.expect(1 - store.rank, [Kind(np.dtype(int), 0)])
        thread = post._thread
        assert thread.is_alive()
        post.close()
        assert not thread.is_alive()
        for call in (lambda: post.receive(arrival, "a number"), lambda: post.send(1 - store.rank, [])):
            with pytest.raises(RuntimeFailure, match=f"rank {store.rank} has closed its connection"):
                call()

    on_ranks(work)


def test_a_job_ends_with_a_message_still_expected():
    code = """
    from graphkit.dist.wire.messages import Kind
    if kv.rank:
        kv.transport.messages.expect(0, [Kind(np.dtype("f4"), 1)])
    kv.barrier()
    """
    status, _, errors = finish(start(2, code))
    assert (status, errors) == (0, "")


def test_no_other_thread_calls_mpi_after_a_stop():
    """Such a call may end the process while MPI_Abort ends it: exit() in two threads crashes."""
    calls = []
    called, go_on = threading.Event(), threading.Event()

    def test():
        calls.append(threading.current_thread())
        called.set()
        go_on.wait(120)
        return False

    links = SimpleNamespace(start_receive=lambda *_: SimpleNamespace(Test=test), made_progress=lambda: None)
    post = Messages(links)
    post.expect(1, [])
    assert called.wait(120)
    assert not post.stop(0.01)  # the call is under way
    go_on.set()
    assert post.stop(30)
    before = len(calls)
    time.sleep(0.05)
    assert len(calls) == before
    assert set(calls) == {post._thread}
    post._condition.release()
    links.rank = 0
    post.close()


def test_threads_that_open_one_mailbox_share_it(on_ranks, monkeypatch):
    """Otherwise `on_ranks` would lose the message of one of them."""
    names = on_ranks.__globals__
    both = threading.Barrier(2)

    class Late(names["_Mailbox"]):
        def __init__(self):
            super().__init__()
            both.wait(120)

    monkeypatch.setitem(names, "_Mailbox", Late)
    post = names["_Post"]()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: post[0, 1, 0], range(2))
    assert first is second


def test_a_message_that_never_comes_is_an_error_with_its_name(on_ranks, monkeypatch):
    monkeypatch.setitem(on_ranks.__globals__, "_PATIENCE", 0.2)

    def work(store):
        if store.rank == 1:
            arrival = store.transport.messages.expect(0, [Kind(np.dtype(int), 0)])
            with pytest.raises(RuntimeFailure, match=r"a number of rank 0 will not arrive: .*rank 0 has not sent it"):
                store.transport.messages.receive(arrival, "a number")

    on_ranks(work)


def test_large_arrays_cross_while_the_sender_computes(jobs, tmp_path):
    """The sender does not call MPI during this time."""
    jobs.run(
        f"""
    import time, numpy as np
    from pathlib import Path
    from graphkit.dist.wire.messages import Kind
    received = Path({str(tmp_path / "received")!r})
    post, array = kv.transport.messages, np.arange(8 << 20, dtype=np.float32)
    kv.barrier()
    if kv.rank == 0:
        post.send(1, [array])
        end = time.monotonic() + 60
        while not received.exists():
            assert time.monotonic() < end, "nothing has crossed"
            time.sleep(0.01)
        post.settle()
    else:
        found = post.receive(post.expect(0, [Kind(array.dtype, 1)]), "an array")[0]
        assert np.array_equal(found, array)
        received.touch()
    """
    )
