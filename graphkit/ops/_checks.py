"""Whether two shapes can be the same."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir import dims
from graphkit.ir.dims import Dim


def fits(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """False only when the two shapes differ whatever unknown ranks and dimension names stand for."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(map(dims.may_equal, a, b))
