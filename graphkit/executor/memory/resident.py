"""Arrays that stay in the memory of a device between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device


class Resident:
    """A parameter's or a state's value on a device; runs of that device may write over it. All work on it is done."""

    __slots__ = ("array", "device", "dtype")

    def __init__(self, device: Device, array: Any, dtype: np.dtype):
        """dtype: of the elements; those of the array may be bits."""
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
        """A copy on the host, the caller's own."""
        return self.device.copy_out(self.array, None).view(self.dtype)


class Handed(NamedTuple):
    """What a program of a device has made, or read, for others of the same run. ready: an event of the device; None
    where the array is there.
    """

    device: Device
    array: Any
    ready: Any

    @property
    def shape(self) -> tuple[int, ...] | None:
        """None of a list."""
        return getattr(self.array, "shape", None)
