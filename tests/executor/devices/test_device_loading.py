"""A missing native part: an error where graphkit is installed, interpreted kernels in a bare source tree."""

from __future__ import annotations

import pytest

from graphkit.errors import MissingDependency
from graphkit.executor.devices import loading


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def fail() -> None:
        raise ImportError("No module named 'graphkit._native'")

    monkeypatch.setattr(loading, "import_extension", fail)
    return monkeypatch


def test_installed_without_its_extension(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(loading, "is_installed", lambda: True)
    with pytest.raises(MissingDependency, match="without its native extension"):
        loading.load_device("cpu")


def test_source_tree(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(loading, "is_installed", lambda: False)
    assert loading.load_device("cpu") is False


def test_other_import_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("No module named 'numpy'")

    monkeypatch.setattr(loading, "import_extension", fail)
    with pytest.raises(ImportError, match="numpy"):
        loading.load_device("cpu")
