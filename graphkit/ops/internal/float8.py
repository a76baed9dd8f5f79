"""Matrix products of 8-bit floating point numbers, each operand with one scale for all of its elements.

"FP8 Formats for Deep Learning", Micikevicius et al. 2022, arXiv:2209.05433. The scale follows from the present largest
element ("current scaling"), so that equal operands have equal bits, whatever was computed before.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, Op, Rand, Sample, op
from graphkit.ops.operands import fits

# Number of slices of a tensor whose largest elements are computed separately, and least number of elements of a slice.
SLICES, SLICE = 256, 1024
# The summed axis is padded to a multiple of this: cuBLASLt requires columns to begin at multiples of 16 bytes.
PADDED_TO = 16
# Largest scale factor. Products are multiplied by its reciprocal, which is still a normal number.
MOST_FACTOR = 2.0**126

_FORMATS = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E5M2})
_SCALED = HALVES | {DType.FLOAT32}
_F32 = frozenset({DType.FLOAT32})
_BF16 = frozenset({DType.BFLOAT16})


def largest(kind: DType) -> float:
    """The largest finite number of a format: 448 of E4M3, 57344 of E5M2."""
    return float(ml_dtypes.finfo(kind.numpy).max)


def slice_length(elements: int) -> int:
    """Return the number of elements of a slice; the last slices may have fewer."""
    return max(padded(-(-elements // SLICES)), SLICE)


def padded(size: int) -> int:
    """Return the size of a summed axis after zero padding."""
    return -(-size // PADDED_TO) * PADDED_TO


def _padded(size: Dim) -> Dim:
    return dims.ceildiv(size, PADDED_TO) * PADDED_TO


_SHAPES = (
    (5, 7),
    (3, 2, 16),
    (70, 33),
    (0, 4),
    (4, 0),
    (1, 1),
)


@op
class AbsoluteMaxima(Op):
    """Divide x into 256 slices, and return the largest finite |x| of each slice: float32 [256].

    Slices are consecutive in row-major order. Each has ceil(ceil(elements / 256) / 16) * 16 elements, but at least
    1024; the last slices have the remaining elements, or none. A slice without a finite element gives 0.
    """

    domain = DOMAIN
    inputs = ("x",)
    outputs = ("maxima",)
    types = {"x": _SCALED}
    samples = lambda: (
        *(Sample(shape, grad=False, onnx=False) for shape in _SHAPES),
        Sample(Rand((2, 1500), -3.0, 2.0), grad=False, onnx=False),
        Sample(np.array([[np.nan, -2.5, np.inf, 1.0, -np.inf, 3e-45]], np.float32), grad=False, onnx=False),
        Sample(np.array([np.nan, np.inf], np.float32), grad=False, onnx=False),
    )

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(DType.FLOAT32, (SLICES,))

    def reference(self, xp: Any, x: Any) -> Any:
        length = slice_length(x.size)
        sizes = xp.abs(x.astype(np.float32)).reshape(-1)
        finite = xp.where(xp.isfinite(sizes), sizes, xp.asarray(0, np.float32))
        rest = xp.zeros((SLICES * length - x.size,), np.float32)
        return xp.max(xp.concatenate([finite, rest]).reshape(SLICES, length), axis=1)


class _Scale(NamedTuple):
    factor: Any
    inverse: Any


def _scale(xp: Any, maxima: Any, kind: DType) -> _Scale:
    """Return the scale factor of the elements, and its reciprocal, in float32."""
    most = xp.max(maxima)
    one, bound = xp.asarray(1, np.float32), xp.asarray(MOST_FACTOR, np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        factor = xp.where(most == 0, one, xp.minimum(xp.asarray(largest(kind), np.float32) / most, bound))
    return _Scale(factor, one / factor)


@op
class ScaledFloat8(Op):
    """Convert x to 8-bit floats after scaling it so that the largest of `maxima` becomes the largest finite number.

    x: [..., n]; maxima: float32 [256], the result of AbsoluteMaxima(x). Output `rows` [..., n'] is the scaled x. Output
    `columns` [n, m'] is the scaled x, reshaped to a matrix [m, n] and transposed. Both are padded with zeros: n' and m'
    are the next multiples of 16. Output `scale`, float32 [], is the reciprocal of the factor: x is near scale * rows.
    The factor is the format's largest number divided by the largest of `maxima`, at most 2^126; if all `maxima` are 0,
    it is 1. Elements are rounded to even. NaN stays NaN. Infinity stays infinity in E5M2, but becomes NaN in E4M3,
    which has no infinity. Elements that are not finite do not affect the factor.
    """

    to: DType
    domain = DOMAIN
    inputs = ("x", "maxima")
    outputs = ("rows", "columns", "scale")
    types = {"x": _SCALED, "maxima": _F32}
    samples = lambda: (
        *(
            Sample(shape, Rand((SLICES,), 0.0, 4.0, "float32"), to=kind, grad=False, onnx=False)
            for shape in _SHAPES
            for kind in (DType.FLOAT8E4M3FN, DType.FLOAT8E5M2)
        ),
        Sample((17, 48), np.zeros(SLICES, np.float32), to=DType.FLOAT8E4M3FN, grad=False, onnx=False),
    )

    def infer(self, x: TensorType, maxima: TensorType) -> tuple[TensorType, ...]:
        if self.to not in _FORMATS:
            raise TypeMismatch(f"to={self.to} is neither E4M3 nor E5M2")
        if not fits(maxima.shape, (SLICES,)):
            raise TypeMismatch(f"maxima must be float32 [{SLICES}], not {maxima}")
        scale = TensorType(DType.FLOAT32, ())
        if x.shape is None:
            return TensorType(self.to), TensorType(self.to), scale
        if len(x.shape) < 2:
            raise TypeMismatch(f"{x} is not a matrix")
        *leading, n = x.shape
        rows, columns = (*leading, _padded(n)), (n, _padded(dims.product(leading)))
        return TensorType(self.to, rows), TensorType(self.to, columns), scale

    def reference(self, xp: Any, x: Any, maxima: Any) -> tuple[Any, ...]:
        factor, inverse = _scale(xp, maxima, self.to)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (x.astype(np.float32) * factor).astype(self.to.numpy)
        n, m = x.shape[-1], math.prod(x.shape[:-1])
        rows = xp.zeros((*x.shape[:-1], padded(n)), self.to.numpy)
        rows[..., :n] = scaled
        columns = xp.zeros((n, padded(m)), self.to.numpy)
        columns[:, :m] = scaled.reshape(m, n).T
        return rows, columns, inverse


def _bytes(*shape: int, to: DType = DType.FLOAT8E4M3FN) -> np.ndarray:
    """Return float8 numbers that are small enough for exact sums."""
    return (np.arange(math.prod(shape)) * 5 % 13 - 6).reshape(shape).astype(np.float32).astype(to.numpy)


_HALF, _TWO = np.array(0.5, np.float32), np.array(2.0, np.float32)
_ROW = np.arange(16).astype(DType.BFLOAT16.numpy)
_SQUARE = np.arange(48).reshape(3, 16).astype(DType.BFLOAT16.numpy)


@op
class Float8MatMul(Op):
    """alpha * a_scale * b_scale * a @ b^T + bias + residual, in bfloat16; sums are float32.

    a: [..., m, k], b: [n, k], both of E4M3, or one of E4M3 and one of E5M2; scales: float32 []; bias: bfloat16 [n];
    residual and result: bfloat16 [..., m, n]. If the product of the scales exceeds float32, sums of 0 are NaN.
    """

    alpha: float = 1.0
    domain = DOMAIN
    inputs = ("a", "a_scale", "b", "b_scale", "bias?", "residual?")
    types = {"a": _FORMATS, "a_scale": _F32, "b": _FORMATS, "b_scale": _F32, "bias": _BF16, "residual": _BF16}
    inplace = ((5, 0),)
    samples = lambda: (
        Sample(_bytes(3, 32), _HALF, _bytes(16, 32), _TWO),
        Sample(_bytes(3, 32), _HALF, _bytes(16, 32), _HALF, _ROW, alpha=0.5),
        Sample(_bytes(3, 16, to=DType.FLOAT8E5M2), _HALF, _bytes(16, 16), _TWO, None, _SQUARE),
        Sample(_bytes(2, 3, 16), _TWO, _bytes(16, 16, to=DType.FLOAT8E5M2), _HALF, _ROW, np.stack([_SQUARE] * 2)),
        Sample(_bytes(0, 16), _TWO, _bytes(16, 16), _HALF),
        Sample(_bytes(3, 0), _TWO, _bytes(16, 0), _HALF),
        Sample(_bytes(3, 0), _TWO, _bytes(16, 0), _HALF, _ROW, _SQUARE),
    )

    def infer(
        self,
        a: TensorType,
        a_scale: TensorType,
        b: TensorType,
        b_scale: TensorType,
        bias: TensorType | None = None,
        residual: TensorType | None = None,
    ) -> TensorType:
        if a.dtype is b.dtype is DType.FLOAT8E5M2:
            raise TypeMismatch(f"{a} and {b}: at least one operand must be E4M3")
        if a.shape is None or b.shape is None:
            return TensorType(DType.BFLOAT16)
        if len(a.shape) < 2 or len(b.shape) != 2:
            raise TypeMismatch(f"a product takes rows and a matrix, not {a} and {b}")
        if not dims.may_equal(a.shape[-1], b.shape[-1]):
            raise TypeMismatch(f"{a} and {b} have different numbers of columns")
        y = TensorType(DType.BFLOAT16, (*a.shape[:-1], b.shape[0]))
        if bias is not None and not fits(bias.shape, y.known_shape[-1:]):
            raise TypeMismatch(f"the bias {bias} does not fit the result {y}")
        if residual is not None and not fits(residual.shape, y.shape):
            raise TypeMismatch(f"the residual {residual} does not fit the result {y}")
        return y

    def reference(
        self, xp: Any, a: Any, a_scale: Any, b: Any, b_scale: Any, bias: Any = None, residual: Any = None
    ) -> Any:
        factor = xp.asarray(self.alpha, np.float32) * a_scale * b_scale
        with np.errstate(over="ignore", invalid="ignore"):
            y = xp.matmul(a.astype(np.float32), b.astype(np.float32).T) * factor
            for added in (bias, residual):
                y = y if added is None else y + added.astype(np.float32)
            return y.astype(DType.BFLOAT16.numpy)
