"""Gives memory that tests have freed back to the system."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import pytest

# glibc keeps what is freed in the middle of its heap: a process that has run thousands of tests with large arrays would
# stay at several times of what it uses.
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
_PAGES = (32 << 20) // resource.getpagesize()  # by which a process grows before it is trimmed again
_trimmed_at = 0


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Trim the heap if the process has grown since the last time. `tests/conftest.py` imports this hook."""
    global _trimmed_at
    if _TRIM is not None and _resident_pages() > _trimmed_at + _PAGES:
        _TRIM(0)
        _trimmed_at = _resident_pages()
