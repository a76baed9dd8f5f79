"""Operators whose gradients are timed in graphkit and PyTorch, as data. Each row has two sets of operands.

Floating-point operands are differentiated; the others are constants in graphkit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from operator_operands import Operand, definite, integers, normal, positive, truths, uniform
from operator_shapes import IMAGES, ODD, ODD_IMAGES, SQUARE

import graphkit as gk


@dataclass(frozen=True)
class Gradient:
    """A row. ours: builds the result from graph values; theirs: from torch, its functions, and tensors."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    operands: Sequence[Operand]
    other: Sequence[Operand]


def add_row(
    rows: dict[str, Gradient],
    name: str,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    operands: Sequence[Operand],
    other: Sequence[Operand],
) -> None:
    """Add a row to a table. `theirs` gets torch and torch.nn.functional before the tensors."""
    assert name not in rows, f"two rows are called {name}"
    rows[name] = Gradient(name, ours, theirs, operands, other)


ROWS: dict[str, Gradient] = {}
row = partial(add_row, ROWS)


def const(values: Any, dtype: str = "int64") -> Any:
    return gk.constant(np.asarray(values, dtype))


def first(results: Any) -> Any:
    return results[0] if isinstance(results, (tuple, list)) else results


# --- elementwise ----------------------------------------------------------------------------------

for _name, _theirs in {
    "relu": lambda t, f, x: t.relu(x), "tanh": lambda t, f, x: t.tanh(x), "sigmoid": lambda t, f, x: t.sigmoid(x),
    "gelu": lambda t, f, x: f.gelu(x), "exp": lambda t, f, x: t.exp(x), "erf": lambda t, f, x: t.erf(x),
    "softplus": lambda t, f, x: f.softplus(x), "hard_swish": lambda t, f, x: f.hardswish(x),
    "atan": lambda t, f, x: t.atan(x), "elu": lambda t, f, x: f.elu(x),
}.items():  # fmt: skip
    row(_name, getattr(gk, _name), _theirs, [normal(*SQUARE)], [normal(*ODD)])
row("log", gk.log, lambda t, f, x: t.log(x), [positive(*SQUARE)], [positive(*ODD)])
row("sqrt", gk.sqrt, lambda t, f, x: t.sqrt(x), [positive(*SQUARE)], [positive(*ODD)])
row(
    "pow",
    gk.pow,
    lambda t, f, x, y: t.pow(x, y),
    [positive(*SQUARE), normal(*SQUARE)],
    [positive(*ODD), normal(*ODD)],
)
row("add_row", gk.add, lambda t, f, x, y: x + y, [normal(*SQUARE), normal(1024)], [normal(*ODD), normal(1301)])
row("mul_column", gk.mul, lambda t, f, x, y: x * y, [normal(*SQUARE), normal(1024, 1)], [normal(*ODD), normal(777, 1)])
row("div", gk.div, lambda t, f, x, y: x / y, [normal(*SQUARE), positive(*SQUARE)], [normal(*ODD), positive(*ODD)])
row(
    "maximum",
    gk.max,
    lambda t, f, x, y: t.maximum(x, y),
    [normal(*SQUARE), normal(*SQUARE)],
    [normal(*ODD), normal(*ODD)],
)
row(
    "mul_channel",
    gk.mul,
    lambda t, f, x, y: x * y,
    [normal(*IMAGES), normal(64, 1, 1)],
    [normal(*ODD_IMAGES), normal(40, 1, 1)],
)
row(
    "where",
    lambda x, y, c: gk.where(c, x, y),
    lambda t, f, x, y, c: t.where(c, x, y),
    [normal(*SQUARE), normal(*SQUARE), truths(*SQUARE)],
    [normal(*ODD), normal(*ODD), truths(*ODD)],
)
row(
    "clip",
    lambda x: gk.clip(x, const(-0.5, "float32"), const(0.5, "float32")),
    lambda t, f, x: x.clamp(-0.5, 0.5),
    [normal(*SQUARE)],
    [normal(*ODD)],
)

# --- rows and reductions --------------------------------------------------------------------------

for _axis in (1, 0):
    row(
        f"softmax_{_axis}",
        lambda x, a=_axis: gk.softmax(x, axis=a),
        lambda t, f, x, a=_axis: t.softmax(x, a),
        [normal(*SQUARE)],
        [normal(*ODD)],
    )
