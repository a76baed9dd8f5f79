"""Conversion between element types, of values and of bits; operators that stop or redirect gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.bounds import never_below
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, BOOLS, FLOAT8, FLOATS, INTEGERS, NUMERIC, DType, TensorType, dtype_of
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops.known_elements import all_of
from graphkit.ops.operands import fits

# Integers of less than a byte: number of bits, and whether they have a sign.
_NARROW = {DType.INT4: (4, True), DType.UINT4: (4, False), DType.INT2: (2, True), DType.UINT2: (2, False)}
_WHOLE_BYTES = NUMERIC | BOOLS | FLOAT8 | {DType.FLOAT8E8M0}
_ROUND_MODES = ("up", "down", "nearest")


def convert(xp: Any, x: Any, to: DType, saturate: bool = True, round_mode: str = "up") -> Any:
    """Convert x's elements to `to`, by the rules of the standard's Cast.

    Strings hold numbers in plain or scientific notation; INF, +INF, -INF and NaN are read in any case. Numbers are
    written as ONNX Runtime writes them: floats of every width with eight significant digits, as C's %.8g, INF, -INF and
    NaN; truth as 1 and 0.
    """
    if to is DType.STRING:
        return np.vectorize(_text, otypes=[object])(x) if x.size else np.empty(x.shape, object)
    if x.dtype.kind in "OUS":
        x = _parsed(x, _integer, to.numpy) if to in INTEGERS else _parsed(x, _number, np.float64)
    if to is DType.FLOAT8E8M0:
        return _power_of_two(x.astype(np.float32), saturate, round_mode)
    if to in FLOAT8 and saturate:
        # Saturate: numbers out of range, also infinity, become the largest number, not NaN.
        import ml_dtypes

        largest = float(ml_dtypes.finfo(to.numpy).max)
        wide = x.astype(np.float32)
        return xp.clip(wide, -largest, largest).astype(to.numpy)
    if x.dtype.kind == "c" and to not in (DType.COMPLEX64, DType.COMPLEX128):
        x = x.real
    if to is DType.BOOL:
        return x != xp.asarray(0, x.dtype)
    return _narrow(xp, x, to) if to in _NARROW else x.astype(to.numpy)


def _narrow(xp: Any, x: Any, to: DType) -> Any:
    """Convert x to integers of 4 or 2 bits, as ONNX Runtime does.

    Floats are rounded, ties away from zero, and lose their high bits; NaN and infinities become 0.
    """
    if dtype_of(x.dtype).is_float:
        wide = x.astype(np.float64)
        wide = xp.where(xp.abs(wide) < 2.0**63, wide, 0.0)
        whole = xp.trunc(wide)
        x = whole + xp.where(xp.abs(wide - whole) >= 0.5, xp.copysign(xp.asarray(1.0), wide), 0.0)
    bits, signed = _NARROW[to]
    low = x.astype(np.int64) & ((1 << bits) - 1)
    half = 1 << (bits - 1)
    return ((low ^ half) - half if signed else low).astype(np.int8).astype(to.numpy)


def _parsed(text: Any, parse: Callable[[str], Any], dtype: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        elements = [parse(word) for word in text.reshape(-1).tolist()]
        # Integers that are too large lose their high bits, as in other conversions.
        wide = np.array([v % (1 << 64) for v in elements], np.uint64) if parse is _integer else elements
        return np.asarray(wide).astype(dtype).reshape(text.shape)


def _number(word: str) -> float:
    # Python's own float also reads 1_000, and digits of other scripts.
    if "_" in word or not word.isascii():
        raise ValueError(f"{word!r} is not a number")
    return float(word)


def _integer(word: str) -> int:
    # Parse as float only if the text is not an integer, because float64 has fewer digits than int64.
    try:
        return int(word) if "_" not in word and word.isascii() else int(_number(word))
    except ValueError:
        return int(_number(word))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (int, np.integer, complex, np.complexfloating)):
        return str(value)
    number = float(value)
    if math.isfinite(number):
        return f"{number:.8g}"
    return "NaN" if math.isnan(number) else "INF" if number > 0 else "-INF"


def _power_of_two(x: Any, saturate: bool, round_mode: str) -> np.ndarray:
    """Convert float32 to float8e8m0, which has only an exponent: the value is 2 ** (bits - 127), or NaN for 255."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.int64)
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        exponent = exponent + ((fraction > 0) & (exponent < 255))
    elif round_mode == "nearest":
        # Ties go up; below the smallest normal number the implicit leading bit is missing.
        exponent = exponent + ((fraction >= 0x400000) & (exponent < 255))
    overflow = exponent > 254
    special = ((bits >> 23) & 0xFF) == 255
    exponent = np.where((overflow | special) & ~np.isnan(x), 254 if saturate else 255, exponent)
    exponent = np.where(np.isnan(x), 255, exponent)
    return exponent.astype(np.uint8).view(DType.FLOAT8E8M0.numpy)


