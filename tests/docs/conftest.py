"""The scripts of docs/ as modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Imports a script of docs/ by name, as Python does that runs it."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(DOCS)
            return importlib.import_module(name)

    return load
