"""Runs in a package with planted faults: selects the active fault, and records which tests reach which fault.

`mutation_environment.py` installs this file as the module `graphkit_faults`. Every planted fault is an expression
`mutated if _fault[17] else original`. The module is a plugin of pytest as well. It knows two modes:

- GRAPHKIT_FAULT=17 makes fault 17 active, no value makes none active.
- GRAPHKIT_FAULT_MAP=FOLDER records which tests reach which faults, and no fault is active. Each process appends lines
  `fault<TAB>key` to a file of its own, so that a killed process loses nothing. A key names a test or a fixture: the
  process of pytest writes it to a page of shared memory, which the processes that tests start read. So a process that
  serves several tests is recorded under each of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import pkgutil
import resource
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ACTIVE, MAP, PAGE = "GRAPHKIT_FAULT", "GRAPHKIT_FAULT_MAP", "GRAPHKIT_FAULT_PAGE"
# A JSON file for a run of pytest: see `Judging`.
TASK = "GRAPHKIT_FAULT_TASK"
# More faults than anybody plants.
_MOST = 100_000
_PAGE_BYTES = 64
_START = b"start"

_map_folder = os.environ.get(MAP, "")


class _Hits:
    """The file of this process, and the page with the key of the test that runs."""

    def __init__(self) -> None:
        self.page: mmap.mmap | None = None
        self._descriptor = -1
        if os.environ.get(PAGE):
            self.share(os.environ[PAGE])

    def share(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), _PAGE_BYTES)

    def key(self) -> bytes:
        return _START if self.page is None else self.page[:].rstrip(b"\0")

    def set_key(self, key: bytes) -> None:
        assert self.page is not None
        self.page[:] = key.ljust(_PAGE_BYTES, b"\0")

    def write(self, number: int | str) -> None:
        if self._descriptor < 0:
            name = f"{_map_folder}/hits.{os.getpid()}.{secrets.token_hex(4)}"
            self._descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._descriptor, b"%s\t%s\n" % (str(number).encode(), self.key()))

    def forked(self) -> None:
        """Take another file in a new process."""
        self._descriptor = -1


class _Seen(dict[Any, bool]):
    """The faults reached since the test began. The process of pytest empties it before each test."""

    key = b""

    def __missing__(self, number: Any) -> bool:
        _hits.write(number)
        self[number] = False
        return False


class _Watching(_Seen):
    """The same in processes that tests start: they look at the page to see when another test begins."""

    def __getitem__(self, number: Any) -> bool:
        key = _hits.key()
        if key != self.key:
            self.clear()
            self.key = key
        return False if number in self else self.__missing__(number)


class _WatchedModule:
    """The native extension; records under each test which of its classes and functions are asked for."""

    def __init__(self, module: ModuleType):
        self._watched = module

    def __getattr__(self, name: str) -> Any:
        fault["native:" + name]
        return getattr(self._watched, name)

    def __dir__(self) -> list[str]:
        return dir(self._watched)


def watched(module: ModuleType) -> Any:
    return _WatchedModule(module) if _map_folder else module


def _forked() -> None:
    fault.__class__ = _Watching
    fault.clear()
    _hits.forked()


fault: Any
if _map_folder:
    _hits = _Hits()
    fault = _Watching()
    os.register_at_fork(after_in_child=_forked)
else:
    _number = int(os.environ.get(ACTIVE) or -1)
    fault = bytes(number == _number for number in range(_MOST)) if _number >= 0 else bytes(_MOST)


# --- the plugin of pytest -------------------------------------------------------------------------

try:
    import pytest
except ImportError:  # in an environment without pytest, only the package is used
    pass
else:

    class Mapping:
        """Records, for each test, its cost, its outcome and its fixtures, and under which key its hits are."""

        def __init__(self) -> None:
            name = f"{os.getpid()}.{secrets.token_hex(4)}"
            page = Path(_map_folder, f"page.{name}")
            page.write_bytes(bytes(_PAGE_BYTES))
            os.environ[PAGE] = str(page)
            _hits.share(str(page))
            _hits.set_key(_START)
            fault.__class__ = _Seen
            self._name, self._ids = name, 0
            self._index = Path(_map_folder, f"index.{name}")
            self._fixtures: dict[tuple[str, str], str] = {}
            self._failed = False
            self._skipped = False
            import_everything()

        def _write(self, **entry: Any) -> None:
            with self._index.open("a") as file:
                file.write(json.dumps(entry) + "\n")

        def _new_key(self) -> str:
            self._ids += 1
            return f"{self._name}.{self._ids}"

        def _fixture(self, definition: pytest.FixtureDef[Any]) -> str:
            names = (str(definition.baseid), definition.argname)
            if names not in self._fixtures:
                self._fixtures[names] = self._new_key()
            return self._fixtures[names]

        @contextlib.contextmanager
        def _under(self, key: bytes) -> Iterator[None]:
            before = _hits.key()
            _hits.set_key(key)
            fault.clear()
            try:
                yield
            finally:
                _hits.set_key(before)
                fault.clear()

        @pytest.hookimpl(wrapper=True)
        def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
            """Record faults that are reached by the import of a test file for all of its tests."""
            key = self._new_key()
            self._write(key=key, file=collector.nodeid)
            with self._under(key.encode()):
                return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
            """Record faults that are reached by a fixture of several tests for all of them."""
            if fixturedef.scope == "function":
                return (yield)
            with self._under(self._fixture(fixturedef).encode()):
                return (yield)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
            self._failed = self._skipped = False
            key, start, wall = self._new_key(), _processor_seconds(), time.monotonic()
            with self._under(key.encode()):
                found = yield
            known = getattr(item, "_fixtureinfo", None)
            definitions = known.name2fixturedefs.values() if known is not None else ()
            shared = [self._fixture(d) for found_ in definitions for d in found_ if d.scope != "function"]
            seconds, elapsed = _processor_seconds() - start, time.monotonic() - wall
            self._write(
                key=key, test=item.nodeid, seconds=seconds, wall=elapsed, fixtures=shared, failed=self._failed,
                skipped=self._skipped,
            )  # fmt: skip
            return found

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self) -> Any:
            report = yield
            self._failed |= report.failed
            self._skipped |= report.skipped
            return report

    class Judging:
        """Runs the tests that a task lists, and writes which one fails.

        The task has `wanted`, the tests to run; `known`, all tests that the files had without a fault: those of
        other names run as well, since a fault may change names; `result`, a file; `seconds` and `bytes`, limits.
        """

        def __init__(self, task: dict[str, Any]) -> None:
            self._wanted, self._known = set(task["wanted"]), set(task["known"])
            self._result = Path(task["result"])
            resource.setrlimit(resource.RLIMIT_CPU, (task["seconds"], task["seconds"] + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (task["bytes"], task["bytes"]))

        def _write(self, **found: str) -> None:
            with self._result.open("a") as file:
                file.write(json.dumps(found) + "\n")

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            items[:] = [item for item in items if item.nodeid in self._wanted or item.nodeid not in self._known]

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            self._write(started=nodeid)

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                self._write(failed=report.nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                self._write(failed=report.nodeid or "collection")

    def _processor_seconds() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    def import_everything() -> None:
        """Import the package, so that what this runs is not taken for a part of the first test."""
        import graphkit

        for module in pkgutil.walk_packages(graphkit.__path__, "graphkit.", onerror=lambda name: None):
            if not module.name.endswith("__main__") and ".cuda" not in module.name:
                with contextlib.suppress(Exception):  # needs a package that is not installed: tests know of it
                    importlib.import_module(module.name)

    def pytest_configure(config: pytest.Config) -> None:
        # With pytest-xdist, only the workers run tests.
        runs = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
        if runs and _map_folder:
            config.pluginmanager.register(Mapping(), "graphkit_fault_map")
        if runs and os.environ.get(TASK):
            config.pluginmanager.register(Judging(json.loads(Path(os.environ[TASK]).read_text())), "graphkit_fault")
