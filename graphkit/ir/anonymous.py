"""Names of dimensions that begin with '?': of sizes that equal nothing else, and of large expressions."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

# So many names of large expressions are kept, those used last. Their numbers are beyond those of all other names.
_MAX_NAMES = 4096
_FIRST_LARGE = 1 << 40
_OF_LARGE = r"\?(\d{13,})"

Expression = TypeVar("Expression", bound=Hashable)


class Anonymous(Generic[Expression]):
    """Hands out such names, and knows which expressions the large ones stand for."""

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
        """The name of a large expression: the same one each time, so that equal ones stay equal."""
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

    def not_ours(self, text: str) -> str:
        """Text that somebody else wrote, whose names are none of those that are made here, then or later."""
        text = re.sub(_OF_LARGE, r"given_\1", text)
        for number in re.findall(r"\?(\d+)", text):
            with self._lock:
                self._next = max(self._next, int(number) + 1)
        return text
