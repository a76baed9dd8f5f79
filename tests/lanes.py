"""Measure the cost of a lane of tests: processor time and memory of each test and of the whole run.

A lane is the set of tests that one marker expression selects: the default lane (`pytest`) and the full lane
(`pytest -m full`). This plugin measures processor time (user and system, with that of ended child processes), since
wall time depends on what else the machine does. With pytest-xdist each worker measures its own tests and the
controlling process adds them up.

Environment:
    GRAPHKIT_LANE_RECORD: a path. The run writes a JSON record there, which `.ci/complete.py` reads; a run with
        --collect-only writes the tests with a cost of 0:
        {"tests": {node id: [cases, processor seconds]}, "wall": seconds, "processor": seconds, "workers": count,
         "peak_bytes": bytes}
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cases import Cases

RECORD = "GRAPHKIT_LANE_RECORD"
# Property of a test's report with its cost: number of cases, and processor seconds.
_PROPERTY = "cost"
_SLOWEST = 50


def _processor_seconds() -> float:
    """Processor time of this process and of its ended children, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak_bytes() -> int:
    """The largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def case_count(item: pytest.Item) -> int:
    """How many cases an item runs: those of `each_case`, otherwise one."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((len(given) for given in parameters if isinstance(given, Cases)), 1)


class LaneReport:
    """Collects the cost of each test and prints a summary at the end of the run."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._start = time.monotonic()
        self._test_start = 0.0
        self.tests: dict[str, tuple[int, float]] = {}
        self._workers = 0
        self._processor = 0.0
        self._peak = 0

    # --- in the process that runs tests ---

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test_start = _processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_PROPERTY, (case_count(item), _processor_seconds() - self._test_start)))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(self._config, "workeroutput", None)  # of a worker of pytest-xdist
        if output is not None:
            output["lane"] = (_processor_seconds(), _peak_bytes())

    # --- in the process that reports ---

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.tests[report.nodeid] = dict(report.user_properties)[_PROPERTY]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        processor, peak = getattr(node, "workeroutput", {}).get("lane", (0.0, 0))
        self._workers += 1
        self._processor += processor
        self._peak += peak

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            self.tests = {item.nodeid: (case_count(item), 0.0) for item in session.items}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if hasattr(self._config, "workerinput") or not self.tests:
            return
        times = os.times()
        # Workers are children of this process: their time is in `_processor`, so children are left out here.
        own = times.user + times.system if self._workers else _processor_seconds()
        record = {
            "tests": self.tests,
            "wall": time.monotonic() - self._start,
            "processor": self._processor + own,
            "workers": self._workers or 1,
            "peak_bytes": self._peak + _peak_bytes(),
        }
        path = os.environ.get(RECORD)
        if path:
            Path(path).write_text(json.dumps(record))
            terminalreporter.section(f"{_SLOWEST} tests that take the most processor time")
            slowest = sorted(((seconds, test) for test, (_, seconds) in self.tests.items()), reverse=True)
            for seconds, test in slowest[:_SLOWEST]:
                terminalreporter.write_line(f"{seconds:8.2f} s  {test}")
        cases = sum(count for count, _ in self.tests.values())
        terminalreporter.write_line(
            f"lane: {len(self.tests)} tests of {cases} cases, {record['wall']:.0f} s wall time, "
            f"{record['processor']:.0f} s processor time, {record['workers']} processes, "
            f"{record['peak_bytes'] / 1e9:.1f} GB at their peaks"
        )
