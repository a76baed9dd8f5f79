"""Where planted faults are judged: copies of the package with all Python faults, and runs of pytest in them.

A work folder holds

    checkout/       the files of a checkout, whose tests are run
    environment-0/  for each job a virtual environment with a copy of the package; everything else comes from the
                    environment of the Python that runs this program
    map/            which test reaches which fault: see `mutation_hits.py`
"""

from __future__ import annotations

import compileall
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation_hits import ACTIVE, MAP, TASK
from mutation_planting import ROOT, Fault, planted

_HITS = Path(__file__).with_name("mutation_hits.py")
# A run names itself in its environment, so that processes that it leaves behind can be found and ended.
_RUN = "GRAPHKIT_FAULT_RUN"
# Memory limit of a test process: a fault in a size must not use up the machine's memory.
_MOST_BYTES = 12 << 30
_BASE = "native = import_extension()\n"
_WATCHED = 'native = __import__("graphkit_faults").watched(import_extension())\n'


def copy_checkout(root: Path, target: Path) -> None:
    """Copy what git has of a checkout, and new files that git does not ignore."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def extension() -> Path:
    """The compiled extension of the installed package."""
    command = [sys.executable, "-P", "-c", "import graphkit._native as native; print(native.__file__)"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip())


class Environment:
    """A virtual environment in which all Python faults are planted."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "lib" / version / "site-packages"

    def make(self, faults: Mapping[int, Fault], native: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(self.folder)], check=True)
        self._borrow()
        package = self.site / "graphkit"
        unwanted = shutil.ignore_patterns("__pycache__", "native", "*.so")
        shutil.copytree(ROOT / "graphkit", package, ignore=unwanted)
        for name in ("cli", "models"):
            shutil.copytree(ROOT / name, package / name, ignore=unwanted)
        self.native = package / native.name
        shutil.copy2(native, self.native)
        stub = native.with_name("_native.pyi")
        if stub.exists():
            shutil.copy2(stub, package / stub.name)
        shutil.copy2(_HITS, self.site / "graphkit_faults.py")
        of_files: dict[str, dict[int, Fault]] = defaultdict(dict)
        for number, fault in faults.items():
            of_files[fault.file][number] = fault
        for file, chosen in of_files.items():
            (self.site / file).write_text(planted(file, chosen))
        base = package / "executor/devices/cpu/_base.py"
        text = base.read_text()
        assert text.count(_BASE) == 1, f"{base} does not load the extension as it did"
        base.write_text(text.replace(_BASE, _WATCHED))
        compileall.compile_dir(str(package), quiet=1)

    def _borrow(self) -> None:
        """Let the environment find everything but graphkit where this Python finds it."""
        folders = [path for path in sys.path if "-packages" in path]
        (self.site / "base.pth").write_text("\n".join(folders) + "\n")
        base = Path(sysconfig.get_path("purelib"))
        for entry in base.glob("graphkit*.dist-info"):
            shutil.copytree(entry, self.site / entry.name)
        # Programs such as mpiexec are searched in Python's folder, and oneDNN at the extension's RPATH.
        for folder in ("bin", "lib"):
            for entry in (Path(sys.prefix) / folder).iterdir():
                own = self.folder / folder / entry.name
                if not own.exists() and not entry.name.startswith(("python", "activate", "pip", "graphkit")):
                    own.symlink_to(entry)
        script = self.folder / "bin" / "graphkit"
        script.write_text(f"#!{self.python}\nimport sys\nfrom graphkit.cli import main\nsys.exit(main())\n")
        script.chmod(0o755)


def versions() -> str:
    return f"Python {sys.version.split()[0]}, pytest {importlib.metadata.version('pytest')}"


class Stopped(Exception):
    """The program is asked to end."""


# --- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a run of pytest ended: its return code (None: it took too long), processor seconds, what failed first."""

    code: int | None
    seconds: float
    failed: Sequence[str] = ()
    started: Sequence[str] = ()
    log: str = ""

    @property
    def caught(self) -> str:
        """Which test fails, or why there is no result; empty when all tests pass."""
        if self.failed:
            return self.failed[0]
        last = self.started[-1] if self.started else "collection"
        if self.code is None or self.code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"{last} (does not end)"
        return "" if self.code in (0, 5) else f"{last} (pytest ends with {self.code})"


