"""Threads that sleep most of the time, and should go on at once when they wake beside others that compute."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

# Of `struct sched_attr` (sched_setattr(2)): size, policy, flags, nice, priority, slice, deadline, period, and two
# bounds of utilisation.
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_PR_SET_TIMERSLACK = 29

# Nanoseconds that it computes without a pause; the shortest slice that Linux knows.
SLICE = 100_000


def be_prompt() -> bool:
    """Let this thread have a core soon after it wakes, for a short time; whether the system knows of that.

    Linux gives cores by deadlines, which are the sooner the shorter a thread's slices are (from 6.12 on; by default
    slices are of 3 ms, for which a thread that wakes may wait). Its sleeps end when they should, not 50 us later.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in _CALLS:
        return False
    library, (setting, _) = ctypes.CDLL(None, use_errno=True), _CALLS[platform.machine()]
    library.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    attributes = _of_this_thread(library)
    if attributes is None:
        return False
    size, policy, flags, nice, priority, _, *rest = attributes
    wanted = ctypes.create_string_buffer(_ATTRIBUTES.pack(size, policy, flags, nice, priority, SLICE, *rest))
    return policy == 0 and library.syscall(setting, 0, wanted, 0) == 0 and slice_of_this_thread() == SLICE


def slice_of_this_thread() -> int | None:
    """Nanoseconds; 0 or None where the system does not say."""
    if not sys.platform.startswith("linux") or platform.machine() not in _CALLS:
        return None
    found = _of_this_thread(ctypes.CDLL(None, use_errno=True))
    return None if found is None else int(found[5])


def _of_this_thread(library: ctypes.CDLL) -> tuple[int, ...] | None:
    data = ctypes.create_string_buffer(_ATTRIBUTES.size)
    _, getting = _CALLS[platform.machine()]
    if library.syscall(getting, 0, data, _ATTRIBUTES.size, 0):
        return None
    found: tuple[int, ...] = _ATTRIBUTES.unpack(data.raw)
    return found