row(
    "log_softmax",
    lambda x: gk.log_softmax(x, axis=-1),
    lambda t, f, x: t.log_softmax(x, -1),
    [normal(*SQUARE)],
    [normal(*ODD)],
)
for _name, _ours, _theirs in (
    ("reduce_mean_1", gk.reduce_mean, lambda t, f, x: x.mean(1)),
    ("reduce_max_1", gk.reduce_max, lambda t, f, x: x.amax(1)),
    ("logsumexp_1", gk.reduce_log_sum_exp, lambda t, f, x: t.logsumexp(x, 1)),
    ("reduce_prod_1", gk.reduce_prod, lambda t, f, x: x.prod(1)),
):
    _shapes = ((1024, 64), (70, 5001)) if "prod" in _name else (SQUARE, ODD)
    row(
        _name,
        lambda x, o=_ours: o(x, const([1]), keepdims=0),
        _theirs,
        *([normal(*shape)] for shape in _shapes),
    )
row("cumsum_1", lambda x: gk.cum_sum(x, const(1)), lambda t, f, x: x.cumsum(1), [normal(*SQUARE)], [normal(*ODD)])
row(
    "layer_norm",
    lambda x, w, b: first(gk.layer_normalization(x, w, b)),
    lambda t, f, x, w, b: f.layer_norm(x, w.shape, w, b),
    [normal(*SQUARE), normal(1024), normal(1024)],
    [normal(33, 20011), normal(20011), normal(20011)],
)
row(
    "group_norm",
    lambda x, w, b: gk.group_normalization(x, w, b, num_groups=8),
    lambda t, f, x, w, b: f.group_norm(x, 8, w, b),
    [normal(*IMAGES), normal(64), normal(64)],
    [normal(2, 640, 19, 23), normal(640), normal(640)],
)
row(
    "instance_norm",
    gk.instance_normalization,
    lambda t, f, x, w, b: f.instance_norm(x, weight=w, bias=b),
    [normal(*IMAGES), normal(64), normal(64)],
    [normal(*ODD_IMAGES), normal(40), normal(40)],
)
row(
    "cross_entropy",
    lambda x, n: first(gk.softmax_cross_entropy_loss(x, n)),
    lambda t, f, x, n: f.cross_entropy(x, n),
    [normal(1024, 1000), integers(1000, 1024)],
    [normal(7, 50257), integers(50257, 7)],
)
row(
    "cross_entropy_vocabulary",
    lambda x, w, n: first(gk.softmax_cross_entropy_loss(gk.mat_mul(x, w), n)),
    lambda t, f, x, w, n: f.cross_entropy(x @ w, n),
    [normal(512, 64), normal(64, 32000), integers(32000, 512)],
    [normal(100, 100), normal(100, 10007), integers(10007, 100)],
)

# --- data movement --------------------------------------------------------------------------------

row(
    "transpose_mul",
    lambda x, y: gk.mul(gk.transpose(x, perm=[1, 0]), y),
    lambda t, f, x, y: x.t() * y,
    [normal(*SQUARE), normal(*SQUARE)],
    [normal(*ODD), normal(*ODD[::-1])],
)
row(
    "concat",
    lambda x, y: gk.concat(x, y, axis=1),
    lambda t, f, x, y: t.cat([x, y], 1),
    [normal(1024, 512), normal(1024, 512)],
    [normal(777, 301), normal(777, 900)],
)
row(
    "gather",
    gk.gather,
    lambda t, f, w, i: w[i],
    [normal(50000, 64), integers(50000, 8192)],
    [normal(3001, 300), integers(3001, 9000)],
)
row(
    "gather_elements",
    lambda x, i: gk.gather_elements(x, i, axis=1),
    lambda t, f, x, i: x.gather(1, i),
    [normal(*SQUARE), integers(1024, 1024, 256)],
    [normal(*ODD), integers(1301, 777, 500)],
)
row(
    "scatter_add",
    lambda x, u, i: gk.scatter_elements(x, i, u, axis=1, reduction="add"),
    lambda t, f, x, u, i: x.scatter_add(1, i, u),
    [normal(*SQUARE), normal(1024, 256), integers(1024, 1024, 256)],
    [normal(*ODD), normal(777, 500), integers(1301, 777, 500)],
)
row(
    "top_k",
    lambda x: gk.top_k(x, const([10]))[0],
    lambda t, f, x: x.topk(10)[0],
    [normal(*SQUARE)],
    [normal(50, 20001)],
)
row(
    "pad_reflect",
    lambda x: gk.pad(x, const([0, 0, 3, 3, 0, 0, 3, 3]), mode="reflect"),
    lambda t, f, x: f.pad(x, (3,) * 4, mode="reflect"),
    [normal(*IMAGES)],
    [normal(*ODD_IMAGES)],
)
row(
    "expand",
    lambda x: gk.expand(x, const([x.shape[0], 1024])),
    lambda t, f, x: x.expand(-1, 1024),
    [normal(1024, 1)],
    [normal(777, 1)],
)
row(
    "tile",
    lambda x: gk.tile(x, const([4, 4])),
    lambda t, f, x: x.repeat(4, 4),
    [normal(256, 256)],
    [normal(201, 333)],
)
row(
    "pixel_shuffle",
    lambda x: gk.depth_to_space(x, blocksize=2, mode="CRD"),
    lambda t, f, x: f.pixel_shuffle(x, 2),
    [normal(4, 64, 64, 64)],
    [normal(3, 36, 51, 70)],
)

