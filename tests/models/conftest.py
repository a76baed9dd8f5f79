from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

# What the tests of training graphs share: training.py. It goes before the benchmarks' command of that name, which are
# here for the networks of the zoo as PyTorch modules: torch_zoo.py.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture
def unset_parameters(monkeypatch):
    """Parameters are zeros: the counts and types of large networks need no random numbers."""
    monkeypatch.setattr(
        "graphkit.frontend.initializers.initialize", lambda kind, *_: np.zeros(kind.static_shape, kind.dtype.numpy)
    )
