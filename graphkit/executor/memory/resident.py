"""Arrays that stay in the memory of a device between runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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


class DeviceValue(NamedTuple):
    """A value on a device, for other programs of the same run.

    `ready` is an event behind the work that computes it; None if that work is done.
    """

    device: Device
    array: Any
    ready: Any

    @property
    def shape(self) -> tuple[int, ...] | None:
        """None of a list."""
        return getattr(self.array, "shape", None)
