"""Numbers for equal contents: cheap keys for tables of facts about operators and types."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

_counter = itertools.count(1)

# When a numbering has this many contents, it starts again, so that its memory is bounded.
_LIMIT = 1 << 15


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
