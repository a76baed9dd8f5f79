"""Recipes of kernels: how native kernels were made. Saved programs contain them (see `executor/run/saved_program`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from graphkit.executor.devices.loading import native_module


@contextlib.contextmanager
def recorded_recipes() -> Iterator[None]:
    """Context in which kernels that this thread makes keep their recipe. Needs the native extension."""
    native = native_module()
    assert native is not None, "the caller has checked it"
    native.record_recipes(True)
    try:
        yield
    finally:
        native.record_recipes(False)


def records_recipes() -> bool:
    """Return whether kernels that this thread makes keep their recipe."""
    native = native_module()
    return native is not None and native.records_recipes()
