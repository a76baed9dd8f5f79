"""Operators on single features: Scaler, Normalizer, Binarizer, Imputer."""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, constant, op
from graphkit.ops.ml.matrix import ML, NUMBERS, RowWise, one_of

NORMS = ("MAX", "L1", "L2")


def _check_per_feature(x: TensorType, **lists: Sized) -> None:
    """Raise TypeMismatch unless each list has one entry, or one per feature."""
    if x.shape is None:
        return
    if not x.shape:
        raise TypeMismatch("x has no axis of features")
    count = _feature_dim(x)
    for name, items in lists.items():
        if len(items) != 1 and not isinstance(count, DimExpr) and len(items) != count:
            raise UsageError(f"{name} has {len(items)} entries; it may have one, or one for each of {count} features")


def _feature_dim(x: TensorType) -> Any:
    """Return the number of features: the length of a vector, else the size of the second axis."""
    shape = x.known_shape
    return shape[0] if len(shape) == 1 else shape[1]


def _along_features(x: Any, items: np.ndarray, name: str) -> np.ndarray:
    """Return `items`. Raises TypeMismatch unless there is one, or one per feature of the array x."""
    count = x.shape[0] if x.ndim == 1 else x.shape[1]
    if len(items) not in (1, count):
        raise TypeMismatch(f"{name} has {len(items)} entries for {count} features")
    return items


def _rows(x: Value, *lists: Sized) -> Value:
    """Reshape x so that its last axis has the features, and lists with one entry per feature broadcast."""
    if x.rank is None:
        raise UnsupportedError("the rank of x is unknown")
    if x.rank <= 2 or all(len(items) == 1 for items in lists):
        return x
    return F.reshape(x, F.concat(constant(np.array([-1])), F.shape(x, start=1, end=2), axis=0))


def _like(y: Value, x: Value) -> Value:
    return y if y.rank == x.rank else F.reshape(y, F.shape(x))