# --- images ---------------------------------------------------------------------------------------

_STRIDED: dict[str, Any] = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
row(
    "max_pool",
    lambda x: first(gk.max_pool(x, **_STRIDED)),
    lambda t, f, x: f.max_pool2d(x, 3, 2, 1),
    [normal(*IMAGES)],
    [normal(*ODD_IMAGES)],
)
row(
    "average_pool",
    lambda x: gk.average_pool(x, count_include_pad=1, **_STRIDED),
    lambda t, f, x: f.avg_pool2d(x, 3, 2, 1),
    [normal(*IMAGES)],
    [normal(*ODD_IMAGES)],
)
row(
    "max_pool_2",
    lambda x: first(gk.max_pool(x, kernel_shape=[2, 2], strides=[2, 2])),
    lambda t, f, x: f.max_pool2d(x, 2),
    [normal(*IMAGES)],
    [normal(*ODD_IMAGES)],
)
row(
    "max_pool_3d",
    lambda x: first(gk.max_pool(x, kernel_shape=[2] * 3, strides=[2] * 3)),
    lambda t, f, x: f.max_pool3d(x, 2),
    [normal(4, 16, 16, 32, 32)],
    [normal(3, 10, 11, 30, 41)],
)
row(
    "global_average_pool",
    gk.global_average_pool,
    lambda t, f, x: x.mean((2, 3), keepdim=True),
    [normal(*IMAGES)],
    [normal(*ODD_IMAGES)],
)
row(
    "resize_linear",
    lambda x: gk.resize(x, None, const([1, 1, 2, 2], "float32"), mode="linear"),
    lambda t, f, x: f.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    [normal(4, 32, 64, 64)],
    [normal(3, 20, 51, 70)],
)
row(
    "resize_nearest",
    lambda x: gk.resize(
        x,
        None,
        const([1, 1, 2, 2], "float32"),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    lambda t, f, x: f.interpolate(x, scale_factor=2, mode="nearest"),
    [normal(4, 32, 64, 64)],
    [normal(3, 20, 51, 70)],
)
row(
    "grid_sample",
    gk.grid_sample,
    lambda t, f, x, g: f.grid_sample(x, g, align_corners=False),
    [normal(4, 32, 64, 64), uniform(4, 64, 64, 2)],
    [normal(3, 20, 51, 70), uniform(3, 60, 33, 2)],
)

# --- convolutions ---------------------------------------------------------------------------------


def convolution(
    name: str, x: Sequence[int], w: Sequence[int], other_x: Sequence[int], other_w: Sequence[int], **attributes: Any
) -> None:
    """Add a row. attributes: those of Conv; padding is symmetric."""
    rank = len(x) - 2
    pads = attributes.get("pads", [0] * rank)[:rank]
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    group = attributes.get("group", 1)

    def theirs(t: Any, f: Any, x: Any, w: Any) -> Any:
        return getattr(f, f"conv{rank}d")(x, w, None, strides, pads, dilations, group)

    def ours(x: Any, w: Any) -> Any:
        return gk.conv(x, w, **attributes)

    row(name, ours, theirs, [normal(*x), normal(*w)], [normal(*other_x), normal(*other_w)])


P1, P2, P3 = [1] * 4, [2] * 4, [3] * 4
convolution("conv_3x3", (8, 64, 28, 28), (64, 64, 3, 3), (3, 50, 37, 29), (70, 50, 3, 3), pads=P1)
convolution("conv_1x1", (8, 256, 14, 14), (128, 256, 1, 1), (3, 130, 19, 23), (75, 130, 1, 1))
convolution("conv_depthwise", (8, 128, 28, 28), (128, 1, 3, 3), (3, 128, 37, 29), (128, 1, 3, 3), pads=P1, group=128)
convolution("conv_depthwise_7", (8, 128, 28, 28), (128, 1, 7, 7), (3, 128, 37, 29), (128, 1, 7, 7), pads=P3, group=128)
convolution("conv_groups", (8, 128, 28, 28), (128, 4, 3, 3), (3, 160, 37, 29), (96, 5, 3, 3), pads=P1, group=32)
convolution("conv_dilated", (4, 64, 28, 28), (64, 64, 3, 3), (3, 50, 37, 29), (70, 50, 3, 3), pads=P2, dilations=[2, 2])
convolution("conv_stem_7", (4, 3, 128, 128), (64, 3, 7, 7), (2, 3, 115, 97), (32, 3, 7, 7), pads=P3, strides=[2, 2])
convolution("conv_patches_16", (4, 3, 224, 224), (384, 3, 16, 16), (2, 3, 208, 160), (200, 3, 16, 16), strides=[16, 16])
convolution("conv_1d", (8, 128, 256), (128, 128, 3), (3, 100, 301), (75, 100, 3), pads=[1, 1])
convolution("conv_1d_depthwise", (4, 128, 256), (128, 1, 31), (3, 128, 301), (128, 1, 31), pads=[15, 15], group=128)
convolution("conv_3d", (2, 16, 8, 32, 32), (32, 16, 3, 3, 3), (1, 13, 9, 29, 31), (20, 13, 3, 3, 3), pads=[1] * 6)
convolution("conv_strided", (8, 64, 28, 28), (128, 64, 3, 3), (3, 50, 37, 29), (70, 50, 3, 3), pads=P1, strides=[2, 2])
convolution("conv_1_channel", (16, 1, 64, 64), (16, 1, 3, 3), (7, 1, 85, 67), (20, 1, 3, 3), pads=P1)
row(
    "conv_transpose_4",
    lambda x, w: gk.conv_transpose(x, w, strides=[2, 2], pads=[1] * 4),
    lambda t, f, x, w: f.conv_transpose2d(x, w, None, 2, 1),
    [normal(8, 64, 14, 14), normal(64, 32, 4, 4)],
    [normal(3, 50, 19, 15), normal(50, 21, 4, 4)],
)
row(
    "conv_transpose_1d",
    lambda x, w: gk.conv_transpose(x, w, strides=[8], pads=[4, 4]),
    lambda t, f, x, w: f.conv_transpose1d(x, w, None, 8, 4),
    [normal(2, 128, 100), normal(128, 64, 16)],
    [normal(3, 75, 61), normal(75, 40, 16)],
)

# --- products -------------------------------------------------------------------------------------

for _name, _shapes, _others in (
    ("matmul_512", ((512, 512), (512, 512)), ((301, 403), (403, 207))),
    ("matmul_batched", ((64, 64, 64), (64, 64, 64)), ((30, 50, 70), (30, 70, 33))),
    ("matmul_broadcast", ((32, 128, 64), (64, 256)), ((7, 133, 75), (75, 201))),
    ("matmul_column", ((4096, 256), (256, 1)), ((1001, 777), (777, 1))),
    ("matmul_row", ((1, 1024), (1024, 1024)), ((3, 501), (501, 1201))),
    ("matmul_tiny", ((4096, 4, 4), (4096, 4, 4)), ((2001, 5, 3), (2001, 3, 5))),
):
    row(
        _name,
        gk.mat_mul,
        lambda t, f, x, y: x @ y,
        [normal(*shape) for shape in _shapes],
        [normal(*shape) for shape in _others],
    )
row(
    "einsum_bhid",
    lambda x, y: gk.einsum(x, y, equation="bhid,bhjd->bhij"),
    lambda t, f, x, y: t.einsum("bhid,bhjd->bhij", x, y),
    [normal(8, 8, 64, 64), normal(8, 8, 64, 64)],
    [normal(3, 5, 77, 40), normal(3, 5, 91, 40)],
)
row(
    "einsum_bilinear",
    lambda x, w, y: gk.einsum(x, w, y, equation="bi,oij,bj->bo"),
    lambda t, f, x, w, y: t.einsum("bi,oij,bj->bo", x, w, y),
    [normal(64, 64), normal(32, 64, 64), normal(64, 64)],
    [normal(33, 50), normal(21, 50, 71), normal(33, 71)],
)
for _name, _causal, _shapes in (
    ("attention", 0, ((4, 8, 256, 64), (3, 5, 201, 40))),
    ("attention_causal", 1, ((2, 8, 1024, 64), (1, 6, 777, 48))),
):
    row(
        _name,
        lambda q, k, v, c=_causal: first(gk.attention(q, k, v, is_causal=c)),
        lambda t, f, q, k, v, c=_causal: f.scaled_dot_product_attention(q, k, v, is_causal=bool(c)),
        *([normal(*shape)] * 3 for shape in _shapes),
    )
row("det", gk.det, lambda t, f, x: t.linalg.det(x), [definite(16, 64, 64)], [definite(301, 7, 7)])
