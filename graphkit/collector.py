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
            _promote_first()
            gc.enable()

    return paused


# How many more pauses end with a promotion of all objects: those of a first import, load and compilation, which import
# most modules. Objects of modules live as long as the process. If each pause promoted them, garbage could pile up.
_promotions = 3


def _promote_first() -> None:
    """Move all objects to the oldest generation, without visiting them. Enabling the collector would visit them all.

    Not if the user has frozen objects (`gc.freeze`), because `gc.unfreeze` would release them, too.
    """
    global _promotions
    if _promotions == 0:
        return
    if gc.get_freeze_count():  # visits all frozen objects, so it is called once
        _promotions = 0
        return
    _promotions -= 1
    gc.freeze()
    gc.unfreeze()
