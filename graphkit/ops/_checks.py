"""Whether two shapes can be the same, and what may be stored beside what is computed in."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import HALVES, DType


def fits(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """False only when the two shapes differ whatever unknown ranks and dimension names stand for."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(map(dims.may_equal, a, b))


def check_stored(computed: DType, *kinds: DType) -> None:
    """Raise TypeMismatch for elements that are neither of the type in which an operator computes nor half floats beside
    float32."""
    for kind in kinds:
        if kind is not computed and not (kind in HALVES and computed is DType.FLOAT32):
            raise TypeMismatch(f"elements are {kind}, but the computation is in {computed}")
