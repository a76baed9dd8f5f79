"""The memory that a run needs, planned and measured."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkit.errors import UnsupportedError

_STATUS, _CLEAR, _MEMORY = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
_RESET_PEAK = "5"  # written to /proc/self/clear_refs, it resets the peak of resident memory (proc(5))


@dataclass(frozen=True)
class Footprint:
    """Memory of a run, in bytes.

    planned_bytes: arena, results and packed parameters.
    first_bytes: rise of resident memory to its peak in a first run, which also prepares parameters.
    measured_bytes: rise to the peak in the second run, relative to the memory before the first run.

    Arena pages that are never touched do not count in the measured values. Memory that interpreted steps allocate
    outside the arena does.
    """

    planned_bytes: int
    first_bytes: int
    measured_bytes: int


def measure(executor: Any, feeds: Mapping[str, Any]) -> Footprint:
    """Run a fresh Executor twice and measure.

    Differences below a few MiB are noise. Raises UnsupportedError if the system cannot measure the peak, or if the run
    needs more than the free memory.
    """
    plan = executor.specialise({name: array.shape for name, array in feeds.items() if hasattr(array, "shape")})
    planned = plan.arenas * plan.arena_bytes + plan.result_bytes + plan.packed_bytes
    free = _kilobytes(_MEMORY, "MemAvailable")
    if planned > free:
        raise UnsupportedError(f"a run needs {planned:,} bytes, but only {free:,} are free")
    gc.collect()
    _return_freed_memory()
    before = _kilobytes(_STATUS, "VmRSS")
    first = _peak_of_run(executor, feeds)
    _return_freed_memory()
    later = _peak_of_run(executor, feeds)
    return Footprint(planned, max(first - before, 0), max(later - before, 0))


def peak_bytes() -> int:
    """The peak of this process's resident memory so far. Raises UnsupportedError if the system does not report it."""
    return _kilobytes(_STATUS, "VmHWM")


def _peak_of_run(executor: Any, feeds: Mapping[str, Any]) -> int:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError as error:
        raise UnsupportedError(f"the peak of resident memory cannot be reset: {error}") from error
    executor.run(feeds)
    return peak_bytes()


def _kilobytes(path: Path, field: str) -> int:
    """Read a size from a file in /proc, and return it in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UnsupportedError(f"resident memory cannot be read: {error}") from error
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise UnsupportedError(f"{path} has no field {field}")


def _return_freed_memory() -> None:
    """Return freed memory to the system: a run that reuses it would not raise the peak. Only glibc needs this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
