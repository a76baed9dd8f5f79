"""Where a worker is, in memory that the process that trains reads while the worker is in a sample, or has ended."""

from __future__ import annotations

import mmap
import struct


class Progress:
    """`beats` counts what was begun; `task` and `sample` are what goes on, -1 for nothing."""

    SIZE = mmap.PAGESIZE
    _FIELDS = struct.Struct("<qqq")

    def __init__(self, memory: mmap.mmap):
        self._memory = memory

    def at(self, task: int, sample: int) -> None:
        self._FIELDS.pack_into(self._memory, 0, self.beats + 1, task, sample)

    def between(self) -> None:
        """No sample is being made."""
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