@op
class Scaler(RowWise):
    """(x - offset) * scale; offset and scale hold one number, or one for each feature. The result is float32."""

    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    onnx = Onnx("Scaler", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 4), offset=[0.5, 1.0, -1.0, 0.0], scale=[2.0, 0.5, 1.0, -1.0]),
        Sample((5,), offset=[1.0], scale=[0.25]),
        Sample((2, 3, 2), offset=[1.0, 2.0, 3.0], scale=[2.0]),
    )

    def infer(self, x: TensorType) -> TensorType:
        _check_per_feature(x, offset=self.offset, scale=self.scale)
        return TensorType(DType.FLOAT32, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        wide = np.float64 if x.dtype == np.float64 else np.float32
        offset = _along_features(x, np.array(self.offset, np.float32), "offset").astype(wide)
        scale = _along_features(x, np.array(self.scale, np.float32), "scale").astype(wide)
        rows = x.astype(wide).reshape(-1, max(len(offset), len(scale)))
        return ((rows - xp.asarray(offset)) * xp.asarray(scale)).astype(np.float32).reshape(x.shape)

    def expand(self, x: Value) -> Value:
        wide = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
        rows = F.cast(_rows(x, self.offset, self.scale), to=wide)
        offset, scale = (constant(np.array(n, np.float32).astype(wide.numpy)) for n in (self.offset, self.scale))
        return _like(F.cast((rows - offset) * scale, to=DType.FLOAT32), x)


@op
class Normalizer(RowWise):
    """Divide each example by its largest element (MAX), sum of magnitudes (L1) or root of the sum of squares (L2).

    The result is float32. An example whose norm is 0 stays as it is.
    """

    norm: str = "MAX"
    onnx = Onnx("Normalizer", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 4), norm="MAX"),
        Sample((3, 4), norm="L1"),
        Sample((3, 4), norm="L2"),
        Sample((5,), norm="L2"),
    )

    def infer(self, x: TensorType) -> TensorType:
        one_of("norm", self.norm, NORMS)
        if x.shape is not None and len(x.shape) not in (1, 2):
            raise TypeMismatch(f"examples must be a vector or a matrix, not {x}")
        return TensorType(DType.FLOAT32, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        x = x.astype(np.float32)
        if self.norm == "MAX":
            size = xp.max(x, axis=-1, keepdims=True) if x.shape[-1] else xp.zeros((*x.shape[:-1], 1), np.float32)
        elif self.norm == "L1":
            size = xp.sum(xp.abs(x), axis=-1, keepdims=True)
        else:
            size = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
        return x / xp.where(size == 0, np.float32(1), size)

    def expand(self, x: Value) -> Value:
        x = F.cast(x, to=DType.FLOAT32) if x.dtype is not DType.FLOAT32 else x
        if self.norm == "MAX":
            size = F.reduce_max(x, [-1])
        elif self.norm == "L1":
            size = F.reduce_l1(x, [-1])
        else:
            size = F.reduce_l2(x, [-1])
        zero = F.equal(size, constant(np.float32(0)))
        return x / F.where(zero, constant(np.float32(1)), size)


@op
class Binarizer(Op):
    """1 where an element is larger than the threshold, else 0, in the type of x."""

    threshold: float = 0.0
    domain = ML
    inputs = ("x",)
    types: ClassVar[Any] = {"x": NUMBERS}
    onnx = Onnx("Binarizer", 1, ML)
    per_example = ("x",)
    composite = True
    samples = lambda: (
        Sample((3, 4), grad=False, threshold=0.25),  # a step function
        Sample((5,), grad=False),
    )

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        return (x > np.float32(self.threshold)).astype(x.dtype)

    def grad(self, node: Any, dy: Value) -> None:
        return None

    def expand(self, x: Value) -> Value:
        if x.dtype.is_integer:
            # For an integer n, n > threshold is the same as n > floor(threshold).
            low = math.floor(self.threshold) if math.isfinite(self.threshold) else self.threshold
            limits = np.iinfo(x.dtype.numpy)
            if not limits.min <= low <= limits.max:
                raise UnsupportedError(f"threshold={self.threshold} is not a number of {x.dtype}")
            return F.cast(F.greater(x, constant(np.array(low, x.dtype.numpy))), to=x.dtype)
        return F.cast(F.greater(x, constant(np.array(np.float32(self.threshold), x.dtype.numpy))), to=x.dtype)


@op
class Imputer(RowWise):
    """Replace elements that are equal to `replaced_value_*`, which may be NaN, by `imputed_value_*`.

    `imputed_value_*`: one number, or one number for each feature.
    """

    imputed_value_floats: tuple[float, ...] = ()
    imputed_value_int64s: tuple[int, ...] = ()
    replaced_value_float: float = 0.0
    replaced_value_int64: int = 0
    onnx = Onnx("Imputer", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 2), imputed_value_floats=[1.5, 2.5], dtypes={DType.FLOAT32, DType.FLOAT64}),
        Sample(np.array([[1, 3], [3, 2]], np.float32), imputed_value_floats=[7.0], replaced_value_float=3.0),
        Sample(Rand((6,), -2, 3, "int64"), imputed_value_int64s=[9], replaced_value_int64=-1),
    )  # fmt: skip

    def infer(self, x: TensorType) -> TensorType:
        _, imputed, name = self._values(x.dtype)
        if not len(imputed):
            raise UsageError(f"{name} is empty")
        _check_per_feature(x, **{name: imputed})
        return TensorType(x.dtype, x.shape)

    def _values(self, dtype: DType) -> tuple[Any, np.ndarray, str]:
        """Return the replaced value and its replacements, in the type of x, and the attribute's name for messages."""
        kind = dtype.numpy.type
        if dtype.is_integer:
            return kind(self.replaced_value_int64), np.array(self.imputed_value_int64s, kind), "imputed_value_int64s"
        replaced = kind(np.float32(self.replaced_value_float))
        return replaced, np.array(self.imputed_value_floats, np.float32).astype(kind), "imputed_value_floats"

    def reference(self, xp: Any, x: Any) -> Any:
        replaced, imputed, name = self._values(DType.of(x.dtype))
        rows = x.reshape(-1, len(_along_features(x, imputed, name)))
        missing = xp.isnan(rows) if replaced != replaced else rows == replaced
        return xp.where(missing, xp.asarray(imputed), rows).reshape(x.shape)

    def expand(self, x: Value) -> Value:
        replaced, imputed, _ = self._values(x.dtype)
        rows = _rows(x, imputed)
        missing = F.is_nan(rows) if replaced != replaced else F.equal(rows, constant(np.array(replaced)))
        return _like(F.where(missing, constant(imputed), rows), x)
