"""Limits of a load or a run: memory, time, iterations of a loop.

A limit applies to the process (`set_process_limits`), or inside a block of the calling thread (`limited`), where it can
only become narrower. Without a limit, memory is bounded by what the machine, the control group and the process's own
limits have left, and time and iterations are not bounded.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from graphkit import config
from graphkit.errors import LimitReached, OutOfMemory, UsageError
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import check_argument
from graphkit.text import human

if TYPE_CHECKING:
    from pathlib import Path

# Requests of at least SMALL bytes are compared with the available memory. Of smaller requests, only one in every
# CHECK_INTERVAL requested bytes is, because asking the system takes time.
SMALL = 1 << 26
CHECK_INTERVAL = 1 << 28

# Memory limit of plans for other machines, in bytes: more than any machine has.
_PLANNED = 1 << 48

# Bytes that are left to the system and to other processes.
_RESERVE = 1 << 27

_NEVER = math.inf


class Limits(NamedTuple):
    """Limits of memory, time and iterations.

    memory: bytes of arrays that one run, one node or one tensor of a file may take; None: what the machine has left.
    deadline: of time.monotonic(). iterations: of one loop; None: any number.
    """

    memory: int | None = None
    deadline: float = _NEVER
    iterations: int | None = None

    def narrowed(self, memory: int | None, seconds: float | None, iterations: int | None) -> Limits:
        """Return these limits, with each one replaced by the argument if that is lower."""
        return Limits(
            _least(self.memory, memory),
            self.deadline if seconds is None else min(self.deadline, time.monotonic() + seconds),
            _least(self.iterations, iterations),
        )


class Bounds(NamedTuple):
    """Limits of every run of one program. memory, iterations: as in Limits. seconds: of one run."""

    memory: int | None = None
    iterations: int | None = None
    seconds: float | None = None

    @staticmethod
    def of(
        memory: int | str | None = None, iterations: int | None = None, seconds: float | None = None
    ) -> Bounds | None:
        """Return the given limits. If one is None, the GRAPHKIT_* variable applies. Return None if nothing is limited.

        Args:
            memory: Bytes, or a text such as `"500MB"`.

        Raises:
            UsageError: A limit is not a number above 0, or `memory` is not an amount of memory.
        """
        if isinstance(memory, str):
            text, memory = memory, config.memory_size(memory)
            if memory is None:
                raise UsageError(
                    f"max_memory={text!r}: expected a number of bytes, or an amount of memory such as 500MB"
                )
        limits: tuple[tuple[str, str, Any], ...] = (
            ("max_memory", "int | None", memory),
            ("max_iterations", "int | None", iterations),
            ("timeout", "float | None", seconds),
        )
        for name, kind, given in limits:
            check_argument("limits", name, kind, given)
            if given is not None and not given > 0:
                raise UsageError(f"{name}={given}: expected a number above 0")
        made = Bounds(
            config.MAX_MEMORY.get() if memory is None else memory,
            config.MAX_ITERATIONS.get() if iterations is None else iterations,
            config.TIMEOUT.get() if seconds is None else seconds,
        )
        return None if made == Bounds() else made


_UNLIMITED = Limits()
_process = _UNLIMITED
_inside: ContextVar[Limits | None] = ContextVar("limits", default=None)
# Bytes of small requests since the last check of the available memory.
_unchecked = 0


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def current() -> Limits:
    """The limits in force."""
    inside = _inside.get()
    return _process if inside is None else inside


def set_process_limits(limits: Limits = _UNLIMITED) -> None:
    """Set the limits of all threads that are not in a `limited` block. A command of the command line calls it."""
    global _process
    _process = limits


@contextlib.contextmanager
def limited(memory: int | None = None, seconds: float | None = None, iterations: int | None = None) -> Iterator[None]:
    """Context in which these limits apply in addition to the current ones."""
    token = _inside.set(current().narrowed(memory, seconds, iterations))
    try:
        yield
    finally:
        _inside.reset(token)


@contextlib.contextmanager
def untimed(holds: bool = True) -> Iterator[None]:
    """Context without a deadline, for work that must be completed. holds: False changes nothing."""
    token = _inside.set(current()._replace(deadline=_NEVER) if holds else current())
    try:
        yield
    finally:
        _inside.reset(token)


@contextlib.contextmanager
def completing() -> Iterator[None]:
    """Context without limits of time and iterations, for work that has begun to write states and must be completed."""
    token = _inside.set(current()._replace(deadline=_NEVER, iterations=None))
    try:
        yield
    finally:
        _inside.reset(token)


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Context to plan a run.

    Without a limit, a plan may need more memory than this machine has, for a run on another one.
    """
    limits = current()
    token = _inside.set(limits if limits.memory is not None else limits._replace(memory=_PLANNED))
    try:
        yield
    finally:
        _inside.reset(token)


