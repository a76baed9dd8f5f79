"""Shared by the operators of ai.onnx.ml: their domain, and conversion to a matrix of examples and features."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, ClassVar

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Op

ML = "ai.onnx.ml"
# The numbers that operators of the domain take.
NUMBERS = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT32})


class RowWise(Op):
    """Base of operators on the rows of a matrix. A vector is one example, whose features are its elements."""

    domain = ML
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    types: ClassVar[Any] = {"x": NUMBERS}
    per_example = ("x",)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return inputs[0] is not None and inputs[0].rank == 2 and super().is_batchwise(inputs, batched)


def examples(x: TensorType) -> Dim:
    """Return the number of examples: 1 for a vector, the rows of a matrix. Raises TypeMismatch for other ranks."""
    shape = _matrix(x)
    if shape is None:
        return dims.fresh()
    return 1 if len(shape) == 1 else shape[0]


def features(x: TensorType) -> Dim | None:
    """Return the number of features of an example; None if the rank is unknown."""
    shape = _matrix(x)
    return None if shape is None else shape[-1]


def _matrix(x: TensorType) -> tuple[Dim, ...] | None:
    if x.shape is not None and len(x.shape) not in (1, 2):
        raise TypeMismatch(f"examples must be a vector or a matrix, not {x}")
    return x.shape


def require_features(x: TensorType, count: int, what: str) -> None:
    """Raise TypeMismatch if examples are known not to have `count` features. what: begin of the message."""
    found = features(x)
    if found is not None and not dims.may_equal(found, count):
        raise TypeMismatch(f"{what} {count} features, x has {found}: {x}")


def require_at_least(x: TensorType, count: int, what: str) -> None:
    """Raise TypeMismatch if examples are known to have fewer than `count` features."""
    found = features(x)
    if found is not None and not isinstance(found, DimExpr) and found < count:
        raise TypeMismatch(f"{what} {count} features, x has {found}: {x}")


def require_columns(x: Any, count: int, what: str) -> None:
    """Raise TypeMismatch unless the array's examples have `count` features."""
    if x.ndim not in (1, 2) or x.shape[-1] != count:
        raise TypeMismatch(f"{what} {count} features, x has shape {list(x.shape)}")


def as_rows(x: Value, dtype: DType = DType.FLOAT32) -> Value:
    """Convert x to a matrix of `dtype`: a vector becomes one row."""
    if x.rank == 1:
        x = F.unsqueeze(x, [0])
    return x if x.dtype is dtype else F.cast(x, to=dtype)


def rows_of(xp: Any, x: Any, dtype: Any = None) -> Any:
    """Convert an array to a matrix of `dtype` (None: its own): a vector becomes one row."""
    matrix = x.reshape(1, -1) if x.ndim == 1 else x
    return matrix if dtype is None else matrix.astype(dtype)


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise UsageError if an attribute is not one of the allowed words."""
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(allowed)}")


def same_length(**lists: Sized) -> None:
    """Raise UsageError if these lists have different lengths."""
    if len({len(items) for items in lists.values()}) > 1:
        raise UsageError(
            "these lists must have one length: "
            + ", ".join(f"{name} has {len(items)}" for name, items in lists.items())
        )
