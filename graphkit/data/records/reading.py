"""Read record files as a stream from beginning to end, and by number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.records.framing import HEAD, LONGEST, MAGIC, MAGIC_BYTES, Damage, Torn, next_record, record_at
from graphkit.data.records.index import index_of, read_index
from graphkit.errors import InputError
from graphkit.ir.stored import StoredFile
from graphkit.text import quantity, short_repr

# Number of bytes read at once: large enough to make system calls negligible, small enough for the cache of a core.
BLOCK = 1 << 20

ON_DAMAGED = ("raise", "skip")


class RecordStream:
    """Iterates over the records of a .rec file, each as a read-only memoryview.

    A record shares its memory with its neighbours, and keeps them in memory. Use `bytes(record)` for a record that you
    keep.

    Args:
        path: The file.
        on_damaged: "raise" stops with an InputError that gives the place. "skip" continues at the next record, and
            `damaged` lists the skipped places.

    Attributes:
        position: Byte at which the next record begins. Set it before iterating to begin there.
        began: Byte at which the last returned record begins.
    """

    # _start and _place are offsets in the block that begins at _begin. This saves an addition per record.
    __slots__ = ("_begin", "_file", "_place", "_skips", "_start", "damaged", "path")

    def __init__(self, path: str | Path, *, on_damaged: str = "raise"):
        if on_damaged not in ON_DAMAGED:
            raise InputError(f"on_damaged must be one of {', '.join(ON_DAMAGED)}, not {on_damaged!r}")
        self.path = Path(path)
        self._begin = self._start = self._place = 0
        self.damaged: list[Damage] = []
        self._skips = on_damaged == "skip"
        self._file = opened(self.path)

    @property
    def position(self) -> int:
        return self._begin + self._place

    @position.setter
    def position(self, place: int) -> None:
        self._begin, self._start, self._place = place, 0, 0

    @property
    def began(self) -> int:
        return self._begin + self._start

    def __iter__(self) -> Iterator[memoryview]:
        wanted = BLOCK
        head, head_size = HEAD.unpack_from, HEAD.size
        while (left := self._file.size - self.position) > 0:
            self._begin, self._start, self._place = self.position, -self._place + self._start, 0
            block = _read(self._file, self._begin, min(wanted, left))
            size, place = len(block), 0
            while size - place >= head_size:
                magic, word = head(block, place)
                start, first = place, place + head_size
                end = first + word
                # If a record has one part, the word is its length. `record_at` handles all others.
                if end <= size and magic == MAGIC and word <= LONGEST:
                    record, place = block[first:end], end + (-word & 3)
                else:
                    try:
                        found = record_at(block, place)
                    except Torn as torn:
                        place = self._lost(block, torn)
                        continue
                    if found is None:
                        break
                    record, place = found
                self._start, self._place = start, place
                yield record
            if self._place:
                wanted = BLOCK
            elif size < left:
                wanted *= 2  # the record is larger than the bytes that were read
            else:
                self._lost(block, Torn(0, f"the file ends within a record, after {size} of the record's bytes"))

    def _lost(self, block: memoryview, torn: Torn) -> int:
        """The position in the block at which to continue."""
        damage = Damage(self._begin + torn.position, torn.reason)
        if not self._skips:
            raise InputError(f"{self.path}: damaged {damage}")
        self.damaged.append(damage)
        place = next_record(block, torn.position + 4)
        self._place = place
        return place

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{str(self.path)!r} at {self.position}"])


class RecordFile:
    """The records of a .rec file by number, in the order of its .idx, or of the file if it has no .idx.

    `keys`, int64 [records], are those of the index, or the numbers. The object can be pickled: the copy opens the file
    again. Raises InputError if the file is not a record file, or does not match its index.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._file = opened(self.path)
        index = index_of(self.path)
        if index.exists():
            self.keys, self.positions = read_index(index, self._file.size)
        else:
            self.positions = _scanned(self.path, self._file)
            self.keys = np.arange(len(self.positions))
        # Limit of each record: the position at which the next one begins, or the end of the file.
        order = np.argsort(self.positions, kind="stable")
        self._ends = np.empty_like(self.positions)
        self._ends[order] = np.append(self.positions[order][1:], self._file.size)[: len(order)]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, number: int) -> memoryview:
        """Return a record. Raises InputError, which names it, if there is no record at its place; IndexError beyond
        the last.
        """
        begin = int(self.positions[number])
        data = _read(self._file, begin, int(self._ends[number]) - begin)
        try:
            found = record_at(data, 0)
            if found is None:
                raise Torn(0, "the file ends within the record")
        except Torn as torn:
            raise InputError(f"{self.named(number)}: damaged at byte {begin + torn.position}: {torn.reason}") from None
        return found[0]

    def beginning(self, number: int, count: int) -> memoryview:
        """Return the first bytes of a record, or all if it is shorter. The rest is neither read nor checked."""
        begin, end = int(self.positions[number]), int(self._ends[number])
        data = _read(self._file, begin, min(HEAD.size + count, end - begin))
        if len(data) < HEAD.size:
            return self[number][:count]
        magic, word = HEAD.unpack_from(data)
        if magic != MAGIC or not count <= word <= LONGEST:  # damaged, in parts, or short
            return self[number][:count]
        return data[HEAD.size :]

    def named(self, number: int) -> str:
        """Name a record for an error."""
        return f"{self.path}: record {number} (key {self.keys[number]}, at byte {self.positions[number]})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"} | {"size": self._file.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        size = state.pop("size")
        vars(self).update(state)
        self._file = opened(self.path)
        if self._file.size != size:
            raise InputError(
                f"{self.path} has changed: it has {self._file.size} bytes, and had {size} when it was opened first"
            )

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{str(self.path)!r}, {quantity(len(self), 'record')}"])


def opened(path: Path) -> StoredFile:
    try:
        file = StoredFile(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if file.size and bytes(file.read(0, min(4, file.size))) != MAGIC_BYTES:
        raise InputError(f"{path}: not a record file: it begins with {bytes(file.read(0, min(4, file.size)))!r}")
    return file


def _read(file: StoredFile, begin: int, size: int) -> memoryview:
    # Allocated on the heap: once no record refers to a block, malloc reuses it, with its pages already mapped.
    block = np.empty(size, np.uint8).data
    file.read_into(block, begin)
    return block.toreadonly()


def _scanned(path: Path, file: StoredFile) -> np.ndarray:
    """Positions of all records, int64, found by reading from one to the next."""
    stream = RecordStream(path)
    positions = []
    before = 0
    for _ in stream:
        positions.append(before)
        before = stream.position
    return np.array(positions, np.int64)
