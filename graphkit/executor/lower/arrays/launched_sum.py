"""Collectives of device arrays, launched on a separate stream while the host continues.

All processes must launch their collectives in the same order. The order of steps may differ between ranks with
different shapes, so collectives are launched in the order of the graph: each waits until those before it are launched.
See `_order` for an exception.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import NotFinite
from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep
from graphkit.executor.devices.capabilities import streams_of
from graphkit.executor.devices.device import Device, address_of
from graphkit.executor.lower.collaborators import DeviceSums
from graphkit.executor.lower.python_step import PythonStep
from graphkit.ir.graph import Node
from graphkit.named_tuples import NamedTuple
from graphkit.ops.internal.collective import AllReduceStart
from graphkit.ops.internal.sharded import AllGatherStart, ReduceScatterStart

Start: TypeAlias = AllReduceStart | ReduceScatterStart | AllGatherStart


class LaunchedSum(PythonStep):
    """A step that starts a collective, or waits for the collectives `keys`.

    `prepared` makes its kernel for an instance of a program, whose steps share a SumQueue.
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
    launched: int
    ready: Mapping[str, Callable[[], None]]


class SumQueue:
    """The collectives of one instance of a program.

    Args:
        nodes: The nodes that start collectives, in the order of the graph.
        steps: In order: (key, None) for a step that starts a collective, (None, keys) for a step that waits.
    """

    def __init__(
        self, device: Device, stream: Any, sums: DeviceSums, nodes: Sequence[Node], steps: Sequence[tuple[Any, Any]]
    ):
        self._streams, self._stream, self._sums = streams_of(device), stream, sums
        self._side_stream = self._streams.stream()
        self._order = _order([_key(node) for node in nodes], steps)
        of = {_key(node): node for node in nodes}
        self._order_text = _order_checksum([of[key] for key in self._order])
        self._nbytes = sum(v.tensor.nbytes for node in nodes for v in node.outputs)
        self._place = {key: number for number, key in enumerate(self._order)}
        self._begun, self._launched = False, 0
        self._is_recorded = False
        self._ready: dict[str, Callable[[], None]] = {}
        # Events that the program's stream has not waited for. Each marks the end of one collective.
        self._events: dict[str, Any] = {}
        self._recording, self._structure = 0, 0

    # --- a run --------------------------------------------------------------------------------------------------

    def set_recordings(self, recordings: Iterable[Iterable[str]]) -> None:
        """Set which collectives are recorded together, which must be the same in all processes.

        recordings: A list of texts for each recording. The first text says whether the recording comes after the last
        step that can fail, the others are the keys of its collectives. The list is empty if there are no collectives.
        """
        with_sums = [keys for keys in map(list, recordings) if keys]
        self._structure = zlib.crc32(repr(with_sums).encode()) % (2**20 - 1) + 1

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Context of a run. If the run fails while other processes take part in its collectives, notify them.

        Every process raises NotFinite: it needs no notification.
        """
        self._begun, self._launched = False, 0
        self._ready, self._events = {}, {}
        try:
            yield
        except NotFinite:
            raise
        except BaseException as error:
            if self._begun and self._launched < len(self._order):
                self._sums.fail(error)
            raise

    def agree(self, can_record: bool) -> tuple[bool, bool]:
        """Agree with the other processes on how the next run is executed. Raises as `DeviceSums.agree` does.

        can_record: Whether this process can replay or make a recording of the run.

        Returns:
            Whether all processes record or replay the run; whether they must make a new recording.
        """
        self._recording = self._recording if can_record else 0
        agreed = self._sums.agree(self._order_text, self._nbytes, can_record, self._recording, self._structure)
        self._begun = True
        must_record = agreed.can_record and not agreed.recording
        self._recording = (agreed.fresh if must_record else agreed.recording) if agreed.can_record else 0
        return agreed.can_record, must_record

    def begin(self, key: str, launch: Callable[[], None]) -> None:
        """Launch a collective as soon as all collectives before it are launched.

        The work that computes the operands must already be queued on the program's stream.
        """
        self._ready[key] = launch
        while self._launched < len(self._order) and (key := self._order[self._launched]) in self._ready:
            here = self._streams.event()
            with self._streams.on(self._side_stream):
                self._streams.wait_for(here)
                self._ready.pop(key)()
                self._events[key] = self._streams.event()
            self._launched += 1

    def stream_wait(self, keys: Sequence[str]) -> None:
        """Let later work of the program's stream wait for collectives.

        Outside recordings, the host waits, too. If a process is lost, the collective never ends. A host that did not
        wait would then add work until the queue of the stream is full, and block.
        """
        known = [key for key in keys if key in self._events]
        if known:
            # Collectives run in order: the last event comes after all of them.
            self._streams.wait_for(self._events[max(known, key=self._place.__getitem__)])
        for key in known:
            del self._events[key]
        if known and not self._is_recorded:
            self.wait()

    def join(self) -> None:
        """Call `stream_wait` for all launched collectives.

        Every recording must end with this call: events are valid in one recording only.
        """
        self.stream_wait([*self._events])

    @property
    def join_step(self) -> BoundStep:
        """The last step of a recording."""
        return BoundStep(_WaitForAll(self), (), (), None)

    def wait(self) -> None:
        """Wait for all work of the program's stream. Raises as `DeviceSums.wait` does."""
        self._sums.wait(partial(self._streams.done, self._stream))

    def has_ended(self) -> bool:
        """Wait for all work of the program's stream, and return True. Raises as `wait` does if a process is lost
        meanwhile.

        After an abort, it does not wait: it returns True if the work is done, else False.
        """
        self.wait()
        return self._streams.done(self._stream)

    @property
    def is_broken(self) -> bool:
        return self._sums.broken

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._is_recorded = True
        try:
            yield
        finally:
            self._is_recorded = False

    @property
    def progress(self) -> Progress:
        return Progress(self._launched, dict(self._ready))

    def resume(self, progress: Progress) -> None:
        self._launched, self._ready = progress.launched, dict(progress.ready)


