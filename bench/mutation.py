"""Measure how many of 200 planted faults the tests catch, in the default lane or in another set of tests.

    python bench/mutation.py --record faults.json                     200 faults, and those of mutation_named.toml
    python bench/mutation.py --record faults.json                     the same again: continues where it stopped
    python bench/mutation.py --record old.json --faults faults.json --tests ../old/tests --work build/mutation-old
    python bench/mutation.py --record rest.json --only-survivors faults.json --work build/mutation-rest

Each drawn fault changes one operator, comparison or number in one line. A first run of the tests, without an active
fault, records which tests reach which faults. Then, for each fault, the tests that reach it run until one fails, close
and cheap ones first. All Python faults are in one copy of the package, see `mutation_planting.py`. Native faults are
compiled and linked one by one, see `mutation_native.py`. At the end, the tests that caught a fault run once more
without any. If one fails, its faults are judged again without it.

Needs graphkit installed in editable mode from this checkout, with a build folder that is up to date:

    pip install -e . -C build-dir=build/editable

The work folder keeps the copies: a call that continues judges the sources of the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mutation_environment import Ended, Environment, ReachedBy, Runner, Stopped, copy_checkout, extension, versions
from mutation_native import Build
from mutation_planting import KINDS, ROOT, CannotPlant, Fault, drawn, found_again, named_faults

# Processor seconds of the tests of one run of pytest for a fault: the first, the second, ...; then all that are left.
_BATCHES = (3.0, 12.0, 48.0, 192.0)
# Seconds for finding, loading and reporting a test, in addition to the test itself.
_EACH = 0.02
_READY = "ready.json"
# Kernels that are kept for those that do not compile.
_SPARE = 60


@dataclass(frozen=True)
class Limits:
    """Processor seconds of tests for one fault.

    Attributes:
        most: All tests that reach it.
        further: Of tests that do not reach it, but lie in the same files as those that do: a test may use what
            another one, which ran before it, has computed.
    """

    most: float
    further: float


class Record:
    """The JSON file with the faults and their results, written after each."""

    def __init__(self, path: Path):
        self.path = path
        self.lock = threading.Lock()
        self.content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def write(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.content, indent=1))
        os.replace(temporary, self.path)

    @property
    def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.content["faults"]
        return found

    @property
    def excluded(self) -> set[str]:
        return set(self.content.get("unreliable", ()))


def fault_of(entry: Mapping[str, Any]) -> Fault:
    return Fault(**entry["fault"])


def is_survivor(entry: Mapping[str, Any]) -> bool:
    return entry.get("state", "caught") != "caught"


# --- faults ---------------------------------------------------------------------------------------


def choose(arguments: argparse.Namespace, build: Build | None) -> dict[str, Any]:
    """Return the content of a new record: the faults, not judged yet."""
    given = arguments.faults or arguments.only_survivors
    gone: list[str] = []
    spare: list[Fault] = []
    if given:
        entries = json.loads(given.read_text())["faults"]
        before = [fault_of(e) for e in entries if arguments.faults or is_survivor(e)]
        again = [(fault, found_again(fault)) for fault in before if fault.kind in arguments.kinds]
        chosen = [found for _, found in again if found is not None]
        gone = [str(fault) for fault, found in again if found is None]
    else:
        found = drawn(arguments.count, arguments.seed, arguments.kinds, build.plantable() if build else {})
        kernels = arguments.kinds.index("kernels") if "kernels" in arguments.kinds else -1
        share = (arguments.count + kernels) // len(arguments.kinds)
        chosen = [
            fault for kind, faults in found.items() for fault in (faults[:share] if kind == "kernels" else faults)
        ]
        spare = found.get("kernels", [])[share : share + _SPARE]
        chosen += [fault for fault in named_faults() if fault.kind in arguments.kinds]
    random.Random(arguments.seed).shuffle(chosen)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        "settings": {
            "count": arguments.count, "seed": arguments.seed, "kinds": arguments.kinds, "commit": commit.strip(),
            "tests": str(arguments.tests), "paths": arguments.paths, "pytest": arguments.pytest, "with": versions(),
        },
        "processor_seconds": 0.0, "gone": gone, "unreliable": [], "spare": [asdict(fault) for fault in spare],
        "faults": [{"fault": asdict(fault)} for fault in chosen],
    }  # fmt: skip


def prepare(work: Path, record: Record, arguments: argparse.Namespace) -> None:
    """Make the copies in the work folder, unless they are there and have the faults of the record."""
    faults = {n: fault_of(e) for n, e in enumerate(record.entries) if not fault_of(e).is_native}
    ready = work / _READY
    wanted = {"faults": [str(fault) for fault in faults.values()], "tests": record.content["settings"]["tests"]}
    if ready.exists():
        if json.loads(ready.read_text()) != wanted:
            raise SystemExit(f"{work} has the faults of another record: give another --work, or remove it")
        made = sum(1 for _ in work.glob("environment-*"))
    else:
        if work.exists() and any(work.iterdir()) and not (work / "checkout").exists():
            raise SystemExit(f"{work} is not a work folder of this program: give another --work")
        shutil.rmtree(work, ignore_errors=True)
        root = arguments.tests.parent if arguments.tests.name == "tests" else arguments.tests
        copy_checkout(root, work / "checkout")
        made = 0
    native = extension()
    for job in range(made, arguments.jobs):
        Environment(work / f"environment-{job}").make(faults, native)
    ready.write_text(json.dumps(wanted))


# --- which tests ----------------------------------------------------------------------------------


def distance(fault: Fault, test: str) -> int:
    """Return the distance of a test's file from that of a fault: 0 in the same folder with a similar name."""
    path = PurePosixPath(fault.file)
    parts = path.with_suffix("").parts[1:]
    if parts[:2] == ("executor", "native"):
        parts = ("executor", "devices", "cpu", path.parent.name)
    file = PurePosixPath(test.split("::", 1)[0])
    folders = file.parts[1:-1]
    common = 0
    while common < min(len(parts) - 1, len(folders)) and parts[common] == folders[common]:
        common += 1
    return len(parts) - 1 - common + (parts[-1].strip("_") not in file.name)


