"""Operators with gradients at unusual shapes: primes, 3 rows or columns, 1 or 2,000 channels, and few elements.

The first operands of a row have unusual shapes. The other operands have few elements; only grouped convolutions keep
all channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gradient_rows import Gradient, add_row, const, first
from operator_operands import integers, normal, positive
from operator_shapes import P2, P3, PLANE, TALL, TINY, WIDE, one_window

import graphkit as gk

CORNERS: dict[str, Gradient] = {}
corner = partial(add_row, CORNERS)

corner("relu", gk.relu, lambda t, f, x: t.relu(x), [normal(*P2)], [normal(*TINY)])
corner("gelu", gk.gelu, lambda t, f, x: f.gelu(x), [normal(*P3)], [normal(*TINY)])
corner("log", gk.log, lambda t, f, x: t.log(x), [positive(*P2)], [positive(*TINY)])
corner("add_3", gk.add, lambda t, f, x, y: x + y, [normal(*TALL), normal(3)], [normal(2, 5), normal(5)])
corner("mul_3", gk.mul, lambda t, f, x, y: x * y, [normal(*TALL), normal(3)], [normal(2, 5), normal(5)])
corner("mul_rows", gk.mul, lambda t, f, x, y: x * y, [normal(*P3), normal(3, 1)], [normal(2, 5), normal(2, 1)])
corner("mul_inner", gk.mul, lambda t, f, x, y: x * y, [normal(101, 103, 107), normal(101, 1, 107)],
       [normal(2, 2, 3), normal(2, 1, 3)])  # fmt: skip
corner("mul_channels", gk.mul, lambda t, f, x, y: x * y, [normal(*WIDE), normal(2000, 1, 1)],
       [normal(1, 2, 2, 2), normal(2, 1, 1)])  # fmt: skip
for _name, _axis, _shape in (("of_3", 1, TALL), ("3_rows", 1, P3), ("over_3", 0, P3), ("middle", 1, (7, 211, 61))):
    corner(f"softmax_{_name}", lambda x, a=_axis: gk.softmax(x, axis=a), lambda t, f, x, a=_axis: t.softmax(x, a),
           [normal(*_shape)], [normal(2, 5)])  # fmt: skip
    corner(f"log_softmax_{_name}", lambda x, a=_axis: gk.log_softmax(x, axis=a),
           lambda t, f, x, a=_axis: t.log_softmax(x, a), [normal(*_shape)], [normal(2, 5)])  # fmt: skip
    corner(f"reduce_mean_{_name}", lambda x, a=_axis: gk.reduce_mean(x, const([a]), keepdims=0),
           lambda t, f, x, a=_axis: x.mean(a), [normal(*_shape)], [normal(2, 5)])  # fmt: skip
    corner(f"reduce_max_{_name}", lambda x, a=_axis: gk.reduce_max(x, const([a]), keepdims=0),
           lambda t, f, x, a=_axis: x.amax(a), [normal(*_shape)], [normal(2, 5)])  # fmt: skip
    corner(f"cumsum_{_name}", lambda x, a=_axis: gk.cum_sum(x, const(a)),
           lambda t, f, x, a=_axis: x.cumsum(a), [normal(*_shape)], [normal(2, 5)])  # fmt: skip
for _name, _shape in (("of_3", TALL), ("3_rows", P3)):
    corner(f"layer_norm_{_name}", lambda x, w, b: first(gk.layer_normalization(x, w, b)),
           lambda t, f, x, w, b: f.layer_norm(x, w.shape, w, b),
           [normal(*_shape), normal(_shape[1]), normal(_shape[1])], [normal(2, 5), normal(5), normal(5)])  # fmt: skip
corner("group_norm_2000", lambda x, w, b: gk.group_normalization(x, w, b, num_groups=2),
       lambda t, f, x, w, b: f.group_norm(x, 2, w, b), [normal(*WIDE), normal(2000), normal(2000)],
       [normal(1, 2, 2, 2), normal(2), normal(2)])  # fmt: skip
corner("cross_entropy_3", lambda x, n: first(gk.softmax_cross_entropy_loss(x, n)),
       lambda t, f, x, n: f.cross_entropy(x, n), [normal(*TALL), integers(3, 100003)],
       [normal(2, 5), integers(5, 2)])  # fmt: skip
corner("transpose_3", lambda x, y: gk.mul(gk.transpose(x, perm=[1, 0]), y), lambda t, f, x, y: x.t() * y,
       [normal(*P3), normal(*TALL)], [normal(2, 5), normal(5, 2)])  # fmt: skip
corner("concat_columns", lambda x, y: gk.concat(x, y, axis=1), lambda t, f, x, y: t.cat([x, y], 1),
       [normal(*TALL), normal(100003, 1)], [normal(2, 5), normal(2, 1)])  # fmt: skip
corner("gather_3", gk.gather, lambda t, f, w, i: w[i], [normal(*TALL), integers(100003, 50021)],
       [normal(5, 2), integers(5, 3)])  # fmt: skip
corner("scatter_0", lambda x, u, i: gk.scatter_elements(x, i, u, axis=0, reduction="add"),
       lambda t, f, x, u, i: x.scatter_add(0, i, u), [normal(*P2), normal(101, 1009), integers(997, 101, 1009)],
       [normal(2, 5), normal(2, 5), integers(2, 2, 5)])  # fmt: skip
corner("expand_rows", lambda x: gk.expand(x, const([x.shape[1] * 7, x.shape[1]])),
       lambda t, f, x: x.expand(x.shape[1] * 7, -1), [normal(1, 367)], [normal(1, 3)])  # fmt: skip
for _name, _shape, _window in (("3x3", PLANE, 3), ("5x5", (1, 251, 19, 19), 5), ("wide", WIDE, 3)):
    _pool: Mapping[str, Any] = dict(kernel_shape=[_window] * 2, pads=[_window // 2] * 4, strides=[1, 1])
    corner(f"max_pool_{_name}", lambda x, p=_pool: first(gk.max_pool(x, **p)),
           lambda t, f, x, w=_window: f.max_pool2d(x, w, 1, w // 2),
           [normal(*_shape)], [normal(1, 1, 3, 3)])  # fmt: skip
    corner(f"average_pool_{_name}", lambda x, p=_pool: gk.average_pool(x, **p, count_include_pad=1),
           lambda t, f, x, w=_window: f.avg_pool2d(x, w, 1, w // 2),
           [normal(*_shape)], [normal(1, 1, 3, 3)])  # fmt: skip
_CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = {
    "1_to_1": ((3, *PLANE[1:]), (1, 1, 3, 3), dict(pads=[1] * 4)),
    "1_to_61": ((3, 1, 101, 103), (61, 1, 3, 3), dict(pads=[1] * 4)),
    "61_to_1": ((3, 61, 53, 51), (1, 61, 3, 3), dict(pads=[1] * 4)),
    "3_to_3": ((1, 3, 211, 223), (3, 3, 3, 3), dict(pads=[1] * 4)),
    "7_to_11": ((3, 7, 53, 51), (11, 7, 5, 5), dict(pads=[2] * 4)),
    "2000_1x1": ((3, *WIDE[1:]), (211, 2000, 1, 1), {}),
    "2000_3x3": ((3, 2000, 3, 3), (61, 2000, 3, 3), dict(pads=[1] * 4)),
    "1_pixel": ((3, 480, 1, 1), (20, 480, 1, 1), {}),
    "depthwise_2000": ((3, *WIDE[1:]), (2000, 1, 3, 3), dict(pads=[1] * 4, group=2000)),
    "depthwise_3": ((1, 3, 211, 223), (3, 1, 3, 3), dict(pads=[1] * 4, group=3)),
    "depthwise_twice": ((3, 101, 29, 31), (202, 1, 3, 3), dict(pads=[1] * 4, group=101)),
    "1x1_strided": ((3, 251, 29, 31), (127, 251, 1, 1), dict(strides=[2, 2])),
    "2x2": ((3, 61, 53, 59), (67, 61, 2, 2), dict(strides=[2, 2])),
    "1d_1_channel": ((3, 1, 16001), (61, 1, 400), dict(strides=[160])),
    "1d_7_to_5": ((3, 7, 10007), (5, 7, 9), dict(pads=[4, 4])),
}


def convolution(name: str, x: Sequence[int], w: Sequence[int], attributes: Mapping[str, Any]) -> None:
    """Add a row. attributes: those of Conv; padding is symmetric."""
    rank = len(x) - 2
    pads, strides = attributes.get("pads", [0] * rank)[:rank], attributes.get("strides", [1] * rank)

    def theirs(t: Any, f: Any, x: Any, w: Any) -> Any:
        return getattr(f, f"conv{rank}d")(x, w, None, strides, pads, 1, attributes.get("group", 1))

    tiny = [normal(*shape) for shape in one_window(x, w, attributes.get("group", 1))]
    corner(f"conv_{name}", lambda x, w: gk.conv(x, w, **attributes), theirs, [normal(*x), normal(*w)], tiny)


for _name, (_x, _w, _more) in _CONVOLUTIONS.items():
    convolution(_name, _x, _w, _more)
_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "3_rows": ((3, 997), (997, 1009)),
    "of_3": ((1009, 3), (3, 997)),
    "of_1": ((1009, 1), (1, 997)),
    "to_3": ((1009, 997), (997, 3)),
    "column": ((997, 1009), (1009, 1)),
    "dot": ((1, 100003), (100003, 1)),
    "columns_batched": ((48, 256, 64), (48, 64, 1)),
    "of_3_batched": ((10007, 3, 3), (10007, 3, 3)),
    "points": ((1, 100003, 3), (3, 3)),
    "primes": ((211, 307), (307, 199)),
}
for _name, (_a, _b) in _PRODUCTS.items():
    corner(f"matmul_{_name}", gk.mat_mul, lambda t, f, x, y: x @ y, [normal(*_a), normal(*_b)],
           [normal(2, 5), normal(5, 3)])  # fmt: skip
corner("attention_61", lambda q, k, v: first(gk.attention(q, k, v)),
       lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v), [normal(1, 7, 61, 37)] * 3,
       [normal(1, 1, 2, 5)] * 3)  # fmt: skip
