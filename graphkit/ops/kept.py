"""Values computed from an operator's attributes, such as a table of its keys, cached as long as the operator exists."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

from graphkit.ops._op import Op

Made = TypeVar("Made")
Kind = TypeVar("Kind", bound=Op)


def kept(make: Callable[[Kind], Made]) -> Callable[[Kind], Made]:
    """Decorate a function of an operator: results are cached per operator object.

    `functools.cache` would hash all attributes of the operator in every call, which takes as long as to make a table.
    """
    found: dict[int, Made] = {}

    @functools.wraps(make)
    def of(op: Kind) -> Made:
        key = id(op)
        if key not in found:
            made = make(op)
            weakref.finalize(op, found.pop, key, None).atexit = False
            found[key] = made
        return found[key]

    return of