def in_order(fault: Fault, tests: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """Sort tests: cheap and near ones come first."""
    return sorted(tests, key=lambda test: ((_EACH + seconds[test]) * (1 + distance(fault, test)), test))


def batches(tests: Sequence[str], seconds: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield growing parts of the tests."""
    rest = list(tests)
    for limit in (*_BATCHES, float("inf")):
        taken, total = 0, 0.0
        while taken < len(rest) and (not taken or total + seconds[rest[taken]] <= limit):
            total += seconds[rest[taken]] + _EACH
            taken += 1
        if taken:
            yield rest[:taken]
        rest = rest[taken:]


def reaching(fault: Fault, number: int, reached: ReachedBy, build: Build | None) -> set[str]:
    if not fault.is_native:
        return set(reached.reached.get(str(number), ()))
    assert build is not None
    keys = [f"native:{name}" for name in build.bound(fault.file)]
    keys = keys or [key for key in reached.reached if key.startswith("native:")]
    return {test for key in keys for test in reached.reached.get(key, ())}


def further_tests(fault: Fault, tests: set[str], seconds: Mapping[str, float]) -> list[str]:
    """Tests of the same files, and of the nearest folder."""
    files = {test.split("::", 1)[0] for test in tests}
    near = min((distance(fault, test) for test in seconds), default=0)
    return [
        test
        for test in seconds
        if test not in tests and (test.split("::", 1)[0] in files or distance(fault, test) == near)
    ]


# --- judging --------------------------------------------------------------------------------------


@dataclass
class Judge:
    """Judges faults in one environment."""

    runner: Runner
    reached: ReachedBy
    limits: Limits
    build: Build | None
    native: Path
    jobs: int

    def result(self, number: int, fault: Fault, excluded: set[str]) -> dict[str, Any]:
        """Judge a fault; return its state, the test that caught it, and the tests that ran."""
        tests = reaching(fault, number, self.reached, self.build) - excluded
        result: dict[str, Any] = {"state": "unreached", "reached": len(tests), "run": 0, "seconds": 0.0}
        if not tests:
            return result
        if fault.is_native:
            complaint = self._built(fault)
            if complaint:
                return result | {"state": "not compiled", "caught": complaint}
        try:
            return self._judged(number, fault, tests, excluded, result)
        finally:
            if fault.is_native:
                self._install(self.native)

    def _judged(
        self, number: int, fault: Fault, tests: set[str], excluded: set[str], result: dict[str, Any]
    ) -> dict[str, Any]:
        seconds = self.reached.seconds
        others = in_order(fault, [t for t in further_tests(fault, tests, seconds) if t not in excluded], seconds)
        further = within(others, seconds, self.limits.further)
        chosen = within(in_order(fault, sorted(tests), seconds), seconds, self.limits.most)
        result["state"] = "survived" if len(chosen) == len(tests) else "cut"
        for part in (*batches(chosen, seconds), *([further] if further else [])):
            ended = self.run(part, None if fault.is_native else number)
            result["run"] += len(part)
            result["seconds"] = round(result["seconds"] + ended.seconds, 2)
            if ended.caught:
                return result | {"state": "caught", "caught": ended.caught}
        return result

    def run(self, tests: Sequence[str], number: int | None, stop: bool = True) -> Ended:
        files = {test.split("::", 1)[0] for test in tests}
        known = [t for t in (*self.reached.seconds, *self.reached.left_out) if t.split("::", 1)[0] in files]
        expected = sum(self.reached.seconds[test] + _EACH for test in tests)
        return self.runner.judge(tests, known, expected, number, stop)

    def _built(self, fault: Fault) -> str:
        assert self.build is not None
        target = self.runner.scratch / self.build.library
        complaint = self.build.make(fault, self.runner.scratch / "native", target, self.jobs)
        if not complaint:
            self._install(target)
        return complaint

    def _install(self, library: Path) -> None:
        """Put an extension into the environment; a process that still has the one before keeps it."""
        target = self.runner.environment.site / "graphkit" / self.native.name
        temporary = target.with_suffix(".new")
        shutil.copy2(library, temporary)
        os.replace(temporary, target)


def within(tests: Sequence[str], seconds: Mapping[str, float], limit: float) -> list[str]:
    """Return as many of the first tests as fit into the time."""
    found, total = [], 0.0
    for test in tests:
        total += seconds[test]
        if total > limit:
            break
        found.append(test)
    return found


def judge_all(judges: Sequence[Judge], record: Record, end: float) -> None:
    """Judge the faults without a result in the record. Each judge has its own thread."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number, entry in enumerate(record.entries):
        if "state" not in entry:
            waiting.put(number)
    failures: list[BaseException] = []

    def work(judge: Judge) -> None:
        try:
            while time.monotonic() < end and not failures:
                number = waiting.get_nowait()
                judge_one(judge, record, number)
        except (queue.Empty, Stopped):
            return
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(judge,)) for judge in judges]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # on Ctrl-C or SIGTERM: what was judged is in the record
        for judge in judges:
            if any(thread.is_alive() for thread in threads):
                judge.runner.stopped.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def judge_one(judge: Judge, record: Record, number: int) -> None:
    """Judge one fault; one that does not compile is replaced by the next spare one."""
    while True:
        entry = record.entries[number]
        fault = fault_of(entry)
        result = judge.result(number, fault, record.excluded)
        with record.lock:
            if result["state"] == "not compiled" and record.content["spare"]:
                record.entries[number] = {"fault": record.content["spare"].pop(0)}
                continue
            entry.update(result)
            record.write()
            judged = sum("state" in other for other in record.entries)
        shown = result.get("caught") or result["state"].upper()
        print(f"{judged}/{len(record.entries)} {fault}: {shown} ({result['seconds']:.0f} s)", flush=True)
        return


