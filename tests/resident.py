"""Keep test processes small: collect garbage and return free memory to the system when a process has become large.

A trainer and a compiled program are parts of reference cycles. Python frees them in a full garbage collection only,
which is rare in a process with many live objects, as one with thousands of collected tests.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# A process frees what it can when it has grown by this many bytes since it last did so.
GROWTH = 300_000_000
_STATUS = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The resident size of this process, or 0 where the system does not tell it."""
    if not _STATUS.exists():
        return 0
    return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> None:
    """Collect garbage, then give free pages of the heap back to the system where the C library can do that."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class _Process:
    """The resident size of this process when memory was last freed, in bytes."""

    base = 0


@pytest.fixture(autouse=True)
def small_process() -> Iterator[None]:
    """Free memory after a test that has made the process much larger."""
    _Process.base = _Process.base or resident_bytes()
    yield
    if resident_bytes() > _Process.base + GROWTH:
        free_memory()
        _Process.base = resident_bytes()
