from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphkit.executor.engine import Engine

# What several files of tests share: engine_operations.py, compiled_graph.py.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[1, 4])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(request.param)
    yield made
    assert made.close()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without a native kernel is an error."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
