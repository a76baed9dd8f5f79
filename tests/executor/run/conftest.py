from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphkit.executor.run.engine import Engine

# For engine_operations.py and saved_programs.py, which several tests of this folder import.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[1, 4])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(request.param)
    yield made
    assert made.close()
