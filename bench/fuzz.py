"""Fuzz graphkit: change files at random; load, run, write and read them again.

    python bench/fuzz.py --trials 1000 [--seed 0] [--minutes 10] [--record findings.json]
    python bench/fuzz.py --seeds corpus --ways wire,external    # these files, these ways; --only Resize,Conv: operators
    python bench/fuzz.py --trial 123456789      # repeat one trial, in this process, with the same choice

`fuzz_seeds` makes the original files: models of each operator's samples, small networks, files of other programs from
tests/corpus, and ONNX's test models. `fuzz_ways` changes them: the model's content, its bytes, JSON, safetensors,
external data, or arrays. A trial must succeed, or end with a graphkit error whose exit code blames the file. Everything
else is a finding: another exception, a process that dies, a trial that does not end, memory above the limit, or results
of kernels that differ from the reference. A trial is determined by its number, the choice and the set of seeds. Trials
run in another process with limits of memory and time. It is replaced if it dies or grows. Exit code 1 if there are
findings.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fuzz_results import SECONDS
from fuzz_seeds import KINDS, seeds
from fuzz_ways import WAYS

from graphkit import errors
from graphkit.checks.footprint import peak_bytes

# Memory of the process that runs trials, in bytes: its limit, and the size at which it is replaced.
PROCESS_MEMORY = 3 << 30
RECYCLED_AT = 3 << 29


class Choice(NamedTuple):
    """Which seeds and ways there are; of operators, `only` these."""

    kinds: tuple[str, ...] = tuple(KINDS)
    ways: tuple[str, ...] = tuple(WAYS)
    only: tuple[str, ...] = ()


EVERYTHING = Choice()


class Finding(NamedTuple):
    trial: int
    name: str
    kind: str
    text: str


def trial(number: int, choice: Choice = EVERYTHING) -> Finding | None:
    """Make the file of this number and see what becomes of it."""
    rng = random.Random(number)
    (kind,) = rng.choices(choice.kinds, [KINDS[kind][1] for kind in choice.kinds])
    seed = rng.choice(seeds(kind, choice.only))
    (chosen,) = rng.choices(choice.ways, [WAYS[way].often for way in choice.ways])
    way, name = WAYS[chosen], f"{chosen} {seed.name}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = way.run(seed, rng)
    except errors.GraphkitError as error:
        if error.exit_code in way.codes:
            return None
        return Finding(number, name, f"exit code {error.exit_code}", _shown(error))
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return Finding(number, name, type(error).__name__, _shown(error))
    return None if text is None else Finding(number, name, "differs", text)


def _shown(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-1500:]


# --- many of them ---------------------------------------------------------------------------------------


def work(numbers: Iterator[int], choice: Choice) -> None:
    """Run trials in a worker process. Print a line before and after each trial."""
    resource.setrlimit(resource.RLIMIT_DATA, (PROCESS_MEMORY, PROCESS_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind in choice.kinds:
        seeds(kind, choice.only)
    for number in numbers:
        print(json.dumps({"begins": number}), flush=True)
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
        found = trial(number, choice)
        faulthandler.cancel_dump_traceback_later()
        # Not getrusage's, which a process has from the one that started it.
        grown = peak_bytes()
        print(json.dumps({"ends": number, "found": found, "bytes": grown}), flush=True)
        if grown > RECYCLED_AT:
            return


def search(first: int, trials: int, seconds: float, choice: Choice = EVERYTHING, show: Any = print) -> list[Finding]:
    """Return the findings of `trials` trials, or of as many as fit into `seconds`."""
    findings: list[Finding] = []
    end, number = time.monotonic() + seconds, first
    while number < first + trials and time.monotonic() < end:
        command = [sys.executable, __file__, "--work", f"{number}:{first + trials}", *_options(choice)]
        with tempfile.TemporaryFile() as words, subprocess.Popen(command, stdout=-1, stderr=words) as process:
            assert process.stdout is not None
            before = number
            for line in process.stdout:
                said = json.loads(line)
                if "begins" in said:
                    number = said["begins"]
                    continue
                number = said["ends"] + 1
                if said["found"]:
                    findings.append(Finding(*said["found"]))
                    show(findings[-1])
                if time.monotonic() > end:
                    process.kill()
            code = process.wait()
            if code and time.monotonic() <= end:
                words.seek(0)
                text = words.read().decode(errors="replace")[-1500:]
                findings.append(Finding(number, "", "hangs" if "Timeout (" in text else f"dies ({code})", text))
                show(findings[-1])
                number += 1
            if number == before:
                number += 1
    show(f"{number - first} trials, {len(findings)} findings: {dict(Counter(f.kind for f in findings))}")
    return findings


def _options(choice: Choice) -> list[str]:
    kinds, ways, only = map(",".join, choice)
    return ["--seeds", kinds, "--ways", ways, "--only", only]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seeds", default=",".join(KINDS), help="kinds of files, with commas between them")
    parser.add_argument("--ways", default=",".join(WAYS), help="what is done with them")
    parser.add_argument("--only", default="", help="operators, and no other files")
    parser.add_argument("--record", type=Path, help="where the findings are written as JSON")
    parser.add_argument("--trial", type=int, help="this one again")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    kinds, ways, only = (tuple(filter(None, text.split(","))) for text in (given.seeds, given.ways, given.only))
    for text, names, known in (("--seeds", kinds, KINDS), ("--ways", ways, WAYS)):
        if not names or not set(names) <= set(known):
            parser.error(f"{text}: known are {', '.join(known)}")
    choice = Choice(("operators",) if only else kinds, ways, only)
    if given.work is not None:
        begin, end = map(int, given.work.split(":"))
        work(iter(range(begin, end)), choice)
        return 0
    if given.trial is not None:
        found = trial(given.trial, choice)
        print(*(found or ("nothing",)), sep="\n")
        return int(found is not None)
    findings = search(given.seed << 32, given.trials, 60 * given.minutes, choice)
    if given.record is not None:
        given.record.write_text(json.dumps([f._asdict() for f in findings], indent=1))
    return int(bool(findings))


if __name__ == "__main__":
    os.environ.setdefault("GRAPHKIT_NUM_THREADS", "1")
    sys.exit(main())
