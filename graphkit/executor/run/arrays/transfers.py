"""Small arrays that go between the host and a device, by way of memory of the host that is copied from and to without a
wait: inputs of a run all in one copy, results with one wait for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from graphkit.executor.devices.capabilities import SMALL_BYTES, pinned_memory_of, streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import laid
from graphkit.executor.memory.side_by_side import arrays_in, host_arrays, side_by_side
from graphkit.ir.graph import Value

# Of one instance of a program, for each direction. What comes behind them is copied by itself.
_MOST_BYTES = 1 << 20


class SmallInputs:
    """Inputs side by side in memory of the device, and in the same places of the host's. `arrays`: the device's."""

    def __init__(self, device: Device, values: Iterable[Value]):
        self._pinned = pinned_memory_of(device)
        chosen = [*_small(values)]
        *begins, nbytes = side_by_side(chosen)
        self._host = self._pinned.host_memory(nbytes)
        self._given = dict(zip(chosen, arrays_in(self._host, chosen), strict=True))
        memory = device.alloc(nbytes)
        self._memory = device.view(memory, 0, (nbytes,), np.dtype(np.uint8))
        self.arrays = {value: laid(device, memory, at, value.tensor) for value, at in zip(chosen, begins, strict=True)}
        self._is_new = False

    def put(self, value: Value, array: np.ndarray) -> None:
        """Have this be an input from the next `send` on. What was sent before has arrived."""
        given = self._given[value]
        np.copyto(given, array.reshape(given.shape))
        self._is_new = True

    def send(self) -> None:
        """Queue the copy of all that was put; those that were not are what they were before."""
        if self._is_new:
            self._pinned.copy_from_host(self._host, self._memory)
            self._is_new = False


class SmallResults:
    """Values that are copied to the host's memory together, and waited for once. They lie in planned memory."""

    def __init__(self, device: Device, stream: Any, values: Iterable[Value]):
        self._pinned, self._streams, self._stream = pinned_memory_of(device), streams_of(device), stream
        chosen = [*_small(dict.fromkeys(values))]
        self._arrived = dict(zip(chosen, host_arrays(device, chosen), strict=True))
        self._sent: set[Value] = set()
        self._waits = False

    def __contains__(self, value: Value) -> bool:
        return value in self._arrived

    def begin(self) -> None:
        """Another run: nothing was sent."""
        self._sent.clear()

    def send(self, value: Value, array: Any) -> None:
        """Queue the copy of a value, once in a run."""
        if value not in self._sent:
            self._pinned.copy_to_host(array, self._arrived[value])
            self._sent.add(value)
            self._waits = True

    def array(self, value: Value, out: np.ndarray | None) -> np.ndarray:
        """A value that was sent, in `out` or on its own."""
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