@dataclass
class Runner:
    """Runs tests of the copied checkout in one of the environments."""

    environment: Environment
    checkout: Path
    scratch: Path
    options: Sequence[str] = ()
    # Set from another thread, to end the current run.
    stopped: threading.Event = field(default_factory=threading.Event)
    number: int = field(default=0, init=False)

    def judge(
        self, wanted: Sequence[str], known: Sequence[str], expected: float, fault: int | None, stop: bool
    ) -> Ended:
        """Run the tests, with this fault.

        Args:
            wanted: The tests, as pytest names them.
            known: All tests that their files have.
            expected: Processor seconds that they take without a fault. A run may take several times as many.
            fault: Its number; None for a run without an active Python fault.
            stop: Whether to stop at the first test that fails.
        """
        self.number += 1
        result = self.scratch / f"result-{self.number}.jsonl"
        result.unlink(missing_ok=True)
        limit = int(60 + 4 * expected)
        task = self.scratch / "task.json"
        task.write_text(
            json.dumps(
                {
                    "wanted": list(wanted), "known": list(known), "result": str(result), "seconds": limit,
                    "bytes": _MOST_BYTES,
                }
            )
        )  # fmt: skip
        files = list(dict.fromkeys(test.split("::", 1)[0] for test in wanted))
        arguments = self.scratch / "arguments"
        arguments.write_text("\n".join(["-n0", *(["-x"] if stop else []), *self.options, *files]))
        variables = {TASK: str(task)} | ({} if fault is None else {ACTIVE: str(fault)})
        code, seconds, log = self._pytest([f"@{arguments}"], variables, 180 + 10 * expected)
        lines = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
        failed = [line["failed"] for line in lines if "failed" in line]
        started = [line["started"] for line in lines if "started" in line]
        result.unlink(missing_ok=True)
        return Ended(code, seconds, failed, started, log)

    def map(self, folder: Path, paths: Sequence[str], jobs: int) -> Ended:
        folder.mkdir(parents=True)
        code, seconds, log = self._pytest(
            [f"-n{jobs}", *self.options, *paths], {MAP: str(folder)}, float("inf"), show=True
        )
        return Ended(code, seconds, log=log)

    def _pytest(
        self, arguments: Sequence[str], variables: Mapping[str, str], limit: float, show: bool = False
    ) -> tuple[int | None, float, str]:
        """Return code, processor seconds and what was printed."""
        mark = f"{self.scratch}.{self.number}"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON", "VIRTUAL_ENV"))}
        environment |= {**variables, _RUN: mark, "PATH": f"{self.environment.folder}/bin:{os.environ['PATH']}"}
        command = [
            str(self.environment.python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "graphkit_faults",
            "--basetemp", str(self.scratch / "tmp"), *arguments,
        ]  # fmt: skip
        path = self.scratch / "log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.checkout, env=environment, stdin=subprocess.DEVNULL,
                stdout=None if show else log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            end = time.monotonic() + limit
            status, usage, late = 0, None, False
            try:
                while usage is None:
                    pid, status, found = os.wait4(process.pid, os.WNOHANG)
                    if pid:
                        usage = found
                    elif (time.monotonic() > end or self.stopped.is_set()) and not late:
                        late = True
                        os.killpg(process.pid, signal.SIGKILL)
                    else:
                        time.sleep(0.05)
                process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                _end_left(mark)
        if self.stopped.is_set():
            raise Stopped
        text = path.read_text(errors="replace")[-20_000:]
        return None if late else process.returncode, usage.ru_utime + usage.ru_stime, text


def _end_left(mark: str) -> None:
    """End the processes that a run has left: their environment names it."""
    wanted = f"{_RUN}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):  # it has ended, or belongs to somebody else
                continue


# --- the map --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReachedBy:
    """The result of a run without an active fault.

    Attributes:
        seconds: Processor seconds of each test that passes.
        failed: Tests that fail without a fault, and are left out.
        skipped: Tests that are skipped, and are left out.
        reached: For each Python fault, and for each `native:NAME` of the extension, the tests that reach it.
    """

    seconds: dict[str, float]
    failed: list[str]
    skipped: list[str]
    reached: dict[str, list[str]]

    @property
    def left_out(self) -> list[str]:
        return [*self.failed, *self.skipped]

    @staticmethod
    def of(folder: Path) -> ReachedBy:
        """Read the files that the processes of the run have written."""
        tests: dict[str, dict[str, Any]] = {}
        files: dict[str, str] = {}
        for line in _lines(folder, "index.*"):
            entry = json.loads(line)
            if "file" in entry:
                files[entry["key"]] = entry["file"]
            else:
                tests[entry["test"]] = entry
        passed = {name: entry for name, entry in tests.items() if not entry["failed"] and not entry["skipped"]}
        under: dict[str, set[str]] = defaultdict(set)
        for name, entry in passed.items():
            for key in (entry["key"], *entry["fixtures"]):
                under[key].add(name)
        for key, file in files.items():
            under[key] = {name for name in passed if name.startswith((f"{file}::", f"{file}/"))}
        reached: dict[str, set[str]] = defaultdict(set)
        for line in set(_lines(folder, "hits.*")):
            number, _, key = line.partition("\t")
            reached[number] |= set(passed) if key == "start" else under.get(key, set())
        return ReachedBy(
            {name: float(entry["seconds"]) for name, entry in passed.items()},
            sorted(name for name, entry in tests.items() if entry["failed"]),
            sorted(name for name, entry in tests.items() if entry["skipped"] and not entry["failed"]),
            {number: sorted(found) for number, found in reached.items()},
        )


def _lines(folder: Path, pattern: str) -> Iterator[str]:
    for path in sorted(folder.glob(pattern)):
        # The last line of a process that was killed may lack its end.
        yield from (line for line in path.read_text().split("\n")[:-1] if line)