def unreliable(judge: Judge, record: Record) -> list[str]:
    """Tests that caught a fault, and fail without one."""
    tests = {entry["caught"] for entry in record.entries if entry.get("state") == "caught"}
    known = in_known_order(tests, judge.reached.seconds)
    return [] if not known else [t for t in judge.run(known, None, stop=False).failed if t in tests]


def in_known_order(tests: set[str], seconds: Mapping[str, float]) -> list[str]:
    return [test for test in seconds if test in tests]


def judge_reliably(judges: Sequence[Judge], record: Record, end: float) -> None:
    while True:
        judge_all(judges, record, end)
        if any("state" not in entry for entry in record.entries):
            return
        bad = unreliable(judges[0], record)
        if not bad:
            return
        print(f"fail without a fault as well, and are left out: {', '.join(bad)}", flush=True)
        record.content["unreliable"] += bad
        record.content["faults"] = [
            {"fault": entry["fault"]} if entry.get("caught") in bad else entry for entry in record.entries
        ]
        record.write()


def report(record: Record) -> str:
    """Return a table by kind of fault, and the faults that no test caught."""
    judged = [entry for entry in record.entries if "state" in entry and entry["state"] != "not compiled"]
    lines = ["| kind | planted | caught | survived | not reached | cut short |", "|---|---:|---:|---:|---:|---:|"]
    kinds = [(kind, [e for e in judged if e["fault"]["kind"] == kind]) for kind in KINDS]
    rows = [(kind, found) for kind, found in kinds if found]
    named = [entry for entry in judged if entry["fault"]["why"]]
    rows += [("all", judged), ("of these, named", named)]
    for kind, found in rows:
        states = Counter(entry["state"] for entry in found)
        counts = (len(found), *(states[state] for state in ("caught", "survived", "unreached", "cut")))
        lines.append(f"| {kind} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", *(f"{entry['state']}: {fault_of(entry)}" for entry in judged if is_survivor(entry))]
    # No test that failed, but a run that ended otherwise: a person should look.
    ended = [entry for entry in judged if str(entry.get("caught", "")).endswith(")")]
    lines += [f"taken for caught: {fault_of(entry)}: {entry['caught']}" for entry in ended]
    lines += [f"not there any more: {fault}" for fault in record.content["gone"]]
    lines += [f"left out, fails without a fault: {test}" for test in record.content["unreliable"]]
    lines.append(f"{record.content['processor_seconds'] / 60:.0f} minutes of processor time")
    return "\n".join(lines)


