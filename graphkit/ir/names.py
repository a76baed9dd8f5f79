"""Unique names, names in snake_case, and names in errors."""

from __future__ import annotations

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

    def take_all(self, hints: Iterable[str]) -> list[str]:
        """Return what `take` returns for each hint. Faster than one call for each."""
        taken, names = self._taken, []
        for hint in hints:
            if hint in taken:
                names.append(self.take(hint))
            else:
                taken.add(hint)
                names.append(hint)
        return names


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names in order; a name that occurred before gets a suffix."""
    return Names().take_all(names)


_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz")
_UPPER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_BEFORE_WORD = _LOWER.union("0123456789")


@lru_cache(maxsize=1024)
def snake_case(name: str) -> str:
    """Relu -> relu, BatchNormalization -> batch_normalization, RMSNorm -> rms_norm, IsNaN -> is_nan."""
    # Each new process needs names. Compiling a regular expression takes 30 times as long.
    name = name.replace("NaN", "Nan")
    parts: list[str] = []
    for before, letter, after in zip(f" {name}", name, f"{name[1:]} ", strict=False):
        if letter in _UPPER and (before in _BEFORE_WORD or (before in _UPPER and after in _LOWER)):
            parts.append("_")
        parts.append(letter)
    return "".join(parts).lower()


def origins() -> ModuleType:
    """Return the module that names nodes and graphs in errors. It is imported when an error needs it."""
    from graphkit.ir import origin

    return origin
