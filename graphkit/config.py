"""Every GRAPHKIT_* environment variable, typed and documented, in one place.

Values are read when they are asked for, so that a test or a script may change the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from graphkit.cores import allowed_cores
from graphkit.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One environment variable: its name, how its text is read, its default, what it does."""

    name: str
    parse: Callable[[str], T]
    default: T
    help: str

    def get(self) -> T:
        """Return the value in force; raises UsageError when the text cannot be read."""
        text = os.environ.get(self.name)
        if text is None or text == "":
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"{self.name}={text!r}: {error}; {self.help}") from None


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("expected 0 or 1")
    return known[text.lower()]


def _level(text: str) -> int:
    if text in ("0", "1", "2", "3"):
        return int(text)
    try:
        return int(_flag(text))
    except ValueError:
        raise ValueError("expected 0, 1, 2 or 3 (true, yes, on: 1; false, no, off: 0)") from None


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError("expected seconds, a number above 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("expected a positive integer")
    return value


def memory_size(text: str) -> int | None:
    """Bytes, or a number with KB, MB, GB, KiB, MiB or GiB, as bytes; None for what is neither."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMG]i?)?B?", text, re.IGNORECASE)
    if match is None:
        return None
    unit = (match[2] or "").lower()
    power = " kmg".index(unit[0]) if unit else 0
    return int(float(match[1]) * (1024 if unit.endswith("i") else 1000) ** power)


def _memory(text: str) -> int:
    value = memory_size(text)
    if value is None:
        raise ValueError("expected an amount of memory such as 500MB")
    return value


NUM_THREADS: Knob[int | None] = Knob(
    "GRAPHKIT_NUM_THREADS", _positive, None, "threads of the CPU engine; default: the cores allowed"
)
PIN = Knob(
    "GRAPHKIT_PIN", _flag, False, "1 keeps each helper thread on a core, those of the caller's memory node (NUMA) first"
)
STRICT = Knob("GRAPHKIT_STRICT", _flag, False, "1 makes a step without a native kernel an error")
DEBUG = Knob(
    "GRAPHKIT_DEBUG",
    _level,
    0,
    "1 logs the effect of every graph pass, and every program made, on stderr; 2 also times, nodes that are interpreted"
    " and why, cached programs and why others are made; 3 also the graph after each pass and the steps of each program",
)
CHECK_PASSES = Knob("GRAPHKIT_CHECK_PASSES", _flag, False, "1 proves behind every graph pass what it ensures")
SEED = Knob("GRAPHKIT_SEED", int, 0, "seed of initialisers and random operators when none is given")
CACHE: Knob[str | None] = Knob(
    "GRAPHKIT_CACHE",
    str,
    None,
    "folder that keeps plans of large programs and kernels compiled for cards between processes;"
    " default: kernels alone, in the user's folder for such files",
)
CACHE_MB = Knob(
    "GRAPHKIT_CACHE_MB", _positive, 32, "about how many MB an executor keeps of programs for sizes seen before"
)
RANK_TIMEOUT = Knob(
    "GRAPHKIT_RANK_TIMEOUT", _seconds, 60.0,
    "seconds after which a job ends if a process gives no sign, or if all wait; inf: never",
)  # fmt: skip
RANKS_PER_HOST: Knob[int | None] = Knob(
    "GRAPHKIT_RANKS_PER_HOST", _positive, None, "for trials on one machine: ranks are taken to be on hosts of so many"
)
JOB_SIZE: Knob[int | None] = Knob(
    "GRAPHKIT_JOB_SIZE", _positive, None, "set by --processes for the ranks that it starts: how many they are"
)
JOB_PIPE: Knob[str | None] = Knob(
    "GRAPHKIT_JOB_PIPE", str, None, "set by --processes for the ranks that it starts: where they say how they end"
)
MPIEXEC: Knob[str | None] = Knob(
    "GRAPHKIT_MPIEXEC", str, None, "launcher of --processes; default: the one beside this Python, or the first on PATH"
)
SERVERS = Knob(
    "GRAPHKIT_SERVERS", _positive, 1, "processes of a job that are servers, its last ones, where the store has servers"
)
PLACE_RANKS = Knob(
    "GRAPHKIT_PLACE_RANKS", _flag, True, "0 lets the ranks of a host run on all of its cores; 1: each on its own part"
)
NCCL = Knob("GRAPHKIT_NCCL", _flag, True, "0 sums gradients of processes with cards by way of the hosts' memory")
MAX_MEMORY: Knob[int | None] = Knob(
    "GRAPHKIT_MAX_MEMORY", _memory, None, "what one run or one tensor may take, such as 4GB; default: what is left"
)
AHEAD_MEMORY = Knob(
    "GRAPHKIT_AHEAD_MEMORY", _memory, 1 << 30, "what batches may take that workers have made ahead, such as 4GB"
)
WORKER_TIMEOUT = Knob(
    "GRAPHKIT_WORKER_TIMEOUT", _seconds, 300.0, "seconds in one sample after which a worker is ended; inf: never"
)
MAX_ITERATIONS: Knob[int | None] = Knob(
    "GRAPHKIT_MAX_ITERATIONS", _positive, None, "iterations of a Loop or Scan after which a run fails; default: any"
)
TIMEOUT: Knob[float | None] = Knob(
    "GRAPHKIT_TIMEOUT", _seconds, None, "seconds after which a run fails that has not ended; default: none"
)
MAX_NODES = Knob("GRAPHKIT_MAX_NODES", _positive, 2_000_000, "nodes that a file may have, its functions being unfolded")
ENGINE_WORKERS = Knob("GRAPHKIT_ENGINE_WORKERS", _positive, 2, "worker threads of a dependency engine")

# Threads beyond the cores only take turns. Those that compute may be as many times the cores; those of an engine, which
# may wait for files and for each other, as many in all.
THREADS_PER_CORE = 4
MOST_WORKERS = 64

# Of the cores allowed, those that are this process's: others of its job have the rest.
_share: int | None = None

KNOBS = tuple(value for value in list(globals().values()) if isinstance(value, Knob))


def share_cores(cores: int | None) -> None:
    """Where GRAPHKIT_NUM_THREADS does not say, compute with so many threads from now on; None: on all cores allowed."""
    global _share
    _share = cores


def num_threads(threads: int | None = None) -> int:
    """Return `threads`, where given, or else the thread count in force: GRAPHKIT_NUM_THREADS, or the cores allowed.

    Of the cores of a host, each process of a job has its share (see `share_cores`). Raises UsageError for less than
    one, and for more than THREADS_PER_CORE for each of the cores allowed.
    """
    chosen, name = (threads, "threads") if threads is not None else (NUM_THREADS.get(), NUM_THREADS.name)
    cores = allowed_cores()
    if chosen is None:
        return cores if _share is None else _share
    if isinstance(chosen, bool) or not hasattr(chosen, "__index__") or chosen < 1:
        raise UsageError(f"{name}={chosen}: expected a positive number")
    if chosen > THREADS_PER_CORE * cores:
        raise UsageError(
            f"{name}={chosen}: at most {THREADS_PER_CORE * cores} threads, {THREADS_PER_CORE} for each of the {cores} "
            "cores that this process may use"
        )
    return int(chosen)
