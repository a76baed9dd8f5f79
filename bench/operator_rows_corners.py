"""Single operators at unusual shapes: primes, 3 rows or columns, 1 or 2,000 channels, and few elements.

The first operands of a row have unusual shapes. The other operands have few elements, so that they measure the cost of
a call; only grouped convolutions keep all channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from operator_operands import Operand, given, held, integers, normal, positive, small, truths, uniform
from operator_rows import Row, add_row
from operator_shapes import P2, P3, PLANE, TALL, TINY, WIDE, one_window

CORNERS: dict[str, Row] = {}
corner = partial(add_row, CORNERS)

# --- elementwise ----------------------------------------------------------------------------------

_UNARY = "Abs Exp Log Tanh Sigmoid Erf Gelu Relu HardSwish Sign Floor Softplus Not"
for _name in _UNARY.split():
    _kind: Any = positive if _name == "Log" else truths if _name == "Not" else normal
    corner(_name, _name, [_kind(*P2)], [_kind(*TINY)])
for _name in ["Add", "Mul", "Div", "Max", "Pow", "Greater"]:
    corner(f"{_name}_3_columns", _name, [positive(*TALL), positive(3)], [positive(2, 5), positive(5)])
    corner(f"{_name}_3_rows", _name, [positive(*P3), positive(3, 1)], [positive(2, 5), positive(2, 1)])
corner("Add_scalar", "Add", [normal(*P2), normal(1)], [normal(*TINY), normal(1)])
corner("Mul_inner", "Mul", [normal(101, 103, 107), normal(101, 1, 107)], [normal(2, 2, 3), normal(2, 1, 3)])
corner("Equal_outer_u8", "Equal", [integers(99, 997, 1, dtype="uint8"), integers(99, 1, 1009, dtype="uint8")],
       [integers(9, 2, 1, dtype="uint8"), integers(9, 1, 5, dtype="uint8")])  # fmt: skip
corner("Pow_i32_2", "Pow", [integers(99, *P2, dtype="int32"), given(2, "int32")],
       [integers(9, *TINY, dtype="int32"), given(2, "int32")])  # fmt: skip
corner("Div_i32_row", "Div", [integers(99999, *P2, dtype="int32"), Operand("divisors", (1009,), "int32", 99)],
       [integers(9, 2, 5, dtype="int32"), Operand("divisors", (5,), "int32", 9)])  # fmt: skip
corner("Mul_channels", "Mul", [normal(*WIDE), normal(1, 2000, 1, 1)], [normal(1, 2, 2, 2), normal(1, 2, 1, 1)])
corner("Where_rows", "Where", [truths(3, 1), normal(*P3), normal(*P3)], [truths(10), normal(10), normal(10)])
corner("Where_scalar", "Where", [truths(*P2), normal(1), normal(*P2)], [truths(10), normal(1), normal(10)])
corner("PRelu_channels", "PRelu", [normal(*WIDE), normal(2000, 1, 1)], [normal(1, 2, 2, 2), normal(2, 1, 1)])
for _name, _from, _to in (
    ("f16_f32", normal(*P2, dtype="float16"), 1), ("i64_f32", integers(9, *P2), 1),
    ("i32_i64", integers(9, *P2, dtype="int32"), 7), ("u8_f32", integers(9, *P2, dtype="uint8"), 1),
    ("bool_f32", truths(*P2), 1), ("i64_i32", integers(9, *P2), 6), ("i32_u8", integers(9, *P2, dtype="int32"), 2),
    ("i16_i64", integers(9, *P2, dtype="int16"), 7),
):  # fmt: skip
    corner(f"Cast_{_name}", "Cast", [_from], [Operand(_from.kind, TINY, _from.dtype, _from.high)], to=_to)

# --- rows and reductions --------------------------------------------------------------------------

for _name in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2"):
    corner(f"{_name}_3_rows", _name, [normal(*P3), given([1])], [normal(2, 5), given([1])])
    corner(f"{_name}_of_3", _name, [normal(*TALL), given([1])], [normal(5, 2), given([1])])
    corner(f"{_name}_over_3", _name, [normal(*P3), given([0])], [normal(2, 5), given([0])])
    corner(f"{_name}_tall", _name, [normal(*TALL), given([0])], [normal(5, 2), given([0])])
    corner(f"{_name}_plane", _name, [normal(*WIDE), given([2, 3])], [normal(1, 2, 2, 2), given([2, 3])])
for _name in ("Softmax", "LogSoftmax", "ArgMax", "Hardmax"):
    corner(f"{_name}_3_rows", _name, [normal(*P3)], [normal(2, 5)], axis=1)
    corner(f"{_name}_of_3", _name, [normal(*TALL)], [normal(5, 2)], axis=1)
    corner(f"{_name}_over_3", _name, [normal(*P3)], [normal(2, 5)], axis=0)
    corner(f"{_name}_middle", _name, [normal(7, 211, 61)], [normal(2, 2, 2)], axis=1)
corner("CumSum_of_3", "CumSum", [normal(*TALL), given(1)], [normal(5, 2), given(1)])
corner("CumSum_long", "CumSum", [normal(300007), given(0)], [normal(10), given(0)])
corner("CumSum_middle", "CumSum", [normal(7, 211, 61), given(1)], [normal(2, 2, 2), given(1)])
corner("TopK_1", "TopK", [normal(*P3), given([1])], [normal(2, 5), given([1])], 2)
corner("TopK_2_of_3", "TopK", [normal(*TALL), given([2])], [normal(5, 2), given([1])], 2)
corner("TopK_5_of_61", "TopK", [normal(4001, 61), given([5])], [normal(2, 5), given([2])], 2)
corner("LayerNormalization_of_3", "LayerNormalization", [normal(*TALL), *held(normal(3), normal(3))],
       [normal(2, 5), *held(normal(5), normal(5))])  # fmt: skip
corner("LayerNormalization_3_rows", "LayerNormalization", [normal(*P3), *held(normal(100003), normal(100003))],
       [normal(2, 5), *held(normal(5), normal(5))])  # fmt: skip
_W, _T = held(normal(2000), normal(2000)), held(normal(2), normal(2))
for _name, _more in (("InstanceNormalization", {}), ("GroupNormalization", {"num_groups": 2})):
    corner(_name, _name, [normal(*WIDE), *_W], [normal(1, 2, 2, 2), *_T], **_more)
corner("BatchNormalization", "BatchNormalization", [normal(*WIDE), *_W, *held(normal(2000), positive(2000))],
       [normal(1, 2, 2, 2), *_T, *held(normal(2), positive(2))])  # fmt: skip
corner("LRN_wide", "LRN", [normal(*WIDE)], [normal(1, 2, 2, 2)], size=5)
corner("LRN_3", "LRN", [normal(1, 3, 199, 211)], [normal(1, 3, 2, 1)], size=3)

# --- data movement --------------------------------------------------------------------------------

corner("Transpose_3_rows", "Transpose", [normal(*P3)], [normal(2, 5)], perm=[1, 0])
corner("Transpose_3_columns", "Transpose", [normal(*TALL)], [normal(5, 2)], perm=[1, 0])
corner("Transpose_primes", "Transpose", [normal(*P2)], [normal(5, 2)], perm=[1, 0])
corner("Transpose_channels", "Transpose", [normal(*WIDE)], [normal(1, 2, 2, 2)], perm=[0, 2, 3, 1])
corner("Transpose_image", "Transpose", [normal(1, 211, 223, 3)], [normal(1, 2, 2, 2)], perm=[0, 3, 1, 2])
corner("Transpose_image_u8", "Transpose", [integers(255, 1, 211, 223, 3, dtype="uint8")],
       [integers(255, 1, 2, 2, 2, dtype="uint8")], perm=[0, 3, 1, 2])  # fmt: skip
corner("Transpose_102", "Transpose", [normal(197, 12, 61)], [normal(2, 2, 2)], perm=[1, 0, 2])
corner("Transpose_021_i64", "Transpose", [integers(9, 13, 101, 103)], [integers(9, 2, 2, 2)], perm=[0, 2, 1])
corner("Concat_columns", "Concat", [normal(*TALL), normal(100003, 1)], [normal(5, 1), normal(5, 2)], axis=1)
corner("Concat_channels", "Concat", [normal(*WIDE), normal(1, 1, 7, 7)], [normal(1, 1, 2), normal(1, 2, 2)], axis=1)
corner("Split_columns", "Split", [normal(*TALL)], [normal(3, 3)], 3, axis=1, num_outputs=3)
corner("Slice_columns", "Slice", [normal(*P2), given([1]), given([8]), given([1])],
       [normal(2, 5), given([1]), given([4]), given([1])])  # fmt: skip
corner("Slice_1_column", "Slice", [normal(*TALL), given([1]), given([2]), given([1])],
       [normal(2, 5), given([1]), given([2]), given([1])])  # fmt: skip
corner("Pad_columns", "Pad", [normal(*TALL), given([0, 1, 0, 1])], [normal(2, 5), given([0, 1, 0, 1])])
corner("Pad_plane", "Pad", [normal(*PLANE), given([0, 0, 1, 1] * 2)], [normal(1, 1, 2, 2), given([0, 0, 1, 1] * 2)])
corner("Tile_3", "Tile", [normal(3), given([100003])], [normal(3), given([3])])
corner("Tile_columns", "Tile", [normal(1009, 1), given([1, 997])], [normal(3, 1), given([1, 3])])
corner("Expand_3", "Expand", [normal(1, 3), given([100003, 3])], [normal(1, 3), given([3, 3])])
corner("Expand_heads", "Expand", [normal(2, 1, 997, 61), given([2, 7, 997, 61])], [normal(2, 1, 2), given([2, 3, 2])])
corner("Gather_rows_of_3", "Gather", [normal(*TALL), integers(100003, 50021)], [normal(5, 2), integers(5, 3)])
corner("Gather_elements_1", "Gather", [normal(100003), integers(100003, 50021)], [normal(5), integers(5, 3)])
corner("Gather_columns", "Gather", [normal(*P2), integers(1009, 3)], [normal(2, 5), integers(5, 2)], axis=1)
corner("Gather_scalar", "Gather", [normal(*TALL), given(1)], [normal(5, 2), given(1)], axis=1)
corner("GatherElements_0", "GatherElements", [normal(*P2), integers(997, 499, 1009)],
       [normal(2, 5), integers(2, 2, 5)], axis=0)  # fmt: skip
corner("GatherND_rows", "GatherND", [normal(61, 67, 71), integers(61, 5003, 2)], [normal(2, 5), integers(2, 3, 1)])
corner("ScatterElements_0", "ScatterElements", [normal(*P2), integers(997, 101, 1009), normal(101, 1009)],
       [normal(2, 5), integers(2, 2, 5), normal(2, 5)], axis=0, reduction="add")  # fmt: skip
_PLACES = np.random.default_rng(1).permutation(100003)[:50021, None]
corner("ScatterND_elements", "ScatterND", [normal(100003), given(_PLACES), normal(50021)],
       [normal(5), given([[1], [3]]), normal(2)])  # fmt: skip
corner("OneHot_3", "OneHot", [integers(3, 100003), given([3]), given([0, 1], "float32")],
       [integers(3, 3), given([3]), given([0, 1], "float32")])  # fmt: skip
corner("NonZero_long", "NonZero", [truths(300007)], [truths(10)])
corner("Compress_elements", "Compress", [normal(300007), truths(300007)], [normal(10), truths(10)])
corner("Unique_few", "Unique", [integers(3, 300007)], [integers(3, 10)], 4)
corner("Trilu_primes", "Trilu", [normal(7, 211, 199)], [normal(3, 3)])
corner("DepthToSpace_12", "DepthToSpace", [normal(1, 12, 199, 211)], [normal(1, 4, 2, 1)], blocksize=2)
corner("SpaceToDepth_3", "SpaceToDepth", [normal(1, 3, 398, 422)], [normal(1, 1, 2, 2)], blocksize=2)
corner("ReverseSequence_3", "ReverseSequence", [normal(1009, 3, 61), given([900, 1009, 7])],
       [normal(2, 2, 2), given([1, 2])])  # fmt: skip

# --- windows --------------------------------------------------------------------------------------

_WINDOWS: dict[str, tuple[Operand, Mapping[str, Any]]] = {
    "3x3": (normal(*PLANE), dict(kernel_shape=[3, 3], pads=[1] * 4)),
    "5x5": (normal(1, 251, 19, 19), dict(kernel_shape=[5, 5], pads=[2] * 4)),
    "2x2": (normal(1, 3, 398, 422), dict(kernel_shape=[2, 2], strides=[2, 2])),
    "wide": (normal(*WIDE), dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)),
    "whole": (normal(*WIDE), dict(kernel_shape=[7, 7])),
    "long": (normal(1, 3, 100003), dict(kernel_shape=[7], strides=[5])),
}
for _window, (_operand, _more) in _WINDOWS.items():
    for _name in ("MaxPool", "AveragePool"):
        _tiny = (1, 1, *_more["kernel_shape"])
        corner(f"{_name}_{_window}", _name, [_operand], [normal(*_tiny)], **_more)
corner("GlobalAveragePool_wide", "GlobalAveragePool", [normal(*WIDE)], [normal(1, 2, 2, 2)])
corner("GlobalAveragePool_1", "GlobalAveragePool", [normal(*PLANE)], [normal(1, 1, 2, 2)])
corner("GlobalMaxPool_wide", "GlobalMaxPool", [normal(*WIDE)], [normal(1, 2, 2, 2)])
for _name, _from, _sizes in (("up", (1, 3, 97, 89), [1, 3, 223, 227]), ("down", (1, 3, 499, 509), [1, 3, 223, 227]),
                             ("wide", WIDE, [1, 2000, 14, 14])):  # fmt: skip
    for _mode in ("nearest", "linear"):
        corner(f"Resize_{_mode}_{_name}", "Resize",
               [normal(*_from), given([], "float32"), given([], "float32"), given(_sizes)],
               [normal(1, 1, 2, 2), given([], "float32"), given([], "float32"), given([1, 1, 3, 4])],
               mode=_mode)  # fmt: skip
corner(
    "GridSample_1", "GridSample", [normal(*PLANE), uniform(1, 101, 103, 2)], [normal(1, 1, 2, 2), uniform(1, 2, 2, 2)]
)

_CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = {
    "1_to_1": (PLANE, (1, 1, 3, 3), dict(pads=[1] * 4)),
    "1_to_1_5x5": (PLANE, (1, 1, 5, 5), dict(pads=[2] * 4)),
    "1_to_61": ((1, 1, 101, 103), (61, 1, 3, 3), dict(pads=[1] * 4)),
    "61_to_1": ((1, 61, 101, 103), (1, 61, 3, 3), dict(pads=[1] * 4)),
    "3_to_3": ((1, 3, 211, 223), (3, 3, 3, 3), dict(pads=[1] * 4)),
    "3_to_3_1x1": ((1, 3, 211, 223), (3, 3, 1, 1), {}),
    "7_to_11_5x5": ((1, 7, 101, 103), (11, 7, 5, 5), dict(pads=[2] * 4)),
    "64_to_3": ((1, 64, 101, 103), (3, 64, 3, 3), dict(pads=[1] * 4)),
    "2000_1x1": (WIDE, (211, 2000, 1, 1), {}),
    "2000_3x3": ((1, 2000, 3, 3), (61, 2000, 3, 3), dict(pads=[1] * 4)),
    "1_pixel": ((1, 2000, 1, 1), (211, 2000, 1, 1), {}),
    "3_images_1_pixel": ((3, 480, 1, 1), (20, 480, 1, 1), {}),
    "depthwise_2000": (WIDE, (2000, 1, 3, 3), dict(pads=[1] * 4, group=2000)),
    "depthwise_2000_strided": ((1, 2000, 15, 13), (2000, 1, 5, 5), dict(pads=[2] * 4, strides=[2, 2], group=2000)),
    "depthwise_3": ((1, 3, 211, 223), (3, 1, 3, 3), dict(pads=[1] * 4, group=3)),
    "depthwise_3_11x11": ((1, 3, 211, 223), (3, 1, 11, 11), dict(group=3)),
    "depthwise_twice": ((1, 101, 29, 31), (202, 1, 3, 3), dict(pads=[1] * 4, group=101)),
    "groups_of_2": ((1, 122, 29, 31), (122, 2, 3, 3), dict(pads=[1] * 4, group=61)),
    "groups_2_of_61": ((1, 122, 29, 31), (122, 61, 3, 3), dict(pads=[1] * 4, group=2)),
    "groups_3_of_10": ((1, 30, 32, 44), (6, 10, 3, 3), dict(pads=[1] * 4, group=3)),
    "depthwise_1x1": ((2, 151, 52, 57), (151, 1, 1, 1), dict(group=151)),
    "2x2": ((1, 61, 53, 59), (67, 61, 2, 2), dict(strides=[2, 2])),
    "1x1_strided": ((1, 251, 29, 31), (127, 251, 1, 1), dict(strides=[2, 2])),
    "dilated_5": ((1, 31, 61, 59), (37, 31, 3, 3), dict(pads=[5] * 4, dilations=[5, 5])),
    "3x3_strided": ((1, 61, 57, 59), (127, 61, 3, 3), dict(pads=[1] * 4, strides=[2, 2])),
    "1x15": ((1, 61, 29, 101), (61, 61, 1, 15), dict(pads=[0, 7, 0, 7])),
    "1d_1_channel": ((1, 1, 16001), (61, 1, 400), dict(strides=[160])),
    "1d_1_to_1": ((1, 1, 100003), (1, 1, 31), dict(pads=[15, 15])),
    "1d_2000": ((1, 2000, 31), (61, 2000, 3), dict(pads=[1, 1])),
    "1d_1x1": ((1, 509, 211), (251, 509, 1), {}),
    "1d_7_to_5": ((1, 7, 10007), (5, 7, 9), dict(pads=[4, 4])),
    "1d_depthwise_3_steps": ((1, 2000, 6), (2000, 1, 4), dict(group=2000)),
    "3d_1_channel": ((1, 1, 31, 61, 59), (13, 1, 3, 3, 3), dict(pads=[1] * 6)),
    "3d_depthwise": ((1, 61, 11, 23, 29), (61, 1, 3, 3, 3), dict(pads=[1] * 6, group=61)),
}
for _name, (_x, _w, _more) in _CONVOLUTIONS.items():
    _tiny_x, _tiny_w = one_window(_x, _w, _more.get("group", 1))
    corner(f"Conv_{_name}", "Conv", [normal(*_x), *held(small(*_w))],
           [normal(*_tiny_x), *held(small(*_tiny_w))], **_more)  # fmt: skip
_TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = {
    "1": ((1, 1, 101, 103), (1, 1, 4, 4), dict(strides=[2, 2], pads=[1] * 4)),
    "3x3": ((1, 61, 29, 31), (61, 37, 3, 3), dict(strides=[2, 2], pads=[1] * 4)),
    "3": ((1, 61, 61, 59), (61, 3, 4, 4), dict(strides=[2, 2], pads=[1] * 4)),
    "2000": ((1, 2000, 7, 7), (2000, 31, 2, 2), dict(strides=[2, 2])),
    "latent": ((3, 100, 1, 1), (100, 211, 4, 4), {}),
    "2_primes": ((1, 67, 53, 59), (67, 31, 2, 2), dict(strides=[2, 2])),
    "groups": ((1, 24, 32, 44), (24, 12, 3, 3), dict(strides=[2, 2], group=2)),
    "7x1_apart": ((1, 111, 57, 39), (111, 107, 7, 1), dict(strides=[3, 3])),
    "1d": ((1, 61, 997), (61, 31, 4), dict(strides=[2], pads=[1, 1])),
}
for _name, (_x, _w, _more) in _TRANSPOSED.items():
    _tiny_x, _tiny_w = one_window(_x, _w, _more.get("group", 1))
    corner(f"ConvTranspose_{_name}", "ConvTranspose", [normal(*_x), *held(small(*_w))],
           [normal(*_tiny_x), *held(small(*_tiny_w))], **_more)  # fmt: skip

# --- products -------------------------------------------------------------------------------------

_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "3_rows": ((3, 2003), (2003, 1009), True),
    "1_row_prime": ((1, 997), (997, 1009), True),
    "1_row_free": ((1, 997), (997, 1009), False),
    "3_rows_free": ((3, 997), (997, 1009), False),
    "17_rows": ((17, 509), (509, 1021), True),
    "16_rows_768": ((16, 768), (768, 768), True),
    "24_rows": ((24, 512), (512, 1376), True),
    "of_3": ((1009, 3), (3, 997), False),
    "of_3_fixed": ((1009, 3), (3, 997), True),
    "of_1": ((1009, 1), (1, 997), False),
    "to_3": ((1009, 997), (997, 3), True),
    "to_3_free": ((1009, 997), (997, 3), False),
    "to_11": ((2003, 211), (211, 11), True),
    "column_free": ((997, 1009), (1009, 1), False),
    "dot": ((1, 100003), (100003, 1), False),
    "columns_batched": ((48, 256, 64), (48, 64, 1), False),
    "rows_batched": ((48, 1, 64), (48, 64, 257), False),
    "3_rows_batched": ((61, 3, 67), (61, 67, 71), False),
    "of_3_batched": ((10007, 3, 3), (10007, 3, 3), False),
    "points": ((1, 100003, 3), (3, 3), True),
    "points_batched": ((7, 10007, 4), (7, 4, 4), False),
    "primes": ((211, 307), (307, 199), False),
    "heads": ((1, 12, 61, 67), (1, 12, 67, 61), False),
}
for _name, (_a, _b, _fixed) in _PRODUCTS.items():
    _weights = [held(normal(*shape)) if _fixed else [normal(*shape)] for shape in (_b, (5, 3))]
    corner(f"MatMul_{_name}", "MatMul", [normal(*_a), *_weights[0]], [normal(2, 5), *_weights[1]])
corner("Gemm_3_rows", "Gemm", [normal(3, 997), *held(normal(1009, 997), normal(1009))],
       [normal(2, 5), *held(normal(3, 5), normal(3))], transB=1)  # fmt: skip
corner("Gemm_transA", "Gemm", [normal(997, 3), normal(997, 211)], [normal(5, 2), normal(5, 3)], transA=1)
corner("Einsum_matvec", "Einsum", [normal(*P2), normal(1009)], [normal(2, 5), normal(5)], equation="ij,j->i")
corner("Einsum_heads", "Einsum", [normal(1, 61, 7, 31), normal(1, 67, 7, 31)], [normal(1, 2, 1, 3), normal(1, 2, 1, 3)],
       equation="bihd,bjhd->bhij")  # fmt: skip
corner("Einsum_dot", "Einsum", [normal(*P2), normal(*P2)], [normal(2, 5), normal(2, 5)], equation="ij,ij->i")
corner("LSTM_10", "LSTM", [normal(101, 1, 7), *held(small(1, 40, 7), small(1, 40, 10), small(1, 80))],
       [normal(2, 1, 3), *held(small(1, 8, 3), small(1, 8, 2), small(1, 16))])  # fmt: skip
corner("GRU_3", "GRU", [normal(101, 3, 7), *held(small(1, 33, 7), small(1, 33, 11))],
       [normal(2, 1, 3), *held(small(1, 6, 3), small(1, 6, 2))])  # fmt: skip
corner("MatMulInteger_3_rows", "MatMulInteger",
       [integers(255, 3, 997, dtype="uint8"), *held(integers(99, 997, 1009, dtype="int8"))],
       [integers(255, 2, 5, dtype="uint8"), *held(integers(99, 5, 3, dtype="int8"))])  # fmt: skip
corner("MatMulInteger_free", "MatMulInteger",
       [integers(255, 3, 509, dtype="uint8"), integers(99, 509, 521, dtype="uint8")],
       [integers(255, 2, 5, dtype="uint8"), integers(99, 5, 3, dtype="uint8")])  # fmt: skip
corner("MaxPool_f64", "MaxPool", [normal(3, 31, 101, 103, dtype="float64")], [normal(1, 1, 3, 3, dtype="float64")],
       kernel_shape=[3, 3], strides=[2, 2])  # fmt: skip
corner("MaxPool_u8", "MaxPool",
       [integers(99, 3, 31, 101, 103, dtype="uint8")], [integers(99, 1, 1, 3, 3, dtype="uint8")],
       kernel_shape=[3, 3])  # fmt: skip
_S = [given(np.linspace(0.01, 0.05, 997), "float32"), given(np.zeros(997), "int8")]
_S5 = [given([0.1, 0.2], "float32"), given([0, 0], "int8")]
corner("QuantizeLinear_rows", "QuantizeLinear", [normal(*P2), *_S], [normal(2, 5), *_S5], axis=0)
corner("DequantizeLinear_rows", "DequantizeLinear", [integers(99, *P2, dtype="int8"), *_S],
       [integers(99, 2, 5, dtype="int8"), *_S5], axis=0)  # fmt: skip
corner("DFT_prime", "DFT", [normal(61, 1009, 1)], [normal(1, 10, 1)], onesided=1)
