"""Bases of the pointwise families: one-operand and broadcasting two-operand operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, INTEGERS, NUMERIC, TensorType, broadcast_shapes
from graphkit.ops._base import F, Op, Sample
from graphkit.ops.known_elements import all_of

# Operators that fail for integers if the divisor is zero. For Pow, if the base is zero and the exponent is negative.
DIVISIONS = frozenset({"Div", "Mod", "Pow"})


def divides_integers(node: Node) -> bool:
    """Return whether a node divides integers, so that a divisor 0 makes it fail."""
    return node.op.name in DIVISIONS and node.operands[0].dtype in INTEGERS


class Unary(Op):
    """y = f(x), elementwise. x: tensor of any shape; y has x's type."""

    inputs = ("x",)
    types = {"x": FLOATS}
    pointwise = True
    symbolic_inference = True
    inplace = ((0, 0),)
    samples: ClassVar[Any] = lambda: (Sample((2, 3)), Sample(()), Sample((0, 2)))

    def infer(self, x: TensorType) -> TensorType:
        return x if x.value is None and x.floats is None else TensorType(x.dtype, x.shape)


class Binary(Op):
    """y = f(a, b), elementwise with numpy broadcasting. a, b: tensors of the same dtype."""

    symbolic_inference = True
    inputs = ("a", "b")
    types = {"a": NUMERIC, "b": "a"}
    pointwise = True
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 0))
    samples: ClassVar[Any] = lambda: (
        Sample((2, 3), (2, 3)),
        Sample((2, 3), (3,)),
        Sample((2, 1, 3), (4, 1)),
        Sample((), (2,)),
        Sample((0, 3), (1, 3)),
    )
    # Function of known integer elements, if shape arithmetic uses the operator.
    known: ClassVar[Callable[..., Dim | None] | None] = None

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        shape = broadcast_shapes([a.shape, b.shape])
        rule = type(self).known
        value = None if rule is None else broadcast_known(rule, [a, b])
        return TensorType(a.dtype, shape, value)


def broadcast_known(rule: Callable[..., Dim | None], operands: Sequence[TensorType]) -> tuple[Dim, ...] | None:
    """Apply `rule` to known elements of operands of rank 0 or 1. Return None if an operand or result is unknown."""
    if any(t.value is None or t.rank is None or t.rank > 1 for t in operands):
        return None
    values = [t.value or () for t in operands]
    length = 0 if any(len(v) == 0 for v in values) else max(len(v) for v in values)
    columns = [v * length if len(v) == 1 else v for v in values]
    if any(len(c) != length for c in columns):
        return None
    return all_of(rule(*column) for column in zip(*columns, strict=True))


def unbroadcast(gradient: Any, operand: Any) -> Any:
    """Sum a gradient over the axes along which `operand` was broadcast."""
    if gradient.shape is not None and gradient.shape == operand.shape:
        return gradient
    return F.reduce_to_shape_of(gradient, operand)


def operand_gradients(node: Node, *gradients: Any) -> tuple[Any, ...]:
    """Apply `unbroadcast` to each gradient and its operand; None stays None."""
    pairs = itertools.zip_longest(gradients, node.inputs)
    return tuple(None if g is None else unbroadcast(g, v) for g, v in pairs)


def scalar_like(value: float, like: Value) -> Any:
    """Return a 0-d constant of `like`'s dtype."""
    import numpy as np

    return F.constant(value=np.asarray(value, dtype=like.dtype.numpy))
