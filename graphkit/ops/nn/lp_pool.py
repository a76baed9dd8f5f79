"""Pooling with the Lp norm, over sliding windows or over all spatial axes."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Node
from graphkit.ir.types import TensorType
from graphkit.ops._base import F, Onnx, Sample, op
from graphkit.ops.nn.global_pool import GlobalPool
from graphkit.ops.nn.pool import Pooling, _pool_samples, _spread
from graphkit.ops.pointwise import scalar_like


@op
class LpPool(Pooling):
    """(sum |x| ** p) ** (1 / p) of each window; padding adds nothing.

    x: [N, C, *spatial] -> [N, C, *positions]. The other attributes are those of MaxPool.
    """

    p: int = 2
    per_example = ("x",)
    inputs = ("x",)
    onnx = Onnx("LpPool", since=22)
    samples = lambda: (*_pool_samples(), *_pool_samples(p=3)[:2])

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, self.pooled(x))

    def reference(self, xp: Any, x: Any) -> Any:
        return self._sum(xp, xp.abs(x) ** self.p) ** (1.0 / self.p)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        (x,) = operands
        if x.shape is None:
            raise UnsupportedError(f"{node.describe()}: the gradient needs an operand of known rank")
        return _lp_gradient(self.p, x, node.output, dy, lambda share: _spread(self, share, x))


def _lp_gradient(p: int, x: Any, y: Any, dy: Any, spread: Any) -> Any:
    """dy * y ** (1 - p), spread over the windows, times |x| ** (p - 1) * sign(x); 0 where a window is all 0."""
    if p == 1:
        return F.mul(spread(dy), F.sign(x))
    zero = F.equal(y, scalar_like(0.0, y))
    safe = F.where(zero, scalar_like(1.0, y), y)
    share = F.where(zero, scalar_like(0.0, y), F.mul(dy, F.pow(safe, scalar_like(1.0 - p, y))))
    slope = x if p == 2 else F.mul(F.sign(x), F.pow(F.abs(x), scalar_like(p - 1.0, x)))
    return F.mul(spread(share), slope)


@op
class GlobalLpPool(GlobalPool):
    """(sum |x| ** p) ** (1 / p) over all spatial axes: x: [N, C, *spatial] -> [N, C, 1, ..., 1]."""

    p: int = 2
    onnx = Onnx("GlobalLpPool", since=22)
    # Neither onnx's evaluator nor ONNX Runtime implements this version.
    samples = lambda: (
        Sample((2, 3, 4, 5), onnx=False),
        Sample((2, 3, 4), p=1, onnx=False),
        Sample((1, 2, 3, 3), p=3, onnx=False),
    )

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.sum(xp.abs(x) ** self.p, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1.0 / self.p)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        (x,) = operands
        return _lp_gradient(self.p, x, node.output, dy, lambda share: share)
