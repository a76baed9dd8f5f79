"""Fixtures and settings of all tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

# numpy's matrix library reads this when numpy is imported. Its threads wait in loops, which takes the cores from other
# workers, and most matrices of tests are small.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import ml_dtypes  # noqa: F401 - then numpy knows bfloat16 and the 8-bit floats by name
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cases
from lanes import LaneReport
from signal_handlers import handlers_unchanged
from trimming import pytest_runtest_teardown

__all__ = ["pytest_runtest_teardown"]

# A background job and its children ignore SIGINT by default. Some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads that wait for work leave the cores to other workers. OpenMP reads this when the engine is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Passes check the properties that they promise, in all tests and in processes that tests start.
os.environ.setdefault("GRAPHKIT_CHECK_PASSES", "1")

# A killed process loses nothing that it wrote. Only a power cut would, so tests do not wait for the disk.
os.fsync = lambda descriptor: None

# A process of thousands of tests has many objects that live as long as it does, and by default the collector visits
# them often. `trimming` collects garbage when a process has grown.
gc.set_threshold(20_000, 20, 20)

# Operators that are interpreted if the engine is built without oneDNN.
_OF_ONEDNN = frozenset({
    "ChannelsLastConv", "ChannelsLastConvGradInput", "ChannelsLastConvGradWeight", "ChannelsLastConvTranspose", "Conv",
    "ConvGradInput", "ConvGradWeight", "ConvTranspose", "FusedConv", "FusedMatMul", "Gemm", "MatMul",
})  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _no_threads_of_arrays() -> Iterator[None]:
    """End the threads of gk.nd with each module, because tests of other modules count worker threads."""
    yield
    runtime = sys.modules.get("graphkit.nd.runtime")
    if runtime is not None:
        runtime.stop()


@pytest.fixture(scope="module", autouse=True)
def _handlers_of_signals_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    with handlers_unchanged(request.node.nodeid):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--case", default="*", metavar="PATTERN", help="run only these cases of tests of many cases")


def pytest_configure(config: pytest.Config) -> None:
    cases.excused = only_onednn_is_missing
    cases.selected_pattern = config.getoption("--case")
    config.pluginmanager.register(LaneReport(config), "lane_report")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests first. Leave comparisons with PyTorch to their own lane.

    So no lane depends on whether PyTorch is installed.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if "pytorch" in config.getoption("markexpr"):
        return
    chosen = [item for item in items if item.get_closest_marker("pytorch") is None]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("pytorch")])
        items[:] = chosen


def pytest_collection() -> None:
    """Let sessions of ONNX Runtime have one thread unless a test chooses more.

    By default they have one for each core, which wait for work in loops. Two workers on two cores then spend most of
    their time on that: a graph of small nodes took 30 times as long.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    begin = onnxruntime.InferenceSession.__init__

    @functools.wraps(begin)
    def begin_quietly(self: Any, model: Any, sess_options: Any = None, *arguments: Any, **options: Any) -> None:
        chosen = onnxruntime.SessionOptions() if sess_options is None else sess_options
        chosen.intra_op_num_threads = chosen.intra_op_num_threads or 1
        begin(self, model, chosen, *arguments, **options)

    onnxruntime.InferenceSession.__init__ = begin_quietly


def pytest_collection_finish() -> None:
    """Full collections of garbage need not look at thousands of collected tests each time."""
    gc.collect()
    gc.freeze()


def _has_onednn() -> bool:
    from graphkit.executor.devices.cpu import native

    return native.has_onednn()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("onednn") and not _has_onednn():
        pytest.skip("built without oneDNN")


