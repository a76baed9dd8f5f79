"""Anonymous shared memory: a worker writes a batch into it, and the training process uses the arrays in place."""

from __future__ import annotations

import errno
import math
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.data.stacking import Form, arrays, form_of, formed, names_of, parted
from graphkit.errors import InputError, OutOfMemory
from graphkit.named_tuples import NamedTuple

# Alignment of arrays in bytes: a cache line, which also suits vector instructions.
_ALIGNED = 64


class Leaf(NamedTuple):
    """One array of a batch in its memory; the offset is in bytes."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class Layout(NamedTuple):
    """The arrays of inputs and targets, and their structure. size: bytes from the start of the memory that they use."""

    forms: tuple[Form, Form]
    leaves: tuple[list[Leaf], list[Leaf]]
    size: int


def anonymous(label: str, size: int) -> int:
    """Create a file in memory with `size` bytes, and return its descriptor. It exists while a process has it open."""
    file = os.memfd_create(f"graphkit {label}", os.MFD_CLOEXEC)
    if size:
        try:
            enlarge(file, size)
        except BaseException:
            os.close(file)
            raise
    return file


def enlarge(file: int, size: int) -> None:
    """Allocate memory for a file. Raises OutOfMemory if there is too little.

    If the size were only set, a process that writes without free memory would be killed.
    """
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise OutOfMemory(f"cannot allocate {size:,} bytes for a batch: {error.strerror}") from None


def mapped(file: int, size: int, *, ahead: bool = True) -> mmap.mmap:
    """Map a file into memory. ahead: map all pages now, and not at the first access to each."""
    return mmap.mmap(file, size, flags=mmap.MAP_SHARED | (mmap.MAP_POPULATE if ahead else 0))


class Arena:
    """The memory of one batch in the worker that makes it. It grows with each array."""

    def __init__(self, file: int):
        self._file = file
        size = os.fstat(file).st_size
        self._map = mapped(file, size) if size else None
        self._top = 0
        self._placed: list[tuple[np.ndarray, int]] = []

    @property
    def top(self) -> int:
        """Bytes in use."""
        return self._top

    def begin(self) -> None:
        """Discard the contents."""
        self._top = 0
        self._placed.clear()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Allocate an array in this memory. If its elements are not numbers, it gets other memory; see `layout`."""
        size = math.prod(shape) * dtype.itemsize
        if not size or _refused(dtype):
            return np.empty(shape, dtype)
        offset = -(-self._top // _ALIGNED) * _ALIGNED
        if self._map is None or offset + size > len(self._map):
            enlarge(self._file, _pages(offset + size))
            # Earlier arrays use the old mapping, which shares the same pages.
            self._map = mapped(self._file, os.fstat(self._file).st_size)
        found = np.frombuffer(self._map, np.uint8, size, offset).view(dtype).reshape(shape)
        self._top = offset + size
        self._placed.append((found, offset))
        return found

    def layout(self, source: str, inputs: Any, targets: Any) -> Layout:
        """Return the layout of a batch. Other arrays are copied into this memory. Raises InputError for strings."""
        sides = [("input", arrays(inputs)), ("target", arrays(targets))]
        forms = [form_of(side) for _, side in sides]
        leaves: list[list[Leaf]] = [[], []]
        for (what, side), form, found in zip(sides, forms, leaves, strict=True):
            for name, array in zip(names_of(form), parted(side, form), strict=True):
                if _refused(array.dtype):
                    label = f"{what} {name!r}" if name else what
                    raise InputError(
                        f"{source}: {label} contains {array.dtype}, which workers cannot share; use numbers, "
                        "or workers=0"
                    )
                found.append(Leaf(self._offset(array), array.shape, array.dtype))
        return Layout((forms[0], forms[1]), (leaves[0], leaves[1]), self._top)

    def _offset(self, array: np.ndarray) -> int:
        for placed, offset in self._placed:
            if placed is array:
                return offset
        if not array.size:
            return 0
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return self._placed[-1][1]

    def close(self) -> None:
        self._map = None
        self._placed.clear()
        os.close(self._file)


class Lease(weakref.ref[np.ndarray]):
    """A weak reference to the arrays of a batch that use a slot."""

    __slots__ = ("slot",)
    slot: Slot


class Slot:
    """Reusable memory of a batch in the training process. `lent`: whether arrays of a returned batch use it.

    Args:
        number: Its number.
        released: Called when no array uses it any more.
        ended: Called with the lease when the arrays of a returned batch are deleted. Later, call `release` of its slot.
            It must be a builtin function: Python ignores exceptions of functions that a deletion calls, so a
            KeyboardInterrupt in a Python function would be lost.
    """

    def __init__(self, number: int, released: Callable[[Slot], None], ended: Callable[[Lease], None]):
        self.number = number
        self.file = anonymous("batch", 0)
        self.size = 0
        # Process id of the worker that used it last, which still has it mapped.
        self.filled_by: int | None = None
        self._released = released
        self._ended = ended
        self._map: mmap.mmap | None = None
        self._lease: Lease | None = None

    @property
    def lent(self) -> bool:
        return self._lease is not None and self._lease() is not None

    def filled(self) -> None:
        """Read the size again: a worker has stored a batch, and may have enlarged the memory."""
        self.size = os.fstat(self.file).st_size

    def lend(self, layout: Layout) -> tuple[Any, Any]:
        """Return the arrays of a batch in this memory. It is released when all of them and their views are deleted."""
        root = self._bytes(layout.size)
        if not layout.size:
            self._released(self)
        else:
            self._lease = Lease(root, self._ended)
            self._lease.slot = self
        return _formed(root, layout)

    def release(self) -> None:
        """End the lease: the arrays were deleted."""
        self._lease = None
        self._released(self)

    def copied(self, layout: Layout) -> tuple[Any, Any]:
        """Return copies of the arrays of a batch, and release the memory."""
        found = _formed(self._bytes(layout.size).copy(), layout)
        self._released(self)
        return found

    def _bytes(self, size: int) -> np.ndarray:
        if not size:
            return np.empty(0, np.uint8)
        if self._map is None or size > len(self._map):
            self._map = mapped(self.file, self.size)
        return np.frombuffer(self._map, np.uint8, size)

    def close(self) -> None:
        """Close the file. Existing arrays stay valid."""
        self._map = None
        os.close(self.file)


def _formed(root: np.ndarray, layout: Layout) -> tuple[Any, Any]:
    inputs, targets = ([_array(root, leaf) for leaf in side] for side in layout.leaves)
    return formed(inputs, layout.forms[0]), formed(targets, layout.forms[1])


def _array(root: np.ndarray, leaf: Leaf) -> np.ndarray:
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    return root[leaf.offset : leaf.offset + size].view(leaf.dtype).reshape(leaf.shape)


def _refused(dtype: np.dtype) -> bool:
    return dtype.hasobject or dtype.kind in "USTMm" or dtype.fields is not None


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
