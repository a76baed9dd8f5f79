"""Pooling over all spatial axes: average and maximum."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.nn.sliding_window import spatial_sizes
from graphkit.ops.pointwise import scalar_like


class GlobalPool(Op):
    """Base of reductions of x [N, C, *spatial] over all spatial axes, which stay with size 1."""

    per_example = ("x",)
    symbolic_inference = True
    inputs = ("x",)
    types = {"x": FLOATS}
    samples: ClassVar[Any] = lambda: (
        Sample((2, 3, 4, 5)),
        Sample((2, 3, 4)),
        Sample((1, 2, 2, 3, 2)),
        Sample((0, 2, 3, 3)),
    )

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(x.dtype)
        if len(x.shape) < 3:
            raise TypeMismatch(f"{x} has no spatial axis")
        return TensorType(x.dtype, (*x.shape[:2], *(1 for _ in x.shape[2:])))


@op
class GlobalAveragePool(GlobalPool):
    """Mean over all spatial axes: x: [N, C, *spatial] -> [N, C, 1, ..., 1]."""

    onnx = Onnx("GlobalAveragePool", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        (x,) = operands
        sizes = spatial_sizes(x)
        if isinstance(sizes, np.ndarray):
            share = F.mul(dy, scalar_like(1.0 / max(float(np.prod(sizes)), 1.0), dy))
        else:
            share = F.div(dy, F.cast(F.reduce_prod(sizes, keepdims=False), to=dy.dtype))
        return F.expand(share, F.shape(x))


@op
class GlobalMaxPool(GlobalPool):
    """Maximum over all spatial axes: x: [N, C, *spatial] -> [N, C, 1, ..., 1].

    If elements tie, they share the gradient equally.
    """

    onnx = Onnx("GlobalMaxPool", since=22)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        (x,) = operands
        if x.rank is None:
            raise UnsupportedError(f"{node.describe()}: the gradient needs an operand of known rank")
        hits = F.cast(F.equal(x, node.output), to=x.dtype)
        ties = F.reduce_sum(hits, np.arange(2, x.rank), keepdims=True)
        return F.mul(hits, F.div(dy, ties))
