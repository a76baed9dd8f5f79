"""Profiling: the time of every step of a program, as a table by operator and as a trace for Perfetto or Chrome.

    with gk.profile("trace.json") as profile:
        exe.run(feeds)
    print(profile)

File format: "Trace Event Format", Google, 2016 (the JSON object form); https://ui.perfetto.dev opens it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.distribution import how_to_install
from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.executor.run import base_program as programs
from graphkit.executor.run import engine
from graphkit.executor.run.base_program import BaseProgram
from graphkit.ir.atomic import write_whole
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed
from graphkit.text import format_table, human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native

# First row of engine workers in a trace. Thread ids of the system, which are the other rows, are smaller.
_WORKER_ROWS = 1 << 30


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All steps of one operator. `seconds` excludes steps inside its subgraphs."""

    operator: str
    kind: str  # "native" or "interpreted"
    calls: int
    seconds: float
    share: float  # of all operators together
    bytes: int  # of operands and results


class _Step(NamedTuple):
    """A step of a program, without times."""

    operator: str
    node: str
    kind: str
    implementation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    results: tuple[str, ...]  # names of the outputs that have one, after `node`'s prefix
    bytes: int
    live_bytes: int | None  # in the arena; None inside a subgraph, whose arena is part of another step's


class _Run(NamedTuple):
    """A recorded run. Times are nanoseconds of the monotonic clock.

    events: Name, start and end of each step.
    """

    program: BaseProgram
    thread: int
    start: int
    end: int
    events: Sequence[tuple[str, int, int]]


