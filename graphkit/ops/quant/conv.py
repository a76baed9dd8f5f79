"""Convolutions of quantised images: ConvInteger, whose results are int32 sums, and QLinearConv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import BYTES, DType, TensorType
from graphkit.ops._base import Onnx, Rand, Sample, op
from graphkit.ops.nn.conv import Convolution, convolve
from graphkit.ops.quant.rounding import centred, number, requantised, single, wrapped

_F32 = frozenset({DType.FLOAT32})


class IntegerConvolution(Convolution):
    """Base of convolutions of int8 or uint8 images and weights. Sums are exact, then wrap around to int32."""

    per_example = ("x",)
    symbolic_inference = True

    def operand_ranks(self, *inputs: Any) -> Sequence[int | None]:
        ranks = super().operand_ranks(*inputs)
        return [r if f.name in ("x", "w", "b") else None for r, f in zip(ranks, self.formals, strict=False)]

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*outputs[0].known_shape, *self.named_inputs(inputs)["w"].known_shape[1:]))

    def check_channels(self, what: str, parameter: TensorType | None, w: TensorType) -> None:
        """Raise TypeMismatch unless a parameter is one number, or a vector with one per output channel."""
        if parameter is None or parameter.shape is None or len(parameter.shape) == 0 or parameter.shape == (1,):
            return
        channels = dims.fresh() if w.shape is None else w.shape[0]
        if len(parameter.shape) != 1 or not dims.may_equal(parameter.shape[0], channels):
            raise TypeMismatch(f"{what} {parameter} does not fit {channels} output channels")

    def sums(self, xp: Any, x: Any, w: Any, x_zero: Any, w_zero: Any, bias: Any = None) -> Any:
        """Return the convolution of x - x_zero and w - w_zero as int32, plus an int32 bias. Padding is 0."""
        zero = None if w_zero is None else per_channel(w_zero, w.ndim, axis=0)
        centred_x, centred_w = centred(xp, x, number(xp, x_zero)), centred(xp, w, zero)
        total = convolve(xp, centred_x, centred_w, self.geometry(x.shape, w.shape)).astype(np.int64)
        return wrapped(total if bias is None else total + per_channel(bias, x.ndim).astype(np.int64))


def per_channel(parameter: Any, rank: int, axis: int = 1) -> Any:
    """Reshape one number, or one per channel along `axis`, so that it broadcasts to arrays of this rank."""
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape(-1, *(1,) * (rank - axis - 1))


def _bytes(*shape: int, dtype: str = "uint8") -> Rand:
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    return Rand(shape, low, high, dtype)


def _scalar(value: Any, dtype: Any) -> np.ndarray:
    return np.array(value, dtype)


_X, _W = _bytes(2, 3, 5, 6), _bytes(4, 3, 3, 2, dtype="int8")
_PADDED: dict[str, Any] = {"pads": (1, 0, 2, 1), "strides": (2, 3), "kernel_shape": (3, 2)}


@op
class ConvInteger(IntegerConvolution):
    """The convolution of x - x_zero_point with w - w_zero_point in int32; sums wrap around.

    x: [N, C, *spatial], w: [M, C / group, *kernel], x_zero_point: one number, w_zero_point: one number or [M] -> int32
    [N, M, *positions]. Padded elements count as x_zero_point, that is as 0.
    """

    inputs = ("x", "w", "x_zero_point?", "w_zero_point?")
    types = {"x": BYTES, "w": BYTES, "x_zero_point": "x", "w_zero_point": "w"}
    onnx = Onnx("ConvInteger", since=10)
    samples: ClassVar[Any] = lambda: (
        Sample(_X, _bytes(4, 3, 3, 2)),
        Sample(_X, _W, _scalar(7, np.uint8), **_PADDED),
        Sample(_X, _W, _scalar(7, np.uint8), _scalar(-3, np.int8), auto_pad="SAME_UPPER"),
        Sample(_X, _bytes(4, 3, 3, 2), _scalar(130, np.uint8), np.arange(4, dtype=np.uint8)),
        Sample(_bytes(1, 4, 7), _bytes(6, 2, 3), _scalar(1, np.uint8), group=2, dilations=(2,)),
        Sample(_bytes(0, 3, 5, 6), _W),
    )

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        x_zero_point: TensorType | None = None,
        w_zero_point: TensorType | None = None,
    ) -> TensorType:
        single("x_zero_point", x_zero_point)
        self.check_channels("w_zero_point", w_zero_point, w)
        return TensorType(DType.INT32, self._conv_shape(x, w))

    def reference(self, xp: Any, x: Any, w: Any, x_zero_point: Any = None, w_zero_point: Any = None) -> Any:
        return self.sums(xp, x, w, x_zero_point, w_zero_point)


@op
class QLinearConv(IntegerConvolution):
    """Quantised convolution: (int32 sums of ConvInteger + b) * x_scale * w_scale / y_scale, rounded, + y_zero_point.

    Ties go to even; the result is clipped to the bounds of y_zero_point's type. x: [N, C, *spatial], w: [M, C / group,
    *kernel], b: int32 [M]; w_scale and w_zero_point: one number or [M]; the other scales and zero points: one number.
    The multiplier and its product with the sums are float32, as in ONNX Runtime.
    """

    inputs = (
        "x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "b?",
    )  # fmt: skip
    types = {
        "x": BYTES, "x_scale": _F32, "x_zero_point": "x", "w": BYTES, "w_scale": _F32, "w_zero_point": "w",
        "y_scale": _F32, "y_zero_point": BYTES, "b": frozenset({DType.INT32}),
    }  # fmt: skip
    onnx = Onnx("QLinearConv", since=10)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        f32, u8, i8 = np.float32, np.uint8, np.int8
        x = (_X, _scalar(0.05, f32), _scalar(120, u8))
        y = (_scalar(0.6, f32), _scalar(100, u8))
        w = (_W, _scalar(0.02, f32), _scalar(3, i8))
        channels = (_W, np.array([0.02, 0.5, 0.001, 0.04], f32), np.zeros(4, i8))
        bias = np.array([1000, -70000, 5, 0], np.int32)
        flat = (_bytes(1, 4, 7, dtype="int8"), _scalar(0.05, f32), _scalar(-5, i8))
        return (
            Sample(*x, *w, *y),
            Sample(*x, *w, *y, bias, **_PADDED),
            Sample(*x, *channels, *y, bias, auto_pad="SAME_LOWER"),
            Sample(*x, *channels, y[0], _scalar(-9, i8), bias, **_PADDED),
            Sample(*flat, _bytes(6, 2, 3, dtype="int8"), *w[1:], y[0], _scalar(0, i8), group=2, dilations=(2,)),
            Sample(_bytes(0, 3, 5, 6), *x[1:], *w, *y),
        )

    def infer(self, *operands: TensorType) -> TensorType:
        named = self.named_inputs(operands)
        for name in ("x_scale", "x_zero_point", "y_scale", "y_zero_point"):
            single(name, named[name])
        for name in ("w_scale", "w_zero_point", "b"):
            self.check_channels(name, named[name], named["w"])
        return TensorType(named["y_zero_point"].dtype, self._conv_shape(named["x"], named["w"]))

    def reference(self, xp: Any, *operands: Any) -> Any:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = operands
        total = self.sums(xp, x, w, x_zero, w_zero, bias[0] if bias else None)
        multiplier = number(xp, x_scale) * per_channel(w_scale, x.ndim) / number(xp, y_scale)
        return requantised(xp, total, multiplier, number(xp, y_zero), DType.of(y_zero.dtype))
