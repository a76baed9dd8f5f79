"""The gradients of Softmax and LogSoftmax as one operator, which reads each vector twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.operands import fits


@op
class SoftmaxGrad(Op):
    """Gradient of Softmax along one axis: y * (dy - sum(dy * y)), where y is the result of Softmax.

    With `log`, the gradient of LogSoftmax: dy - exp(y) * sum(dy). dy and y have the result's shape, of rank >= 1.
    """

    axis: int = -1
    log: bool = False
    domain = DOMAIN
    inputs = ("dy", "y")
    outputs = ("dx",)
    types = {"dy": FLOATS, "y": "dy"}
    inplace = ((0, 0), (1, 0))
    composite = True
    samples = lambda: (
        Sample((2, 5), (2, 5)),
        Sample((2, 5), (2, 5), log=True),
        Sample((2, 3, 4), (2, 3, 4), axis=1),
        Sample((3, 2), (3, 2), axis=0, log=True),
        Sample((4,), (4,), axis=-1),
        Sample((0, 3), (0, 3)),
    )

    def infer(self, dy: TensorType, y: TensorType) -> TensorType:
        if y.rank is not None and not -y.rank <= self.axis < y.rank:
            raise TypeMismatch(f"axis {self.axis} is out of range for {y}")
        if y.shape is not None and not fits(dy.shape, y.shape):
            raise TypeMismatch(f"dy {dy} does not fit {y}")
        return TensorType(y.dtype, y.shape)

    def reference(self, xp: Any, dy: Any, y: Any) -> Any:
        weighted = dy if self.log else dy * y
        total = xp.sum(weighted, axis=self.axis, keepdims=True)
        return dy - xp.exp(y) * total if self.log else weighted - y * total

    def expand(self, dy: Any, y: Any) -> Any:
        weighted = dy if self.log else F.mul(dy, y)
        total = F.reduce_sum(weighted, np.array([self.axis], np.int64), keepdims=True)
        return F.sub(weighted, F.mul(F.exp(y) if self.log else y, total))
