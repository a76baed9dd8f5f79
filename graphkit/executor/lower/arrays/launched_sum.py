"""Sums over processes that a device launches itself, on a queue beside the program's: nothing waits for the host.

All processes launch their sums in one order, that of the graph, whatever the order of steps in each of them: a sum
whose operands are there waits for those before it. So programs of other sizes, whose steps lie otherwise, go together.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphkit.errors import NotFinite
from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep
from graphkit.executor.devices.capabilities import streams_of
from graphkit.executor.devices.device import Device, address_of
from graphkit.executor.lower.lowering import DeviceSums
from graphkit.executor.lower.python_step import PythonStep
from graphkit.ir.graph import Node
from graphkit.ops.internal.collective import AllReduceStart
from graphkit.ops.internal.sharded import AllGatherStart, ReduceScatterStart

Start: TypeAlias = AllReduceStart | ReduceScatterStart | AllGatherStart


class LaunchedSum(PythonStep):
    """A step of a device that begins sums, or waits for those of `keys`. `prepared` makes its kernel for one instance
    of a program, whose steps share a SumQueue.
    """

    def __init__(
        self,
        sums: DeviceSums,
        prepared: Callable[[Device, SumQueue], ArrayKernel],
        keys: Sequence[str] = (),
        inplace: Sequence[tuple[int, int]] = (),
    ):
        super().__init__("nccl")
        self.sums, self.prepared, self.keys, self.inplace = sums, prepared, keys, inplace


class Progress(NamedTuple):
    """How far a run has come: how many sums are launched, and which wait for those before them."""

    launched: int
    ready: Mapping[str, Callable[[], None]]


class SumQueue:
    """The sums of one instance of a program, whose work is on `stream`. Runs of it follow each other.

    nodes: what begins a sum, in the graph's order. steps: of the program, as (key, None) for what begins a sum and
    (None, keys) for what waits for sums, in their order.
    """

    def __init__(
        self, device: Device, stream: Any, sums: DeviceSums, nodes: Sequence[Node], steps: Sequence[tuple[Any, Any]]
    ):
        self._streams, self._stream, self._sums = streams_of(device), stream, sums
        self._beside = self._streams.stream()
        self._order = _order([_key(node) for node in nodes], steps)
        of = {_key(node): node for node in nodes}
        self._name = _named([of[key] for key in self._order])
        self._nbytes = sum(v.tensor.nbytes for node in nodes for v in node.outputs)
        self._place = {key: number for number, key in enumerate(self._order)}
        self._begun, self._launched = False, 0
        self._is_recorded = False
        self._ready: dict[str, Callable[[], None]] = {}
        # Behind each sum that the program's stream does not follow yet.
        self._points: dict[str, Any] = {}
        self._recording, self._structure = 0, 0

    # --- a run --------------------------------------------------------------------------------------------------

    def describe(self, recordings: Iterable[Iterable[str]]) -> None:
        """Which sums are recorded together, and come before what may fail."""
        with_sums = [keys for keys in map(list, recordings) if keys]
        self._structure = zlib.crc32(repr(with_sums).encode()) % (2**20 - 1) + 1

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Around a run: who leaves it while others take part in its sums tells them so. What is not finite, in sums,
        all find alike.
        """
        self._begun, self._launched = False, 0
        self._ready, self._points = {}, {}
        try:
            yield
        except NotFinite:
            raise
        except BaseException as error:
            if self._begun and self._launched < len(self._order):
                self._sums.fail(error)
            raise

    def meet(self, known: bool) -> tuple[bool, bool]:
        """Whether the run is recorded or replayed, and whether anew. known: this process could."""
        self._recording = self._recording if known else 0
        met = self._sums.meet(self._name, self._nbytes, known, self._recording, self._structure)
        self._begun = True
        anew = met.known and not met.recording
        self._recording = (met.fresh if anew else met.recording) if met.known else 0
        return met.known, anew

    def begin(self, key: str, launch: Callable[[], None]) -> None:
        """What a sum needs is there, once the program's stream has come here: launch it behind those before it."""
        self._ready[key] = launch
        while self._launched < len(self._order) and (key := self._order[self._launched]) in self._ready:
            here = self._streams.event()
            with self._streams.on(self._beside):
                self._streams.wait_for(here)
                self._ready.pop(key)()
                self._points[key] = self._streams.event()
            self._launched += 1

    def follow(self, keys: Sequence[str]) -> None:
        """What comes next on the program's stream comes behind these sums.

        What is not recorded is waited for: a call for more work than a stream holds would wait for ever behind a sum in
        which another process takes no part.
        """
        known = [key for key in keys if key in self._points]
        if known:
            # What is beside the stream is in order: the last one is behind all of them.
            self._streams.wait_for(self._points[max(known, key=self._place.__getitem__)])
        for key in known:
            del self._points[key]
        if known and not self._is_recorded:
            self.wait()

    def join(self) -> None:
        """The same of all sums that were launched: points of a recording are for no other."""
        self.follow([*self._points])

    @property
    def joined(self) -> BoundStep:
        """The last step of a recording."""
        return BoundStep(_Joins(self), (), (), None)

    def wait(self) -> None:
        """Wait for all work of the program's stream. Raises as `DeviceSums.wait` does."""
        self._sums.wait(partial(self._streams.done, self._stream))

    def has_ended(self) -> bool:
        """Wait, and return whether all work is done: it may not be if other processes were given up."""
        self.wait()
        return self._streams.done(self._stream)

    @property
    def is_broken(self) -> bool:
        """Whether other processes were given up."""
        return self._sums.broken

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What is queued meanwhile is recorded."""
        self._is_recorded = True
        try:
            yield
        finally:
            self._is_recorded = False

    @property
    def progress(self) -> Progress:
        return Progress(self._launched, dict(self._ready))

    def resume(self, progress: Progress) -> None:
        """A recording has been replayed, behind which the run is so far."""
        self._launched, self._ready = progress.launched, dict(progress.ready)


def _key(node: Node) -> str:
    assert isinstance(node.op, Start), "it begins a sum"
    return node.op.key


def _order(keys: Sequence[str], steps: Sequence[tuple[Any, Any]]) -> Sequence[str]:
    """These keys; or, where a step would wait for a sum that is launched behind it, the order of the steps."""
    launched, ready = 0, set()
    for begun, awaited in steps:
        if begun is not None:
            ready.add(begun)
            while launched < len(keys) and keys[launched] in ready:
                launched += 1
        elif not set(awaited) <= {*keys[:launched]}:
            return [key for key, _ in steps if key is not None]
    return keys


def _named(nodes: Sequence[Node]) -> str:
    """A short name of an order of sums, of these types."""
    described = "; ".join(f"{node.op.name} {_key(node)} {[str(v.type) for v in node.outputs]}" for node in nodes)
    return f"{len(nodes)} in the order {hashlib.blake2b(described.encode(), digest_size=4).hexdigest()}"


class _Joins:
    """Has the program follow all sums that were launched."""

    can_be_recorded = True

    def __init__(self, queue: SumQueue):
        self._queue = queue

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._queue.join()


class LaunchedStart:
    """Begins a sum of arrays in the place of its results, which are its operands' first."""

    can_be_recorded = True

    def __init__(self, device: Device, queue: SumQueue, node: Node, launch: Callable[[Sequence[Any]], None]):
        self._device, self._queue, self._node, self._launch = device, queue, node, launch
        # In the place of results that nobody reads here: the others sum them.
        self._own: dict[int, Any] = {}

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        totals = [self._owned(i, x) if y is None else y for i, (x, y) in enumerate(zip(inputs, outputs, strict=True))]
        for x, total in zip(inputs, totals, strict=True):
            if address_of(x) != address_of(total):
                self._device.copy_across(x, total)
        self._queue.begin(_key(self._node), partial(self._launch, totals))

    def _owned(self, index: int, like: Any) -> Any:
        if index not in self._own:
            memory = self._device.alloc(like.nbytes)
            self._own[index] = self._device.view(memory, 0, like.shape, like.dtype)
        return self._own[index]


class LaunchedGather:
    """Begins to make vectors of every process's pieces of them."""

    can_be_recorded = True

    def __init__(self, device: Device, queue: SumQueue, node: Node, launch: Callable[[Sequence[Any]], None]):
        assert isinstance(node.op, AllGatherStart), "it gathers"
        self._device, self._queue, self._op, self._launch = device, queue, node.op, launch

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        assert all(whole is not None for whole in outputs), "every array is read"
        for piece, of, begin, end in zip(inputs, self._op.of, self._op.begins, self._op.ends, strict=True):
            self._device.copy_across(piece, outputs[of][begin:end])
        self._queue.begin(self._op.key, partial(self._launch, outputs))


class LaunchedWait:
    """Has the program follow sums, and says so by a 0."""

    can_be_recorded = True

    def __init__(self, device: Device, queue: SumQueue, keys: Sequence[str]):
        self._device, self._queue, self._keys = device, queue, keys
        self._zero = device.copy_in(np.zeros((), np.int64))

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._queue.follow(self._keys)
        for done in outputs:
            if done is not None:
                self._device.copy_across(self._zero, done)
