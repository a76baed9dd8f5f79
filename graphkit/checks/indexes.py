"""Write the indexes for lazy imports: `python -P -m graphkit.checks.indexes`.

`graphkit/ops/_index.py` maps each operator to its module, `graphkit/onnx_io/upgrade/_index.py` each operator of ONNX
files to the modules with its upgrade rules, and `graphkit/executor/devices/cpu/_index.py` each operator to the modules
with its kernels. `graphkit/passes/core/_index.py` lists the declarations of passes.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType

from graphkit import ops, passes
from graphkit.executor.devices import cpu
from graphkit.executor.devices.registry import sources
from graphkit.onnx_io import upgrade
from graphkit.ops import Op, registry
from graphkit.ops._op import function_name
from graphkit.passes import core
from graphkit.passes.core.declare import Pass, Property

_WIDTH = 120

_OPERATORS = '''\
"""The module of each operator. Made from the classes by `python -P -m graphkit.checks.indexes`."""

from __future__ import annotations

# Operator -> its function, and its module in graphkit.ops.
OPERATORS: dict[tuple[str, str], tuple[str, str]] = {
'''
_FORMER = """\
}

# Former name -> operator.
FORMER: dict[tuple[str, str], tuple[str, str]] = {
"""
_RULES = '''\
"""The modules with the rules of each operator. Made from the rules by `python -P -m graphkit.checks.indexes`."""

from __future__ import annotations

# Domain and operator -> each module with rules of it, and the opset below which the last of these applies.
MODULES: dict[tuple[str, str], tuple[tuple[str, int], ...]] = {
'''
_PASSES = '''\
"""Declarations of all passes. Generated from their modules by `python -P -m graphkit.checks.indexes`."""

from __future__ import annotations

from typing import TypeAlias

_Names: TypeAlias = tuple[str, ...]

# Pass -> its module in graphkit.passes, names of operators without which it does nothing (None: any graph), further
# groups of such names, and the properties that it requires, ensures and breaks.
PASSES: dict[str, tuple[str, _Names | None, tuple[_Names, ...], _Names, _Names, _Names]] = {
'''
_KERNELS = '''\
"""The modules with the kernels of each operator. Made from the kernels by `python -P -m graphkit.checks.indexes`."""

from __future__ import annotations

# Domain and name of an operator -> modules.
MODULES: dict[tuple[str, str], tuple[str, ...]] = {
'''
_STRING_FUNCTIONS = """\
}