class Profile:
    """The recorded runs. Print it for a table by operator."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._work: list[engine.Work] = []  # operations of dependency engines, which append to it
        self._threads: dict[int, str] = {}
        self._steps: dict[BaseProgram, dict[str, _Step]] = {}
        self._lock = threading.Lock()
        self._start = time.monotonic_ns()

    def run(self, program: BaseProgram, native: _native.Instance | None, run: Callable[[], list[Any]]) -> list[Any]:
        """Call `run` and record what the native instance does."""
        if native is None:
            raise UnsupportedError(f"profiling needs the native engine, which was not built here: {how_to_install()}")
        native.trace(True)
        start = time.monotonic_ns()
        try:
            return run()
        finally:
            end = time.monotonic_ns()
            native.trace(False)
            thread = threading.get_native_id()
            with self._lock:
                self._threads[thread] = threading.current_thread().name
                self._runs.append(_Run(program, thread, start, end, native.events()))

    # --- results ------------------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[OperatorTime, ...]:
        """Time by operator, the largest first."""
        calls: dict[tuple[str, str], int] = {}
        nanoseconds: dict[tuple[str, str], int] = {}
        moved: dict[tuple[str, str], int] = {}
        for run in self._runs:
            steps = self._steps_of(run.program)
            for (name, _, _), own in zip(run.events, _own_times(run.events), strict=True):
                step = steps.get(name) or _copy(name)
                key = (step.operator, step.kind)
                calls[key] = calls.get(key, 0) + 1
                nanoseconds[key] = nanoseconds.get(key, 0) + own
                moved[key] = moved.get(key, 0) + step.bytes
        total = sum(nanoseconds.values()) or 1
        found = [
            OperatorTime(*key, calls[key], spent / 1e9, spent / total, moved[key]) for key, spent in nanoseconds.items()
        ]
        return tuple(sorted(found, key=lambda o: (-o.seconds, o.operator)))

    @property
    def seconds(self) -> float:
        """Total duration of all runs."""
        return sum(run.end - run.start for run in self._runs) / 1e9

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the table by operator."""
        head = ["operator", "kernel", "calls", "ms", "share", "us per call", "bytes", "GB/s"]
        rows = [
            [
                o.operator,
                o.kind,
                str(o.calls),
                f"{o.seconds * 1e3:.3f}",
                f"{o.share:.1%}",
                f"{o.seconds / o.calls * 1e6:.2f}",
                human(o.bytes),
                f"{o.bytes / o.seconds / 1e9:.1f}" if o.seconds else "",
            ]
            for o in self.operators
        ]
        return head, rows

    def __str__(self) -> str:
        inside = sum(o.seconds for o in self.operators)
        count = len(self._runs)
        runs = f"{count} run{'' if count == 1 else 's'}"
        summary = f"{runs}, {self.seconds * 1e3:.3f} ms, {inside * 1e3:.3f} ms of it in steps"
        return f"{format_table(*self.table())}\n\n{summary}"

    @property
    def span(self) -> tuple[int, int] | None:
        """Start of the first run and end of the last, in nanoseconds of the monotonic clock; None without runs."""
        if not self._runs:
            return None
        return min(run.start for run in self._runs), max(run.end for run in self._runs)

    def trace(self, process: int | None = None, name: str = "graphkit", origin: int | None = None) -> dict[str, Any]:
        """Return the trace as plain data for JSON: a row for each thread, and the live bytes of the arena.

        Args:
            process: Number of the process in the trace.
            name: Name of the process.
            origin: Time 0 of the trace, in nanoseconds of the monotonic clock (default: the start of the profile).
        """
        process = os.getpid() if process is None else process
        origin = self._start if origin is None else origin
        events: list[dict[str, Any]] = [_named("process_name", process, 0, name)]
        events += [_named("thread_name", process, thread, name) for thread, name in self._threads.items()]
        for run in self._runs:
            events += self._run_events(run, process, origin)
        for row in sorted({(w.engine, w.worker) for w in self._work}):
            kind = f"worker {row[1]}" if row[1] >= 0 else "threads that wait"
            events.append(_named("thread_name", process, _row(*row), f"engine {row[0]}, {kind}"))
        for w in self._work:
            thread = _row(w.engine, w.worker)
            events.append(_slice(w.operation, "engine", process, thread, w.start - origin, w.end - origin))
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"producer": "graphkit"}}

    def save(self, path: str | Path) -> None:
        """Write the trace to a file."""
        write_whole(Path(path), [json.dumps(self.trace()).encode()])

    def _run_events(self, run: _Run, process: int, origin: int) -> Iterator[dict[str, Any]]:
        steps = self._steps_of(run.program)
        yield _slice(f"run {run.program.graph.name}", "run", process, run.thread, run.start - origin, run.end - origin)
        counter = {"name": f"arena of {run.program.graph.name}", "ph": "C", "pid": process, "id": str(run.thread)}
        for name, start, end in run.events:
            step = steps.get(name) or _copy(name)
            event = _slice(step.operator, step.kind, process, run.thread, start - origin, end - origin)
            event["args"] = {
                "node": step.node,
                "implementation": step.implementation,
                "inputs": step.inputs,
                "outputs": step.outputs,
                "results": step.results,
                "bytes": step.bytes,
            }
            yield event
            if step.live_bytes is not None:
                yield {**counter, "ts": (start - origin) / 1e3, "args": {"live bytes": step.live_bytes}}
        yield {**counter, "ts": (run.end - origin) / 1e3, "args": {"live bytes": 0}}

    def _steps_of(self, program: BaseProgram) -> dict[str, _Step]:
        """Return the program's steps, and those of its subgraphs, by their names in the native trace."""
        if program not in self._steps:
            found: dict[str, _Step] = {}
            _collect_steps(program.lowered, "", {s.node: s.live_bytes for s in program.plan.steps}, found)
            self._steps[program] = found
        return self._steps[program]

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ""
        used = {id(run.program) for run in list(self._runs)}
        yield f"{quantity(len(self._runs), 'run')} of {quantity(len(used), 'program')}"


class _Recording:
    """Skips `skip` runs, records the next `runs` runs and the operations of engines, then writes the trace."""

    def __init__(self, made: Profile, path: str | Path | None, skip: int, runs: int | None):
        self._profile, self._path, self._skip, self._runs = made, path, skip, runs
        self._numbers = itertools.count()

    def begin(self) -> None:
        with _switch:
            if programs.recorder is not None:
                raise UsageError("a profile is already being recorded; use one `with gk.profile(...)` at a time")
            programs.recorder = self
        if not self._skip:
            engine.record(self._profile._work)

    def run(self, program: BaseProgram, native: _native.Instance | None, run: Callable[[], list[Any]]) -> list[Any]:
        number = next(self._numbers) - self._skip
        if number < 0:
            return run()
        if number == 0 and self._skip:
            engine.record(self._profile._work)
        try:
            return self._profile.run(program, native, run)
        finally:
            if number + 1 == self._runs:
                self.end()

    def end(self) -> None:
        with _switch:
            if programs.recorder is not self:
                return
            programs.recorder = None
        engine.record(None)
        if self._path is not None:
            self._profile.save(self._path)


