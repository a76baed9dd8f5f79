"""Tools for the tasks of a worker process: times of rounds, resident memory, errors in one line."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.timing import interleave, summarise


def timed(calls: Mapping[str, Callable[[], object]], task: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By call: the summary of its times, and the median of every round."""
    times = interleave(calls, task["rounds"], seconds=task["seconds"], seed=task["seed"]) if calls else {}
    return {
        name: {"seconds": summarise(rounds).as_dict(), "rounds": [float(np.median(r)) for r in rounds]}
        for name, rounds in times.items()
    }


def return_freed_memory() -> None:
    """Return freed memory to the system, so that it does not count as resident. Only glibc keeps much of it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> None:
    """Set the high-water mark of resident memory to its present size (proc(5))."""
    Path("/proc/self/clear_refs").write_text("5")


def resident_bytes() -> int:
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(found.group(1)) * 1024


def one_line(error: BaseException, task: Mapping[str, Any]) -> str:
    """Return an error as one line, without the path of the models' folder."""
    text = " ".join(str(error).split()).replace(f"{task.get('folder')}/", "")
    return f"{type(error).__name__}: {text[:300]}"