def _known(x: TensorType, to: DType) -> tuple[Dim, ...] | None:
    """Return the known elements if the conversion does not change their values, else None."""
    if x.value is None:
        return None
    if to is DType.BOOL:
        return all_of(_truth(v) for v in x.value)
    if to not in INTEGERS:
        return None
    return x.value if to.itemsize >= 4 or x.constants is not None else None


def _truth(value: Dim) -> int | None:
    if dims.is_static(value):
        return int(value != 0)
    return 1 if never_below(value, 1) else None


class _Conversion(Op):
    """Base of Cast and CastLike."""

    saturate: bool = True
    round_mode: str = "up"
    symbolic_inference = True

    def converted(self, x: TensorType, to: DType) -> TensorType:
        if self.round_mode not in _ROUND_MODES:
            raise UsageError(f"round_mode must be one of {', '.join(_ROUND_MODES)}, not {self.round_mode!r}")
        return TensorType(to, x.shape, _known(x, to))

    @staticmethod
    def back(x: Any, dy: Any) -> Any:
        """Return the gradient of x: dy in x's dtype if both are floats, else None."""
        return F.cast(dy, to=x.dtype) if x.dtype.is_float and dy.dtype.is_float else None


_MIXED = np.array([-2.7, -0.0, 0.4, 1.5, 3.0, 100.0], np.float32)
_EXTREME = np.array([0.0, -0.0, 1e-9, 1.0, -447.0, 464.0, 1e6, np.inf, -np.inf, np.nan], np.float32)
_POWERS = np.array([1.0, 1.4, 1.5, 1.6, 3.0, 1e30, 3e38, np.nan, 2e-39, 7e-39], np.float32)


def _samples() -> tuple[Sample, ...]:
    # grad=False below: rounding is a step function, so finite differences do not measure its gradient.
    return (
        Sample(Rand((2, 3), -50.0, 50.0), to=DType.FLOAT64),
        Sample(Rand((2, 3), -50.0, 50.0), to=DType.FLOAT32, grad=False),
        Sample(Rand((2, 3), -50.0, 50.0), to=DType.FLOAT16, grad=False),
        Sample(Rand((2, 3), -50.0, 50.0), to=DType.BFLOAT16, grad=False),
        Sample(_MIXED, to=DType.INT32, grad=False),
        Sample(_MIXED, to=DType.BOOL, grad=False),
        Sample(np.array([300, -1, 65, 0]), to=DType.UINT8),
        Sample(np.array([200, -200], np.int16), to=DType.INT8),
        Sample(np.array([True, False]), to=DType.FLOAT32),
        Sample(np.array([True, False]), to=DType.INT64),
        Sample(np.array([5, 0, -1]), to=DType.BOOL),
        Sample(np.zeros((0, 2), np.int32), to=DType.FLOAT32),
        Sample(np.array(3, np.int64), to=DType.INT32),
        Sample(np.array(["3.5", "-1e-2", "INF", "-inf", "nan"], object), to=DType.FLOAT32),
        Sample(np.array(["12", "-7"], object), to=DType.INT64),
        Sample(np.array(["18446744073709551615", " 7 "], object), to=DType.UINT64),
        Sample(np.array([1, -20]), to=DType.STRING),
        # The standard does not define the text of floats and booleans; results are those of ONNX Runtime.
        Sample(np.array([True, False]), to=DType.STRING, onnx=False),
        Sample(np.array([0.5, -3.25], np.float32), to=DType.STRING, grad=False, onnx=False),
        *(Sample(_EXTREME, to=to, grad=False) for to in sorted(FLOAT8, key=str)),
        *(Sample(_EXTREME, to=to, saturate=False, grad=False) for to in sorted(FLOAT8, key=str)),
        *(
            Sample(_POWERS, to=DType.FLOAT8E8M0, round_mode=mode, saturate=saturate, grad=False)
            for mode in _ROUND_MODES
            for saturate in (True, False)
        ),
        *(Sample(np.array([-9.0, -1.5, 0.5, 7.6, 200.0], np.float32), to=to, grad=False, onnx=False) for to in _NARROW),
        *(Sample(np.array([-9, 0, 7, 8, 300]), to=to) for to in _NARROW),
        *(Sample(np.array([-2, 0, 1], np.int8).astype(t.numpy), to=DType.FLOAT32) for t in (DType.INT4, DType.INT2)),
        Sample(np.array([0.25, 0.75, -3.5, 100.0, np.inf], np.float32), to=DType.FLOAT4E2M1, grad=False),
        # onnx's evaluator gives NaN, where the standard's table has the largest number.
        Sample(np.array([np.inf], np.float32), to=DType.FLOAT8E8M0, grad=False, onnx=False),
    )


@op
class Cast(_Conversion):
    """Convert x's elements to the dtype `to`.

    Floats are truncated towards zero when they become integers. A larger integer keeps its low bits in a smaller type.
    Conversions to integers of 4 and 2 bits follow ONNX Runtime: floats are rounded, ties away from zero. Strings are
    parsed as numbers, and numbers are written as strings. Only casts from floats to floats have a gradient.

    Attributes:
        to: The dtype.
        saturate: For float8 types only. True: numbers that are too large become the largest finite one. False: they
            become NaN, or infinity if the type has it.
        round_mode: For float8_e8m0fnu only: "up", "down" or "nearest".
    """

    to: DType
    inputs = ("x",)
    types = {"x": ANY}
    pointwise = True
    onnx = Onnx("Cast", since=28)
    samples = _samples

    def infer(self, x: TensorType) -> TensorType:
        return self.converted(x, self.to)

    def reference(self, xp: Any, x: Any) -> Any:
        return convert(xp, x, self.to, self.saturate, self.round_mode)

    def grad(self, node: Node, dy: Any) -> Any:
        return self.back(node.inputs[0], dy)


