"""Errors of kernels on a device. Each kernel that can fail has a word in device memory, and sets it if it fails.

Loops in recordings end once a word is set. One more word lets the host end them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.executor.devices.capabilities import pinned_memory_of, streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import InstanceContext, faulty
from graphkit.executor.lower.failures import repeated_checks
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.run.interruption import uninterrupted
from graphkit.ir import limits

# The limit of iterations that the device gets if the run has no limit.
_ANY = np.iinfo(np.int64).max

# The pause between two checks whether a replayed recording has ended: this fraction of the time since the first check,
# but at most this many seconds.
_PART, _LONGEST_PAUSE = 0.125, 1e-3


class Faults:
    """The words of one instance of a program, all zero if there is no error.

    stream: The stream of the instance, which must be the current one.
    """

    def __init__(self, lowered: LoweredGraph, device: Device, stream: Any):
        self._device, self._streams, self._stream = device, streams_of(device), stream
        place = {index: position for position, index in enumerate(lowered.memory.order)}
        # For each word, the position of a step in the order, and the kernel in that step that sets the word.
        self._of = [(place[index], one) for index, step in enumerate(lowered.steps) for one in faulty(*step)]
        self._repeated = repeated_checks(lowered.placement, lowered.lowerings)
        self._pinned, self._allowed = pinned_memory_of(device), _ANY
        self._words: Any = ()
        self._most: Any = None
        if self._of:
            self._words = device.copy_in(np.zeros(len(self._of) + 1, np.uint32))
            self._found = self._pinned.host_memory(self._words.nbytes).view(np.uint32)
            self._most = device.copy_in(np.full((), self._allowed, np.int64))

    def context(self, *, without_collectives: bool) -> InstanceContext:
        """Return the context of the instance's kernels."""
        return InstanceContext(self._device, self._words, self._most, without_collectives=without_collectives)

    def allow_iterations(self) -> None:
        """Send the current limit of iterations to the device, for recordings that are queued after this call."""
        most = limits.current().iterations
        allowed = _ANY if most is None else min(most, _ANY)
        if allowed != self._allowed:
            self._device.copy_in(np.full((), allowed, np.int64), self._most)
            self._allowed = allowed

    def watch(self) -> None:
        """Wait for a replayed recording. An interrupt, or the time limit of the run (LimitReached), ends its loops."""
        began = time.monotonic()
        try:
            while not self._streams.done(self._stream):
                limits.check_time()
                time.sleep(min(_LONGEST_PAUSE, _PART * (time.monotonic() - began)))
        except BaseException:
            with uninterrupted:
                beside = self._streams.stream()
                with self._streams.on(beside):
                    self._device.copy_in(np.ones(1, np.uint32), self._words[-1:])
                    self._streams.synchronize(beside)
                self._streams.synchronize(self._stream)
                self._device.copy_in(np.zeros(1, np.uint32), self._words[-1:])
            raise

    @property
    def words(self) -> Any:
        """The words on the device: if one is not zero, a kernel has failed, or loops have to end."""
        return self._words

    def can_fail_from(self, position: int) -> bool:
        """Return whether a step at this position of the order, or a later one, can fail."""
        return any(place >= position for place, _ in self._of)

    def can_fail_first_from(self, position: int) -> bool:
        """Return whether a step at this position of the order, or a later one, can be the first step to fail.

        A step cannot if an earlier step checks the same operand values.
        """
        return any(
            place >= position and one.rejects_operands and one.node not in self._repeated for place, one in self._of
        )

    def check(self, wait: Callable[[], None]) -> None:
        """Raise RuntimeFailure for the first step that has failed. Waits for all steps: `wait` is called first."""
        if not self._of:
            return
        wait()
        self._pinned.copy_to_host(self._words, self._found)
        self._streams.synchronize(self._stream)
        if not self._found.any():
            return
        words = self._found[: len(self._of)].copy()
        self._device.copy_in(np.zeros(len(self._found), np.uint32), self._words)
        found = [(place, one, int(word)) for (place, one), word in zip(self._of, words, strict=True) if word]
        _, first, word = min(found, key=lambda one: one[0])
        raise first.failure(first.node, word)
