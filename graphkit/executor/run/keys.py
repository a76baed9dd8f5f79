"""The key under which a program is kept: what the program depends on."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """What a program depends on: the selection, which stored inputs are fed, and the shapes of `Selection.open`."""

    selection: int
    fed: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]

    @property
    def group(self) -> tuple[int, tuple[int, ...]]:
        """What programs for other shapes have in common with this one."""
        return self.selection, self.fed

    def sizes(self) -> str:
        """Return the shapes as text, such as `[8, 3], [8]`."""
        return ", ".join(map(size_text, self.shapes)) or "fixed shapes"


def size_text(shape: tuple[int, ...] | None) -> str:
    """Return a shape as text; `?` for what is no tensor."""
    return "?" if shape is None else str(list(shape))
