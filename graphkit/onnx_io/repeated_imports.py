"""Modules of rules whose import was interrupted, and that are then imported again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def replaces(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Return whether both are of the same module, and an interrupted import of it defined `earlier`.

    Each import of a module makes a new namespace. A function with `__wrapped__` is of the module of that one.
    """
    namespaces = [inspect.unwrap(given).__globals__ for given in (function, earlier)]
    return function.__module__ == earlier.__module__ and namespaces[0] is not namespaces[1]
