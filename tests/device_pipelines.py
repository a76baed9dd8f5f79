"""Replaces functions that choose the passes of a device."""

from typing import Any

import pytest

from graphkit.executor.run import device_passes


def patch_pipelines(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """Replace functions of `device_passes` by name, and make pipelines anew for each executor."""
    for name in ("_passes_with_native_kernels", "_passes_of_arrays"):
        cached = getattr(device_passes, name)
        monkeypatch.setattr(device_passes, name, getattr(cached, "__wrapped__", cached))
    for name, function in functions.items():
        monkeypatch.setattr(device_passes, name, function)
