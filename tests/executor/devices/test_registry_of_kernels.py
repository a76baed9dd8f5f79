"""The kernel table: threads that register rules and ask for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from graphkit.executor.devices import registry
from graphkit.executor.devices.registry import KernelRule, register, register_modules, rule_of


class Probe:
    domain = ""
    name = "Probe"


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the tables, which the test may change."""
    for table in ("_rules", "_sources", "_unimported", "_unimported_strings"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


class PausingDict(dict[Any, Any]):
    """A dict whose next lookup by the thread "slow" waits, with its result, until `resumed` is set."""

    def __init__(self, given: dict[Any, Any]):
        super().__init__(given)
        self.looked, self.resumed = threading.Event(), threading.Event()

    def _pause(self) -> None:
        if threading.current_thread().name == "slow" and not self.looked.is_set():
            self.looked.set()
            assert self.resumed.wait(30)

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._pause()
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        self._pause()
        return found


class Thread(threading.Thread):
    """The thread "slow". `finish` waits for its end and raises its error."""

    def __init__(self, work: Any):
        super().__init__(name="slow", daemon=True)
        self._work, self._errors = work, []

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._errors.append(error)

    def finish(self) -> None:
        self.join(30)
        assert not self.is_alive()
        for error in self._errors:
            raise error


@pytest.mark.parametrize(("table", "strings"), [("_unimported", False), ("_unimported_strings", True)])
def test_two_threads_import_one_rule(monkeypatch: pytest.MonkeyPatch, table: str, strings: bool) -> None:
    """The slow thread finds the entry; the other one then imports the modules and removes it."""
    found: Sequence[dict[tuple[str, str], list[str]]] = [{}, {}]
    found[strings]["", "Probe"] = ["json"]
    register_modules("test", *found)
    register("test", "", "Probe", KernelRule(make=lambda node, context: None))
    pausing = PausingDict(getattr(registry, table))
    monkeypatch.setattr(registry, table, pausing)
    rules = []
    slow = Thread(lambda: rules.append(rule_of("test", Probe, strings=strings)))
    slow.start()
    assert pausing.looked.wait(30)
    rules.append(rule_of("test", Probe, strings=strings))
    assert ("test", "", "Probe") not in pausing
    pausing.resumed.set()
    slow.finish()
    assert [rule.has_kernels for rule in rules] == [True, True]


@pytest.fixture
def pausing_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[PausingDict]:
    pausing = PausingDict(registry._rules)
    monkeypatch.setattr(registry, "_rules", pausing)
    yield pausing
    pausing.resumed.set()


def test_two_threads_register_one_operator(pausing_rules: PausingDict) -> None:
    """While one thread changes a rule, another one that adds a field waits, so that neither change is lost."""
    slow = Thread(lambda: register("test", "", "Probe", KernelRule(make=lambda node, context: None)))
    slow.start()
    assert pausing_rules.looked.wait(30)
    other = Thread(lambda: register("test", "", "Probe", KernelRule(string_function=lambda node: None)))
    other.start()
    other.join(0.1)
    pausing_rules.resumed.set()
    slow.finish()
    other.finish()
    rule = rule_of("test", Probe)
    assert rule.make is not None
    assert rule.string_function is not None
