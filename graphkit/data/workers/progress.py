"""The state of a worker, in shared memory: the training process can read it at any time, also after the worker died."""

from __future__ import annotations

import mmap
import struct


class Progress:
    """`beats` counts changes of the state. `task` and `sample`: numbers of those in progress; -1 between samples."""

    SIZE = mmap.PAGESIZE
    _FIELDS = struct.Struct("<qqq")

    def __init__(self, memory: mmap.mmap):
        self._memory = memory

    def at(self, task: int, sample: int) -> None:
        self._FIELDS.pack_into(self._memory, 0, self.beats + 1, task, sample)

    def between(self) -> None:
        """Record that no sample is in progress."""
        self.at(-1, -1)

    @property
    def beats(self) -> int:
        return int(self._FIELDS.unpack_from(self._memory)[0])

    @property
    def task(self) -> int:
        return int(self._FIELDS.unpack_from(self._memory)[1])

    @property
    def sample(self) -> int:
        return int(self._FIELDS.unpack_from(self._memory)[2])
