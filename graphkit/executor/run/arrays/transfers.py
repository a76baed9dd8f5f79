"""Copies of small arrays between host and device through pinned memory.

One copy sends all small inputs of a run. The host waits once for all small results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from graphkit.executor.devices.capabilities import SMALL_BYTES, pinned_memory_of, streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import array_at
from graphkit.executor.memory.resident import arrays_in, host_arrays, packed_offsets
from graphkit.ir.graph import Value

# The largest total size for one instance of a program and one direction. Other arrays are copied one by one.
_MOST_BYTES = 1 << 20


class SmallInputs:
    """Small inputs, packed into one block of device memory, and a block of pinned memory with the same layout.

    `arrays` are the inputs in the device's memory.
    """

    def __init__(self, device: Device, values: Iterable[Value]):
        self._pinned = pinned_memory_of(device)
        chosen = [*_small(values)]
        *begins, nbytes = packed_offsets(chosen)
        self._host = self._pinned.host_memory(nbytes)
        self._given = dict(zip(chosen, arrays_in(self._host, chosen), strict=True))
        memory = device.alloc(nbytes)
        self._memory = device.view(memory, 0, (nbytes,), np.dtype(np.uint8))
        self.arrays = {
            value: array_at(device, memory, at, value.tensor) for value, at in zip(chosen, begins, strict=True)
        }
        self._is_new = False

    def put(self, value: Value, array: np.ndarray) -> None:
        """Set an input for the next `send`. The previous copy must have ended."""
        given = self._given[value]
        np.copyto(given, array.reshape(given.shape))
        self._is_new = True

    def send(self) -> None:
        """Queue the copy of all inputs. Those that were not set keep their values."""
        if self._is_new:
            self._pinned.copy_from_host(self._host, self._memory)
            self._is_new = False


class SmallResults:
    """Results in planned memory that are copied to pinned memory, and waited for once."""

    def __init__(self, device: Device, stream: Any, values: Iterable[Value]):
        self._pinned, self._streams, self._stream = pinned_memory_of(device), streams_of(device), stream
        chosen = [*_small(dict.fromkeys(values))]
        self._arrived = dict(zip(chosen, host_arrays(device, chosen), strict=True))
        self._sent: set[Value] = set()
        self._waits = False

    def __contains__(self, value: Value) -> bool:
        return value in self._arrived

    def begin(self) -> None:
        """Start a run: nothing is sent yet."""
        self._sent.clear()

    def send(self, value: Value, array: Any) -> None:
        """Queue the copy of a value, once in a run."""
        if value not in self._sent:
            self._pinned.copy_to_host(array, self._arrived[value])
            self._sent.add(value)
            self._waits = True

    def array(self, value: Value, out: np.ndarray | None) -> np.ndarray:
        """Return a value that was sent, in `out` or in a new array."""
        if self._waits:
            self._streams.synchronize(self._stream)
            self._waits = False
        arrived = self._arrived[value]
        if out is None:
            return arrived.copy()
        np.copyto(out, arrived)
        return out


def _small(values: Iterable[Value]) -> Iterator[Value]:
    left = _MOST_BYTES
    for value in values:
        nbytes = value.tensor.nbytes
        if 0 < nbytes < SMALL_BYTES and nbytes <= left:
            left -= nbytes
            yield value
