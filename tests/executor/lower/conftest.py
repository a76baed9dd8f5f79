from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from graphkit.executor.lower.template import Template, _Step

# For compiled_graph.py, which several tests of this folder import.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[_Step]:
    """The distinct steps of the templates that the test makes."""
    found: list[_Step] = []
    make = Template.__init__

    def recorded(self: Template, *arguments: Any) -> None:
        make(self, *arguments)
        found.extend(self._distinct_steps)

    monkeypatch.setattr(Template, "__init__", recorded)
    return found
