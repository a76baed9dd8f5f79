"""Tools for the benchmark commands: worker processes, facts about the machine, options."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphkit.config import num_threads
from graphkit.errors import did_you_mean

HERE = Path(__file__).parent
# Seconds after which a process is considered to hang.
TIMEOUT = 1800
_COUNT = "while True: pass"


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of one worker process, or `{"error": ...}`."""
    # numpy's BLAS reads its threads when it is loaded. A copy is fastest with stores that pass the caches by.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(task["threads"]), "MKL_NUM_THREADS": str(task["threads"])}
    if task["task"] == "ceilings":
        environment["GLIBC_TUNABLES"] = "glibc.cpu.x86_non_temporal_threshold=0x100000"
    command = [sys.executable, str(HERE / "worker.py"), json.dumps(task)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False, cwd=HERE
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {TIMEOUT} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"error": f"the process ended with {done.returncode}: {last[0][:300]}"}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def repeated(
    options: argparse.Namespace,
    names: Iterable[str],
    parts: Sequence[str],
    task: Callable[[str], Mapping[str, Any]],
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """By workload and number of threads: what each process found of the `parts` that take turns in it.

    `task(name)` is what sets a workload's task apart; options are those of `add_repetition`. The restarts of a row lie
    far apart in time. Where a process failed, every part has its error.
    """
    measured: dict[tuple[str, int], list[dict[str, Any]]] = {(n, t): [] for t in options.threads for n in names}
    for restart in range(options.restarts):
        for (name, threads), processes in measured.items():
            log(f"restart {restart + 1} of {options.restarts}: {name}, {threads} threads")
            common = {"workload": name, "threads": threads, "rounds": options.rounds, "seconds": options.seconds}
            found = run({**task(name), **common, "seed": restart})
            processes.append(dict.fromkeys(parts, found) if "error" in found else found)
    return measured


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run `processes` processes that each keep a core busy."""
    counting = [subprocess.Popen([sys.executable, "-c", _COUNT]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def machine() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*:\s*(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    cache = re.match(r"(\d+)K", _text("/sys/devices/system/cpu/cpu0/cache/index3/size"))
    return {
        "cpu": cpu.group(1) if cpu else platform.processor(),
        "cores": num_threads(),
        "cache_bytes": int(cache.group(1)) * 1024 if cache else 32 << 20,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


# --- options ------------------------------------------------------------------------------------------


def add_choices(parser: argparse.ArgumentParser, option: str, kind: str, known: Iterable[str]) -> None:
    """Add an option for names separated by commas; the default is all of `known`."""
    names = list(known)
    parser.add_argument(
        option, type=_names(kind, names), default=names, metavar="NAMES", help=f"{kind}s: {', '.join(names)}"
    )


def add_restarts(parser: argparse.ArgumentParser) -> None:
    """Add the options for the numbers of processes and threads."""
    parser.add_argument("--quick", action="store_true", help="2 restarts of 3 short rounds, without intervals to trust")
    parser.add_argument(
        "--threads",
        type=_counts,
        default=None,
        metavar="COUNTS",
        help="after commas (default: 1 and all cores)",
    )
    parser.add_argument("--restarts", type=int, help="processes per workload and number of threads (default: 5)")


def add_repetition(parser: argparse.ArgumentParser) -> None:
    """Add the options for the duration of the measurement and the number of threads."""
    add_restarts(parser)
    parser.add_argument("--rounds", type=int, help="rounds per process (default: 9)")
    parser.add_argument("--seconds", type=float, help="of an engine's turn in a round, at least one run (default: 0.1)")


def add_output(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--output", type=Path, default=HERE / "results", help="folder for the results")
    parser.add_argument("--name", default=name, help="name of the files of results")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with what `add_restarts` and `add_repetition` leave open."""
    options = parser.parse_args()
    options.threads = options.threads or sorted({1, num_threads()})
    defaults = {"restarts": 2, "rounds": 3, "seconds": 0.03} if options.quick else {
        "restarts": 5, "rounds": 9, "seconds": 0.1
    }  # fmt: skip
    for key, value in defaults.items():
        if key not in options:
            continue
        if getattr(options, key) is None:
            setattr(options, key, value)
        if getattr(options, key) <= 0:
            parser.error(f"--{key} must be positive")
    return options


def _names(kind: str, known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse_names(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {kind} {name!r}{did_you_mean(name, known)}")
        return names

    return parse_names


def _counts(text: str) -> list[int]:
    counts = sorted({int(part) for part in text.split(",")})
    if counts[0] < 1:
        raise argparse.ArgumentTypeError("threads are counted from 1")
    return counts
