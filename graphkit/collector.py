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


# How many more pauses end with a promotion of all objects: those of a first import, load, compilation and run, which
# import most modules. Objects of modules live as long as the process. If each pause promoted them, garbage could pile
# up.
_promotions = 4
# Pauses that make at least this many objects also promote: the collector would visit each of them three times.
_LARGE = 100_000
# Objects that large pauses promoted since the last full collection, and the number of full collections at that time.
_promoted = _collections = 0
# The most objects that one pause made.
_largest = 0


def _promote_first() -> None:
    """Move all objects to the oldest generation, without visiting them. Enabling the collector would visit them all.

    Not if the user has frozen objects (`gc.freeze`), because `gc.unfreeze` would release them, too.
    """
    global _promotions
    made = gc.get_count()[0]
    if (_promotions == 0 and made < _LARGE) or _promotions < 0:
        return
    if gc.get_freeze_count():  # visits all frozen objects, so it is called once
        _promotions = -1
        return
    if _promotions:
        _promotions -= 1
    elif not _may_promote(made):
        return
    gc.freeze()
    gc.unfreeze()


def _may_promote(made: int) -> bool:
    """Return whether a large pause may promote the objects that it made.

    Only a full collection frees promoted objects. So between two of them, pauses promote at most twice as many objects
    as the largest pause made.
    """
    global _promoted, _collections, _largest
    collections = gc.get_stats()[2]["collections"]
    if collections != _collections:
        _promoted, _collections = 0, collections
    _largest = max(_largest, made)
    if _promoted + made > 2 * _largest:
        return False
    _promoted += made
    return True
