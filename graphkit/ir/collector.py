"""Pausing Python's cyclic garbage collector in sweeps over large graphs.

A sweep allocates objects in proportion to the graph and drops next to none of them, while every full collection
walks all that exist: left alone, the collector makes linear sweeps grow faster than linearly.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with the collector paused; it is on again afterwards if it was on before."""

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
