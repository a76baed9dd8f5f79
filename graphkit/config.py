"""All GRAPHKIT_* environment variables, with their types, defaults and meanings.

A variable is read each time that its value is needed, so a script or a test may change it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from graphkit.errors import UsageError

T = TypeVar("T")


class Knob(Generic[T]):
    """One environment variable: its name, a parser for its text, its default and its meaning."""

    __slots__ = ("default", "help", "name", "parse")

    def __init__(self, name: str, parse: Callable[[str], T], default: T, help: str):
        self.name: Final = name
        self.parse: Final = parse
        self.default: Final = default
        self.help: Final = help

    def get(self) -> T:
        """Return the value in effect. Raises UsageError if the text cannot be parsed."""
        text = os.environ.get(self.name)
        if text is None or text == "":
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"environment variable {self.name}={text!r}: {error} ({self.help})") from None


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
        raise ValueError("expected 0, 1, 2 or 3 (true, yes and on mean 1; false, no and off mean 0)") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError("expected a number of seconds above 0")
    return value


def _positive(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise ValueError("expected a positive integer")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected an integer") from None


def memory_size(text: str) -> int | None:
    """Return the bytes of a text such as 4096, 500MB or 4GiB (KB, MB, GB, KiB, MiB, GiB); None for any other text."""
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
    "GRAPHKIT_NUM_THREADS", _positive, None, "number of CPU threads; default: one per core that the process may use"
)
PIN = Knob(
    "GRAPHKIT_PIN", _flag, False,
    "1: pin each helper thread to a core; cores of the caller's NUMA node are used first",
)  # fmt: skip
STRICT = Knob(
    "GRAPHKIT_STRICT", _flag, False, "1: raise an error if a step has no native kernel, instead of interpreting it"
)
DEBUG = Knob(
    "GRAPHKIT_DEBUG",
    _level,
    0,
    "level of logging to stderr. 1: effects of graph passes, compiled programs; 2: also times of passes, which nodes"
    " are interpreted and why, cached programs, reasons for compiling; 3: also the graph after each pass and the steps"
    " of each program",
)
CHECK_PASSES = Knob(
    "GRAPHKIT_CHECK_PASSES",
    _flag,
    False,
    "1: check after every graph pass that its result has the properties that the pass ensures",
)
SEED = Knob("GRAPHKIT_SEED", _integer, 0, "default seed of initial parameters, training and random operators")
CACHE: Knob[str | None] = Knob(
    "GRAPHKIT_CACHE",
    str,
    None,
    "folder in which processes cache memory plans of large programs and compiled GPU kernels; default: only GPU kernels"
    " are cached, in the user's cache folder (~/.cache/graphkit)",
)
CONVERTER: Knob[str | None] = Knob(
    "GRAPHKIT_CONVERTER",
    str,
    None,
    "read by libgraphkit.so: path of the command that converts .onnx files for programs in C; default: graphkit on"
    " PATH",
)
CACHE_MB = Knob(
    "GRAPHKIT_CACHE_MB",
    _positive,
    32,
    "memory, in MB, for compiled programs that an executor keeps for other input shapes (approximate)",
)
RANK_TIMEOUT = Knob(
    "GRAPHKIT_RANK_TIMEOUT", _seconds, 60.0,
    "seconds without a heartbeat from a process, or with all processes waiting, after which a job stops; inf: never",
)  # fmt: skip
RANKS_PER_HOST: Knob[int | None] = Knob(
    "GRAPHKIT_RANKS_PER_HOST", _positive, None, "for tests on one machine: number of ranks per simulated host"
)
JOB_SIZE: Knob[int | None] = Knob(
    "GRAPHKIT_JOB_SIZE", _positive, None, "set by --processes, not by users: number of ranks that it starts"
)
JOB_PIPE: Knob[str | None] = Knob(
    "GRAPHKIT_JOB_PIPE", str, None, "set by --processes, not by users: named pipe on which ranks report how they end"
)
MPIEXEC: Knob[str | None] = Knob(
    "GRAPHKIT_MPIEXEC",
    str,
    None,
    "MPI launcher for --processes; default: mpiexec in the folder of this Python, else the first on PATH",
)
SERVERS = Knob(
    "GRAPHKIT_SERVERS",
    _positive,
    1,
    "number of parameter servers, the last processes of a job, if the --kvstore has servers",
)
PLACE_RANKS = Knob(
    "GRAPHKIT_PLACE_RANKS", _flag, True, "1: each rank of a host runs on its own share of the cores; 0: on all cores"
)
NCCL = Knob(
    "GRAPHKIT_NCCL",
    _flag,
    True,
    "0: all-reduce gradients of GPUs through host memory; 1: with NCCL, if it is available",
)
MAX_MEMORY: Knob[int | None] = Knob(
    "GRAPHKIT_MAX_MEMORY",
    _memory,
    None,
    "memory limit of one run and of one tensor, such as 4GB; default: the free memory of the machine",
)
AHEAD_MEMORY = Knob(
    "GRAPHKIT_AHEAD_MEMORY",
    _memory,
    1 << 30,
    "memory limit, in bytes or such as 4GB, of batches that loader processes prepare ahead",
)
WORKER_TIMEOUT = Knob(
    "GRAPHKIT_WORKER_TIMEOUT",
    _seconds,
    300.0,
    "seconds after which a loader process is stopped if it is still at the same sample; inf: never",
)
# Limit of commands on the iterations of a loop, if neither --max-iterations nor GRAPHKIT_MAX_ITERATIONS is given.
COMMAND_ITERATIONS = 10_000_000
MAX_ITERATIONS: Knob[int | None] = Knob(
    "GRAPHKIT_MAX_ITERATIONS",
    _positive,
    None,
    f"limit on the iterations of a Loop or Scan; default: none in Python, {COMMAND_ITERATIONS:,} in commands",
)
TIMEOUT: Knob[float | None] = Knob(
    "GRAPHKIT_TIMEOUT", _seconds, None, "time limit of one run in seconds; default: none"
)
MAX_NODES = Knob(
    "GRAPHKIT_MAX_NODES", _positive, 2_000_000, "limit on the nodes of a file, after functions are inlined"
)
ENGINE_WORKERS = Knob(
    "GRAPHKIT_ENGINE_WORKERS", _positive, 2, "default number of worker threads of a dependency engine"
)

# Limits on threads. THREADS_PER_CORE limits compute threads: more threads than cores only take turns. MOST_WORKERS is
# the most threads of one dependency engine, on any number of cores, since they may wait for files and for each other.
THREADS_PER_CORE = 4
MOST_WORKERS = 64

# Number of cores for this process; other processes of its job use the rest. None: all allowed cores.
_share: int | None = None

KNOBS = tuple(value for value in list(globals().values()) if isinstance(value, Knob))


def share_cores(cores: int | None) -> None:
    """Set the number of threads that is used without GRAPHKIT_NUM_THREADS. cores: that number; None: one per core."""
    global _share
    _share = cores


def _allowed_cores() -> int:
    from graphkit.cores import allowed_cores

    return allowed_cores()


def num_threads(threads: int | None = None) -> int:
    """Return `threads` if given, else GRAPHKIT_NUM_THREADS, else one thread per core that the process may use.

    The processes of a job share the cores of their host (see `share_cores`). Raises UsageError for fewer than one
    thread, and for more than THREADS_PER_CORE threads per allowed core.
    """
    chosen, name = (threads, "threads") if threads is not None else (NUM_THREADS.get(), NUM_THREADS.name)
    if chosen is None:
        return _allowed_cores() if _share is None else _share
    if isinstance(chosen, bool) or not hasattr(chosen, "__index__") or chosen < 1:
        raise UsageError(f"{name}={chosen}: expected a positive integer")
    # Reading the quotas of control groups takes time, and there is one core at least.
    if chosen > THREADS_PER_CORE and chosen > THREADS_PER_CORE * (cores := _allowed_cores()):
        raise UsageError(
            f"{name}={chosen}: at most {THREADS_PER_CORE * cores} threads, {THREADS_PER_CORE} for each of the {cores} "
            "cores that this process may use"
        )
    return int(chosen)
