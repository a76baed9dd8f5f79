"""Copies to host memory and back on a separate stream, for devices with their own memory.

Copies are in the order of the steps: a value is on the host before it is copied back.
`graphkit.executor.memory.swapping` decides which values are copied, and when a step waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep
from graphkit.executor.devices.capabilities import pinned_memory_of, streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.python_step import PythonStep
from graphkit.ir.graph import Node
from graphkit.ops.internal.swap import SwapOut


class SwapStep(PythonStep):
    """A step that starts a copy to host memory or back.

    `prepared` makes the kernel for an instance of a program, whose steps share a SwapQueue.
    """

    def __init__(self, node: Node):
        super().__init__("swap")
        self._node = node

    def prepared(self, device: Device, queue: SwapQueue) -> ArrayKernel:
        return queue.copy_kernel(self._node.output, to_host=isinstance(self._node.op, SwapOut))


class SwapQueue:
    """The copies of one instance of a program.

    The key of a copy is the value that it writes, or any other object. Copies with one key must not overlap.
    """

    def __init__(self, device: Device):
        self._streams, self._memory = streams_of(device), pinned_memory_of(device)
        self._copy_stream = self._streams.stream()
        # Events that the program's stream has not waited for, in order. Each marks the end of one copy.
        self._events: dict[Hashable, Any] = {}

    def begin(self, key: Hashable, copy: Callable[[], None]) -> None:
        here = self._streams.event()
        assert key not in self._events, "a copy of this key is pending"
        with self._streams.on(self._copy_stream):
            self._streams.wait_for(here)
            copy()
            self._events[key] = self._streams.event()

    def stream_wait(self, keys: Iterable[Hashable]) -> None:
        """Let later work of the program's stream wait for copies."""
        wanted = {key for key in keys if key in self._events}
        if not wanted:
            return
        started = [*self._events]
        last = max(place for place, key in enumerate(started) if key in wanted)
        self._streams.wait_for(self._events[started[last]])
        for key in started[: last + 1]:
            del self._events[key]

    def join(self) -> None:
        """Call `stream_wait` for all copies.

        Every recording must end with this call: events are valid in one recording only.
        """
        self.stream_wait([*self._events])

    def copy_kernel(self, key: Hashable, *, to_host: bool) -> ArrayKernel:
        """Return the kernel that starts a copy of its operand to its result, one of them in host memory."""
        return _StartCopy(self, key, self._memory.copy_to_host if to_host else self._memory.copy_from_host)

    def copy_step(self, key: Hashable, source: Any, target: Any, *, to_host: bool) -> BoundStep:
        return BoundStep(self.copy_kernel(key, to_host=to_host), [source], [target], None)

    def wait_step(self, keys: Sequence[Hashable]) -> BoundStep:
        return BoundStep(_WaitForCopies(partial(self.stream_wait, keys)), (), (), None)

    @property
    def join_step(self) -> BoundStep:
        """The last step of a recording."""
        return BoundStep(_WaitForCopies(self.join), (), (), None)

    def clear(self) -> None:
        """Forget all copies. Call it at the end of a run, also after an error."""
        self._events.clear()

    def wait(self) -> None:
        self._streams.synchronize(self._copy_stream)


class _WaitForCopies:
    can_be_recorded = True

    def __init__(self, stream_wait: Callable[[], None]):
        self._stream_wait = stream_wait

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._stream_wait()


class _StartCopy:
    can_be_recorded = True

    def __init__(self, queue: SwapQueue, key: Hashable, copy: Callable[[Any, Any], None]):
        self._queue, self._key, self._copy = queue, key, copy

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._queue.begin(self._key, partial(self._copy, inputs[0], outputs[0]))
