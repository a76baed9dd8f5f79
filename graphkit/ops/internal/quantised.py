"""Operators that passes make from quantised graphs: integers in, integers out, with the arithmetic of ONNX Runtime.

Scales are float32, of one element unless stated otherwise. The operands are in the order of ONNX Runtime's operators of
the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.types import BYTES, INTEGERS, DType, TensorType, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, constant, op
from graphkit.ops.linalg.matmul import Gemm
from graphkit.ops.operands import fits
from graphkit.ops.quant.dynamic import dynamically_quantised
from graphkit.ops.quant.matmul import IntegerProduct, integer_product, of_columns
from graphkit.ops.quant.rounding import bounds, centred, number, requantised, saturated, single, wrapped

_F32 = frozenset({DType.FLOAT32})
_I32 = frozenset({DType.INT32})


def _f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _bytes(*shape: int, dtype: str = "uint8") -> Rand:
    return Rand(shape, 0, 255, dtype) if dtype == "uint8" else Rand(shape, -128, 127, dtype)


def _zero(value: int, dtype: str = "uint8") -> np.ndarray:
    return np.array(value, dtype)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c in float32, rounded once: the product of two float32 is exact in float64."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


class _QuantisedBinary(Op):
    """Base of QLinearAdd and QLinearMul. a, b and the result are all uint8 or all int8; a and b broadcast."""

    symbolic_inference = True
    pointwise: ClassVar[bool] = False
    domain = DOMAIN
    inputs = ("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point")
    types = {
        "a": BYTES, "a_scale": _F32, "a_zero_point": "a", "b": "a", "b_scale": _F32, "b_zero_point": "a",
        "y_scale": _F32, "y_zero_point": "a",
    }  # fmt: skip
    # Scales are powers of two and y_zero_point is even, so that every order of rounding and addition gives the same
    # result.
    samples: ClassVar[Any] = lambda: (
        Sample(
            _bytes(2, 3), _f32(0.25), _zero(100), _bytes(2, 3), _f32(0.5), _zero(3), _f32(0.5), _zero(128)
        ),
        Sample(
            _bytes(2, 1, 3), _f32(0.25), _zero(7), _bytes(4, 1), _f32(0.125), _zero(3), _f32(2.0), _zero(10)
        ),
        Sample(
            _bytes(5, dtype="int8"), _f32(0.5), _zero(-3, "int8"), _bytes(1, dtype="int8"), _f32(1.0),
            _zero(4, "int8"), _f32(1.0), _zero(0, "int8"),
        ),
        Sample(_bytes(0, 3), _f32(0.25), _zero(1), _bytes(3), _f32(0.5), _zero(3), _f32(1.0), _zero(128)),
    )  # fmt: skip

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        a, b = inputs[0].known_shape, inputs[3].known_shape
        scalars = not any(batched[i] for i in (1, 2, 4, 5, 6, 7))
        return scalars and batched[0] and batched[3] and len(a) == len(b)

    def infer(self, *operands: TensorType) -> TensorType:
        named = self.named_inputs(operands)
        for name, operand in named.items():
            if name not in ("a", "b"):
                single(name, operand)
        return TensorType(named["a"].dtype, broadcast_shapes([named["a"].shape, named["b"].shape]))

    def of_reals(self, a: Value, b: Value) -> Value:
        """Return the same operation on float values."""
        raise NotImplementedError(f"{self.name}.of_reals")

    def expand(self, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
        made = self.of_reals(F.dequantize_linear(a, a_scale, a_zero), F.dequantize_linear(b, b_scale, b_zero))
        return F.quantize_linear(made, y_scale, y_zero)


@op
class QLinearAdd(_QuantisedBinary):
    """Add two quantised tensors; the result is quantised.

    With p = a_scale / y_scale and q = b_scale / y_scale the result is fma(a, p, fma(b, q, y_zero_point - fma(p,
    a_zero_point, q * b_zero_point))) in float32, rounded (ties to even), clipped to the bounds of the type; fma rounds
    once. ONNX Runtime computes it like this on CPUs with AVX2.
    """

    def reference(self, xp: Any, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
        of_a, of_b, of_y = (number(xp, s) for s in (a_scale, b_scale, y_scale))
        p, q = of_a / of_y, of_b / of_y
        zero_a, zero_b, zero_y = (number(xp, z).astype(np.float32) for z in (a_zero, b_zero, y_zero))
        fixed = zero_y - _fma(p, zero_a, q * zero_b)
        total = _fma(a, p, _fma(b, q, fixed))
        return saturated(xp, total, None, DType.of(a.dtype))

    def of_reals(self, a: Value, b: Value) -> Value:
        made: Value = F.add(a, b)
        return made


@op
class QLinearMul(_QuantisedBinary):
    """Multiply two quantised tensors; the result is quantised.

    The result is (a - a_zero_point) * (b - b_zero_point) * (a_scale * b_scale / y_scale) + y_zero_point, computed in
    float32, rounded (ties to even) and clipped to the bounds of the type.
    """

    def reference(self, xp: Any, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
        multiplier = number(xp, a_scale) * number(xp, b_scale) / number(xp, y_scale)
        product = centred(xp, a, number(xp, a_zero)) * centred(xp, b, number(xp, b_zero))
        total = product.astype(np.float32) * multiplier + number(xp, y_zero).astype(np.float32)
        return saturated(xp, total, None, DType.of(a.dtype))

    def of_reals(self, a: Value, b: Value) -> Value:
        made: Value = F.mul(a, b)
        return made


@op
class QLinearGlobalAveragePool(Op):
    """Average a quantised image over all spatial axes; the result is quantised.

    x: [N, C, *spatial] -> [N, C, 1, ...]. The int32 sum of x - x_zero_point is multiplied by x_scale / (y_scale *
    pixels) in float32 and rounded (ties to even). Then y_zero_point is added, and the result is clipped to the bounds
    of the type.
    """

    domain = DOMAIN
    symbolic_inference = True
    per_example = ("x",)
    inputs = ("x", "x_scale", "x_zero_point", "y_scale", "y_zero_point")
    types = {"x": BYTES, "x_scale": _F32, "x_zero_point": "x", "y_scale": _F32, "y_zero_point": "x"}
    samples: ClassVar[Any] = lambda: (
        Sample(_bytes(2, 3, 4, 4), _f32(0.25), _zero(100), _f32(0.125), _zero(128)),
        Sample(_bytes(1, 2, 8, dtype="int8"), _f32(0.25), _zero(-5, "int8"), _f32(0.25), _zero(0, "int8")),
        Sample(_bytes(0, 3, 4, 4), _f32(0.25), _zero(100), _f32(0.125), _zero(128)),
    )

    def infer(self, *operands: TensorType) -> TensorType:
        x = operands[0]
        for name, operand in zip(self.inputs[1:], operands[1:], strict=True):
            single(name, operand)
        if x.shape is None:
            return x
        if len(x.shape) < 3:
            raise TypeMismatch(f"{x} has no spatial axis")
        return TensorType(x.dtype, (*x.shape[:2], *(1 for _ in x.shape[2:])))

    def reference(self, xp: Any, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any) -> Any:
        axes, pixels = tuple(range(2, x.ndim)), int(np.prod(x.shape[2:]))
        total = wrapped(xp.sum(centred(xp, x, number(xp, x_zero)), axis=axes, keepdims=True))
        multiplier = number(xp, x_scale) / (number(xp, y_scale) * xp.asarray(pixels, np.float32))
        return requantised(xp, total, multiplier, number(xp, y_zero), DType.of(x.dtype))

    def expand(self, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any) -> Any:
        mean = F.global_average_pool(F.dequantize_linear(x, x_scale, x_zero))
        return F.quantize_linear(mean, y_scale, y_zero)


@op
class TableLookup(Op):
    """Replace each integer of x by an element of a table. A table can represent any function of one 8-bit number.

    x: uint8 or int8 of any shape; table: [256]. For uint8, the result for integer i is table[i]; for int8, it is
    table[i + 128]. The result has the table's type.
    """

    domain = DOMAIN
    symbolic_inference = True
    per_example = ("x",)
    inputs = ("x", "table")
    types = {"x": BYTES, "table": INTEGERS | _F32}
    samples = lambda: (
        Sample(_bytes(2, 3), np.arange(255, -1, -1, dtype=np.uint8)),
        Sample(_bytes(7, dtype="int8"), np.arange(-128, 128, dtype=np.int8)),
        Sample(_bytes(2, 3, dtype="int8"), Rand((256,), -1.0, 1.0, "float32")),
        Sample(_bytes(0, 3), np.arange(256, dtype=np.uint8)),
    )

    def infer(self, x: TensorType, table: TensorType) -> TensorType:
        if not fits(table.shape, (256,)):
            raise TypeMismatch(f"the table {table} does not have one element for each of 256 integers")
        return TensorType(table.dtype, x.shape)

    def reference(self, xp: Any, x: Any, table: Any) -> Any:
        least, _ = bounds(DType.of(x.dtype))
        return table[x.astype(np.int64) - least]

    def expand(self, x: Any, table: Any) -> Any:
        least, _ = bounds(x.dtype)
        index = F.cast(x, to=DType.INT64)
        return F.gather(table, index if least == 0 else F.sub(index, constant(np.array(least, np.int64))))


class _ToFloat(IntegerProduct):
    """Base of products with a float32 result: the int32 sums times a_scale * b_scale, plus a bias."""

    domain = DOMAIN

    @staticmethod
    def scaled(xp: Any, total: Any, a_scale: Any, b_scale: Any, bias: Any) -> Any:
        y = total.astype(np.float32) * (number(xp, a_scale) * of_columns(b_scale))
        return y if bias is None else y + bias

    def check_bias(self, bias: TensorType | None, b: TensorType) -> None:
        """Raise TypeMismatch unless the bias is a vector with one element per column of b."""
        if bias is not None and bias.shape is not None and b.shape is not None:
            columns = b.shape[-1] if len(b.shape) > 1 else 1
            if len(bias.shape) != 1 or not dims.may_equal(bias.shape[0], columns):
                raise TypeMismatch(f"bias {bias} does not fit the columns of {b}")


@op
class MatMulIntegerToFloat(_ToFloat):
    """The product of two quantised matrices as float32: MatMulInteger times a_scale * b_scale, plus a bias.

    a_scale, a_zero_point: one number; b_scale, b_zero_point: one number, or one for each column of b; bias: [columns].
    """

    inputs = ("a", "b", "a_scale", "b_scale", "a_zero_point?", "b_zero_point?", "bias?")
    types = {
        "a": BYTES, "b": BYTES, "a_scale": _F32, "b_scale": _F32, "a_zero_point": "a", "b_zero_point": "b",
        "bias": _F32,
    }  # fmt: skip
    samples = lambda: (
        Sample(_bytes(3, 4), _bytes(4, 2, dtype="int8"), _f32(0.25), _f32(0.5), _zero(9), _zero(-3, "int8")),
        Sample(
            _bytes(5, 3, 4), _bytes(4, 2), _f32(0.25), np.array([0.5, 2.0], np.float32), _zero(9),
            np.array([1, 250], np.uint8), np.array([1.5, -2.0], np.float32),
        ),
        Sample(_bytes(0, 4), _bytes(4, 2), _f32(0.25), _f32(0.5)),
    )  # fmt: skip

    def infer(self, *operands: TensorType) -> TensorType:
        named = self.named_inputs(operands)
        single("a_scale", named["a_scale"])
        single("a_zero_point", named["a_zero_point"])
        self.check_columns("b_scale", named["b_scale"], named["b"])
        self.check_columns("b_zero_point", named["b_zero_point"], named["b"])
        self.check_bias(named["bias"], named["b"])
        return TensorType(DType.FLOAT32, self.product_shape(named["a"], named["b"]))

    def reference(self, xp: Any, *operands: Any) -> Any:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = self.named_inputs(operands).values()
        return self.scaled(xp, integer_product(xp, a, b, a_zero, b_zero), a_scale, b_scale, bias)

    def expand(self, *operands: Any) -> Any:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = self.named_inputs(operands).values()
        total = F.cast(F.mat_mul_integer(a, b, a_zero, b_zero), to=DType.FLOAT32)
        y = F.mul(total, F.mul(F.reshape(a_scale, np.zeros(0, np.int64)), b_scale))
        return y if bias is None else F.add(y, bias)


@op
class DynamicQuantizeMatMul(_ToFloat):
    """Quantise a by its own range, as DynamicQuantizeLinear does, multiply it with a quantised b, and add the bias.

    a: float32 [..., m, k]; b: int8 or uint8 [..., k, n]; b_scale: float32, b_zero_point: b's type, one number or [n];
    bias: float32 [n]; the result is float32 [..., m, n].
    """

    inputs = ("a", "b", "b_scale", "b_zero_point?", "bias?")
    types = {"a": _F32, "b": BYTES, "b_scale": _F32, "b_zero_point": "b", "bias": _F32}
    samples = lambda: (
        Sample(Rand((3, 4), -1.0, 2.0, "float32"), _bytes(4, 2, dtype="int8"), _f32(0.5), _zero(-3, "int8")),
        Sample(
            Rand((2, 3, 4), -1.0, 2.0, "float32"), _bytes(4, 2), np.array([0.5, 2.0], np.float32),
            np.array([1, 250], np.uint8), np.array([1.5, -2.0], np.float32),
        ),
        Sample(Rand((0, 4), -1.0, 2.0, "float32"), _bytes(4, 2), _f32(0.5)),
    )  # fmt: skip

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        # The quantisation range is computed from all examples together.
        return False

    def infer(self, *operands: TensorType) -> TensorType:
        named = self.named_inputs(operands)
        self.check_columns("b_scale", named["b_scale"], named["b"])
        self.check_columns("b_zero_point", named["b_zero_point"], named["b"])
        self.check_bias(named["bias"], named["b"])
        return TensorType(DType.FLOAT32, self.product_shape(named["a"], named["b"]))

    def reference(self, xp: Any, *operands: Any) -> Any:
        a, b, b_scale, b_zero, bias = self.named_inputs(operands).values()
        quantised, a_scale, a_zero = dynamically_quantised(xp, a)
        return self.scaled(xp, integer_product(xp, quantised, b, a_zero, b_zero), a_scale, b_scale, bias)

    def expand(self, *operands: Any) -> Any:
        a, b, b_scale, b_zero, bias = self.named_inputs(operands).values()
        quantised, a_scale, a_zero = F.dynamic_quantize_linear(a)
        total = F.cast(F.mat_mul_integer(quantised, b, a_zero, b_zero), to=DType.FLOAT32)
        y = F.mul(total, F.mul(a_scale, b_scale))
        return y if bias is None else F.add(y, bias)


@op
class QGemm(Op):
    """alpha * op(a) @ op(b) + c of quantised matrices; op transposes a if transA is set, and b if transB is set.

    op(a): [m, k]; op(b): [k, n]; c: int32 [n], quantised with the scale alpha * a_scale * b_scale. a_scale,
    a_zero_point: one number; b_scale, b_zero_point: one number or [n]. With y_scale and y_zero_point, the result is
    quantised as in QLinearMatMul; without them, it is float32.
    """

    alpha: float = 1.0
    transA: bool = False  # noqa: N815 (ONNX's names)
    transB: bool = False  # noqa: N815
    domain = DOMAIN
    symbolic_inference = True
    inputs = (
        "a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "c?", "y_scale?", "y_zero_point?",
    )  # fmt: skip
    types = {
        "a": BYTES, "a_scale": _F32, "a_zero_point": "a", "b": BYTES, "b_scale": _F32, "b_zero_point": "b",
        "c": _I32, "y_scale": _F32, "y_zero_point": BYTES,
    }  # fmt: skip
    samples = lambda: (
        Sample(
            _bytes(3, 4), _f32(0.25), _zero(9), _bytes(2, 4, dtype="int8"), np.array([0.5, 2.0], np.float32),
            np.array([0, -3], np.int8), np.array([100, -7], np.int32), _f32(64.0), _zero(100), transB=True,
        ),
        Sample(_bytes(3, 4), _f32(0.25), _zero(9), _bytes(4, 2), _f32(0.5), _zero(7), alpha=0.5),
        Sample(
            _bytes(4, 3), _f32(0.25), _zero(9), _bytes(4, 2), _f32(0.5), _zero(7), np.array([5, 9], np.int32),
            transA=True,
        ),
        Sample(_bytes(0, 4), _f32(0.25), _zero(9), _bytes(4, 2), _f32(0.5), _zero(7), None, _f32(1.0), _zero(3)),
    )  # fmt: skip

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return not self.transA and self._has_examples(("a",), inputs, batched)

    def infer(self, *operands: TensorType) -> TensorType:
        named = self.named_inputs(operands)
        for name in ("a_scale", "a_zero_point", "y_scale", "y_zero_point"):
            single(name, named[name])
        floats = [TensorType(DType.FLOAT32, named[name].shape) for name in ("a", "b")]
        shape = Gemm(transA=self.transA, transB=self.transB).infer(*floats).known_shape
        for name in ("b_scale", "b_zero_point", "c"):
            operand = named[name]
            if operand is not None and not any(fits(operand.shape, s) for s in ((), (1,), shape[1:])):
                raise TypeMismatch(f"{name} {operand} does not fit {shape[1]} columns")
        if (named["y_scale"] is None) != (named["y_zero_point"] is None):
            raise TypeMismatch("y_scale and y_zero_point must be given together")
        zero = named["y_zero_point"]
        return TensorType(DType.FLOAT32 if zero is None else zero.dtype, shape)

    def reference(self, xp: Any, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = self.named_inputs(operands).values()
        left, right = a.T if self.transA else a, b.T if self.transB else b
        total = integer_product(xp, left, right, number(xp, a_zero), b_zero)
        if c is not None:
            total = wrapped(total.astype(np.int64) + c.astype(np.int64))
        multiplier = xp.asarray(self.alpha, np.float32) * number(xp, a_scale) * of_columns(b_scale)
        if y_scale is None:
            return total.astype(np.float32) * multiplier
        multiplier = multiplier / number(xp, y_scale)
        return requantised(xp, total, multiplier, number(xp, y_zero), DType.of(y_zero.dtype))

    def expand(self, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = self.named_inputs(operands).values()
        left, right = (F.transpose(v) if turn else v for v, turn in ((a, self.transA), (b, self.transB)))
        total = F.mat_mul_integer(left, right, a_zero, b_zero)
        if c is not None:
            total = F.add(total, c)
        alpha = constant(np.array(self.alpha, np.float32))
        y = F.mul(F.cast(total, to=DType.FLOAT32), F.mul(F.mul(alpha, a_scale), b_scale))
        return y if y_scale is None else F.quantize_linear(y, y_scale, y_zero)