def only_onednn_is_missing(error: BaseException) -> str:
    """Why a failure under GRAPHKIT_STRICT counts as a skipped test; "" if something else than oneDNN is missing."""
    found = re.search(r"GRAPHKIT_STRICT=1, but these nodes have no native kernel: (.*)", str(error))
    if found is None or _has_onednn() or set(re.findall(r"\((\w+)\)", found[1])) - _OF_ONEDNN:
        return ""
    return "built without oneDNN"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skip a test under GRAPHKIT_STRICT if the engine lacks oneDNN and interprets nothing else."""
    try:
        return (yield)
    except Exception as error:
        if reason := only_onednn_is_missing(error):
            pytest.skip(reason)
        raise


@pytest.fixture
def steps() -> Callable[[Callable[[], Any]], int]:
    """Count the lines of Python that a call executes: a measure of its cost that is the same on a busy machine.

    Loops inside of builtin functions (a search in a list) count as one step.
    """

    def count(function: Callable[[], Any]) -> int:
        total = 0

        def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal total
            total += event in ("call", "line")
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        return total

    return count


@pytest.fixture
def unset_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are zeros: graphs, types and sizes of large networks need no random numbers, and zeros no memory."""

    def zeros(kind: Any, *_: Any) -> np.ndarray:
        made = np.zeros(kind.static_shape, kind.dtype.numpy)
        made.flags.writeable = False  # a Tensor copies arrays that can change, which would touch their memory
        return made

    monkeypatch.setattr("graphkit.frontend.initializers.initialize", zeros)


class _Mailbox:
    """Messages between two ranks under one tag: sent ones, and receivers that wait, both in order."""

    def __init__(self) -> None:
        self.sent: deque[np.ndarray] = deque()
        self.awaited: deque[_Expected] = deque()


class _Post(dict[tuple[int, int, int], _Mailbox]):
    """The mailboxes by sender, receiver and tag. Threads that ask for a new one at the same time get the same one."""

    def __missing__(self, key: tuple[int, int, int]) -> _Mailbox:
        return self.setdefault(key, _Mailbox())


# Seconds that a rank waits for another one.
_PATIENCE = 120.0


class Among:
    """A rank of some threads of one process, as a `Group` of `graphkit.dist`; `parts` has a place for each."""

    def __init__(self, rank: int, parts: list[Any], there: threading.Barrier):
        self.rank, self.size = rank, len(parts)
        self._parts, self._there = parts, there

    def _exchange(self, mine: Any) -> list[Any]:
        self._parts[self.rank] = mine if isinstance(mine, bytes) else mine.copy()  # sums may be written over it
        self._there.wait(_PATIENCE)
        found = list(self._parts)
        self._there.wait(_PATIENCE)
        return found

    def sum_in_first(self, array: np.ndarray) -> np.ndarray | None:
        # Sum in reverse order, because the order of the ranks is not guaranteed.
        total = np.sum(self._exchange(array)[::-1], axis=0, dtype=array.dtype)
        return None if self.rank else total

    def allgather(self, array: np.ndarray) -> np.ndarray:
        return np.stack(self._exchange(array))

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        found = self._exchange(data)
        assert [part.nbytes for part in found] == list(sizes)
        return found

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        return self._exchange(array)[root].copy()


