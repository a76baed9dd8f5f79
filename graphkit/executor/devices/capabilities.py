"""Protocols that only some devices implement. Code asks by type: `isinstance(device, Recorder)`.

For devices without streams or pinned memory, `streams_of` and `pinned_memory_of` return substitutes. The calls of a
substitute return when the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphkit.executor.devices.bound_steps import Recorded
from graphkit.executor.devices.device import Device

# Smaller inputs are copied when a run begins, several in one copy. Larger ones may be sent ahead of it.
SMALL_BYTES = 1 << 16


@runtime_checkable
class Streams(Protocol):
    """The device queues work, and does the work of one stream in order."""

    def stream(self) -> Any:
        """Return a new stream."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one of this thread, inside the block."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Wait for all work of a stream."""
        ...

    def done(self, stream: Any) -> bool:
        """Return whether all work of a stream is done, without waiting. Raises the device's error if it has failed."""
        ...

    def event(self) -> Any:
        """Return an event recorded after all work that the current stream has so far."""
        ...

    def wait_for(self, event: Any) -> None:
        """Let later work of the current stream wait for an event of any device of the kind.

        If the event belongs to a recording, work of the current stream is recorded from now on, until the stream of the
        recording waits for an event of the current stream.
        """
        ...


@runtime_checkable
class PinnedMemory(Protocol):
    """The device copies from and to pinned memory of the host without waiting."""

    def host_memory(self, nbytes: int) -> np.ndarray:
        """Return pinned bytes, which the caller keeps for many copies.
        `copy_in` does not wait: it reads pinned bytes when the current stream reaches the copy.
        """
        ...

    def copy_to_host(self, source: Any, host: np.ndarray) -> None:
        """Queue the copy of a contiguous array to a contiguous array in pinned memory, with as many bytes."""
        ...

    def copy_from_host(self, host: np.ndarray, target: Any) -> None:
        """Queue the copy in the other direction."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """The device replays recorded steps in one call."""

    def record(self, stream: Any, steps: Sequence[Recorded]) -> Callable[[], None]:
        """Record steps on the current stream, `stream`. They do not run now.

        Returns:
            The function that queues all of them on that stream.

        Raises:
            NotRecorded: The device cannot record these steps.
        """
        ...

    def supports_conditions(self) -> bool:
        """Return whether recordings may contain steps of `Conditional` kernels."""
        ...


@runtime_checkable
class Prefetcher(Protocol):
    """The device copies inputs of a later run while it computes."""

    def send_ahead(self, array: np.ndarray) -> None:
        """Start copying an array for a later `copy_in` of it to a target. It must not change until then.

        Any thread may call it.
        """
        ...


@runtime_checkable
class ReducedPrecision(Protocol):
    """The device computes in other precisions than f32."""

    def check_precision(self, precision: str) -> None:
        """Raise UnsupportedError if the device does not support a precision of `precision.PRECISIONS`."""
        ...


class _AtOnce:
    """Streams of a device whose calls return when their work is done."""

    def stream(self) -> Any:
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronize(self, stream: Any) -> None:
        """Nothing is queued."""

    def done(self, stream: Any) -> bool:
        return True

    def event(self) -> Any:
        return None

    def wait_for(self, event: Any) -> None:
        """Nothing is queued."""


class _OrdinaryMemory:
    """Pinned memory of a device that has none: ordinary arrays, which are copied at once."""

    def __init__(self, device: Device):
        self._device = device

    def host_memory(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def copy_to_host(self, source: Any, host: np.ndarray) -> None:
        self._device.copy_out(source, _as(host, source))

    def copy_from_host(self, host: np.ndarray, target: Any) -> None:
        self._device.copy_in(_as(host, target), target)


def _as(host: np.ndarray, array: Any) -> np.ndarray:
    """Return the bytes of a host array as an array with the shape and dtype of `array`."""
    found: np.ndarray = host.reshape(-1).view(array.dtype).reshape(array.shape)
    return found


_AT_ONCE = _AtOnce()


def streams_of(device: Device) -> Streams:
    """Return the device's streams, or a substitute if its calls return when their work is done."""
    return device if isinstance(device, Streams) else _AT_ONCE


def pinned_memory_of(device: Device) -> PinnedMemory:
    """Return the device's pinned memory, or a substitute with ordinary memory."""
    return device if isinstance(device, PinnedMemory) else _OrdinaryMemory(device)
