"""Elementary functions of one operand: exponentials, roots, rounding, erf, NaN tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.ir.graph import Node
from graphkit.ir.types import FLOAT8, FLOATS, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.pointwise import Unary, scalar_like


def _positive() -> tuple[Sample, ...]:
    return Sample(Rand((2, 3), 0.3, 3.0)), Sample(Rand((), 1.0, 2.0))


@op
class Exp(Unary):
    """e ** x."""

    onnx = Onnx("Exp", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.exp(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.mul(dy, node.output)


@op
class Log(Unary):
    """Natural logarithm; NaN below 0, -inf at 0."""

    onnx = Onnx("Log", since=13)
    samples = _positive

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.log(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.div(dy, node.operands[0])


@op
class Sqrt(Unary):
    """Square root; NaN below 0."""

    onnx = Onnx("Sqrt", since=13)
    samples = _positive

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.sqrt(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.div(F.mul(dy, scalar_like(0.5, dy)), node.output)


@op
class Reciprocal(Unary):
    """1 / x."""

    onnx = Onnx("Reciprocal", since=13)
    samples = _positive

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.asarray(1, x.dtype) / x

    def grad(self, node: Node, dy: Any) -> Any:
        return F.neg(F.mul(dy, F.mul(node.output, node.output)))


@op
class Erf(Unary):
    """Error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

    onnx = Onnx("Erf", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.special.erf(x)

    def grad(self, node: Node, dy: Any) -> Any:
        (x,) = node.operands
        slope = F.mul(F.exp(F.neg(F.mul(x, x))), scalar_like(2.0 / math.sqrt(math.pi), x))
        return F.mul(dy, slope)


class _Rounding(Unary):
    """Base of step functions: the gradient is 0 wherever it is defined."""

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class Floor(_Rounding):
    """Largest integer not above x."""

    onnx = Onnx("Floor", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.floor(x)


@op
class Ceil(_Rounding):
    """Smallest integer not below x."""

    onnx = Onnx("Ceil", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.ceil(x)


@op
class Round(_Rounding):
    """Nearest integer; halves are rounded to the even one."""

    onnx = Onnx("Round", since=22)
    samples = lambda: (Sample((2, 3)), Sample(np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.rint(x)


def _test_samples() -> tuple[Sample, ...]:
    special = np.array([0.0, 1.0, np.nan, np.inf, -np.inf], np.float32)
    return (
        Sample((2, 3)),
        Sample(np.array([0.0, np.nan, np.inf, -np.inf], np.float32)),
        *(Sample(special.astype(t.numpy)) for t in sorted(FLOAT8, key=str)),
    )


class _Test(Op):
    """Base of predicates of one float operand."""

    inputs = ("x",)
    types = {"x": FLOATS | FLOAT8}
    pointwise = True
    symbolic_inference = True
    samples = _test_samples

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(DType.BOOL, x.shape)


@op
class IsNaN(_Test):
    """Whether each element of the floats x is NaN, as bool of x's shape."""

    onnx = Onnx("IsNaN", since=20)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.isnan(x)


@op
class IsInf(_Test):
    """Whether each element of the floats x is infinite, as bool of x's shape.

    With detect_positive=False, +inf gives false; with detect_negative=False, -inf gives false.
    """

    detect_negative: bool = True
    detect_positive: bool = True
    # The standard's operator takes float32 and float64 in every version, float16 and bfloat16 since opset 20.
    onnx = Onnx("IsInf", since=20)

    def reference(self, xp: Any, x: Any) -> Any:
        result = xp.isinf(x)
        if not self.detect_negative:
            result = result & (x > 0)
        if not self.detect_positive:
            result = result & (x < 0)
        return result
