"""Constant tensors, and the reduction that reverses broadcasting."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.dims import may_equal
from graphkit.ir.graph import Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import FLOATS, TensorType, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op

# Larger constants have numbers of their own, because finding equal ones would take long.
_NUMBERED_BYTES = 64


@op
class Constant(Op):
    """A tensor that is known when the graph is built."""

    value: Tensor
    onnx = Onnx("Constant", since=25)
    samples = lambda: (
        Sample(value=np.arange(6, dtype=np.float32).reshape(2, 3)),
        Sample(value=np.array([-1, 4])),
        Sample(value=np.array(True)),
        Sample(value=np.zeros((0, 3), np.float32)),
    )

    def infer(self) -> TensorType:
        return self.value.type

    def _content(self) -> Hashable | None:
        return self if self.value.nbytes <= _NUMBERED_BYTES else None

    def reference(self, xp: Any) -> Any:
        return xp.asarray(self.value.array)


@op
class ReduceToShapeOf(Op):
    """Sum `x` to the shape of `like`, over the axes along which `like` would broadcast to x's shape.

    This is the transpose of broadcasting; only the shape of `like` is read.
    """

    domain = DOMAIN
    inputs = ("x", "like")
    types = {"x": FLOATS}
    shape_only = ("like",)
    symbolic_inference = True
    samples = lambda: (Sample((2, 3), (2, 3)), Sample((2, 3), (3,)), Sample((4, 2, 3), (2, 1)), Sample((2, 3), ()))

    def infer(self, x: TensorType, like: TensorType) -> TensorType:
        if x.shape is not None and like.shape is not None:
            joint = broadcast_shapes([x.shape, like.shape])
            if joint is not None and (len(joint) != len(x.shape) or not all(map(may_equal, joint, x.shape))):
                raise TypeMismatch(f"{like} does not broadcast to {x}")
        return TensorType(x.dtype, like.shape)

    def reference(self, xp: Any, x: Any, like: Any) -> Any:
        lead = x.ndim - like.ndim
        axes = [*range(lead), *(lead + i for i, n in enumerate(like.shape) if n == 1 and x.shape[lead + i] != 1)]
        total = xp.sum(x, axis=tuple(axes), keepdims=True) if axes else xp.array(x)
        return total.reshape(like.shape)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.expand(dy, F.shape(node.operands[0])), None

    def expand(self, x: Any, like: Any) -> Any:
        axes = self.summed_axes(x, like)
        if axes is not None:
            total = F.reduce_sum(x, np.asarray(axes, np.int64), keepdims=False) if axes else x
            return F.reshape(total, F.shape(like))
        # Sizes are unknown: extend like's shape to x's rank, and sum over axes where only `like` has size 1.
        target, source = F.shape(like), F.shape(x)
        missing = F.sub(F.shape(source), F.shape(target))
        ones = F.expand(np.array([1], np.int64), missing)
        aligned = F.concat(ones, target, axis=0)
        one = np.array(1, np.int64)
        summed = F.and_(F.equal(aligned, one), F.not_(F.equal(source, one)))
        positions = F.range(np.array(0, np.int64), F.squeeze(F.shape(source), np.array([0])), one)
        axes_value = F.compress(positions, summed, axis=0)
        return F.reshape(F.reduce_sum(x, axes_value, keepdims=True, noop_with_empty_axes=True), target)

    @staticmethod
    def summed_axes(x: Value, like: Value) -> list[int] | None:
        """Return the axes along which `like` broadcasts. Returns None if the shapes do not determine the axes."""
        return _static_axes(x.shape, like.shape)


def _static_axes(x: tuple[Any, ...] | None, like: tuple[Any, ...] | None) -> list[int] | None:
    """Return the axes to sum over: those where `like` has size 1; None if the shapes do not determine them."""
    if x is None or like is None:
        return None
    lead = len(x) - len(like)
    axes = list(range(lead))
    for i, (a, b) in enumerate(zip(x[lead:], like, strict=True)):
        if b == 1 and isinstance(b, int):
            if a != 1:
                axes.append(lead + i)
        elif a != b and not isinstance(b, int):
            return None
    return axes
