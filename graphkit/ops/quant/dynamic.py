"""DynamicQuantizeLinear: quantisation to uint8 with a scale that is computed from the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, constant, op
from graphkit.ops.quant.rounding import saturated

_F32 = frozenset({DType.FLOAT32})


@op
class DynamicQuantizeLinear(Op):
    """Quantise x to uint8 with the scale and zero point that fit the range of x and 0.

    x: float32 of any shape -> y: uint8 of that shape, y_scale: float32 [], y_zero_point: uint8 []. If x has no
    elements, or only zeros, the scale is 1. NaN does not affect the scale, and is quantised to 0.
    """

    inputs, outputs = ("x",), ("y", "y_scale", "y_zero_point")
    types = {"x": _F32}
    symbolic_inference = True
    onnx = Onnx("DynamicQuantizeLinear", since=11)
    samples = lambda: (
        Sample(Rand((3, 4), -3.0, 9.0, "float32")),
        Sample(Rand((5,), 1.0, 2.0, "float32")),
        Sample(Rand((5,), -7.0, -2.0, "float32")),
        Sample(np.array(2.5, np.float32)),
        # onnx's definition divides by zero.
        Sample(np.zeros((2, 2), np.float32), onnx=False),
        Sample(np.zeros((0, 2), np.float32), onnx=False),
    )

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return TensorType(DType.UINT8, x.shape), TensorType(DType.FLOAT32, ()), TensorType(DType.UINT8, ())

    def reference(self, xp: Any, x: Any) -> Any:
        return dynamically_quantised(xp, x)

    def expand(self, x: Any) -> Any:
        zero, widest = (constant(np.array(v, np.float32)) for v in (0, 255))
        least = F.min(F.reduce_min(x, keepdims=False), zero)
        most = F.max(F.reduce_max(x, keepdims=False), zero)
        one = constant(np.array(1, np.float32))
        scale = F.where(F.equal(least, most), one, F.div(F.sub(most, least), widest))
        point = F.cast(F.round(F.clip(F.div(F.neg(least), scale), zero, widest)), to=DType.UINT8)
        return F.quantize_linear(x, scale, point), scale, point


def dynamically_quantised(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return x quantised to uint8, the scale and the zero point."""
    known = xp.where(xp.isnan(x), xp.asarray(0, np.float32), x)
    # The range contains 0, also if x is empty.
    least = xp.minimum(xp.amin(known), 0) if x.size else xp.asarray(0)
    most = xp.maximum(xp.amax(known), 0) if x.size else xp.asarray(0)
    least, most = least.astype(np.float32), most.astype(np.float32)
    scale = xp.where(least == most, xp.asarray(1, np.float32), (most - least) / xp.asarray(255, np.float32))
    # If the range is infinite, the zero point is 255, as in ONNX Runtime.
    zero = xp.rint(xp.fmax(xp.fmin(-least / scale, 255), 0)).astype(np.uint8)
    return saturated(xp, x / scale, zero, DType.UINT8), scale, zero
