"""Operands of operators: which are settings, whether shapes and element types go together, and wider element types.

Operators on float16 and bfloat16 sum and interpolate in a wider type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops._base import F

# Operator -> positions of the operands that configure it. Training does not change them.
SETTINGS: Mapping[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "Dropout": frozenset({1}),
    "OneHot": frozenset({2}),
    "Pad": frozenset({2}),
    "QuantizeLinear": frozenset({1}),
    "DequantizeLinear": frozenset({1}),
    "QLinearConv": frozenset({1, 4, 6}),
    "QLinearMatMul": frozenset({1, 4, 6}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2}),
    "NonMaxSuppression": frozenset({3, 4}),
    "Upsample": frozenset({1}),
}


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


def converted(x: Any, dtype: DType) -> Any:
    """Convert `x` to this element type; return x itself if it already has it."""
    return x if x.dtype is dtype else F.cast(x, to=dtype)


def wide_type(dtype: DType) -> DType:
    """Return the type in which values of `dtype` are summed."""
    return DType.FLOAT32 if dtype in HALVES else dtype