_switch = threading.Lock()


@typed("gk.profile")
@contextlib.contextmanager
def profile(path: str | Path | None = None, *, skip: int = 0, runs: int | None = None) -> Iterator[Profile]:
    """Record all runs of compiled models, and all operations of dependency engines, in a `with` block.

    Runs of all threads are recorded. Every run must end before the block ends.

    Args:
        path: File for the trace, JSON that https://ui.perfetto.dev and chrome://tracing open. It is written after the
            last recorded run, or at the end of the block, also if the block raises.
        skip: Number of runs before the first recorded one.
        runs: Number of runs to record (default: all).

    Yields:
        A Profile. Print it for a table by operator. `operators` and `seconds` contain the numbers.

    Raises:
        UsageError: The block is inside another such block, `skip` is negative, or `runs` is less than 1.
        UnsupportedError: A run does not use the native engine.
    """
    if skip < 0 or (runs is not None and runs < 1):
        raise UsageError(
            f"gk.profile: skip= must be at least 0 and runs= at least 1 (runs to record), not {skip} and {runs}"
        )
    made = Profile()
    recording = _Recording(made, path, skip, runs)
    recording.begin()
    try:
        yield made
    finally:
        recording.end()


def _collect_steps(lowered: LoweredGraph, prefix: str, live: Mapping[str, int] | None, found: dict[str, _Step]) -> None:
    """Add the steps of a graph and its subgraphs to `found`, by their names in the native trace.

    Args:
        lowered: The graph.
        prefix: Prefix of the names.
        live: Live bytes of the arena by name of the node; None for a subgraph.
        found: Is extended.
    """
    for node, lowering in lowered.steps:
        name = lowered.graph.node_name(node)
        values = [v for v in (*node.inputs, *node.outputs) if v is not None and v in lowered.placement.root]
        found[prefix + name] = _Step(
            f"{node.op.domain}.{node.op.name}" if node.op.domain else node.op.name,
            prefix + name,
            lowering.kind,
            "" if lowering.packing is None else lowering.packing.implementation,
            tuple("" if v is None else str(v.type) for v in node.inputs),
            tuple(str(v.type) for v in node.outputs),
            tuple(prefix + v.name for v in node.outputs if v.name),
            sum(v.tensor.nbytes for v in values if has_fixed_size(v)),
            None if live is None else live[name],
        )
        for part, inner in lowering.subgraphs.items():
            _collect_steps(inner, f"{prefix}{name}/{part}/", None, found)


def _copy(name: str) -> _Step:
    """Return a step without a node: it copies a result of a subgraph, or allocates memory for it."""
    return _Step("copy", name, "native", "", (), (), (), 0, None)


def _own_times(events: Sequence[tuple[str, int, int]]) -> list[int]:
    """Return the duration of each event in nanoseconds, without events inside it. Outer events follow inner ones."""
    own: list[int] = []
    # Start and duration of events that are inside no other event so far.
    outermost: list[tuple[int, int]] = []
    for _, start, end in events:
        inside = 0
        while outermost and outermost[-1][0] >= start:
            inside += outermost.pop()[1]
        own.append(end - start - inside)
        outermost.append((start, end - start))
    return own


def _slice(name: str, category: str, process: int, thread: int, start: int, end: int) -> dict[str, Any]:
    """Return a complete event of the trace format. start, end: nanoseconds."""
    return {
        "name": name, "cat": category, "ph": "X", "pid": process, "tid": thread, "ts": start / 1e3,
        "dur": (end - start) / 1e3,
    }  # fmt: skip


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Return a metadata event that names a process or a thread."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _row(engine_number: int, worker: int) -> int:
    """Return the row of a worker in a trace."""
    return _WORKER_ROWS + engine_number * 1000 + worker
