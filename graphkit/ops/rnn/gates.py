"""Arithmetic of recurrent cells, on arrays and on graph values: the same code of a cell is reference and expansion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F
from graphkit.ops.nn.activation import drop_where, keep_where, stable_sigmoid, stable_softplus
from graphkit.ops.pointwise import scalar_like


class Function(NamedTuple):
    """A function of a gate: of arrays (xp, x, alpha, beta), and of values (x, alpha, beta).

    `slope(math, x, y, d, alpha, beta)` is d times the derivative, where y is the result for x. `defaults` are those of
    alpha and beta, as many as the function takes; None must be given.
    """

    array: Callable[[Any, Any, float, float], Any]
    value: Callable[[Any, float, float], Any]
    slope: Callable[[Any, Any, Any, Any, float, float], Any]
    defaults: tuple[float | None, ...] = ()


# The standard's functions, by lower-case name.
FUNCTIONS: Mapping[str, Function] = {
    "relu": Function(
        lambda xp, x, a, b: xp.maximum(x, 0),
        lambda x, a, b: F.relu(x),
        lambda math, x, y, d, a, b: math.drop(y <= 0.0, d),
    ),
    "tanh": Function(
        lambda xp, x, a, b: xp.tanh(x),
        lambda x, a, b: F.tanh(x),
        lambda math, x, y, d, a, b: d * (1.0 - y * y),
    ),
    "sigmoid": Function(
        lambda xp, x, a, b: stable_sigmoid(xp, x),
        lambda x, a, b: F.sigmoid(x),
        lambda math, x, y, d, a, b: d * (y * (1.0 - y)),
    ),
    "affine": Function(
        lambda xp, x, a, b: x * a + b,
        lambda x, a, b: x * a + b,
        lambda math, x, y, d, a, b: d * a,
        (None, None),
    ),
    "leakyrelu": Function(
        lambda xp, x, a, b: xp.where(x >= 0, x, x * a),
        lambda x, a, b: F.leaky_relu(x, alpha=a),
        lambda math, x, y, d, a, b: math.keep(x > 0.0, d) + math.drop(x > 0.0, d * a),
        (0.01,),
    ),
    "thresholdedrelu": Function(
        lambda xp, x, a, b: xp.where(x >= a, x, xp.zeros_like(x)),
        lambda x, a, b: keep_where(x >= a, x),
        lambda math, x, y, d, a, b: math.keep(x >= a, d),
        (1.0,),
    ),
    "scaledtanh": Function(
        lambda xp, x, a, b: a * xp.tanh(x * b),
        lambda x, a, b: F.tanh(x * b) * a,
        lambda math, x, y, d, a, b: d * ((1.0 - (y * (1 / a)) * (y * (1 / a))) * (a * b)),
        (None, None),
    ),
    "hardsigmoid": Function(
        lambda xp, x, a, b: xp.clip(x * a + b, 0, 1),
        lambda x, a, b: F.hard_sigmoid(x, alpha=a, beta=b),
        lambda math, x, y, d, a, b: math.drop(y <= 0.0, math.drop(y >= 1.0, d * a)),
        (0.2, 0.5),
    ),
    "elu": Function(
        lambda xp, x, a, b: xp.where(x >= 0, x, a * xp.expm1(xp.minimum(x, 0))),
        lambda x, a, b: F.elu(x, alpha=a),
        lambda math, x, y, d, a, b: math.keep(x > 0.0, d) + math.drop(x > 0.0, d * (y + a)),
        (1.0,),
    ),
    "softsign": Function(
        lambda xp, x, a, b: x / (1 + xp.abs(x)),
        lambda x, a, b: F.softsign(x),
        lambda math, x, y, d, a, b: d * (1.0 - abs(y)) * (1.0 - abs(y)),
    ),
    "softplus": Function(
        lambda xp, x, a, b: stable_softplus(xp, x),
        lambda x, a, b: F.softplus(x),
        lambda math, x, y, d, a, b: d * math.apply(Activation("sigmoid"), x),
    ),
}


class Activation(NamedTuple):
    """One of the standard's functions, in lower case, with its parameters (0 where it has none)."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


class ArrayMath(NamedTuple):
    """Cells on numpy or CuPy arrays."""

    xp: Any

    def product(self, h: Any, r: Any) -> Any:
        """Multiply h [N, H] by the transpose of r [M, H]."""
        return self.xp.matmul(h, r.T)

    def split(self, x: Any, parts: int, axis: int = -1) -> Any:
        return self.xp.split(x, parts, axis=axis)

    def matmul(self, a: Any, b: Any) -> Any:
        return self.xp.matmul(a, b)

    def join(self, *parts: Any) -> Any:
        """Concatenate arrays along the last axis."""
        return self.xp.concatenate(parts, axis=-1)

    def keep(self, condition: Any, x: Any) -> Any:
        """Return x where the condition is true, 0 elsewhere."""
        return self.xp.where(condition, x, self.xp.zeros_like(x))

    def drop(self, condition: Any, x: Any) -> Any:
        """Return 0 where the condition is true, x elsewhere."""
        return self.xp.where(condition, self.xp.zeros_like(x), x)

    def zeros(self, x: Any) -> Any:
        return self.xp.zeros_like(x)

    def clip(self, x: Any, bound: float) -> Any:
        return self.xp.clip(x, -bound, bound)

    def apply(self, function: Activation, x: Any) -> Any:
        return FUNCTIONS[function.name].array(self.xp, x, function.alpha, function.beta)


class GraphMath:
    """The same on graph values."""

    @staticmethod
    def product(h: Any, r: Any) -> Any:
        return F.gemm(h, r, transB=True)

    @staticmethod
    def split(x: Any, parts: int, axis: int = -1) -> Any:
        return F.split(x, num_outputs=parts, axis=axis)

    @staticmethod
    def matmul(a: Any, b: Any) -> Any:
        return F.gemm(a, b)

    @staticmethod
    def join(*parts: Any) -> Any:
        return F.concat(*parts, axis=-1)

    @staticmethod
    def keep(condition: Any, x: Any) -> Any:
        return keep_where(condition, x)

    @staticmethod
    def drop(condition: Any, x: Any) -> Any:
        return drop_where(condition, x)

    @staticmethod
    def zeros(x: Any) -> Any:
        return F.expand(scalar_like(0.0, x), F.shape(x))

    @staticmethod
    def clip(x: Any, bound: float) -> Any:
        return F.clip(x, scalar_like(-bound, x), scalar_like(bound, x))

    @staticmethod
    def apply(function: Activation, x: Any) -> Any:
        return FUNCTIONS[function.name].value(x, function.alpha, function.beta)


def slope(math: Any, function: Activation, x: Any, y: Any, d: Any) -> Any:
    """Return d times the derivative of a function at x, where its result is y."""
    return FUNCTIONS[function.name].slope(math, x, y, d, function.alpha, function.beta)
