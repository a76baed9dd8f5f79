"""Circular and hyperbolic functions and their inverses; angles in radians."""

from __future__ import annotations

from typing import Any

from graphkit.ir.graph import Node
from graphkit.ops._base import F, Onnx, Rand, Sample, op
from graphkit.ops.pointwise import Unary


def _inside() -> tuple[Sample, ...]:
    return Sample(Rand((2, 3), -0.9, 0.9)), Sample(Rand((), -0.5, 0.5)), Sample(Rand((0, 2)))


@op
class Sin(Unary):
    """Sine of x in radians."""

    onnx = Onnx("Sin", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.sin(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return dy * F.cos(node.operands[0])


@op
class Cos(Unary):
    """Cosine of x in radians."""

    onnx = Onnx("Cos", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.cos(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return -(dy * F.sin(node.operands[0]))


@op
class Tan(Unary):
    """Tangent of x in radians."""

    onnx = Onnx("Tan", since=22)
    samples = lambda: (Sample(Rand((2, 3), -1.2, 1.2)), Sample(Rand((), -0.5, 0.5)), Sample(Rand((0, 2))))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.tan(x)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return dy * (y * y + 1.0)


@op
class Asin(Unary):
    """Inverse sine in [-pi/2, pi/2]; NaN outside [-1, 1]."""

    onnx = Onnx("Asin", since=22)
    samples = _inside

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.arcsin(x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return dy / F.sqrt((1.0 - x) * (1.0 + x))


@op
class Acos(Unary):
    """Inverse cosine in [0, pi]; NaN outside [-1, 1]."""

    onnx = Onnx("Acos", since=22)
    samples = _inside

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.arccos(x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return -(dy / F.sqrt((1.0 - x) * (1.0 + x)))


@op
class Atan(Unary):
    """Inverse tangent in (-pi/2, pi/2)."""

    onnx = Onnx("Atan", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.arctan(x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return dy / (x * x + 1.0)


@op
class Sinh(Unary):
    """Hyperbolic sine."""

    onnx = Onnx("Sinh", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.sinh(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return dy * F.cosh(node.operands[0])


@op
class Cosh(Unary):
    """Hyperbolic cosine."""

    onnx = Onnx("Cosh", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.cosh(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return dy * F.sinh(node.operands[0])


@op
class Asinh(Unary):
    """Inverse hyperbolic sine."""

    onnx = Onnx("Asinh", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.arcsinh(x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return dy / F.sqrt(x * x + 1.0)


@op
class Acosh(Unary):
    """Inverse hyperbolic cosine, >= 0; NaN below 1."""

    onnx = Onnx("Acosh", since=22)
    samples = lambda: (Sample(Rand((2, 3), 1.2, 4.0)), Sample(Rand((), 1.2, 4.0)), Sample(Rand((0, 2), 1.2, 4.0)))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.arccosh(x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return dy / F.sqrt((x - 1.0) * (x + 1.0))


@op
class Atanh(Unary):
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""

    onnx = Onnx("Atanh", since=22)
    samples = _inside

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.arctanh(x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return dy / ((1.0 - x) * (1.0 + x))
