"""The reference lists every public name once. Each listed name exists and has a docstring."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from combinations import in_one_item

import graphkit as gk

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference" / "api").glob("*.md"))
NAMED = [path for page in PAGES for path in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]
# A file of types alone, which no process imports.
STUB = "graphkit.ops._functions"


def found(path: str) -> Any:
    """Return a module, or an object of a module."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        home, _, name = path.rpartition(".")
        return getattr(importlib.import_module(home), name)


def public(module: Any) -> set[str]:
    """The classes and functions that a module offers."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    own = {name for name in names if callable(getattr(module, name))}
    return own if hasattr(module, "__all__") else {n for n in own if getattr(module, n).__module__ == module.__name__}


@in_one_item()
@pytest.mark.parametrize("path", [path for path in NAMED if path != STUB])
def test_what_is_named_is_there(path: str) -> None:
    assert found(path).__doc__


def test_nothing_is_named_twice() -> None:
    assert [path for path, count in Counter(NAMED).items() if count > 1] == []


def test_public_names_are_there() -> None:
    whole = {path for path in NAMED if path == STUB or isinstance(found(path), type(gk))}
    missing = [n for n, home in gk._PUBLIC.items() if f"{home}.{n}" not in NAMED and home not in whole]
    assert missing == []
    assert STUB in whole


@in_one_item()
@pytest.mark.parametrize("name", sorted(gk._MODULES))
def test_names_of_public_modules_are_there(name: str) -> None:
    """As a page about the module, or one by one."""
    home = gk._MODULES[name]
    if home in NAMED:
        return
    there = {path.rpartition(".")[2] for path in NAMED}
    assert public(getattr(gk, name)) - there == set()
