"""Modules of rules whose import was interrupted, and that are then imported again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replaces(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Return whether both are of the same module, and an interrupted import of it defined `earlier`.

    Each import of a module makes a new namespace.
    """
    return function.__module__ == earlier.__module__ and function.__globals__ is not earlier.__globals__
