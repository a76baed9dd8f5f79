from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def unset_parameters(monkeypatch):
    """Parameters are zeros: the counts and types of large networks need no random numbers."""
    monkeypatch.setattr("graphkit.model.initialize", lambda kind, *_: np.zeros(kind.static_shape, kind.dtype.numpy))
