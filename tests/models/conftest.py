from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

# The networks of the zoo as PyTorch modules: torch_zoo.py, and what the tests of training graphs share: training.py.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def unset_parameters(monkeypatch):
    """Parameters are zeros: the counts and types of large networks need no random numbers."""
    monkeypatch.setattr("graphkit.model.initialize", lambda kind, *_: np.zeros(kind.static_shape, kind.dtype.numpy))
