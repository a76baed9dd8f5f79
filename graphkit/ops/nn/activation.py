"""Activation functions, elementwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, NUMERIC, SIGNED, UNSIGNED, DType, TensorType, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops._checks import fits
from graphkit.ops.pointwise import Unary, broadcast_known, scalar_like, unbroadcast

_SIDES = (Sample((2, 3)), Sample(Rand((3,), 0.2, 4.0)), Sample(Rand((3,), -4.0, -0.2)), Sample(()), Sample((0, 2)))
# Large inputs: the function must not overflow, and must reach its limits.
_FAR = Sample(np.array([-1000.0, -90.0, 90.0, 1000.0], np.float32), grad=False)  # float32 only; see the other samples


def keep_where(condition: Any, value: Any) -> Any:
    """Return `value` where `condition` is true, 0 elsewhere."""
    return F.where(condition, value, scalar_like(0.0, value))


def drop_where(condition: Any, value: Any) -> Any:
    """Return 0 where `condition` is true, else `value`. Comparisons with NaN are false: NaN passes the gradient."""
    return F.where(condition, scalar_like(0.0, value), value)


def stable_sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)) without overflow: the exponential is only taken of -|x|."""
    decayed = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, xp.ones_like(decayed), decayed) / (1 + decayed)


def stable_softplus(xp: Any, x: Any) -> Any:
    """log(1 + exp(x)) without overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


@op
class Relu(Unary):
    """max(x, 0); the gradient at 0 is 0."""

    types = {"x": FLOATS | SIGNED}
    onnx = Onnx("Relu", since=14)
    samples = _SIDES

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.maximum(x, 0)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return drop_where(y <= 0.0, dy)


@op
class Sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    onnx = Onnx("Sigmoid", since=13)
    samples = (*Unary.samples, _FAR)

    def reference(self, xp: Any, x: Any) -> Any:
        return stable_sigmoid(xp, x)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return dy * (y * (1.0 - y))


@op
class Tanh(Unary):
    """Hyperbolic tangent."""

    onnx = Onnx("Tanh", since=13)
    samples = (*Unary.samples, _FAR)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.tanh(x)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return dy * (1.0 - y * y)


@op
class LeakyRelu(Unary):
    """x where x >= 0, alpha * x elsewhere; the gradient at 0 is alpha."""

    alpha: float = 0.009999999776482582  # the standard's attributes are float32
    onnx = Onnx("LeakyRelu", since=16)
    samples = (*_SIDES, Sample((2, 3), alpha=0.25), Sample((2, 3), alpha=-0.5))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.where(x >= 0, x, x * self.alpha)

    def grad(self, node: Node, dy: Any) -> Any:
        # The output has the sign of x unless alpha is negative; then x itself is needed.
        sign: Any = node.output if self.alpha >= 0 else node.inputs[0]
        return F.where(sign > 0.0, dy, dy * self.alpha)


@op
class Elu(Unary):
    """x where x > 0, alpha * (exp(x) - 1) elsewhere. Clevert et al. 2015, arXiv:1511.07289."""

    alpha: float = 1.0
    onnx = Onnx("Elu", since=22)
    samples = (*_SIDES, _FAR, Sample((2, 3), alpha=0.25), Sample((2, 3), alpha=-0.5))

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
    samples = (*_SIDES, _FAR, Sample((2, 3), alpha=0.5, gamma=2.0), Sample((2, 3), alpha=-0.5))

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
    samples = (*_SIDES, _FAR, Sample((2, 3), alpha=0.25), Sample((2, 3), alpha=2.0))

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
    samples = (*Unary.samples, _FAR)

    def reference(self, xp: Any, x: Any) -> Any:
        return stable_softplus(xp, x)

    def grad(self, node: Node, dy: Any) -> Any:
        return dy * F.sigmoid(node.operands[0])


@op
class Softsign(Unary):
    """x / (1 + |x|)."""

    onnx = Onnx("Softsign", since=22)
    samples = _SIDES

    def reference(self, xp: Any, x: Any) -> Any:
        return x / (1 + xp.abs(x))

    def grad(self, node: Node, dy: Any) -> Any:
        below = F.abs(node.operands[0]) + 1.0
        return dy / (below * below)


@op
class HardSigmoid(Unary):
    """alpha * x + beta, clipped to [0, 1]; the gradient at and beyond these bounds is 0."""

    alpha: float = 0.20000000298023224  # the standard's attributes are float32
    beta: float = 0.5
    onnx = Onnx("HardSigmoid", since=22)
    samples = (
        *Unary.samples,
        Sample(Rand((2, 3), 3.0, 9.0)),
        Sample(Rand((2, 3), -9.0, -3.0)),
        Sample((2, 3), alpha=0.5, beta=0.25),
    )

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.clip(self.alpha * x + self.beta, 0, 1)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return drop_where(F.or_(y <= 0.0, y >= 1.0), dy * self.alpha)


@op
class HardSwish(Unary):
    """x * min(max(x / 6 + 1/2, 0), 1). Howard et al. 2019, arXiv:1905.02244."""

    onnx = Onnx("HardSwish", since=22)
    samples = (*Unary.samples, Sample(Rand((2, 3), 3.2, 9.0)), Sample(Rand((2, 3), -9.0, -3.2)))

    def reference(self, xp: Any, x: Any) -> Any:
        return x * xp.clip(x / 6 + 0.5, 0, 1)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return F.hard_swish_grad(dy, x)


@op
class HardSwishGrad(Op):
    """Gradient of HardSwish: 0 where x < -3, dy where x > 3, dy * (x / 3 + 1/2) elsewhere."""

    domain = DOMAIN
    inputs = ("dy", "x")
    types = {"dy": FLOATS, "x": "dy"}
    pointwise = True
    symbolic_inference = True
    inplace = ((0, 0), (1, 0))
    samples = (
        *(Sample((4,), Rand((4,), *limits)) for limits in ((-2.8, 2.8), (3.2, 9.0), (-9.0, -3.2))),
        Sample((2, 3), Rand((2, 3), -2.8, 2.8)),
        Sample((), Rand((), -2.8, 2.8)),
        Sample((0, 2), (0, 2)),
    )

    def infer(self, dy: TensorType, x: TensorType) -> TensorType:
        if not fits(dy.shape, x.shape):
            raise TypeMismatch(f"the gradient {dy} and the operand {x} must have the same shape")
        return TensorType(x.dtype, dy.shape if x.shape is None else x.shape)

    def reference(self, xp: Any, dy: Any, x: Any) -> Any:
        inside = xp.where(x > 3, dy, dy * (x / 3 + xp.asarray(0.5, x.dtype)))
        return xp.where(x < -3, xp.zeros_like(dy), inside)

    def expand(self, dy: Any, x: Any) -> Any:
        inside = F.where(x > 3.0, dy, dy * (x * (1.0 / 3.0) + 0.5))
        return drop_where(x < -3.0, inside)


@op
class Gelu(Unary):
    """x * Phi(x), where Phi is the cumulative normal distribution; approximate="tanh" uses the tanh formula.

    Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """

    approximate: str = "none"
    onnx = Onnx("Gelu", since=20)
    samples = (
        *Unary.samples,
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
    samples = (*Unary.samples, _FAR, Sample((2, 3), alpha=1.75), Sample((2, 3), alpha=-0.5))

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
    samples = (Sample((2, 3), (2, 3)), Sample((4,), (4,), alpha=-0.5), Sample((), ()), Sample((0, 2), (0, 2)))

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
    samples = (*Unary.samples, _FAR)

    def reference(self, xp: Any, x: Any) -> Any:
        return x * xp.tanh(stable_softplus(xp, x))

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        t = F.tanh(F.softplus(x))
        return dy * (t + x * (1.0 - t * t) * F.sigmoid(x))


@op
class PRelu(Op):
    """x where x >= 0, slope * x elsewhere. slope broadcasts to x's shape. He et al. 2015, arXiv:1502.01852."""

    inputs = ("x", "slope")
    pointwise = True
    types = {"x": FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}, "slope": "x"}
    onnx = Onnx("PRelu", since=16)
    inplace = ((0, 0),)
    samples = (
        Sample((2, 3), (2, 3)),
        Sample((2, 3, 2), (3, 1)),
        Sample((2, 3), (1,)),
        Sample((), ()),
        Sample((0, 3), (3,)),
    )

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        joint = broadcast_shapes([x.shape, slope.shape])
        if joint is not None and not fits(joint, x.shape):
            raise TypeMismatch(f"slope {slope} does not broadcast to x {x}")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, slope: Any) -> Any:
        return xp.where(x >= 0, x, x * slope)

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any
        slope: Any
        x, slope = node.inputs
        positive = x > 0.0
        dslope = F.where(positive, scalar_like(0.0, x), dy * x)
        return F.where(positive, dy, dy * slope), unbroadcast(dslope, slope)


