"""Unique names, names in snake_case, and names in errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType


class Names:
    """Hands out names: the hint itself the first time, then hint_1, hint_2, ..."""

    __slots__ = ("_taken", "_next")

    def __init__(self, taken: Iterable[str] = ()):
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def take(self, hint: str) -> str:
        name = hint
        while name in self._taken:
            number = self._next.get(hint, 1)
            self._next[hint] = number + 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names in order; a name that occurred before gets a suffix."""
    allocator = Names()
    return [allocator.take(name) for name in names]


_WORD = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"


@lru_cache(maxsize=1024)
def snake_case(name: str) -> str:
    """Relu -> relu, BatchNormalization -> batch_normalization, RMSNorm -> rms_norm, IsNaN -> is_nan."""
    return re.sub(_WORD, "_", name.replace("NaN", "Nan")).lower()


def origins() -> ModuleType:
    """Return the module that names nodes and graphs in errors. It is imported when an error needs it."""
    from graphkit.ir import origin

    return origin
