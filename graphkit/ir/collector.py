"""Pause Python's cyclic garbage collector in sweeps over large graphs.

A sweep allocates objects in proportion to the graph, and frees almost none of them. The collector would often visit all
objects meanwhile, so that a linear sweep takes more than linear time.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def without_gc(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: pause the collector while a function runs."""

    @functools.wraps(function)
    def paused(*args: P.args, **kwargs: P.kwargs) -> R:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return paused