class Rank(Among):
    """A communicator among threads of one process, as `KVStore` takes it."""

    steps = 0
    sent_between_hosts = 0

    def __init__(self, rank: int, parts: list[Any], there: threading.Barrier, post: _Post, levels: Any = None):
        from graphkit.dist.progress.engine import ProgressEngine
        from graphkit.dist.wire.messages import Messages

        super().__init__(rank, parts, there)
        self.levels = levels
        self.local = rank if levels is None else levels.inside.rank
        self.engine, self._post = ProgressEngine(self), post
        self.messages = Messages(self)
        self.post, self.perform, self.flush = self.engine.post, self.engine.perform, self.engine.flush

    def working(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    waiting = running = working

    def doing(self, call: bytes) -> None:
        """Nobody looks."""

    def made_progress(self) -> None:
        """Nobody looks."""

    def lost(self) -> str | None:
        return "another rank has failed" if self._there.broken else None

    def fail(self, reason: str) -> None:
        self.engine.fail(reason)

    def start_send(self, data: np.ndarray, to: int, tag: int) -> Any:
        self._post[self.rank, to, tag].sent.append(data.copy())
        return _Arrived()

    def start_receive(self, data: np.ndarray, source: int, tag: int) -> Any:
        return _Expected(self._post[source, self.rank, tag], data, source)

    def allgather_bytes(self, mine: bytes) -> list[bytes]:
        return self._exchange(mine)

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        total = np.sum(self._exchange(array), axis=0, dtype=array.dtype)
        if out is None:
            return total
        np.copyto(out, total)
        return out

    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        return _Arrived(), self.allreduce(array, out)

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        return self.allreduce(array)[bounds[self.rank] : bounds[self.rank + 1]]


def ranks_on_hosts(size: int, hosts: Sequence[Sequence[int]]) -> tuple[list[Rank], list[threading.Barrier]]:
    """A communicator for each rank, and where they wait for each other. hosts: which ranks each has; none: one."""
    from graphkit.dist.hosts.groups import Levels

    post = _Post()
    there = [threading.Barrier(n) for n in (size, len(hosts) or 1, *map(len, hosts))]
    parts, leading = [None] * size, [None] * len(hosts)
    levels: list[Levels | None] = [None] * size
    for index, host in enumerate(hosts):
        inside = [None] * len(host)
        for place, rank in enumerate(host):
            leaders = None if place else Among(index, leading, there[1])
            firsts = tuple(ranks[0] for ranks in hosts)
            levels[rank] = Levels(Among(place, inside, there[2 + index]), leaders, firsts)
    return [Rank(rank, parts, there[0], post, levels[rank]) for rank in range(size)], there


class _Arrived:
    """A request that is done the second time that it is looked at."""

    def __init__(self) -> None:
        self._looks = 0

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        self._looks += 1
        return self._looks > 1


class _Expected:
    """A request for the next message of a mailbox. If none comes in time, `Test` raises an error."""

    def __init__(self, box: _Mailbox, data: np.ndarray, source: int):
        self._box, self._data, self._source, self._there = box, data, source, False
        self._end = time.monotonic() + _PATIENCE
        box.awaited.append(self)

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        while self._box.sent and self._box.awaited:
            first = self._box.awaited.popleft()
            sent = self._box.sent.popleft()
            first._data[: len(sent)] = sent
            first._there = True
        if not self._there and time.monotonic() > self._end:
            raise TimeoutError(f"rank {self._source} has not sent it in {_PATIENCE:g} s")
        return self._there


@pytest.fixture
def on_ranks() -> Callable[..., list[Any]]:
    """`on_ranks(work, size)`: run `work(store)` on `size` ranks, which are threads; return their results.

    hosts: the ranks of each simulated host.

    If `work` raises an exception of type `ends`, this is the result of the rank, and the others continue. Any other
    exception ends all ranks and is raised.
    """

    def run(
        work: Callable[[Any], Any],
        size: int = 2,
        ends: type[BaseException] | tuple[()] = (),
        hosts: Sequence[Sequence[int]] = (),
    ) -> list[Any]:
        from graphkit.dist.kvstore import KVStore
        from graphkit.dist.transport import Transport

        ranks, there = ranks_on_hosts(size, hosts)
        found: list[Any] = [None] * size
        failed: list[BaseException] = []

        def go(rank: int) -> None:
            try:
                found[rank] = work(KVStore("dist_sync", Transport(ranks[rank])))
            except threading.BrokenBarrierError as error:  # another one failed, or has not come
                failed.append(error)
            except BaseException as error:  # noqa: BLE001 - it is raised again in the thread of the test
                found[rank] = error
                if not isinstance(error, ends):
                    failed.insert(0, error)
                    for barrier in there:
                        barrier.abort()

        threads = [threading.Thread(target=go, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive(), "a rank does not end"
        for rank in ranks:
            _release(rank)
        if failed:
            raise failed[0]
        return found

    return run


def _release(rank: Rank) -> None:
    """Let the threads of the rank end once they have nothing to do. They would keep all that the rank has made."""
    with rank.engine._queue.lock:
        rank.engine._closed = True
        rank.engine._queue.notify()
    rank.messages.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """All below 1024 are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1024:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
