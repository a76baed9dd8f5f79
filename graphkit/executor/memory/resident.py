"""Arrays in the memory of a device, and the layout of host memory that is copied to or from them at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.executor.devices.capabilities import pinned_memory_of
from graphkit.executor.memory.planner import aligned
from graphkit.ir.graph import Value
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device


class Resident:
    """The value of a parameter or state that stays on a device between runs. Runs on that device may overwrite it.

    All operations on the array are complete.

    Args:
        device: The device.
        array: The array in its memory.
        dtype: Element type of the value. That of `array` may be an integer type of the same size.
    """

    __slots__ = ("array", "device", "dtype")

    def __init__(self, device: Device, array: Any, dtype: np.dtype):
        self.device = device
        self.array = array
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        size: int = self.array.nbytes
        return size

    @property
    def shape(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self.array.shape
        return found

    def fetch(self) -> np.ndarray:
        """Return a new copy in host memory."""
        return self.device.copy_out(self.array, None).view(self.dtype)


class DeviceValue(NamedTuple):
    """A value that one program of a run passes to another in the memory of a device.

    Attributes:
        device: The device.
        array: The array, or a list of arrays.
        ready: The event of the device after which `array` may be read; None if it may be read at once.
    """

    device: Device
    array: Any
    ready: Any

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape, or None for a list."""
        return getattr(self.array, "shape", None)


def packed_offsets(values: Sequence[Value]) -> list[int]:
    """Return the offset of each value in one block of memory that contains all of them, and the size of the block.

    Offsets are aligned as on the CPU, because another process may use CPU programs. All types must be static.
    """
    return list(accumulate((aligned(v.tensor.nbytes) for v in values), initial=0))


def arrays_in(memory: np.ndarray, values: Sequence[Value]) -> list[np.ndarray]:
    """Return arrays for the values at their `packed_offsets` in `memory`.

    memory: Bytes of host memory.
    """
    found = []
    for value, begin in zip(values, packed_offsets(values), strict=False):
        kind = value.tensor
        found.append(memory[begin : begin + kind.nbytes].view(kind.dtype.numpy).reshape(kind.static_shape))
    return found


def host_arrays(device: Device, values: Sequence[Value]) -> list[np.ndarray]:
    """Return new arrays for the values in host memory from which the device copies fastest, such as pinned memory."""
    return arrays_in(pinned_memory_of(device).host_memory(packed_offsets(values)[-1]), values)
