"""Copies to the host's memory and back in programs of devices with memory of their own, on a queue beside the steps.

All of a program are in one order, that of its steps, so that what comes back has arrived there before. See
`graphkit.executor.memory.swapping` for which values are copied, and when a step waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from graphkit.executor.devices.device import ArrayKernel, BoundStep, Device
from graphkit.executor.lower.python_step import PythonStep
from graphkit.ir.graph import Node, Value
from graphkit.ops.internal.swap import SwapOut


class SwapStep(PythonStep):
    """A step that begins a copy to the host's memory, or back. `prepared` makes its kernel for one instance of a
    program, whose steps share a SwapQueue."""

    def __init__(self, node: Node):
        super().__init__("swap")
        self._node = node

    def prepared(self, device: Device, queue: SwapQueue) -> ArrayKernel:
        copy = device.copy_to_host if isinstance(self._node.op, SwapOut) else device.copy_from_host
        return _Begins(queue, self._node.output, copy)


class SwapQueue:
    """The copies of one instance of a program. Runs of it follow each other."""

    def __init__(self, device: Device):
        self._device = device
        self._beside = device.stream()
        # Behind each copy that the program's stream does not follow yet, in their order.
        self._points: dict[Value, Any] = {}

    def begin(self, value: Value, copy: Callable[[], None]) -> None:
        """Queue a copy behind what the program's stream has come to."""
        here = self._device.event()
        with self._device.on(self._beside):
            self._device.wait_for(here)
            copy()
            self._points[value] = self._device.event()

    def follow(self, values: Iterable[Value]) -> None:
        """What comes next on the program's stream comes behind the copies of these."""
        wanted = {value for value in values if value in self._points}
        if not wanted:
            return
        begun = [*self._points]
        last = max(map(begun.index, wanted))
        self._device.wait_for(self._points[begun[last]])
        for value in begun[: last + 1]:
            del self._points[value]

    def join(self) -> None:
        """The same of all copies: points of a recording are for no other."""
        self.follow([*self._points])

    def awaits(self, values: Sequence[Value]) -> BoundStep:
        """The step that follows these."""
        return BoundStep(_Follows(partial(self.follow, values)), (), (), None)

    @property
    def joined(self) -> BoundStep:
        """The last step of a recording."""
        return BoundStep(_Follows(self.join), (), (), None)

    def settle(self) -> None:
        """Wait for all copies, also those of a run that was given up."""
        self._points.clear()
        self._device.synchronize(self._beside)


class _Follows:
    """Has the program's stream follow copies."""

    can_be_recorded = True

    def __init__(self, follow: Callable[[], None]):
        self._follow = follow

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._follow()


class _Begins:
    """Begins a copy from a value's memory to another."""

    can_be_recorded = True

    def __init__(self, queue: SwapQueue, value: Value, copy: Callable[[Any, Any], None]):
        self._queue, self._value, self._copy = queue, value, copy

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._queue.begin(self._value, partial(self._copy, inputs[0], outputs[0]))
