"""Matrix products of quantised operands: MatMulInteger, whose results are int32 sums, and QLinearMatMul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import BYTES, FLOAT8, DType, TensorType
from graphkit.ops._base import Onnx, Op, Rand, Sample, op
from graphkit.ops.linalg.matmul import MatMul
from graphkit.ops.quant.rounding import SCALES, centred, number, requantised, single, wrapped
from graphkit.ops.tensor.cast import convert

_FEW_BITS = BYTES | FLOAT8


class IntegerProduct(Op):
    """Base of the quantised products: numpy's rules of MatMul, and parameters for rows of a and columns of b."""

    symbolic_inference = True

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*outputs[0].known_shape, self.named_inputs(inputs)["a"].known_shape[-1]))

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        named, examples = self.named_inputs(inputs), self.named_inputs(batched)
        parameters = [t for name, t in named.items() if name not in ("a", "b") and t is not None]
        plain = all(t.rank == 0 or t.known_shape == (1,) for t in parameters) and not any(
            of for name, of in examples.items() if name not in ("a", "b")
        )
        a, b = named["a"].rank, named["b"].rank
        return plain and examples["a"] and ((not examples["b"] and a >= 2 >= b) or (examples["b"] and a == b >= 3))

    @staticmethod
    def product_shape(a: TensorType, b: TensorType) -> Any:
        """Return the shape of MatMul(a, b). Raises TypeMismatch."""
        return MatMul().infer(TensorType(DType.FLOAT32, a.shape), TensorType(DType.FLOAT32, b.shape)).shape

    @staticmethod
    def check_rows(what: str, parameter: TensorType | None, a: TensorType) -> None:
        """Raise TypeMismatch unless a parameter is one number, [rows] or [..., rows, 1]."""
        _check(what, parameter, a, -2)

    @staticmethod
    def check_columns(what: str, parameter: TensorType | None, b: TensorType) -> None:
        """Raise TypeMismatch unless a parameter is one number, [columns] or [..., 1, columns]."""
        _check(what, parameter, b, -1)


def _check(what: str, parameter: TensorType | None, matrix: TensorType, axis: int) -> None:
    if parameter is None or parameter.shape is None or matrix.shape is None or parameter.shape in ((), (1,)):
        return
    shape, of = parameter.shape, matrix.shape
    wanted = [*of[:-2], 1, 1]
    if len(of) >= 2:
        wanted[axis] = of[axis]
    several = [of[axis]] if len(of) >= 2 else []
    if not any(len(shape) == len(w) and all(map(dims.may_equal, shape, w)) for w in (several, wanted) if w):
        raise TypeMismatch(f"{what} {parameter} does not fit {matrix}")


def of_rows(parameter: Any, matrix: Any) -> Any:
    """Return a parameter of a's rows as an array that broadcasts to a."""
    if parameter is None or parameter.size == 1:
        return None if parameter is None else parameter.reshape(())
    return parameter.reshape(-1, 1) if parameter.ndim == 1 else parameter


def of_columns(parameter: Any) -> Any:
    """Return a parameter of b's columns as an array that broadcasts to b."""
    return parameter.reshape(()) if parameter is not None and parameter.size == 1 else parameter


