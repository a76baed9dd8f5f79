"""What kernels have met that they cannot compute: a word of the device's for each kernel that may."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import faulty
from graphkit.executor.lower.lowering import LoweredGraph


class Faults:
    """The words of one instance of a program, on the current stream; 0: nothing was met."""

    def __init__(self, lowered: LoweredGraph, device: Device):
        self._device = device
        place = {index: position for position, index in enumerate(lowered.memory.order)}
        # By the number of its word: the position of the step, and the kernel that may set it.
        self._of = [(place[index], one) for index, step in enumerate(lowered.steps) for one in faulty(*step)]
        self._words = device.xp.zeros((len(self._of),), np.uint32)

    def words(self) -> Iterator[np.ndarray]:
        """One for each kernel that takes one, in the order in which the steps' kernels are prepared."""
        return (self._words[number : number + 1] for number in range(len(self._of)))

    def may_come_from(self, position: int) -> bool:
        """Whether a step at this position of the order, or behind it, may set one."""
        return any(place >= position for place, _ in self._of)

    def check(self, settle: Callable[[], None]) -> None:
        """Raise RuntimeFailure for the first step that has met something. Waits for all steps, by `settle` first."""
        if not self._of:
            return
        settle()
        words = self._device.copy_out(self._words, None)
        if not words.any():
            return
        self._device.copy_in(np.zeros(len(words), np.uint32), self._words)
        found = [(place, one, int(word)) for (place, one), word in zip(self._of, words, strict=True) if word]
        _, first, word = min(found, key=lambda one: one[0])
        raise first.kernel.failure(first.node, word)
