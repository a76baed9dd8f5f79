"""Arrays that stay in a file until they are read, and the file, which must not change.

They are read, not memory-mapped. With a mapping, the process would crash if the file is truncated, and compute with
other weights if it is overwritten. Each read checks afterwards that the file is unchanged, and raises an error if not.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import FileChanged, RuntimeFailure
from graphkit.text import human, short_repr

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

# Arrays of fewer bytes are read when their file is opened. Larger ones stay in the file until they are used.
LARGE = 1 << 16

# Blocks of at least this many bytes use huge pages. In smaller ones, rounding up would waste memory. As in numpy.
_HUGE = 1 << 22

# Smallest block of `Scratch`: most arrays then fit into the first one. Pages that no array uses take no memory.
_SCRATCH = 1 << 24

# Bytes of a block of `StoredFile.blocks`.
_BLOCK = 1 << 22

# Two writes within one tick of the file system's clock leave the same time of modification.
_TICK_NS = 20_000_000


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return the path without redundant dots and slashes, as pathlib would.

    Imports pathlib, which is slow, only if needed.
    """
    text = os.fspath(path)
    parts = text.removeprefix("/").split("/")
    if text != "/" and not {"", "."}.isdisjoint(parts):
        from pathlib import Path

        return str(Path(text))
    return text


class StoredFile:
    """A regular file, open as long as it is referenced. Raises OSError if it cannot be opened or is not a regular file.

    If it was replaced by renaming, or removed, it can still be read. If it was overwritten in place, `read` raises
    FileChanged.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = path
        # O_NONBLOCK: opening a pipe does not wait for its writer. The checks below use the descriptor, because the path
        # may lead to another file by then.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        size, modified = self._stat()
        age = time.time_ns() - modified
        if size >= LARGE and 0 <= age < _TICK_NS:
            time.sleep((_TICK_NS - age) * 1e-9)
        self._facts = self._stat()
        self.size = self._facts[0]

    @property
    def descriptor_path(self) -> str:
        """A path that opens this file again, even if its original path now leads to another file."""
        return f"/dev/fd/{self._descriptor}"

    @property
    def place(self) -> Path | None:
        """The current path of this file, without symbolic links; None if the system does not provide it."""
        from pathlib import Path

        try:
            return Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        except OSError:
            return None

    @property
    def may_stay_open(self) -> bool:
        """Whether the file may stay open: its descriptor is in the lower half of those that the process may have."""
        limit = os.sysconf("SC_OPEN_MAX")  # -1: no limit
        return limit < 0 or self._descriptor < limit // 2

    def read(self, offset: int, size: int) -> np.ndarray:
        """Return bytes (uint8, read-only) in new memory. Raises FileChanged, RuntimeFailure, MemoryError."""
        made = memoryview(_pages(size) if size >= LARGE else bytearray(size))
        self.read_into(made, offset)
        return np.frombuffer(made.toreadonly(), np.uint8)

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return bytes. Raises as `read` does. If all of them can be read at once, they are not copied."""
        try:
            made = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(made) == size and self._stat() == self._facts:
            return made
        return self.read(offset, size).tobytes()

    def blocks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield bytes in blocks of bounded size. A block changes when the second one after it is requested.

        Raises FileChanged, RuntimeFailure, MemoryError.
        """
        buffers = [memoryview(bytearray(min(size, _BLOCK))) for _ in range(2 if size > _BLOCK else 1)]
        for number, start in enumerate(range(0, size, _BLOCK)):
            block = buffers[number % 2][: size - start]
            self.read_into(block, offset + start)
            yield block.toreadonly()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer of bytes from a place in the file. Raises FileChanged, RuntimeFailure."""
        rest = buffer
        try:
            while rest:
                count = os.preadv(self._descriptor, [rest], offset)
                if count == 0:
                    break
                rest, offset = rest[count:], offset + count
        except OSError as error:
            raise self._unreadable(error) from error
        # The time of modification changes before the content does.
        if rest or self._stat() != self._facts:
            raise FileChanged(
                f"{self._path} was overwritten while it was in use, and its old content is lost: load it again (to "
                "replace a file, write a new one and rename it)"
            )

    def _unreadable(self, error: OSError) -> RuntimeFailure:
        return RuntimeFailure(f"{self._path} cannot be read: {error.strerror or error}")

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    @property
    def path(self) -> Path:
        """Where the file was opened."""
        from pathlib import Path

        return Path(self._path)

    def __repr__(self) -> str:
        return short_repr(self, self._repr_facts)

    def _repr_facts(self) -> Iterator[str]:
        yield repr(str(self._path))
        yield human(self.size)
        if not self._close.alive:
            yield "closed"