def integer_product(xp: Any, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """Return (a - a_zero) @ (b - b_zero), computed exactly and wrapped to int32."""
    return wrapped(xp.matmul(centred(xp, a, of_rows(a_zero, a)), centred(xp, b, of_columns(b_zero))))


def _bytes(*shape: int, dtype: str = "uint8") -> Rand:
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    return Rand(shape, low, high, dtype)


_A, _B = _bytes(3, 4), _bytes(4, 2, dtype="int8")
_A0, _B0 = np.array(120, np.uint8), np.array(-3, np.int8)


@op
class MatMulInteger(IntegerProduct):
    """(a - a_zero_point) @ (b - b_zero_point) in int32 by numpy's rules; sums wrap around.

    a: int8 or uint8 [..., m, k]; b: int8 or uint8 [..., k, n]. a_zero_point, of a's type: one number, or one for each
    row of a ([m], [..., m, 1]); b_zero_point, of b's type: one number, or one for each column of b ([n], [..., 1, n]).
    """

    inputs = ("a", "b", "a_zero_point?", "b_zero_point?")
    types = {"a": BYTES, "b": BYTES, "a_zero_point": "a", "b_zero_point": "b"}
    onnx = Onnx("MatMulInteger", since=10)
    samples = lambda: (
        Sample(_A, _B),
        Sample(_A, _B, _A0, _B0),
        Sample(_bytes(5, 3, 4), _B, _A0, np.array([1, -2], np.int8)),
        # onnx's evaluator applies a vector of parameters of a's rows to the columns.
        Sample(_A, _bytes(4, 2), np.array([1, 2, 255], np.uint8), np.array([1, 2], np.uint8), onnx=False),
        Sample(_bytes(5, 3, 4), _bytes(5, 4, 2), None, np.array(7, np.uint8)),
        Sample(_bytes(4), _B, _A0, _B0),
        Sample(_bytes(0, 4), _B, _A0, _B0),
    )

    def infer(
        self,
        a: TensorType,
        b: TensorType,
        a_zero_point: TensorType | None = None,
        b_zero_point: TensorType | None = None,
    ) -> TensorType:
        self.check_rows("a_zero_point", a_zero_point, a)
        self.check_columns("b_zero_point", b_zero_point, b)
        return TensorType(DType.INT32, self.product_shape(a, b))

    def reference(self, xp: Any, a: Any, b: Any, a_zero_point: Any = None, b_zero_point: Any = None) -> Any:
        return integer_product(xp, a, b, a_zero_point, b_zero_point)


@op
class QLinearMatMul(IntegerProduct):
    """Quantised matrix product: int32 sums of MatMulInteger * a_scale * b_scale / y_scale, rounded, + y_zero_point.

    Ties go to even; the result is clipped to the bounds of y_zero_point's type. Scales and zero points of a are one
    number or one for each row, those of b one number or one for each column, those of y one number. The multiplier and
    its product with the sums are float32, as in ONNX Runtime. 8-bit floats are multiplied in float32.
    """

    inputs = ("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point")
    types = {
        "a": _FEW_BITS, "a_scale": SCALES, "a_zero_point": "a", "b": _FEW_BITS, "b_scale": "a_scale",
        "b_zero_point": "b", "y_scale": "a_scale", "y_zero_point": _FEW_BITS,
    }  # fmt: skip
    onnx = Onnx("QLinearMatMul", since=21)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        f32 = np.float32
        a = (np.array(0.05, f32), _A0)
        b = (np.array(0.02, f32), _B0)
        y = (np.array(0.3, f32), np.array(100, np.uint8))
        columns = (np.array([0.02, 0.1], f32), np.array([0, 5], np.int8))
        rows = (np.array([0.02, 0.1, 0.04], f32), np.array([0, 5, 255], np.uint8))
        halves = [Rand((), v, v + 0.01, "float16") for v in (0.05, 0.02, 0.3)]
        return (
            Sample(_A, *a, _B, *b, *y),
            Sample(_A, *a, _B, *columns, y[0], np.array(-9, np.int8)),
            # onnx's evaluator applies a vector of parameters of a's rows to the columns.
            Sample(_A, *rows, _B, *columns, *y, onnx=False),
            Sample(_bytes(5, 3, 4), *a, _bytes(5, 4, 2, dtype="int8"), *b, *y),
            Sample(_A, halves[0], _A0, _B, halves[1], _B0, halves[2], y[1]),
            Sample(_bytes(0, 4), *a, _B, *b, *y),
        )

    def infer(self, *operands: TensorType) -> TensorType:
        named = self.named_inputs(operands)
        for what in ("scale", "zero_point"):
            self.check_rows(f"a_{what}", named[f"a_{what}"], named["a"])
            self.check_columns(f"b_{what}", named[f"b_{what}"], named["b"])
            single(f"y_{what}", named[f"y_{what}"])
        kinds = [named[f].dtype in FLOAT8 for f in ("a", "b", "y_zero_point")]
        if len(set(kinds)) > 1:
            raise TypeMismatch("8-bit floats cannot be multiplied with integers")
        return TensorType(named["y_zero_point"].dtype, self.product_shape(named["a"], named["b"]))

    def reference(self, xp: Any, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
        scales = of_rows(a_scale, a), of_columns(b_scale), number(xp, y_scale)
        of_a, of_b, of_y = (s.astype(np.float32) for s in scales)
        multiplier = of_a * of_b / of_y
        target = DType.of(y_zero.dtype)
        if target in BYTES:
            total = integer_product(xp, a, b, a_zero, b_zero)
            return requantised(xp, total, multiplier, number(xp, y_zero), target)
        left, right = centred(xp, a, of_rows(a_zero, a)), centred(xp, b, of_columns(b_zero))
        product = xp.matmul(left.astype(np.float32), right.astype(np.float32)) * multiplier
        return convert(xp, product + number(xp, y_zero).astype(np.float32), target)
