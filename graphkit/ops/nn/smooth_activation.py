"""Smooth activation functions of exponentials and of the normal distribution, and their gated forms."""

from __future__ import annotations

import math
from typing import Any

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.nn.activation import far, sides, stable_sigmoid, stable_softplus
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import Unary


@op
class Elu(Unary):
    """x where x > 0, alpha * (exp(x) - 1) elsewhere. Clevert et al. 2015, arXiv:1511.07289."""

    alpha: float = 1.0
    onnx = Onnx("Elu", since=22)
    samples = lambda: (*sides(), far(), Sample((2, 3), alpha=0.25), Sample((2, 3), alpha=-0.5))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.where(x > 0, x, self.alpha * xp.expm1(xp.minimum(x, 0)))

    def grad(self, node: Node, dy: Any) -> Any:
        # d/dx alpha (exp(x) - 1) = y + alpha.
        y: Any = node.output
        sign: Any = y if self.alpha >= 0 else node.inputs[0]
        return F.where(sign > 0.0, dy, dy * (y + self.alpha))


@op
class Selu(Unary):
    """gamma * x where x > 0, gamma * alpha * (exp(x) - 1) elsewhere. Klambauer et al. 2017, arXiv:1706.02515."""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875
    onnx = Onnx("Selu", since=22)
    samples = lambda: (*sides(), far(), Sample((2, 3), alpha=0.5, gamma=2.0), Sample((2, 3), alpha=-0.5))

    def reference(self, xp: Any, x: Any) -> Any:
        return self.gamma * xp.where(x > 0, x, self.alpha * xp.expm1(xp.minimum(x, 0)))

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        sign: Any = y if self.alpha >= 0 and self.gamma > 0 else node.inputs[0]
        return F.where(sign > 0.0, dy * self.gamma, dy * (y + self.gamma * self.alpha))


@op
class Celu(Unary):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)); alpha must not be 0. Barron 2017, arXiv:1704.07483."""

    alpha: float = 1.0
    onnx = Onnx("Celu", since=28)
    samples = lambda: (*sides(), far(), Sample((2, 3), alpha=0.25), Sample((2, 3), alpha=2.0))

    def infer(self, x: TensorType) -> TensorType:
        if self.alpha == 0:
            raise UsageError("alpha must not be 0")
        return super().infer(x)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.where(x > 0, x, self.alpha * xp.expm1(xp.minimum(x, 0) / self.alpha))

    def grad(self, node: Node, dy: Any) -> Any:
        # d/dx alpha (exp(x / alpha) - 1) = y / alpha + 1; y has the sign of x for every alpha.
        y: Any = node.output
        return F.where(y > 0.0, dy, dy * (y * (1.0 / self.alpha) + 1.0))


@op
class Softplus(Unary):
    """log(1 + exp(x))."""

    onnx = Onnx("Softplus", since=22)
    samples = lambda: (*Unary.samples(), far())

    def reference(self, xp: Any, x: Any) -> Any:
        return stable_softplus(xp, x)

    def grad(self, node: Node, dy: Any) -> Any:
        return dy * F.sigmoid(node.operands[0])


@op
class Softsign(Unary):
    """x / (1 + |x|)."""

    onnx = Onnx("Softsign", since=22)
    samples = sides

    def reference(self, xp: Any, x: Any) -> Any:
        return x / (1 + xp.abs(x))

    def grad(self, node: Node, dy: Any) -> Any:
        below = F.abs(node.operands[0]) + 1.0
        return dy / (below * below)


@op
class Gelu(Unary):
    """x * Phi(x), where Phi is the cumulative normal distribution; approximate="tanh" uses the tanh formula.

    Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """

    approximate: str = "none"
    onnx = Onnx("Gelu", since=20)
    samples = lambda: (
        *Unary.samples(),
        *(Sample(s, approximate="tanh") for s in ((2, 3), (), (0, 2))),
        Sample(Rand((4,), -6.0, -3.0)),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.approximate not in ("none", "tanh"):
            raise UsageError(f"approximate must be 'none' or 'tanh', not {self.approximate!r}")
        return super().infer(x)

    def reference(self, xp: Any, x: Any) -> Any:
        if self.approximate == "tanh":
            return 0.5 * x * (1 + xp.tanh(_GELU_SCALE * (x + _GELU_CUBE * x * x * x)))
        # erfc keeps its digits where 1 + erf cancels.
        return 0.5 * x * xp.special.erfc(x * -math.sqrt(0.5))

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        square = x * x
        if self.approximate == "tanh":
            t = F.tanh(x * (square * (_GELU_SCALE * _GELU_CUBE) + _GELU_SCALE))
            slope = square * (3.0 * _GELU_SCALE * _GELU_CUBE) + _GELU_SCALE
            return dy * (0.5 * (t + 1.0) + 0.5 * x * (1.0 - t * t) * slope)
        distribution = F.erf(x * math.sqrt(0.5)) * 0.5 + 0.5
        density = F.exp(square * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        return dy * (distribution + x * density)


_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBE = 0.044715


@op
class Swish(Unary):
    """x * sigmoid(alpha * x). Ramachandran et al. 2017, arXiv:1710.05941."""

    alpha: float = 1.0
    onnx = Onnx("Swish", since=24)
    samples = lambda: (*Unary.samples(), far(), Sample((2, 3), alpha=1.75), Sample((2, 3), alpha=-0.5))

    def reference(self, xp: Any, x: Any) -> Any:
        return x * stable_sigmoid(xp, self.alpha * x)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        s = F.sigmoid(x if self.alpha == 1 else x * self.alpha)
        return dy * (s + node.output * (1.0 - s) * self.alpha)


@op
class SwiGLU(Op):
    """swish(a) * b, where swish(a) = a * sigmoid(alpha * a); a and b have one shape. Shazeer 2020, arXiv:2002.05202."""

    alpha: float = 1.0
    inputs = ("a", "b")
    types = {"a": FLOATS, "b": "a"}
    onnx = Onnx("SwiGLU", since=28)
    inplace = ((0, 0), (1, 0))
    composite = True
    samples = lambda: (Sample((2, 3), (2, 3)), Sample((4,), (4,), alpha=-0.5), Sample((), ()), Sample((0, 2), (0, 2)))

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if not fits(a.shape, b.shape):
            raise TypeMismatch(f"the gate {a} and the value {b} must have the same shape")
        return TensorType(a.dtype, b.shape if a.shape is None else a.shape)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return a * stable_sigmoid(xp, self.alpha * a) * b

    def expand(self, a: Any, b: Any) -> Any:
        return F.swish(a, alpha=self.alpha) * b


@op
class Mish(Unary):
    """x * tanh(softplus(x)). Misra 2019, arXiv:1908.08681."""

    onnx = Onnx("Mish", since=22)
    samples = lambda: (*Unary.samples(), far())

    def reference(self, xp: Any, x: Any) -> Any:
        return x * xp.tanh(stable_softplus(xp, x))

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        t = F.tanh(F.softplus(x))
        return dy * (t + x * (1.0 - t * t) * F.sigmoid(x))
