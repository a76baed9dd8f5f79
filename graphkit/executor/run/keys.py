"""The key of a program in a cache."""

from __future__ import annotations

from typing import NamedTuple

# What programs have in common that differ only in shapes: the selection, and which stored inputs are fed.
Group = tuple[int, tuple[int, ...]]


class Key(NamedTuple):
    """What a program depends on: the selection, which stored inputs are fed, and the shapes of `Selection.open`."""

    selection: int
    fed: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]

    @property
    def group(self) -> Group:
        """The key without shapes."""
        return self.selection, self.fed

    def sizes(self) -> str:
        """Return the shapes as text, such as `[8, 3], [8]`."""
        return ", ".join(map(size_text, self.shapes)) or "fixed shapes"


def size_text(shape: tuple[int, ...] | None) -> str:
    """Return a shape as text; `?` if the value is not a tensor."""
    return "?" if shape is None else str(list(shape))
