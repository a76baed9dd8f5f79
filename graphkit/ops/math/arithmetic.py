"""Arithmetic with broadcasting: + - * / ** mod, min, max, sum, mean, negation, absolute value, sign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, NUMERIC, SIGNED, TensorType, broadcast_shapes
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.pointwise import Binary, Unary, broadcast_known, operand_gradients, scalar_like, unbroadcast

# Samples away from zero, where quotients, logarithms and their gradients are well conditioned.
_POSITIVE = Rand((2, 3), 0.5, 2.0)


@op
class Add(Binary):
    """a + b with broadcasting."""

    onnx = Onnx("Add", since=14)
    known = staticmethod(lambda a, b: a + b)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.add(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        return operand_gradients(node, dy, dy)


@op
class Sub(Binary):
    """a - b with broadcasting."""

    onnx = Onnx("Sub", since=14)
    known = staticmethod(lambda a, b: a - b)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.subtract(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        return operand_gradients(node, dy, F.neg(dy))


@op
class Mul(Binary):
    """a * b with broadcasting."""

    onnx = Onnx("Mul", since=14)
    known = staticmethod(lambda a, b: a * b)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.multiply(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        a, b = node.operands
        return operand_gradients(node, F.mul(dy, b), F.mul(dy, a))


def _quotient(a: Dim, b: Dim) -> Dim | None:
    # Integer quotients are rounded towards zero. Dimensions are not negative, so this is floordiv.
    if b == 0:
        return None
    if isinstance(a, DimExpr) or isinstance(b, DimExpr):
        negative = isinstance(b, int) and b < 0
        return 0 - dims.floordiv(a, 0 - b) if negative else dims.floordiv(a, b)
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


def _remainder(a: Dim, b: Dim) -> Dim | None:
    return None if b == 0 else dims.mod(a, b)


def _c_remainder(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, DimExpr) or isinstance(b, DimExpr) or b == 0:
        return None
    size = abs(a) % abs(b)
    return -size if a < 0 else size


def _refuse_zero(divisor: Any) -> None:
    """Raise RuntimeFailure if an integer divisor is zero."""
    if not bool(divisor.all()):
        raise RuntimeFailure("integer division by zero")


def _refused_zeros(a: Value, b: Value) -> tuple[Any, ...] | None:
    """Return the `value_check` key of a / b: None unless b is an integer that may be 0."""
    known = b.tensor.constants
    if not a.dtype.is_integer or (known and all(known)):
        return None
    # If the result may be empty, so that no divisor is checked, the key must not equal another one.
    is_computed = all(v.tensor.is_static and v.tensor.size for v in (a, b))
    return ("divisor", b) if is_computed else (object(),)


@op
class Div(Binary):
    """a / b with broadcasting. Integer division rounds towards zero; an integer divisor 0 raises RuntimeFailure."""

    onnx = Onnx("Div", since=14)
    known = staticmethod(_quotient)
    samples = lambda: (
        Sample((2, 3), _POSITIVE),
        Sample((2, 3), Rand((3,), 1.0, 5.0)),
        Sample((2, 3), Rand((), -3.0, -1.0)),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        return _refused_zeros(*inputs)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        if a.dtype.kind in "iu":
            _refuse_zero(b)
            quotient = xp.floor_divide(a, b)
            return (
                quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype) if a.dtype.kind == "i" else quotient
            )
        return xp.divide(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        a, b = node.operands
        da = F.div(dy, b)
        return operand_gradients(node, da, F.neg(F.mul(da, F.div(a, b))))


@op
class Pow(Binary):
    """a ** b with broadcasting; the result has a's dtype, b may have another one.

    An integer with a negative exponent gives the reciprocal, rounded towards zero; the reciprocal of 0 raises
    RuntimeFailure. The exponents 1, 2 and 3 of an integer give exact products also if they are floating-point numbers.
    """

    types = {"a": NUMERIC, "b": NUMERIC}
    inplace = ((0, 0),)
    onnx = Onnx("Pow", since=15)
    samples = lambda: (
        Sample(_POSITIVE, (2, 3)),
        Sample(_POSITIVE, np.array(3.0)),
        Sample((2, 3), np.array([2.0]), grad=True),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        return self._check_of_all(inputs) if inputs[0].dtype.is_integer else None

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return TensorType(a.dtype, broadcast_shapes([a.shape, b.shape]))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        if a.dtype.kind in "iu" and b.dtype.kind == "i":
            if not (b < 0).any():
                return xp.power(a, b)
            _refuse_zero((a != 0) | (b >= 0))
            # Below zero, only 1 and -1 have a reciprocal that is not a fraction.
            odd = (b & 1) != 0
            reciprocal = xp.where(a == 1, 1, xp.where(a == -1, xp.where(odd, -1, 1), 0) if a.dtype.kind == "i" else 0)
            return xp.where(b < 0, reciprocal, xp.power(a, xp.where(b < 0, 0, b))).astype(a.dtype)
        power = xp.power(a, b)
        if a.dtype.kind in "iu" and power.dtype.kind == "f":
            power = power.astype(a.dtype)
            for exponent, product in ((1, a), (2, a * a), (3, a * a * a)):
                power = xp.where(b == exponent, product, power)
        return power

    def grad(self, node: Node, dy: Any) -> Any:
        a, b = node.operands
        exponent = b if b.dtype is a.dtype else F.cast(b, to=a.dtype)
        zero, one = scalar_like(0.0, a), scalar_like(1.0, a)
        # a**0 is 1 everywhere, so the gradient is 0, also at a == 0, where the formula would give 0 * infinity.
        below = F.where(F.equal(exponent, zero), zero, F.sub(exponent, one))
        da = F.mul(dy, F.mul(exponent, F.pow(a, below)))
        if not b.dtype.is_float or (b.node is not None and b.node.op.name == "Constant"):
            return operand_gradients(node, da, None)
        # d/db is a**b log a; at a == 0 the limit for b > 0 is 0.
        log_a = F.where(F.equal(a, zero), zero, F.log(F.where(F.equal(a, zero), one, a)))
        return operand_gradients(node, da, F.cast(F.mul(dy, F.mul(F.pow(a, b), log_a)), to=b.dtype))


@op
class Mod(Binary):
    """Remainder with broadcasting: a - floor(a/b)*b, with b's sign as in Python; with `fmod`, with a's sign as in C.

    An integer divisor 0 raises RuntimeFailure.
    """

    fmod: bool = False
    onnx = Onnx("Mod", since=28)
    samples = lambda: (
        Sample((2, 3), _POSITIVE, fmod=True),
        Sample((2, 3), Rand((2, 1), -2.0, -0.5), dtypes=FLOATS),
        Sample(np.array([[-4, 7, 5], [4, -7, 8]]), np.array([2, -3, 8])),
        Sample(np.array([[-4, 7, 5], [4, -7, 8]]), np.array([2, -3, 8]), fmod=True),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        return _refused_zeros(*inputs)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        known = broadcast_known(_c_remainder if self.fmod else _remainder, [a, b])
        return TensorType(a.dtype, broadcast_shapes([a.shape, b.shape]), known)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        if a.dtype.kind in "iu":
            _refuse_zero(b)
        return xp.fmod(a, b) if self.fmod else xp.mod(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        a, b = node.operands
        quotient = F.div(F.sub(a, F.mod(a, b, fmod=self.fmod)), b)
        return operand_gradients(node, dy, F.neg(F.mul(dy, F.round(quotient))))


@op
class Neg(Unary):
    """-x."""

    types = {"x": FLOATS | SIGNED}
    onnx = Onnx("Neg", since=13)

    def infer(self, x: TensorType) -> TensorType:
        known = broadcast_known(lambda v: 0 - v, [x])
        return TensorType(x.dtype, x.shape, known) if known else super().infer(x)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.negative(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.neg(dy)


@op
class Abs(Unary):
    """|x|; the gradient at 0 is 0."""

    types = {"x": NUMERIC}
    onnx = Onnx("Abs", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.abs(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.mul(dy, F.sign(node.operands[0]))


@op
class Sign(Unary):
    """-1, 0 or 1 by the sign of x; its gradient is zero everywhere."""

    types = {"x": NUMERIC}
    onnx = Onnx("Sign", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.sign(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


class _Variadic(Op):
    """Base of elementwise reductions over any number of operands, with broadcasting."""

    inputs = ("xs*",)
    types = {"xs": FLOATS}
    pointwise = True
    symbolic_inference = True
    inplace = ((0, 0),)
    samples = lambda: (Sample((2, 3)), Sample((2, 3), (2, 3)), Sample((2, 3), (3,), (2, 1)))
    known: ClassVar[Callable[..., Dim] | None] = None

    def infer(self, *xs: TensorType) -> TensorType:
        if any(x.dtype is not xs[0].dtype for x in xs):
            raise TypeMismatch(f"all operands must have one dtype, not {', '.join(map(str, xs))}")
        rule = type(self).known
        value = None if rule is None else broadcast_known(rule, xs)
        return TensorType(xs[0].dtype, broadcast_shapes([x.shape for x in xs]), value)


@op
class Sum(_Variadic):
    """Sum of the operands with broadcasting."""

    onnx = Onnx("Sum", since=13)

    def reference(self, xp: Any, *xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = xp.add(total, x)
        return xp.array(total) if len(xs) == 1 else total

    def grad(self, node: Node, dy: Any) -> Any:
        return operand_gradients(node, *[dy] * len(node.inputs))


@op
class Mean(_Variadic):
    """Mean of the operands with broadcasting."""

    onnx = Onnx("Mean", since=13)

    def reference(self, xp: Any, *xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = xp.add(total, x)
        return total / xp.asarray(len(xs), dtype=total.dtype)

    def grad(self, node: Node, dy: Any) -> Any:
        share = F.div(dy, scalar_like(float(len(node.inputs)), dy))
        return operand_gradients(node, *[share] * len(node.inputs))


class _Extreme(_Variadic):
    """Elementwise maximum or minimum; where operands tie, the gradient is shared equally."""

    types = {"xs": NUMERIC}

    def grad(self, node: Node, dy: Any) -> Any:
        y = node.output
        if len(node.inputs) == 1:
            return (dy,)
        hits = [F.cast(F.equal(x, y), to=y.dtype) for x in node.operands]
        share = F.div(dy, F.sum(*hits))
        return tuple(unbroadcast(F.mul(share, hit), x) for hit, x in zip(hits, node.inputs, strict=True))


@op
class Max(_Extreme):
    """Elementwise maximum with broadcasting; NaN if an operand is NaN."""

    onnx = Onnx("Max", since=13)
    known = staticmethod(dims.dim_max)

    def reference(self, xp: Any, *xs: Any) -> Any:
        result = xp.array(xs[0])
        for x in xs[1:]:
            result = xp.maximum(result, x)
        return result


@op
class Min(_Extreme):
    """Elementwise minimum with broadcasting; NaN if an operand is NaN."""

    onnx = Onnx("Min", since=13)
    known = staticmethod(dims.dim_min)

    def reference(self, xp: Any, *xs: Any) -> Any:
        result = xp.array(xs[0])
        for x in xs[1:]:
            result = xp.minimum(result, x)
        return result