@op
class ThresholdedRelu(Unary):
    """x where x > alpha, 0 elsewhere."""

    alpha: float = 1.0
    onnx = Onnx("ThresholdedRelu", since=22)
    samples = (
        *Unary.samples,
        Sample(Rand((3,), 1.2, 4.0)),
        Sample((2, 3), alpha=0.25),
        Sample((2, 3), alpha=-0.5),
    )

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.where(x > self.alpha, x, xp.zeros_like(x))

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return keep_where(x > self.alpha, dy)


@op
class Clip(Op):
    """Limit x to the range from `min` to `max` (0-d tensors; absent: no limit). If min > max, the result is max.

    The gradient goes to x inside and at the bounds. Outside it goes to the bound that limits x.
    """

    inputs = ("x", "min?", "max?")
    pointwise = True
    types = {"x": NUMERIC, "min": "x", "max": "x"}
    symbolic_inference = True
    onnx = Onnx("Clip", since=13)
    inplace = ((0, 0),)
    samples = (
        Sample((2, 3), Rand((), -0.7, -0.3), Rand((), 0.3, 0.7)),
        Sample((2, 3), Rand((), -0.2, 0.2)),
        Sample((2, 3), None, Rand((), -0.2, 0.2)),
        Sample((2, 3)),
        Sample((2, 3), Rand((), 0.5, 0.7), Rand((), -0.7, -0.5)),
        Sample((), Rand((), -0.7, -0.3), Rand((), 0.3, 0.7)),
        Sample((0, 3), Rand((), -0.7, -0.3), Rand((), 0.3, 0.7)),
        Sample(np.array([-5, 0, 7]), np.array(-2), np.array(3)),
    )

    def infer(self, x: TensorType, low: TensorType | None = None, high: TensorType | None = None) -> TensorType:
        for name, bound in (("min", low), ("max", high)):
            if bound is not None and bound.rank not in (None, 0):
                raise TypeMismatch(f"{name} must be a scalar, not {bound}")
        known = [t for t in (x, low, high) if t is not None]
        value = broadcast_known(self._clip_dim(low is not None), known)
        return TensorType(x.dtype, x.shape, value)

    @staticmethod
    def _clip_dim(has_low: bool) -> Any:
        def clip(x: Dim, *bounds: Dim) -> Dim:
            if has_low:
                x = dims.dim_max(x, bounds[0])
            return dims.dim_min(x, bounds[-1]) if len(bounds) == 1 + has_low else x

        return clip

    def reference(self, xp: Any, x: Any, low: Any = None, high: Any = None) -> Any:
        y = x if low is None else xp.maximum(x, low)
        y = y if high is None else xp.minimum(y, high)
        return xp.array(y)

    def grad(self, node: Node, dy: Any) -> Any:
        x, low, high = self.named_inputs(node.inputs).values()
        if low is None and high is None:
            return dy
        if low is None or high is None:
            outside = x < low if high is None else x > high
            bound = low if high is None else high
            into_bound = unbroadcast(keep_where(outside, dy), bound)
            into_x = drop_where(outside, dy)
            return (into_x, into_bound) if high is None else (into_x, None, into_bound)
        # If low > high, every element is set to high.
        crossed = low > high
        to_high = F.or_(x > high, crossed)
        to_low = F.and_(x < low, F.not_(crossed))
        into_x = drop_where(F.or_(to_low, to_high), dy)
        return into_x, unbroadcast(keep_where(to_low, dy), low), unbroadcast(keep_where(to_high, dy), high)


@op
class Shrink(Unary):
    """x + bias below -lambd, x - bias above lambd, 0 between."""

    bias: float = 0.0
    lambd: float = 0.5
    types = {"x": (FLOATS - {DType.BFLOAT16}) | SIGNED | UNSIGNED}
    onnx = Onnx("Shrink", since=9)
    samples = (
        *Unary.samples,
        Sample((3, 3), bias=0.25, lambd=0.5),
        Sample((3, 3), bias=-1.0, lambd=0.0),
        Sample(np.array([-3, -1, 0, 1, 3]), bias=1.0, lambd=1.5),
    )

    def reference(self, xp: Any, x: Any) -> Any:
        shrunk = xp.where(x < -self.lambd, x + self.bias, x - self.bias)
        return xp.where((x < -self.lambd) | (x > self.lambd), shrunk, xp.zeros_like(shrunk))

    def grad(self, node: Node, dy: Any) -> Any:
        x: Any = node.inputs[0]
        return keep_where(F.or_(x < -self.lambd, x > self.lambd), dy)
