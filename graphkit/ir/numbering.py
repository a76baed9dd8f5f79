"""Numbers for equal contents: cheap keys for tables of facts about operators and types."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from typing import Any

_counter = itertools.count(1)

# When a numbering has this many contents, it starts again, so that its memory is bounded.
_LIMIT = 1 << 15
# Classes of attributes that keys contain, and the largest number of objects in a table by such keys.
_SIMPLE = frozenset({int, bool, float, str, type(None)})
_MOST_SHARED = 256
# Longer texts are in no key, so that the tables hold little memory.
_LONGEST_TEXT = 256


def unique_number() -> int:
    """Return a number that no other content has."""
    return next(_counter)


class Numbering:
    """Gives equal contents the same number, and different contents different numbers.

    Contents that are numbered long after each other may get different numbers although they are equal. So use the
    numbers only where this costs time and changes no result.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def number(self, content: Hashable) -> int:
        """Return the number of the content."""
        known = self._known
        found = known.get(content)
        if found is None:
            if len(known) >= _LIMIT:
                known.clear()
            found = known.setdefault(content, next(_counter))
        return found


def attributes_key(attributes: Mapping[str, Any]) -> tuple[tuple[str, type, Any], ...] | None:
    """Return a key that only equal attributes have; None if some are neither numbers nor short texts."""
    key: list[tuple[str, type, Any]] = []
    for name, value in attributes.items():
        kind = value.__class__
        # NaNs may differ in bits that no comparison shows.
        if kind not in _SIMPLE or value != value or (kind is str and len(value) > _LONGEST_TEXT):
            return None
        # 0.0 == -0.0
        key.append((name, kind, repr(value) if kind is float else value))
    return tuple(key)


def remember(known: dict[tuple[Any, ...], Any], key: tuple[Any, ...], shared: Any) -> None:
    """Add an object to a table, which is emptied when it is full."""
    if len(known) >= _MOST_SHARED:
        known.clear()
    known[key] = shared
