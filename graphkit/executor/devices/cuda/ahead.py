"""Prefetch: copy host arrays to a GPU while it computes, through pinned memory, on a separate stream."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Protocol

import numpy as np

from graphkit.executor.devices.capabilities import SMALL_BYTES, PinnedMemory, Streams
from graphkit.executor.devices.device import Device, address_of
from graphkit.named_tuples import NamedTuple

# The largest number of arrays that were sent and not yet read. If there are more, the oldest one is dropped.
MOST_SENT = 16


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Wait until the work has reached it."""
        ...


class CopyingDevice(Device, Streams, PinnedMemory, Protocol):
    """A device that copies while it computes."""


class _Slot:
    """A pair of buffers, in pinned memory and on the device, and the events after which they can be overwritten."""

    def __init__(self, device: CopyingDevice, nbytes: int):
        self.host = device.host_memory(nbytes)
        self.array = device.view(device.alloc(nbytes), 0, (nbytes,), np.dtype(np.uint8))
        self.sent: Event | None = None
        self.read: Event | None = None

    def wait(self) -> None:
        """Wait for all copies. Memory that is freed earlier might be reused at once."""
        for event in (self.sent, self.read):
            if event is not None:
                event.synchronize()


class _Sent(NamedTuple):
    array: np.ndarray  # kept, so that no other array can get its address
    slot: _Slot


# The address of an array, and its number of bytes.
_Place = tuple[int, int]


class SentAhead:
    """The arrays that were sent and not yet read. Any thread may send and read."""

    def __init__(self, device: CopyingDevice):
        self._device = device
        self._stream: Any = None
        self._sent: OrderedDict[_Place, _Sent] = OrderedDict()
        self._free: list[_Slot] = []
        self._sending, self._lock = threading.Lock(), threading.Lock()

    def send(self, array: np.ndarray) -> None:
        """Start copying an array, which must not change until it is read.

        Does nothing for a small or non-contiguous array, or if there is not enough memory: `Device.copy_in` copies it
        later.
        """
        if array.nbytes < SMALL_BYTES or not array.flags.c_contiguous:
            return
        with self._sending:
            try:
                slot = self._slot(array.nbytes)
            except MemoryError:
                return
            if slot.sent is not None:
                slot.sent.synchronize()
            host = slot.host[: array.nbytes]
            np.copyto(host, array.reshape(-1).view(np.uint8))
            with self._device.on(self._stream):
                if slot.read is not None:
                    self._device.wait_for(slot.read)
                self._device.copy_in(host, slot.array[: array.nbytes])
                slot.sent = self._device.event()
            self._keep(array, slot)

    def _slot(self, nbytes: int) -> _Slot:
        """Return buffers of at least `nbytes`. Raises MemoryError."""
        with self._lock:
            fitting = [slot for slot in self._free if slot.host.nbytes >= nbytes]
            if fitting:
                slot = min(fitting, key=lambda one: one.host.nbytes)
                self._free.remove(slot)
                return slot
            # Free the buffers of sizes that are not used any more.
            left, self._free = self._free, []
        for slot in left:
            slot.wait()
        if self._stream is None:
            self._stream = self._device.stream()
        with self._device.on(self._stream):
            return _Slot(self._device, _with_room(nbytes))

    def _keep(self, array: np.ndarray, slot: _Slot) -> None:
        with self._lock:
            if (forgotten := self._sent.pop(_place(array), None)) is not None:
                self._free.append(forgotten.slot)
            self._sent[_place(array)] = _Sent(array, slot)
            if len(self._sent) > MOST_SENT:
                self._free.append(self._sent.popitem(last=False)[1].slot)

    def read(self, array: np.ndarray, target: Any) -> bool:
        """Queue the copy of a sent array to `target` on the device. Returns False if it was not sent."""
        if not self._sent or array.nbytes < SMALL_BYTES:
            return False
        with self._lock:
            found = self._sent.pop(_place(array), None)
        if found is None:
            return False
        slot = found.slot
        assert slot.sent is not None, "it is kept when it has been sent"
        self._device.wait_for(slot.sent)
        self._device.copy_across(slot.array[: array.nbytes], target)
        slot.read = self._device.event()
        with self._lock:
            self._free.append(slot)
        return True


def _with_room(nbytes: int) -> int:
    """Return `nbytes`, rounded up by at most an eighth, so that the buffer also fits slightly larger arrays."""
    unit = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // unit) * unit


def _place(array: np.ndarray) -> _Place:
    return address_of(array), array.nbytes
