from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphkit as gk
from graphkit.executor.run.engine import Engine

# For engine_operations.py and saved_programs.py, which several tests of this folder import.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[1, 4])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(request.param)
    yield made
    assert made.close()


@pytest.fixture(scope="session")
def mlp() -> gk.Model:
    return gk.models.build("mlp", inputs=12, hidden=(16,), classes=3)


@pytest.fixture(scope="session")
def mlp_file(mlp: gk.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mlp` as a saved program for four rows."""
    path = tmp_path_factory.mktemp("saved") / "mlp.gkp"
    mlp.save(path, shapes={"x": (4, 12)})
    return path
