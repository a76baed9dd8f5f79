"""Anonymous symbols, whose names begin with '?': for sizes that equal no other size, and for large expressions."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

# Number of names of large expressions that are kept: the most recently used ones. Their numbers are above those of all
# other names.
_MAX_NAMES = 4096
_FIRST_LARGE = 1 << 40
_OF_LARGE = r"\?(\d{13,})"

Expression = TypeVar("Expression", bound=Hashable)


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
