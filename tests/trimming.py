"""Keep test processes small: return memory that tests have freed to the system."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

import pytest

# glibc keeps what is freed in the middle of its heap: a process that has run thousands of tests with large arrays would
# stay at several times of what it uses.
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
# A process trims its heap when it has grown by this many bytes, and collects garbage first when it has grown by more:
# graphs are reference cycles, and full collections are rare in a process with thousands of collected tests.
_TRIM_GROWTH, _COLLECT_GROWTH = 32 << 20, 150 << 20


class _Base:
    """Resident bytes of this process when it trimmed its heap last, and when it collected garbage last."""

    trimmed = collected = 0


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Trim the heap after a test if the process has grown. `tests/conftest.py` imports this hook."""
    if _TRIM is None or (size := _resident_bytes()) < _Base.trimmed + _TRIM_GROWTH:
        return
    if size > _Base.collected + _COLLECT_GROWTH:
        gc.collect()
        _TRIM(0)
        _Base.collected = _resident_bytes()
    else:
        _TRIM(0)
    _Base.trimmed = _resident_bytes()
