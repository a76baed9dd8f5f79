"""The kernel table: threads that register rules and ask for them, and interrupted imports of kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator, KeysView, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from interrupted_imports import run_in_new_process

from graphkit.errors import UsageError
from graphkit.executor.devices import registry
from graphkit.executor.devices.loading import DeviceKind, register_device, unregister_device
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
    """A dict whose next lookup by the pool "slow" waits, with its result, until `resumed` is set."""

    def __init__(self, given: dict[Any, Any]):
        super().__init__(given)
        self.looked, self.resumed = threading.Event(), threading.Event()

    def _pause(self) -> None:
        if threading.current_thread().name.startswith("slow") and not self.looked.is_set():
            self.looked.set()
            assert self.resumed.wait(120)

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._pause()
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        self._pause()
        return found

    def keys(self) -> KeysView[Any]:
        found = super().keys()
        self._pause()
        return found


@pytest.fixture
def slow() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="slow") as pool:
        yield pool


@pytest.mark.parametrize(("table", "strings"), [("_unimported", False), ("_unimported_strings", True)])
def test_two_threads_import_one_rule(
    monkeypatch: pytest.MonkeyPatch, slow: ThreadPoolExecutor, table: str, strings: bool
) -> None:
    """The slow thread finds the entry; the other one then imports the modules and removes it."""
    found: Sequence[dict[tuple[str, str], list[str]]] = [{}, {}]
    found[strings]["", "Probe"] = ["json"]
    register_modules("test", *found)
    register("test", "", "Probe", KernelRule(make=lambda node, context: None))
    pausing = PausingDict(getattr(registry, table))
    monkeypatch.setattr(registry, table, pausing)
    later = slow.submit(rule_of, "test", Probe, strings=strings)
    try:
        assert pausing.looked.wait(120)
        assert rule_of("test", Probe, strings=strings).has_kernels
        assert ("test", "", "Probe") not in pausing
    finally:
        pausing.resumed.set()
    assert later.result(30).has_kernels


def test_two_threads_register_one_operator(monkeypatch: pytest.MonkeyPatch, slow: ThreadPoolExecutor) -> None:
    """While one thread changes a rule, another one that adds a field waits, so that neither change is lost."""
    pausing = PausingDict(registry._rules)
    monkeypatch.setattr(registry, "_rules", pausing)
    first = slow.submit(register, "test", "", "Probe", KernelRule(make=lambda node, context: None))
    with ThreadPoolExecutor(1) as other:
        try:
            assert pausing.looked.wait(120)
            second = other.submit(register, "test", "", "Probe", KernelRule(string_function=lambda node: None))
            wait([second], 0.1)
        finally:
            pausing.resumed.set()
        first.result(30)
        second.result(30)
    rule = rule_of("test", Probe)
    assert rule.make is not None
    assert rule.string_function is not None


@pytest.mark.parametrize("share", [0.5, 1])
def test_an_interrupted_import_is_repeated(share: float) -> None:
    run_in_new_process(f"""
import numpy as np
import graphkit as gk
from graphkit.executor.devices.loading import load_device

x = gk.input("x", ["N", 4])
net = gk.Model({{"y": gk.relu(x) + 1.0}})
load_device("cpu")
interrupt("graphkit.executor.devices.cpu.pointwise", {share})
exe = net.compile()
np.testing.assert_array_equal(exe.run({{"x": np.ones((2, 4), np.float32)}})["y"], 2)
assert {{step.kernel for step in exe.plan.steps}} == {{"native"}}, exe.plan
""")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_all_modules_of_kernels_can_be_imported_again(kind: str) -> None:
    run_in_new_process(f"""
from graphkit.executor.devices import {kind}, registry

for _, name, _ in pkgutil.walk_packages({kind}.__path__, f"{{{kind}.__name__}}."):
    importlib.import_module(name)
before = registry.sources("{kind}")
assert all(module for fields in before.values() for module in fields.values()), before
import_again({kind})
assert registry.sources("{kind}") == before
""")


def test_a_field_of_another_module_stays() -> None:
    def first(node: Any, context: Any) -> None: ...

    register("test", "", "Probe", KernelRule(make=first), "json")
    for module in ("ast", "json", ""):  # the namespace of json is the same, so its import was not repeated
        with pytest.raises(UsageError, match=r"device 'test' has two kernels for ai.onnx.Probe"):
            register("test", "", "Probe", KernelRule(make=lambda node, context: None), module)
    assert rule_of("test", Probe).make is first
    assert registry.sources("test")["", "Probe"] == {"make": "json"}


def test_modules_of_several_packages_are_found() -> None:
    """Modules that are added later keep the package of those before."""
    register_modules("packages", {("", "Probe"): ("decoder",)}, {}, "json")
    register_modules("packages", {("", "Other"): ("ast",)}, {})
    assert not rule_of("packages", Probe).has_kernels  # imports json.decoder; `decoder` alone does not exist
    registry.unregister("packages")


def test_a_device_that_is_unregistered_leaves_no_kernels() -> None:
    def factory(node: Any, context: Any) -> None: ...

    for device in ("gone", "kept"):
        register(device, "", "Probe", KernelRule(make=factory), "json")
        register_modules(device, {("", "Unimported"): ("json",)}, {("", "Text"): ("json",)})
    register_device("gone", DeviceKind(lambda number: None))  # type: ignore[arg-type, return-value]
    unregister_device("gone")
    assert not rule_of("gone", Probe).has_kernels
    assert rule_of("kept", Probe).make is factory
    for table in (registry._sources, registry._unimported, registry._unimported_strings):
        assert {key[0] for key in table} >= {"kept"}
        assert "gone" not in {key[0] for key in table}
    register("gone", "", "Probe", KernelRule(make=factory), "ast")