def _key(node: Node) -> str:
    assert isinstance(node.op, Start), "the node starts a collective"
    return node.op.key


def _order(keys: Sequence[str], steps: Sequence[tuple[Any, Any]]) -> Sequence[str]:
    """Return the keys in the order in which collectives are launched.

    This is the order in the graph (`keys`), unless a step would then wait for a collective that is not launched yet. In
    that case, it is the order of the steps.
    """
    launched, ready = 0, set()
    for begun, awaited in steps:
        if begun is not None:
            ready.add(begun)
            while launched < len(keys) and keys[launched] in ready:
                launched += 1
        elif not set(awaited) <= {*keys[:launched]}:
            return [key for key, _ in steps if key is not None]
    return keys


def _order_checksum(nodes: Sequence[Node]) -> str:
    """Return a short text with a checksum of the order and types of collectives."""
    described = "; ".join(f"{node.op.name} {_key(node)} {[str(v.type) for v in node.outputs]}" for node in nodes)
    return f"{len(nodes)} in the order {hashlib.blake2b(described.encode(), digest_size=4).hexdigest()}"


class _WaitForAll:
    can_be_recorded = True

    def __init__(self, queue: SumQueue):
        self._queue = queue

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._queue.join()


class LaunchedStart:
    """Starts an all-reduce or reduce-scatter, after copying the operands into the memory of the results."""

    can_be_recorded = True

    def __init__(self, device: Device, queue: SumQueue, node: Node, launch: Callable[[Sequence[Any]], None]):
        self._device, self._queue, self._node, self._launch = device, queue, node, launch
        # Memory for results that this process does not use: other processes need these sums.
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
    """Starts an all-gather of the pieces that the processes store."""

    can_be_recorded = True

    def __init__(self, device: Device, queue: SumQueue, node: Node, launch: Callable[[Sequence[Any]], None]):
        assert isinstance(node.op, AllGatherStart), "the node starts an all-gather"
        self._device, self._queue, self._op, self._launch = device, queue, node.op, launch

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        assert all(whole is not None for whole in outputs), "every result is used"
        for piece, of, begin, end in zip(inputs, self._op.of, self._op.begins, self._op.ends, strict=True):
            self._device.copy_across(piece, outputs[of][begin:end])
        self._queue.begin(self._op.key, partial(self._launch, outputs))


class LaunchedWait:
    can_be_recorded = True

    def __init__(self, device: Device, queue: SumQueue, keys: Sequence[str]):
        self._device, self._queue, self._keys = device, queue, keys
        self._zero = device.copy_in(np.zeros((), np.int64))

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._queue.stream_wait(self._keys)
        for done in outputs:
            if done is not None:
                self._device.copy_across(self._zero, done)
