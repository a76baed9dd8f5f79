"""What a device with memory of its own has to offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep, Recorded
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops.xp import Namespace


def address_of(array: Any) -> int:
    """Where an array of the host's, or of a card's, begins."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    address: int = interface["data"][0]
    return address


# Arrays of fewer bytes are brought to a device when a run begins, several in one copy; others may be sent ahead of it.
SMALL_BYTES = 1 << 16


class Device(Protocol):
    """What a device with arrays of its own has to offer. `xp` makes and computes arrays, on the current stream."""

    name: str

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's number for what a card can do, as (9, 0)."""
        ...

    @property
    def xp(self) -> Namespace: ...

    def supports(self, dtype: DType) -> bool:
        """Whether an array can have such elements."""
        ...

    def stored(self, dtype: DType) -> np.dtype | None:
        """By which element type arrays hold such elements: their own, or bits that kernels alone know; None for what no
        array holds.
        """
        ...

    def stream(self) -> Any:
        """A new queue, whose work is done in order."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside the block, work of this thread goes to that queue."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Wait for all work of a queue."""
        ...

    def done(self, stream: Any) -> bool:
        """Whether all work of a queue is done; waits for nothing. Raises the device's error where it has given up."""
        ...

    @property
    def has_conditions(self) -> bool:
        """Whether recordings may have steps of `Conditional` kernels."""
        ...

    def record(self, stream: Any, steps: Sequence[Recorded]) -> Callable[[], None]:
        """What queues all at once work with the results of `steps`, which are not run now, one by one. Both for
        the current stream, `stream`. Raises NotRecorded where it refuses.
        """
        ...

    def prepare(self, node: Node, made: Any, fault: Any) -> ArrayKernel:
        """What computes a node of static types; `made` is what the device's factory made for it, None where it has none
        and the node is interpreted. fault: an array of one uint32 that it sets, None for what has no fault.
        """
        ...

    def alloc(self, nbytes: int) -> Any:
        """Memory, aligned for every type."""
        ...

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """The C-contiguous array at an offset in allocated memory, or in that of an array.

        memory: None for an array without elements.
        """
        ...

    def host_memory(self, nbytes: int) -> np.ndarray:
        """Bytes of the host's that are copied from and to at the device's full rate; for memory that is kept. `copy_in`
        reads them when the current stream's work has come to that.
        """
        ...

    def copy_in(self, array: np.ndarray, target: Any = None) -> Any:
        """An array of the device with these elements: `target`, of the same shape and dtype, or a new one. `array` may
        change as soon as this returns, unless it lies in `host_memory`.
        """
        ...

    def copy_across(self, source: Any, target: Any) -> None:
        """Queue the copy of the bytes of an array, of this device or another of the kind, to the beginning of an array
        of this device's. Both are C-contiguous.
        """
        ...

    def copy_to_host(self, source: Any, host: np.ndarray) -> None:
        """Queue the copy of an array's bytes to an array in `host_memory`, of as many. Both are C-contiguous."""
        ...

    def copy_from_host(self, host: np.ndarray, target: Any) -> None:
        """The same in the other direction."""
        ...

    def event(self) -> Any:
        """A mark behind all work that the current stream has been given."""
        ...

    def wait_for(self, event: Any) -> None:
        """Have the current stream go on when the work before an event is done, of any device of the kind. Where that is
        recorded, so is the current stream from now on, until the recorded one waits for it.
        """
        ...

    def send_ahead(self, array: np.ndarray) -> None:
        """Begin to copy an array beside what the device computes, for the `copy_in` to come, of this array to a target.
        It must not change until then. Any thread may.
        """
        ...

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        """The elements in `out`, which is C-contiguous, or in a new array. Waits for the current stream's work."""
        ...


class Copied:
    """Copies an array to another of as many bytes."""

    can_be_recorded = True

    def __init__(self, device: Device):
        self._device = device

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._device.copy_across(inputs[0], outputs[0])

    def step(self, source: Any, target: Any) -> BoundStep:
        return BoundStep(self, [source], [target], None)
