from __future__ import annotations

import pytest


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without a native kernel is an error."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
