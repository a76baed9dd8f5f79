"""Activation functions that files have most often, and what other activation functions need."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, NUMERIC, SIGNED, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import Unary, broadcast_known, scalar_like, unbroadcast


def sides() -> tuple[Sample, ...]:
    """Return samples on both sides of 0, and on each side alone."""
    return Sample((2, 3)), Sample(Rand((3,), 0.2, 4.0)), Sample(Rand((3,), -4.0, -0.2)), Sample(()), Sample((0, 2))


def far() -> Sample:
    """Return a sample of large inputs, in float32 only: the function must not overflow, and must reach its limits."""
    return Sample(np.array([-1000.0, -90.0, 90.0, 1000.0], np.float32), grad=False)


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
    samples = sides

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.maximum(x, 0)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return drop_where(y <= 0.0, dy)


@op
class Sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    onnx = Onnx("Sigmoid", since=13)
    samples = lambda: (*Unary.samples(), far())

    def reference(self, xp: Any, x: Any) -> Any:
        return stable_sigmoid(xp, x)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        return dy * (y * (1.0 - y))


@op
class Tanh(Unary):
    """Hyperbolic tangent."""

    onnx = Onnx("Tanh", since=13)
    samples = lambda: (*Unary.samples(), far())

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
    samples = lambda: (*sides(), Sample((2, 3), alpha=0.25), Sample((2, 3), alpha=-0.5))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.where(x >= 0, x, x * self.alpha)

    def grad(self, node: Node, dy: Any) -> Any:
        # The output has the sign of x unless alpha is negative; then x itself is needed.
        sign: Any = node.output if self.alpha >= 0 else node.inputs[0]
        return F.where(sign > 0.0, dy, dy * self.alpha)


@op
class HardSigmoid(Unary):
    """alpha * x + beta, clipped to [0, 1]; the gradient at and beyond these bounds is 0."""

    alpha: float = 0.20000000298023224  # the standard's attributes are float32
    beta: float = 0.5
    onnx = Onnx("HardSigmoid", since=22)
    samples = lambda: (
        *Unary.samples(),
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
    samples = lambda: (*Unary.samples(), Sample(Rand((2, 3), 3.2, 9.0)), Sample(Rand((2, 3), -9.0, -3.2)))

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
    samples = lambda: (
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
    samples = lambda: (
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
