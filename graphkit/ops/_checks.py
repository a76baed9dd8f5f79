"""Checks of operands: whether two shapes can be equal, and which element types go together."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import HALVES, DType, TensorType


def fits(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Return False only if the two shapes differ for all values of unknown ranks and dimension names."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(map(dims.may_equal, a, b))


def check_gradient(dy: TensorType, x: TensorType) -> None:
    """Raise TypeMismatch unless the gradient `dy` of a result of x's shape has this shape."""
    if not fits(dy.shape, x.shape):
        raise TypeMismatch(f"dy and x must have one shape; they are {dy} and {x}")


def check_stored(computed: DType, *kinds: DType) -> None:
    """Raise TypeMismatch unless elements have the computation's type, or float16 or bfloat16 if that is float32."""
    for kind in kinds:
        if kind is not computed and not (kind in HALVES and computed is DType.FLOAT32):
            raise TypeMismatch(f"elements are {kind}, but the computation is in {computed}")
