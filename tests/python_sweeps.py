"""Calls of functions with the sweeps over graphs in Python, for comparisons with the native ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from graphkit.ir import graph as graphs

P = ParamSpec("P")
T = TypeVar("T")


def in_python(compute: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return `compute(*args, **options)`, which does not use the native sweeps."""
    native, graphs._native = graphs._native, None
    try:
        return compute(*args, **options)
    finally:
        graphs._native = native