def mapped(runner: Runner, work: Path, arguments: argparse.Namespace) -> ReachedBy:
    """Return the tests that reach each fault, from the work folder or from a run of the tests."""
    path = work / "map.json"
    if not path.exists():
        folder = work / "map"
        shutil.rmtree(folder, ignore_errors=True)
        print("running the tests without a fault", flush=True)
        ended = runner.map(folder, arguments.paths, arguments.jobs)
        if ended.code not in (0, 1):
            raise SystemExit(f"the tests cannot be run without a fault: pytest ends with {ended.code}")
        found = ReachedBy.of(folder)
        path.write_text(json.dumps(asdict(found)))
        print(f"{len(found.seconds)} tests pass, {ended.seconds:.0f} s processor time", flush=True)
    return ReachedBy(**json.loads(path.read_text()))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--record", type=Path, required=True, help="JSON; a record that exists is continued")
    add("--count", type=int, default=200, help="drawn faults, evenly from the kinds")
    add("--seed", type=int, default=1)
    add("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    add("--faults", type=Path, metavar="RECORD", help="judge the faults of another record instead of drawn ones")
    add("--only-survivors", type=Path, metavar="RECORD", help="judge the faults of another record that nothing caught")
    add("--tests", type=Path, default=ROOT / "tests", help="the tests folder of a git checkout")
    add("--paths", nargs="+", default=[], help="run only these tests, such as tests/train")
    add("--pytest", default="", metavar="OPTIONS", help='options that choose another lane, such as "-m full"')
    add("--jobs", type=int, default=2, help="faults that are judged at once")
    add("--most", type=float, default=240.0, help="processor seconds of tests for one fault")
    add("--further", type=float, default=20.0, help="the same for tests that do not reach the fault, but lie beside")
    add("--minutes", type=float, default=float("inf"), help="stop after so much wall time")
    add("--build", type=Path, default=ROOT / "build/editable", help="the build folder of the installed package")
    add("--work", type=Path, default=ROOT / "build/mutation", help="folder for the copies")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    arguments.tests = arguments.tests.resolve()
    record, work = Record(arguments.record), arguments.work.resolve()
    build = Build(arguments.build) if "kernels" in arguments.kinds else None
    if build is not None and (stale := build.stale()):
        raise SystemExit(f"{arguments.build} is older than {stale[0]}: build it again")
    end = time.monotonic() + 60 * arguments.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if not record.content:
        try:
            record.content = choose(arguments, build)
        except CannotPlant as error:
            raise SystemExit(str(error)) from None
        record.write()
    prepare(work, record, arguments)
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        runners = []
        for job in range(arguments.jobs):
            scratch = Path(temporary) / str(job)
            scratch.mkdir()
            environment = Environment(work / f"environment-{job}")
            runners.append(Runner(environment, work / "checkout", scratch, shlex.split(arguments.pytest)))
        reached = mapped(runners[0], work, arguments)
        record.content["unreliable"] = sorted({*record.content["unreliable"], *reached.failed})
        limits, native = Limits(arguments.most, arguments.further), extension()
        judges = [Judge(runner, reached, limits, build, native, arguments.jobs) for runner in runners]
        try:
            judge_reliably(judges, record, end)
        finally:
            times = os.times()
            record.content["processor_seconds"] += sum(times[:4])
            record.write()
    print(report(record))


if __name__ == "__main__":
    main()
