"""Softmax, LogSoftmax and Hardmax along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op


def log_softmax(xp: Any, x: Any, axis: int) -> Any:
    """Return x - log(sum(exp(x))) along `axis`, shifted by the maximum so that it does not overflow."""
    if x.size == 0:
        return xp.array(x)
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def log_softmax_gradient(log_prob: Any, dy: Any, axis: int) -> Any:
    """Build the gradient of log_softmax from its result."""
    total = F.reduce_sum(dy, np.array([axis], np.int64), keepdims=True)
    return dy - F.exp(log_prob) * total


class AlongAxis(Op):
    """Base of functions of whole vectors along `axis`. x: float tensor of rank >= 1; y has x's type."""

    axis: int = -1
    inputs = ("x",)
    types = {"x": FLOATS}
    inplace = ((0, 0),)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 5)),
        Sample((2, 3, 4), axis=1),
        Sample((3, 2), axis=0),
        Sample((2, 3, 4), axis=-3),
        Sample((4,)),
        Sample((2, 1)),
        Sample((0, 3)),
        Sample((3, 0)),
        Sample(np.array([[1000.0, 990.0, 980.0], [3.0, 3.0, -np.inf]], np.float32), grad=False),  # infinite scores
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return batched[0] and self.axis % len(inputs[0].known_shape) != 0

    def infer(self, x: TensorType) -> TensorType:
        if x.rank is not None and not -x.rank <= self.axis < x.rank:
            raise TypeMismatch(f"axis {self.axis} is out of range for {x}")
        return TensorType(x.dtype, x.shape)


@op
class Softmax(AlongAxis):
    """exp(x) / sum(exp(x)) along one axis. x: float tensor of rank >= 1; y has x's type."""

    onnx = Onnx("Softmax", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        if x.size == 0:
            return xp.array(x)
        raised = xp.exp(x - xp.max(x, axis=self.axis, keepdims=True))
        return raised / xp.sum(raised, axis=self.axis, keepdims=True)

    def grad(self, node: Node, dy: Any) -> Any:
        y: Any = node.output
        weighted = dy * y
        total = F.reduce_sum(weighted, np.array([self.axis], np.int64), keepdims=True)
        return weighted - y * total


@op
class LogSoftmax(AlongAxis):
    """log(softmax(x)) along one axis. x: float tensor of rank >= 1; y has x's type."""

    onnx = Onnx("LogSoftmax", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        return log_softmax(xp, x, self.axis)

    def grad(self, node: Node, dy: Any) -> Any:
        return log_softmax_gradient(node.output, dy, self.axis)


@op
class Hardmax(AlongAxis):
    """1 at the first maximum along `axis`, 0 elsewhere. It is a step function, so no gradient flows."""

    onnx = Onnx("Hardmax", since=13)

    def reference(self, xp: Any, x: Any) -> Any:
        if x.size == 0:
            return xp.array(x)
        axis = self.axis % x.ndim
        best = xp.expand_dims(xp.argmax(x, axis=axis), axis)
        positions = xp.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return (positions == best).astype(x.dtype)

    def grad(self, node: Node, dy: Any) -> Any:
        return None
