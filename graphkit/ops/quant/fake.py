"""FakeQuantize: quantisation and dequantisation in one operator, for training."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Node
from graphkit.ir.types import INTEGERS, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Rand, Sample, constant, op
from graphkit.ops.quant.linear import _BLOCKS, _ROW, DequantizeLinear, QuantizeLinear
from graphkit.ops.quant.rounding import SCALES, bounds


@op
class FakeQuantize(QuantizeLinear):
    """Quantise x and dequantise it again: DequantizeLinear(QuantizeLinear(x)) with one scale and one zero point.

    The gradient of x is straight-through: dy where the rounded number is within the bounds of the type, 0 elsewhere
    (Jacob et al. 2018; PyTorch's fake_quantize). The gradient of the scale is that of LSQ (Esser et al. 2020), without
    its factor: dy times (rounded - x / scale) within the bounds, and dy times (bound - zero point) outside. Operands
    and attributes are QuantizeLinear's. The quantised type is an integer type, and the result has x's type.
    """

    domain = DOMAIN
    onnx = None
    composite = True
    types = {**QuantizeLinear.types, "x": SCALES, "y_scale": SCALES}
    # grad=False: the gradient is a straight-through estimate, not the derivative.
    samples = lambda: (
        Sample(Rand((2, 4), -9.0, 9.0, "float32"), np.array(0.05, np.float32), np.array(128, np.uint8), grad=False),
        Sample(Rand((2, 4), -9.0, 9.0, "float32"), _ROW, np.array([0, 1, 2, -7], np.int8), grad=False),
        Sample(Rand((2, 4), -9.0, 9.0, "float32"), _BLOCKS, axis=-1, block_size=2, output_dtype=DType.INT4, grad=False),
        Sample(Rand((0, 4), -9.0, 9.0, "float32"), np.array(0.05, np.float32), grad=False),
    )

    def infer(self, x: TensorType, y_scale: TensorType, y_zero_point: TensorType | None = None) -> TensorType:
        super().infer(x, y_scale, y_zero_point)
        return TensorType(x.dtype, x.shape)

    def parts(self, x: DType, scale: DType) -> tuple[QuantizeLinear, DequantizeLinear]:
        """Return QuantizeLinear and DequantizeLinear for these types of x and scale."""
        shared = {"axis": self.axis, "block_size": self.block_size}
        saturate, target, precision = self.saturate, self.output_dtype, self.precision
        first = QuantizeLinear(**shared, saturate=saturate, output_dtype=target, precision=precision)
        return first, DequantizeLinear(**shared, output_dtype=None if x is scale else x)

    def reference(self, xp: Any, x: Any, y_scale: Any, y_zero_point: Any = None) -> Any:
        first, second = self.parts(DType.of(x.dtype), DType.of(y_scale.dtype))
        return second.reference(xp, first.quantised(xp, x, y_scale, y_zero_point), y_scale, y_zero_point)

    def expand(self, x: Any, y_scale: Any, y_zero_point: Any = None) -> Any:
        first, second = self.parts(x.dtype, y_scale.dtype)
        q = Node(first, [x, y_scale, y_zero_point] if y_zero_point is not None else [x, y_scale]).output
        return Node(second, [q, y_scale, y_zero_point] if y_zero_point is not None else [q, y_scale]).output

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = (*node.inputs, None)[:3]
        x, scale, zero = operands
        target = self.target(None if zero is None else zero.type)
        if target not in INTEGERS and target not in (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2):
            raise UnsupportedError(f"{node.describe()}: quantisation to {target} has no straight-through gradient")
        if x.rank is None or scale.rank is None:
            raise UnsupportedError(f"{node.describe()}: the gradient of a quantisation needs operands of known rank")
        least, most = bounds(target)
        wide = F.cast(self.spread_values(scale, x), to=DType.FLOAT32)
        shift = 0.0 if zero is None else self.spread_values(F.cast(zero, to=DType.FLOAT32), x)
        ratio = F.div(F.cast(x, to=DType.FLOAT32), wide)
        steps = F.round(ratio)
        low, high = (F.sub(constant(np.float32(b)), shift) for b in (least, most))
        inside = F.and_(F.greater_or_equal(steps, low), F.less_or_equal(steps, high))
        dx = F.where(inside, dy, constant(np.array(0, dy.dtype.numpy)))
        error = F.where(inside, F.sub(steps, ratio), F.where(F.less(steps, low), low, high))
        dscale = self.gathered(F.mul(F.cast(dy, to=DType.FLOAT32), error), scale, x)
        return (dx, F.cast(dscale, to=scale.dtype)) if zero is None else (dx, F.cast(dscale, to=scale.dtype), None)