# The same for functions on tensors of strings.
STRING_MODULES: dict[tuple[str, str], tuple[str, ...]] = {
"""
# Modules that order passes. They are skipped, because they read the index.
_PIPELINES = ("graphkit.passes.pipeline", "graphkit.passes.cleanup", "graphkit.passes.fuse.recognise")


def indexes() -> dict[Path, str]:
    """Return the text of each index by its path. Imports all modules that the indexes cover."""
    return {
        Path(ops.__file__).parent / "_index.py": _operators(),
        Path(upgrade.__file__).parent / "_index.py": _upgrade_rules(),
        Path(core.__file__).parent / "_index.py": _passes(),
        Path(cpu.__file__).parent / "_index.py": _kernels(),
    }


def _all_modules(package: ModuleType, without: Collection[str] = ()) -> dict[str, int]:
    """Import all modules of a package; return the position of each one."""
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    names = [name for _, name, _ in found if name not in without]
    for name in names:
        importlib.import_module(name)
    return {name: position for position, name in enumerate(names)}


def _operators() -> str:
    modules = _all_modules(ops)
    own = sorted((c for c in registry.registered() if c.__module__ in modules), key=lambda c: modules[c.__module__])
    lines = [_entry(_key(cls), [function_name(cls), _inside(ops, cls.__module__)]) for cls in own]
    former = [_entry(f'("{cls.domain}", "{name}")', [cls.domain, cls.name]) for cls in own for name in _former(cls)]
    return "".join([_OPERATORS, *lines, _FORMER, *former, "}\n"])


def _upgrade_rules() -> str:
    _all_modules(upgrade)
    last: dict[tuple[str, str], dict[str, int]] = {}
    for domain, operator, rule in upgrade.rules():
        module = _inside(upgrade, rule.apply.__module__)
        found = last.setdefault((domain, operator), {})
        found[module] = max(found.get(module, 0), rule.below)
    lines = []
    for (domain, operator), modules in sorted(last.items()):
        pairs = ", ".join(f'("{module}", {below})' for module, below in sorted(modules.items()))
        lines.append(
            f'    ("{domain}", "{operator}"): ({pairs},),\n'
            if len(modules) == 1
            else f'    ("{domain}", "{operator}"): ({pairs}),\n'
        )
    return "".join([_RULES, *lines, "}\n"])


def _passes() -> str:
    lines = []
    for module in sorted(_all_modules(passes, without=_PIPELINES)):
        found = [item for item in vars(sys.modules[module]).values() if isinstance(item, Pass)]
        for step in sorted((p for p in found if p.__module__ == module), key=lambda p: p.name):
            at = "None" if step.at is None else _tuple(sorted(step.at))
            declared = [step.requires, step.ensures, step.breaks]
            properties = [_tuple([p.name for p in Property if p in names]) for names in declared]
            parts = [f'"{_inside(passes, module)}"', at, _groups(step.beside), *properties]
            lines.append("".join([f'    "{step.name}": (\n', *(f"        {part},\n" for part in parts), "    ),\n"]))
    return "".join([_PASSES, *lines, "}\n"])


def _kernels() -> str:
    """The index of CPU kernel modules. Operators whose kernels are registered in C++ need no module."""
    _all_modules(cpu)
    numbers: list[str] = []
    strings: list[str] = []
    for (domain, name), modules in sorted(sources("cpu").items()):
        registered: dict[str, set[str]] = {}
        for field, module in modules.items():
            if module.startswith(f"{cpu.__name__}.") and not (inside := _inside(cpu, module)).startswith("_"):
                registered.setdefault(inside, set()).add(field)
        only_strings = {module for module, fields in registered.items() if fields == {"string_function"}}
        for lines, found in ((numbers, registered.keys() - only_strings), (strings, only_strings)):
            if found:
                lines.append(f'    ("{domain}", "{name}"): {_tuple(sorted(found))},\n')
    return "".join([_KERNELS, *numbers, _STRING_FUNCTIONS, *strings, "}\n"])


def _groups(groups: Sequence[Collection[str]]) -> str:
    """A tuple of tuples of names in an entry of the table of passes, as ruff formats it."""
    tuples = [_tuple(sorted(names)) for names in groups]
    line = f"({', '.join(tuples)},)" if len(tuples) == 1 else f"({', '.join(tuples)})"
    if len(line) <= _WIDTH - 9 and not any("\n" in text for text in tuples):
        return line
    inner = [text.replace("\n", "\n    ") for text in tuples]
    return "".join(["(\n", *(f"            {text},\n" for text in inner), "        )"])


def _tuple(texts: list[str]) -> str:
    """A line in an entry of the last table, as ruff formats it."""
    quoted = [f'"{text}"' for text in texts]
    line = f"({', '.join(quoted)},)" if len(texts) == 1 else f"({', '.join(quoted)})"
    if len(line) <= _WIDTH - 9:
        return line
    return "".join(["(\n", *(f"            {text},\n" for text in quoted), "        )"])


def _former(cls: type[Op]) -> tuple[str, ...]:
    names: tuple[str, ...] = cls.__dict__.get("former_names", ())
    return names


def _key(cls: type[Op]) -> str:
    return f'("{cls.domain}", "{cls.name}")'


def _inside(package: ModuleType, module: str) -> str:
    return module.removeprefix(f"{package.__name__}.")


def _entry(key: str, texts: list[str]) -> str:
    """An entry of a table, as ruff formats it."""
    quoted = [f'"{text}"' for text in texts]
    line = f"    {key}: ({', '.join(quoted)}),\n"
    if len(line) <= _WIDTH + 1:
        return line
    return "".join([f"    {key}: (\n", *(f"        {text},\n" for text in quoted), "    ),\n"])


if __name__ == "__main__":
    for path, text in indexes().items():
        path.write_text(text, encoding="utf-8")
