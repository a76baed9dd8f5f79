"""Piecewise linear activation functions with slopes or thresholds of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, SIGNED, UNSIGNED, DType, TensorType, broadcast_shapes
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.nn.activation import keep_where
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import Unary, scalar_like, unbroadcast


@op
class PRelu(Op):
    """x where x >= 0, slope * x elsewhere. slope broadcasts to x's shape. He et al. 2015, arXiv:1502.01852."""

    inputs = ("x", "slope")
    pointwise = True
    types = {"x": FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}, "slope": "x"}
    onnx = Onnx("PRelu", since=16)
    inplace = ((0, 0),)
    samples = lambda: (
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
    samples = lambda: (
        *Unary.samples(),
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
class Shrink(Unary):
    """x + bias below -lambd, x - bias above lambd, 0 between."""

    bias: float = 0.0
    lambd: float = 0.5
    types = {"x": (FLOATS - {DType.BFLOAT16}) | SIGNED | UNSIGNED}
    onnx = Onnx("Shrink", since=9)
    samples = lambda: (
        *Unary.samples(),
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