def require_memory(nbytes: int, what: str = "") -> None:
    """Raise OutOfMemory, with `what`, if an array or a plan of `nbytes` bytes would exceed the limit."""
    most = current().memory
    if most is not None:
        if nbytes > most:
            raise OutOfMemory(
                f"{_prefix(what)}{_bytes(nbytes)} are needed, but the limit is {_bytes(most)} (max_memory=, "
                "--max-memory, GRAPHKIT_MAX_MEMORY)"
            )
    elif nbytes > SMALL or _is_check_due(nbytes):
        left = available_memory()
        if nbytes > left:
            raise OutOfMemory(
                f"{_prefix(what)}{_bytes(nbytes)} are needed, but only about {human(max(left, 0))} are left"
            )


def only_deadline() -> float | None:
    """Return the deadline (infinity: none) if only time may be limited. Return None if there are other limits."""
    limits = current()
    return limits.deadline if limits.memory is None and limits.iterations is None else None


def may_take(nbytes: int) -> bool:
    """Whether `nbytes` bytes are left. If not, `require_memory` checks the next request, however small it is."""
    global _unchecked
    if nbytes <= available_memory():
        return True
    _unchecked = CHECK_INTERVAL
    return False


def fits_limit(nbytes: int) -> bool:
    """Whether arrays that already exist may have `nbytes` bytes in total. Always True without a limit."""
    most = current().memory
    return most is None or nbytes <= most


def require_held(nbytes: int, what: str) -> None:
    """Raise OutOfMemory, with `what`, if arrays that already exist exceed the limit together."""
    if not fits_limit(nbytes):
        require_memory(nbytes, what)


def allowed_memory() -> int:
    """Return the largest number of bytes that `require_memory` accepts."""
    most = current().memory
    return max(available_memory(), 0) if most is None else most


def check_time() -> None:
    """Raise LimitReached after the deadline."""
    deadline = current().deadline
    if deadline is not _NEVER and time.monotonic() > deadline:
        raise LimitReached("the time limit is over (timeout=, --timeout, GRAPHKIT_TIMEOUT)")


def check_iterations(done: int, where: str = "") -> None:
    """Raise LimitReached if a loop that has done `done` iterations may not begin another one. where: the loop."""
    most = current().iterations
    if most is not None and done >= most:
        raise too_many_iterations(where)


def too_many_iterations(where: str = "") -> LimitReached:
    """Return the error for a loop that would begin more iterations than are allowed. where: the loop."""
    return LimitReached(
        f"{_prefix(where)}more than {current().iterations} iterations (max_iterations=, --max-iterations, "
        "GRAPHKIT_MAX_ITERATIONS)"
    )


def available_memory() -> int:
    """Return the bytes that this process can still use: of the machine, its control group, and its own limits."""
    return min(_of_machine(), _of_control_groups(), _of_process()) - _RESERVE


def _is_check_due(nbytes: int) -> bool:
    global _unchecked
    _unchecked += nbytes  # threads may lose counts of each other, which does not matter
    if _unchecked < CHECK_INTERVAL:
        return False
    _unchecked = 0
    return True


def _of_machine() -> int:
    for line in _lines("/proc/meminfo"):
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return int(size.split()[0]) << 10
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 1 << 62


def _of_control_groups(root: str | os.PathLike[str] = "/sys/fs/cgroup") -> int:
    """Return the fewest bytes that any control group of this process has left (cgroup version 2 or 1)."""
    from pathlib import Path

    root = Path(root)
    left = 1 << 62
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folder, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        place = folder / path.strip("/")
        for group in (place, *place.parents):
            left = min(left, _left(group, *names))
            if group == folder:
                break
    return left


def _left(group: Path, limit: str, usage: str) -> int:
    most, taken = (next(iter(_lines(str(group / name))), "") for name in (limit, usage))
    if not most.isdecimal() or not taken.isdecimal():
        return 1 << 62
    # The kernel frees cached pages of files when memory is needed.
    reclaimable = sum(
        int(size)
        for name, _, size in (line.partition(" ") for line in _lines(str(group / "memory.stat")))
        if name in ("inactive_file", "active_file")
    )
    return int(most) - int(taken) + reclaimable


def private_memory() -> int:
    """Return the bytes of this process that count against RLIMIT_DATA."""
    return _used()[1]


def _used() -> tuple[int, int]:
    """Return the bytes that count against RLIMIT_AS and RLIMIT_DATA: fields 1 and 6 of statm (proc(5))."""
    fields = next(iter(_lines("/proc/self/statm")), "").split() or ["0"] * 6
    page = os.sysconf("SC_PAGE_SIZE")
    return int(fields[0]) * page, int(fields[5]) * page


def _of_process() -> int:
    """Return the bytes that RLIMIT_AS and RLIMIT_DATA still allow."""
    whole, data = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if whole == data == resource.RLIM_INFINITY:
        return 1 << 62
    pairs = zip((whole, data), _used(), strict=True)
    return min(most - taken for most, taken in pairs if most != resource.RLIM_INFINITY)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _prefix(what: str) -> str:
    return f"{what}: " if what else ""


def _bytes(size: int) -> str:
    return f"{size} bytes" if size < 1 << 20 else f"{size} bytes ({human(size)})" if size < 1 << 60 else f"{size} bytes"
