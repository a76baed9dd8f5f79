"""Memory straight from the system: it goes back as soon as it is freed, and large blocks use huge pages.

The system provides memory page by page, at the first write to each page. With pages of 4 KB, this takes longer than to
copy weights into the memory. A huge page is provided at once.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

# Bytes of a huge page. Blocks of at least this size use them, where the whole page is inside of the block.
HUGE = 1 << 21


def pages(size: int) -> np.ndarray:
    """Return `size` bytes (uint8), zeros. They begin with a page; with a huge page if they may use one.

    Raises MemoryError.
    """
    is_huge = size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE")
    try:
        memory = mmap.mmap(-1, size + HUGE if is_huge else size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error.strerror}") from error
    made = np.frombuffer(memory, np.uint8)
    if not is_huge:
        return made
    with contextlib.suppress(OSError):  # a system without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    # Memory before the first huge page is never used, so the system does not provide it.
    start = -made.__array_interface__["data"][0] % HUGE
    return made[start : start + size]