def _pages(size: int, filled: bool = True) -> mmap.mmap:
    """Return memory that goes back to the system as soon as it is freed. Freed blocks of the heap may not.

    filled: All of it will be written. Large memory gets huge pages, which make runs faster. The system provides other
        pages now, which takes less time than a page fault for each of them.
    """
    import mmap  # here, because small files need no such memory

    populate = getattr(mmap, "MAP_POPULATE", 0) if filled and size < _HUGE else 0
    try:
        made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error.strerror}") from error
    if filled and size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            made.madvise(mmap.MADV_HUGEPAGE)
    return made


class Scratch:
    """Memory for arrays that are read from files one after another. So the system provides its pages only once.

    `take` returns memory that is valid until `clear` is called.
    """

    def __init__(self) -> None:
        self._blocks: list[memoryview] = []
        self._taken = 0

    def take(self, size: int) -> memoryview:
        """Return `size` bytes of memory. Raises MemoryError."""
        if self._taken == len(self._blocks):
            self._blocks.append(memoryview(b""))
        if len(self._blocks[self._taken]) < size:
            self._blocks[self._taken] = memoryview(_pages(max(size, _SCRATCH), filled=size > _SCRATCH))
        self._taken += 1
        return self._blocks[self._taken - 1][:size]

    def clear(self) -> None:
        """Make all memory free."""
        self._taken = 0

    def overlaps(self, array: np.ndarray) -> bool:
        """Return whether an array is in memory that `take` returned."""
        taken = self._blocks[: self._taken]
        return any(np.may_share_memory(array, np.frombuffer(block, np.uint8)) for block in taken)


class StoredArray:
    """A C-contiguous array in a file. `array` is read-only; it is read again if no reference to it is left."""

    __slots__ = ("shape", "dtype", "nbytes", "_file", "_offset", "_held")

    def __init__(self, file: StoredFile, offset: int, dtype: np.dtype, shape: tuple[int, ...]):
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._file = file
        self._offset = offset
        # The bytes, as long as `array` or a view of it is in use.
        self._held: weakref.ref[np.ndarray] | None = None

    @property
    def array(self) -> np.ndarray:
        """The elements.

        Raises FileChanged if the file was written since it was opened, RuntimeFailure if it cannot be read.
        """
        data = None if self._held is None else self._held()
        if data is None:
            data = self._file.read(self._offset, self.nbytes)
            self._held = weakref.ref(data)
        return data.view(self.dtype).reshape(self.shape)

    def borrowed(self, scratch: Scratch) -> np.ndarray:
        """Return the elements, which are valid until `scratch` is cleared. Raises as `array` does, and MemoryError."""
        data = None if self._held is None else self._held()
        if data is None:
            memory = scratch.take(self.nbytes)
            self._file.read_into(memory, self._offset)
            data = np.frombuffer(memory.toreadonly(), np.uint8)
        return data.view(self.dtype).reshape(self.shape)

    def part(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, in row-major order, without reading the others.

        Raises FileChanged, RuntimeFailure.
        """
        size = self.dtype.itemsize
        return self._file.read(self._offset + start * size, (stop - start) * size).view(self.dtype)

    def blocks(self) -> Iterator[memoryview]:
        """Yield the bytes in row-major order in blocks, as `StoredFile.blocks` does."""
        return self._file.blocks(self._offset, self.nbytes)

    def viewed(self, dtype: np.dtype, shape: tuple[int, ...]) -> StoredArray:
        """Return the same bytes as an array of another dtype and shape.

        Raises ValueError if the numbers of bytes differ.
        """
        other = StoredArray(self._file, self._offset, dtype, shape)
        if other.nbytes != self.nbytes:
            raise ValueError(f"{self.nbytes} bytes for {dtype}{list(shape)}")
        return other

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=copy)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ""
        yield f"{self.dtype}{list(self.shape)}"
        yield f"{human(self.nbytes)} at {self._offset}"
        yield f"file {self._file.path}"
