"""Detect rules of modules that are imported again, after their first import was interrupted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def replaces(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Return whether both functions are of the same module, and `earlier` is from an earlier, interrupted import of it.

    Each import of a module has its own namespace. Decorated functions are unwrapped first.
    """
    namespaces = [inspect.unwrap(given).__globals__ for given in (function, earlier)]
    return function.__module__ == earlier.__module__ and namespaces[0] is not namespaces[1]
