from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphkit.executor.run.engine import Engine

# What several files of tests here share: engine_operations.py, saved_programs.py.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[1, 4])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(request.param)
    yield made
    assert made.close()