@op
class CastLike(_Conversion):
    """Convert x's elements to the dtype of `like`, as Cast does. Only the dtype of `like` is read."""

    inputs = ("x", "like")
    types = {"x": ANY, "like": ANY}
    shape_only = ("like",)
    onnx = Onnx("CastLike", since=25)
    samples = lambda: (
        Sample(Rand((2, 3), -50.0, 50.0), np.zeros(1, np.float64)),
        Sample(_MIXED, np.zeros((), np.int32), grad=False),
        Sample(np.array([5, 0, -1]), np.zeros(2, bool)),
    )

    def infer(self, x: TensorType, like: TensorType) -> TensorType:
        return self.converted(x, like.dtype)

    def reference(self, xp: Any, x: Any, like: Any) -> Any:
        return convert(xp, x, dtype_of(like.dtype), self.saturate, self.round_mode)

    def grad(self, node: Node, dy: Any) -> Any:
        return self.back(node.inputs[0], dy), None

    def expand(self, x: Any, like: Any) -> Any:
        return F.cast(x, to=like.dtype, saturate=self.saturate, round_mode=self.round_mode)


@op
class StopGradient(Op):
    """Return x unchanged, and stop the gradient: none flows to x."""

    domain = DOMAIN
    inputs = ("x",)
    types = {"x": ANY}
    views = ((0, 0),)
    # grad=False: the gradient is 0 by definition, but finite differences measure 1.
    samples = lambda: (Sample((2, 3), grad=False), Sample((), grad=False), Sample((0, 2), grad=False))

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, xp: Any, x: Any) -> Any:
        return x

    def grad(self, node: Node, dy: Any) -> Any:
        return None

    def expand(self, x: Any) -> Any:
        return F.identity(x)


@op
class StraightThrough(Op):
    """Return the value of y, but pass the gradient to x: x gets the result's gradient unchanged, y gets none.

    x, y: float tensors of one type. `straight_through(x, round(x))` rounds, and is differentiated as if it did not (the
    straight-through estimator: Bengio, Leonard and Courville 2013).
    """

    domain = DOMAIN
    inputs = ("x", "y")
    outputs = ("z",)
    types = {"x": FLOATS, "y": "x"}
    views = ((1, 0),)
    shape_only = ("x",)
    # grad=False: the gradient goes to x by definition, although the value is y.
    samples = lambda: (
        Sample((2, 3), (2, 3), grad=False),
        Sample((), (), grad=False),
        Sample((0, 2), (0, 2), grad=False),
    )

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        if not fits(x.shape, y.shape):
            raise TypeMismatch(f"{x} and {y} have different shapes")
        return y

    def reference(self, xp: Any, x: Any, y: Any) -> Any:
        return y

    def grad(self, node: Node, dz: Any) -> Any:
        return dz, None

    def expand(self, x: Any, y: Any) -> Any:
        return F.identity(y)


def _bit_samples() -> tuple[Sample, ...]:
    return (
        Sample(np.array([1.0, -2.5, 0.0], np.float32), to=DType.INT32),
        Sample(np.array([0x3F800000, -1], np.int32), to=DType.UINT32),
        Sample(np.array([[0x3F80], [0x4049]], np.uint16), to=DType.BFLOAT16),
        Sample(Rand((2, 3), -9.0, 9.0, "float16"), to=DType.UINT16),
        Sample(Rand((2, 3), -9.0, 9.0, "bfloat16"), to=DType.FLOAT16),
        Sample(np.array([1, 200], np.uint8), to=DType.INT8),
        Sample(np.array([1, 200], np.uint8), to=DType.FLOAT8E4M3FN),
        Sample(np.array([1.0, -2.0], DType.FLOAT8E5M2.numpy), to=DType.UINT8),
        Sample(np.array([0x3FF0000000000000], np.int64), to=DType.FLOAT64),
    )


@op
class BitCast(Op):
    """Read the bytes of x as another element type of the same size."""

    to: DType
    reference_in_float32 = False
    inputs = ("x",)
    types = {"x": _WHOLE_BYTES}
    onnx = Onnx("BitCast", since=26)
    views = ((0, 0),)
    samples = _bit_samples

    def infer(self, x: TensorType) -> TensorType:
        if self.to not in _WHOLE_BYTES or self.to.itemsize != x.dtype.itemsize:
            raise TypeMismatch(f"{x} cannot be read as {self.to}: its elements do not have the same size")
        return TensorType(self.to, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.array(x.view(self.to.numpy))

    def grad(self, node: Node, dy: Any) -> Any:
        return None
