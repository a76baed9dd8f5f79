"""Hostile files in large numbers: models that are changed at random are loaded, run, written and read again.

    python bench/fuzz.py --trials 1000 [--seed 0] [--minutes 10] [--record findings.json] [--only Resize,Conv]
    python bench/fuzz.py --trial 123456789      # one of them again, in this process

What is changed are models of one node, one for each sample of each operator, and small networks of the zoo; see
`mutations`. Each trial ends well or in an error of graphkit's own. Whatever else happens is a finding: another
exception, a process that dies, a trial that does not end, more memory than its limit, results of kernels that are not
those of the reference. A trial is known by its number alone (and the operators that there are), and goes on in another
process with limits of memory and time, which is replaced when it dies or has grown. The exit code is 1 when there are
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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mutations
import numpy as np

import graphkit as gk
from graphkit import errors
from graphkit.checks.inputs import make_feeds
from graphkit.checks.samples import make_case, samples_of
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

# Of one trial: seconds, bytes of arrays, iterations; and of the process that it is in, bytes.
SECONDS = 20
MEMORY = 1 << 28
ITERATIONS = 1000
PROCESS_MEMORY = 3 << 30
RECYCLED_AT = 3 << 29

# The errors that a file may end in are those whose exit code says so; wrong feeds are the fuzzer's.
_EXPECTED = (3, 4, 5)


class Finding(NamedTuple):
    trial: int
    name: str
    kind: str
    text: str


# --- what is changed ------------------------------------------------------------------------------------


@cache
def corpus(only: tuple[str, ...] = ()) -> tuple[tuple[str, bytes], ...]:
    """Model files by name: those of operators, of `only` these, and of small networks."""
    found: list[tuple[str, bytes]] = []
    for cls in registry:
        if not only or cls.name in only:
            for number in range(len(samples_of(cls))):
                found += _exported(f"{cls.name}-{number}", lambda cls=cls, number=number: _of_case(cls, number))
    if not only:
        for name, options in _NETWORKS.items():
            found += _exported(name, lambda name=name, options=options: gk.models.build(name, **options))
    return tuple(found)


_NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"inputs": 4, "hidden": 3, "classes": 2},
    "lenet": {},
}


def _of_case(cls: Any, number: int) -> gk.Model:
    case = make_case(cls, number)
    return gk.Model.from_graph(case.graph(all_inputs=bool(number % 2)), {})


def _exported(name: str, build: Any) -> list[tuple[str, bytes]]:
    try:
        return [(name, bytes(build().to_onnx(opset=24).SerializeToString()))]
    except errors.GraphkitError:  # what ONNX has no word for
        return []


# --- one trial ------------------------------------------------------------------------------------------


def trial(number: int, only: tuple[str, ...] = ()) -> Finding | None:
    """Make the file of this number and see what becomes of it."""
    rng = random.Random(number)
    name, data = rng.choice(corpus(only))
    (way,) = rng.choices([way for way, _ in _ways], [weight for _, weight in _ways])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = way(data, rng)
    except errors.InputError:
        return None
    except errors.GraphkitError as error:
        if error.exit_code in _EXPECTED:
            return None
        return Finding(number, name, f"exit code {error.exit_code}", _shown(error))
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return Finding(number, name, type(error).__name__, _shown(error))
    return None if text is None else Finding(number, name, "differs", text)


def _shown(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-1500:]


def _onnx(data: bytes, rng: random.Random) -> str | None:
    net = gk.load(mutations.mutated(data, rng), max_memory=MEMORY, timeout=SECONDS)
    found = _ran(net, rng)
    if rng.random() < 0.2:
        net.to_text()
        again = gk.load(net.to_onnx(opset=24), max_memory=MEMORY, timeout=SECONDS)
        if again.outputs != net.outputs:
            return f"outputs {net.outputs} are written as {again.outputs}"
    return found


def _json(data: bytes, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.json"
        gk.load(data).save(path)
        path.write_bytes(mutations.damaged_json(path.read_bytes(), rng))
        _ran(gk.load(path, max_memory=MEMORY, timeout=SECONDS), rng)


def _weights(data: bytes, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 2), np.int64)}
        gk.ir.weights.write_arrays(path, arrays)
        path.write_bytes(mutations.damaged(path.read_bytes(), rng))
        gk.ir.weights.read_arrays(path)


def _ran(net: gk.Model, rng: random.Random) -> str | None:
    """Run a model in the engine and by references; what differs, as text."""
    feeds = make_feeds(net, rng.choice(("random", "random", "ones", "zeros", "arange")), seed=rng.randrange(100)).arrays
    odd = False
    for array in feeds.values():
        if isinstance(array, np.ndarray) and array.size and array.dtype.kind in "iuf" and rng.random() < 0.25:
            _spoil(array, rng)
            odd |= array.dtype.kind == "f"
    executor = net.compile(threads=1, max_memory=MEMORY, max_iterations=ITERATIONS, timeout=SECONDS)
    results = executor.run(feeds)
    # Of numbers like these, rounding alone makes others.
    if odd or any(v.role == "rng" for v in net.graph.inputs):
        return None
    with gk.ir.limits.limited(MEMORY, SECONDS, ITERATIONS):
        arrays = [feeds[net.graph.name_of(v)] if v.role == "data" else net.params[net.graph.name_of(v)]
                  for v in net.graph.inputs]  # fmt: skip
        wanted = evaluate(net.graph, arrays)
    # What is fused rounds in another place, as in ONNX Runtime: where two steps are as near, to the other one.
    step = any(node.op.name == "QuantizeLinear" for node in net.graph.nodes)
    for (name, result), array in zip(results.items(), wanted, strict=True):
        if isinstance(array, np.ndarray) and (found := _difference(result, array, int(step))):
            return f"output {name!r}: {found}"
    return None


def _spoil(array: np.ndarray, rng: random.Random) -> None:
    """Numbers that no network expects, in place."""
    choices = mutations.FLOATS
    if array.dtype.kind != "f":
        limit = np.iinfo(array.dtype)
        choices = [i for i in mutations.INTEGERS if limit.min <= i <= limit.max]
    with np.errstate(all="ignore"):
        for _ in range(rng.choice((1, 3, array.size))):
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(choices)


def _difference(result: np.ndarray, wanted: np.ndarray, steps: int = 0) -> str:
    """How two results differ beyond all rounding, integers of 8 bits by more than `steps`; empty where they do not."""
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return f"{result.dtype}{list(result.shape)} in the engine, {wanted.dtype}{list(wanted.shape)} by the reference"
    if steps and wanted.dtype in (np.int8, np.uint8):
        return (
            "" if (np.abs(result.astype(int) - wanted) <= steps).all() else "more than a step of quantisation differs"
        )
    if wanted.dtype.kind in "iub":
        return "" if (result == wanted).all() else f"{np.count_nonzero(result != wanted)} numbers differ"
    if wanted.dtype.kind != "f":
        return ""
    a, b = result.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = 1 + np.abs(b[np.isfinite(b)]).max(initial=0.0)
        close = (np.abs(a - b) <= 1e-2 * scale) | (a == b) | ~(np.isfinite(a) & np.isfinite(b))
    return "" if close.all() else f"{np.count_nonzero(~close)} numbers differ: {a[~close][:3]}, {b[~close][:3]}"


# What is done with a model, and how often.
_ways = ((_onnx, 8), (_json, 1), (_weights, 1))


# --- many of them ---------------------------------------------------------------------------------------


def work(numbers: Iterator[int], only: tuple[str, ...]) -> None:
    """In a process of its own: a line on stdout before each trial and one behind it."""
    resource.setrlimit(resource.RLIMIT_DATA, (PROCESS_MEMORY, PROCESS_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    corpus(only)
    for number in numbers:
        print(json.dumps({"begins": number}), flush=True)
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
        found = trial(number, only)
        faulthandler.cancel_dump_traceback_later()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        print(json.dumps({"ends": number, "found": found, "bytes": grown}), flush=True)
        if grown > RECYCLED_AT:
            return


def search(first: int, trials: int, seconds: float, only: tuple[str, ...], show: Any = print) -> list[Finding]:
    """The findings of so many trials, or of those that there is time for."""
    findings: list[Finding] = []
    end, number = time.monotonic() + seconds, first
    while number < first + trials and time.monotonic() < end:
        command = [sys.executable, __file__, "--work", f"{number}:{first + trials}", "--only", ",".join(only)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--only", default="", help="operators, with commas between them")
    parser.add_argument("--record", type=Path, help="where the findings are written as JSON")
    parser.add_argument("--trial", type=int, help="this one again")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    only = tuple(filter(None, given.only.split(",")))
    if given.work is not None:
        begin, end = map(int, given.work.split(":"))
        work(iter(range(begin, end)), only)
        return 0
    if given.trial is not None:
        found = trial(given.trial, only)
        print(*(found or ("nothing",)), sep="\n")
        return int(found is not None)
    findings = search(given.seed << 32, given.trials, 60 * given.minutes, only)
    if given.record is not None:
        given.record.write_text(json.dumps([f._asdict() for f in findings], indent=1))
    return int(bool(findings))


if __name__ == "__main__":
    os.environ.setdefault("GRAPHKIT_NUM_THREADS", "1")
    sys.exit(main())
