"""Unique names, names in snake_case, names in errors, and anonymous symbols.

Anonymous symbols begin with '?'. They are sizes that equal no other size, or replace large expressions.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import lru_cache
from types import ModuleType
from typing import Generic, TypeVar

# Number of names of large expressions that are kept: the most recently used ones. Their numbers are above those of all
# other names.
_MAX_NAMES = 4096
_FIRST_LARGE = 1 << 40
_OF_LARGE = r"\?(\d{13,})"

Expression = TypeVar("Expression", bound=Hashable)


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


class AnonymousNames(Generic[Expression]):
    """Creates anonymous names, and stores the large expressions that some of them replace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._next_large = _FIRST_LARGE
        self._names: OrderedDict[Expression, str] = OrderedDict()
        self.definitions: dict[str, Expression] = {}

    def fresh(self) -> str:
        with self._lock:
            self._next += 1
            return f"?{self._next - 1}"

    def of(self, expression: Expression) -> str:
        """Return the name of a large expression. Equal expressions get the same name, so that they compare equal."""
        with self._lock:
            name = self._names.get(expression)
            if name is not None:
                self._names.move_to_end(expression)
                return name
            name = self._names[expression] = f"?{self._next_large}"
            self._next_large += 1
            self.definitions[name] = expression
            if len(self._names) > _MAX_NAMES:
                del self.definitions[self._names.popitem(last=False)[1]]
            return name

    def reserve(self, text: str) -> str:
        """Return the text of a dimension from outside, so that no name that is created later occurs in it.

        Names of large expressions are renamed; `fresh` skips the other names.
        """
        text = re.sub(_OF_LARGE, r"given_\1", text)
        for number in re.findall(r"\?(\d+)", text):
            with self._lock:
                self._next = max(self._next, int(number) + 1)
        return text
