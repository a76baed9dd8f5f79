"""Arrays that stay in the memory of a device between runs."""

from __future__ import annotations

from typing import Any

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

    def fetch(self) -> np.ndarray:
        """A copy on the host, the caller's own."""
        return self.device.copy_out(self.array, None).view(self.dtype)
