from __future__ import annotations

import pytest
from trimming import pytest_runtest_teardown

__all__ = ["pytest_runtest_teardown"]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without a native kernel is an error."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
