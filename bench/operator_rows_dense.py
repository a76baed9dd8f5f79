"""More rows of `operator_rows.py`: windows, products, recurrent layers, quantisation, detection and signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from operator_operands import Operand, boxes, definite, given, held, integers, normal, small, uniform
from operator_rows import row
from operator_shapes import IMAGES, ODD, ODD_IMAGES, SQUARE

# --- windows --------------------------------------------------------------------------------------

_STRIDED: dict[str, Any] = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
for _name in ("MaxPool", "AveragePool", "LpPool"):
    row(_name, _name, [normal(*IMAGES)], [normal(*ODD_IMAGES)], **_STRIDED)
row("MaxPool_indices", "MaxPool", [normal(*IMAGES)], [normal(*ODD_IMAGES)], 2, **_STRIDED)
row("GlobalAveragePool", "GlobalAveragePool", [normal(*IMAGES)], [normal(*ODD_IMAGES)])
row("GlobalMaxPool", "GlobalMaxPool", [normal(*IMAGES)], [normal(*ODD_IMAGES)])
row(
    "MaxPool_3d",
    "MaxPool",
    [normal(4, 16, 16, 32, 32)],
    [normal(3, 10, 11, 30, 41)],
    kernel_shape=[2] * 3,
    strides=[2] * 3,
)
row("MaxPool_1d", "MaxPool", [normal(16, 64, 1024)], [normal(7, 50, 1501)], kernel_shape=[4], strides=[4])


def _unpooled(images: int, channels: int, height: int, width: int) -> list[Operand]:
    planes = np.arange(images * channels)[:, None] * height * width * 4
    places = (planes + np.arange(height * width) * 4).reshape(images, channels, height, width)
    return [normal(images, channels, height, width), given(places)]


row("MaxUnpool", "MaxUnpool", _unpooled(4, 16, 64, 64), _unpooled(3, 10, 51, 70), kernel_shape=[2, 2], strides=[2, 2])
_TWICE, _HALF = (
    [given([], "float32"), given([1, 1, 2, 2], "float32")],
    [given([], "float32"), given([1, 1, 0.5, 0.5], "float32")],
)
for _mode, _places in (
    ("nearest", "asymmetric"),
    ("linear", "half_pixel"),
    ("linear", "align_corners"),
    ("cubic", "half_pixel"),
):
    row(
        f"Resize_{_mode}_{_places}",
        "Resize",
        [normal(4, 32, 64, 64), *_TWICE],
        [normal(3, 20, 51, 70), *_TWICE],
        mode=_mode,
        coordinate_transformation_mode=_places,
    )
row(
    "Resize_down",
    "Resize",
    [normal(4, 32, 128, 128), *_HALF],
    [normal(3, 20, 102, 140), *_HALF],
    mode="linear",
    antialias=1,
)
row(
    "GridSample",
    "GridSample",
    [normal(4, 32, 64, 64), uniform(4, 64, 64, 2)],
    [normal(3, 20, 51, 70), uniform(3, 60, 33, 2)],
)
row(
    "RoiAlign",
    "RoiAlign",
    [normal(1, 64, 64, 64), boxes(60, 100, 4), integers(1, 100)],
    [normal(2, 50, 51, 70), boxes(45, 77, 4), integers(2, 77)],
    output_height=7,
    output_width=7,
    sampling_ratio=2,
)
_SELECTION = [given([100]), given([0.5], "float32"), given([0.1], "float32")]
row(
    "NonMaxSuppression",
    "NonMaxSuppression",
    [boxes(100, 1, 2000, 4), uniform(1, 20, 2000), *_SELECTION],
    [boxes(100, 1, 1501, 4), uniform(1, 7, 1501), *_SELECTION],
)
row(
    "Col2Im",
    "Col2Im",
    [normal(4, 576, 1024), given([32, 32]), given([3, 3])],
    [normal(3, 180, 1147), given([37, 31]), given([3, 3])],
    pads=[1] * 4,
)


def convolution(
    name: str,
    x: Sequence[int],
    w: Sequence[int],
    other_x: Sequence[int],
    other_w: Sequence[int],
    operator: str = "Conv",
    **attributes: Any,
) -> None:
    """Add a row, whose filters are constants."""
    row(name, operator, [normal(*x), *held(normal(*w))], [normal(*other_x), *held(normal(*other_w))], **attributes)


P1, P2, P3 = [1] * 4, [2] * 4, [3] * 4
convolution("Conv_3x3", (1, 64, 56, 56), (64, 64, 3, 3), (1, 50, 61, 47), (70, 50, 3, 3), pads=P1)
convolution("Conv_1x1", (1, 256, 28, 28), (128, 256, 1, 1), (1, 130, 31, 29), (75, 130, 1, 1))
convolution("Conv_depthwise", (1, 128, 56, 56), (128, 1, 3, 3), (1, 128, 61, 47), (128, 1, 3, 3), pads=P1, group=128)
convolution("Conv_depthwise_5", (1, 128, 28, 28), (128, 1, 5, 5), (1, 128, 31, 29), (128, 1, 5, 5), pads=P2, group=128)
convolution("Conv_depthwise_7", (1, 128, 28, 28), (128, 1, 7, 7), (1, 128, 31, 29), (128, 1, 7, 7), pads=P3, group=128)
convolution("Conv_groups", (1, 128, 28, 28), (128, 4, 3, 3), (1, 160, 31, 29), (96, 5, 3, 3), pads=P1, group=32)
convolution("Conv_dilated", (1, 64, 56, 56), (64, 64, 3, 3), (1, 50, 61, 47), (70, 50, 3, 3), pads=P2, dilations=[2, 2])
convolution("Conv_stem_7", (1, 3, 224, 224), (64, 3, 7, 7), (1, 3, 201, 173), (32, 3, 7, 7), pads=P3, strides=[2, 2])
convolution("Conv_patches_16", (1, 3, 224, 224), (384, 3, 16, 16), (1, 3, 208, 160), (200, 3, 16, 16), strides=[16, 16])
convolution("Conv_1d", (1, 256, 512), (256, 256, 3), (1, 200, 601), (130, 200, 3), pads=[1, 1])
convolution("Conv_1d_depthwise", (1, 256, 512), (256, 1, 31), (1, 256, 601), (256, 1, 31), pads=[15, 15], group=256)
convolution("Conv_3d", (1, 16, 16, 32, 32), (32, 16, 3, 3, 3), (1, 13, 15, 29, 31), (20, 13, 3, 3, 3), pads=[1] * 6)
convolution("Conv_1_channel", (8, 1, 64, 64), (16, 1, 3, 3), (5, 1, 71, 53), (20, 1, 3, 3), pads=P1)
convolution("Conv_1x7", (1, 128, 17, 17), (128, 128, 1, 7), (1, 100, 19, 15), (77, 100, 1, 7), pads=[0, 3, 0, 3])
convolution(
    "ConvTranspose_2",
    (1, 128, 28, 28),
    (128, 64, 2, 2),
    (1, 100, 31, 29),
    (100, 50, 2, 2),
    "ConvTranspose",
    strides=[2, 2],
)
convolution(
    "ConvTranspose_4", (1, 128, 14, 14), (128, 64, 4, 4), (1, 100, 19, 15), (100, 50, 4, 4), "ConvTranspose",
    strides=[2, 2], pads=P1,
)  # fmt: skip
convolution(
    "ConvTranspose_1d", (1, 128, 200), (128, 64, 16), (1, 100, 151), (100, 50, 16), "ConvTranspose",
    strides=[8], pads=[4, 4],
)  # fmt: skip
convolution(
    "ConvTranspose_depthwise", (1, 64, 28, 28), (64, 1, 4, 4), (1, 64, 31, 29), (64, 1, 4, 4), "ConvTranspose",
    strides=[2, 2], pads=P1, group=64,
)  # fmt: skip
row(
    "DeformConv",
    "DeformConv",
    [normal(1, 32, 32, 32), *held(normal(32, 32, 3, 3)), normal(1, 18, 32, 32)],
    [normal(2, 20, 37, 29), *held(normal(33, 20, 3, 3)), normal(2, 18, 37, 29)],
    pads=P1,
)

# --- products -------------------------------------------------------------------------------------


def product(
    name: str, shapes: Sequence[Sequence[int]], others: Sequence[Sequence[int]], dtype: str = "float32", *, fixed: bool
) -> None:
    """Add a row. fixed: the second matrix is a constant."""
    sets = [[normal(*shape, dtype=dtype) for shape in pair] for pair in (shapes, others)]
    first, second = [[a, *held(b)] if fixed else [a, b] for a, b in sets]
    row(name, "MatMul", first, second)


product("MatMul_256", ((256, 256), (256, 256)), ((201, 333), (333, 157)), fixed=False)
product("MatMul_batched", ((64, 64, 64), (64, 64, 64)), ((30, 50, 70), (30, 70, 33)), fixed=False)
product("MatMul_broadcast", ((64, 32, 64), (64, 64)), ((7, 133, 75), (75, 101)), fixed=False)
product("MatMul_vector", ((1024, 1024), (1024,)), ((777, 1301), (1301,)), fixed=False)
product("MatMul_column", ((1024, 1024), (1024, 1)), ((777, 1301), (1301, 1)), fixed=True)
product("MatMul_row", ((1, 1024), (1024, 1024)), ((3, 777), (777, 1301)), fixed=True)
product("MatMul_tiny", ((4096, 4, 4), (4096, 4, 4)), ((2001, 5, 3), (2001, 3, 5)), fixed=False)
product("MatMul_f64", ((256, 256), (256, 256)), ((201, 333), (333, 157)), "float64", fixed=False)
product("MatMul_i32", ((256, 256), (256, 256)), ((201, 333), (333, 157)), "int32", fixed=False)
product("MatMul_f16", ((256, 256), (256, 256)), ((201, 333), (333, 157)), "float16", fixed=False)
row(
    "Gemm_transposed",
    "Gemm",
    [normal(256, 256), normal(256, 256), normal(256)],
    [normal(333, 201), normal(157, 333), normal(157)],
    transA=1,
    transB=1,
)
row(
    "Einsum_bhid",
    "Einsum",
    [normal(8, 8, 64, 64), normal(8, 8, 64, 64)],
    [normal(3, 5, 77, 40), normal(3, 5, 91, 40)],
    equation="bhid,bhjd->bhij",
)
row("Einsum_outer", "Einsum", [normal(1024), normal(1024)], [normal(777), normal(1301)], equation="i,j->ij")
row("Einsum_trace", "Einsum", [normal(512, 64, 64)], [normal(301, 51, 51)], equation="bii->b")
row("Det", "Det", [definite(64, 32, 32)], [definite(301, 7, 7)])
row(
    "LSTM",
    "LSTM",
    [normal(64, 1, 64), *held(small(1, 512, 64), small(1, 512, 128), small(1, 1024))],
    [normal(33, 3, 50), *held(small(1, 400, 50), small(1, 400, 100), small(1, 800))],
)
row(
    "GRU_both_directions",
    "GRU",
    [normal(64, 4, 64), *held(small(2, 384, 64), small(2, 384, 128))],
    [normal(33, 3, 50), *held(small(2, 300, 50), small(2, 300, 100))],
    direction="bidirectional",
)
row(
    "RNN",
    "RNN",
    [normal(64, 4, 64), *held(small(1, 128, 64), small(1, 128, 128))],
    [normal(33, 3, 50), *held(small(1, 100, 50), small(1, 100, 100))],
)

# --- quantisation and signals ---------------------------------------------------------------------

_SCALE = [given(0.05, "float32"), given(128, "uint8")]
row("QuantizeLinear", "QuantizeLinear", [normal(*SQUARE), *_SCALE], [normal(*ODD), *_SCALE])
row(
    "DequantizeLinear",
    "DequantizeLinear",
    [integers(255, *SQUARE, dtype="uint8"), *_SCALE],
    [integers(255, *ODD, dtype="uint8"), *_SCALE],
)
row("DynamicQuantizeLinear", "DynamicQuantizeLinear", [normal(*SQUARE)], [normal(*ODD)], 3)
row(
    "MatMulInteger",
    "MatMulInteger",
    [integers(255, 256, 256, dtype="uint8"), *held(integers(99, 256, 256, dtype="int8"))],
    [integers(255, 201, 333, dtype="uint8"), *held(integers(99, 333, 157, dtype="int8"))],
)
row(
    "STFT",
    "STFT",
    [normal(1, 16000, 1), given(160), given(np.hanning(400), "float32")],
    [normal(3, 9001, 1), given(101), given(np.hanning(256), "float32")],
)
row("DFT", "DFT", [normal(64, 1024, 1)], [normal(33, 600, 1)], onesided=1)
