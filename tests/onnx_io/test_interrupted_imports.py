"""Modules of upgrade and downgrade rules whose import was interrupted, and that are imported again."""

from __future__ import annotations

import pytest
from combinations import in_one_item
from interrupted_imports import run_in_new_process

from graphkit.onnx_io import upgrade


@pytest.mark.parametrize("share", [0.5, 1])
def test_upgrade_rules_are_registered_again(share: float) -> None:
    run_in_new_process(f"""
import inspect
from graphkit.onnx_io import upgrade
from graphkit.onnx_io.upgrade._index import MODULES

modules = {{f"graphkit.onnx_io.upgrade.{{module}}" for found in MODULES.values() for module, _ in found}}
for module in sorted(modules):
    if module not in sys.modules:  # another module may have imported it
        interrupt(module, {share})
for (domain, operator), found in MODULES.items():
    upgrade.next_rule(domain, operator, 0)
for domain, operator, rule in upgrade.rules():
    assert inspect.unwrap(rule.apply).__globals__ is vars(sys.modules[rule.apply.__module__]), rule
assert {{(domain, operator) for domain, operator, _ in upgrade.rules()}} == set(MODULES)
""")


def test_two_upgrade_rules_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "_rules", {})
    upgrade.upgrade("Clip", below=6)(lambda view: None)
    with pytest.raises(ValueError, match="two upgrade rules of Clip below 6"):
        upgrade.upgrade("Clip", below=6)(lambda view: None)


@in_one_item("values")
@pytest.mark.parametrize("share", [0.5, 1])
@pytest.mark.parametrize("module", ["attention", "numeric", "training"])
def test_downgrade_rules_are_registered_again(module: str, share: float) -> None:
    """The package imports all its modules. Those before the interrupted one are not imported again."""
    run_in_new_process(f"""
def registered():
    tables = importlib.import_module("graphkit.onnx_io.downgrade._rules")
    for table in (tables._rewrites, tables._spellings):
        for operator, found in table.items():
            for below, rule in found:
                assert rule.__globals__ is vars(sys.modules[rule.__module__]), rule
                yield operator, below, rule.__module__, rule.__qualname__

interrupt("graphkit.onnx_io.downgrade.{module}", {share})
importlib.import_module("graphkit.onnx_io.downgrade")
found = sorted(registered())
for name in [name for name in sys.modules if name.startswith("graphkit.onnx_io.downgrade")]:
    del sys.modules[name]
assert found == sorted(registered())
""")
