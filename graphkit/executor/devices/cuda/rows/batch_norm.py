"""Normalisations of channels: over batches, instances, groups of channels, and other axes.

Statistics are made in one pass, as by Welford and by Chan, Golub and LeVeque. An operand is read once for them and once
for what is written; gradients read it once more in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work, written
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.norm import BatchNormalization, BatchNormGrad
from graphkit.ops.nn.norm_image import (
    GroupNormalization,
    InstanceNormalization,
    LpNormalization,
    MeanVarianceNormalization,
)
from graphkit.ops.nn.statistics import channel_axes

_MOMENTS = Pass("gk_moments<A>", 3, ["p0.take((A)gk_read(x[at]));"])


def _held(node: Node, x: int = 0) -> DType | None:
    """The type that is computed in; None where operand `x` is empty, or an operand has no arithmetic."""
    kinds = {value.dtype for value in node.operands}
    if math.prod(shape(node.inputs[x])) == 0 or any(float_type(kind) is None for kind in kinds):
        return None
    return DType.FLOAT64 if DType.FLOAT64 in kinds else DType.FLOAT32


def _memory(
    node: Node, names: Sequence[str], outputs: Sequence[str], used: Sequence[bool]
) -> list[tuple[str, Argument]]:
    """The operands and those results that somebody reads, by their names."""
    given: list[tuple[str, Argument]] = [
        (f"const {STORED[value.dtype]}* {name}", Input(i))
        for i, (name, value) in enumerate(zip(names, node.operands, strict=True))
    ]
    return given + [
        (f"{STORED[value.dtype]}* {name}", Output(i))
        for i, (name, value, read) in enumerate(zip(outputs, node.outputs, used, strict=False))
        if read
    ]


def _number(name: str, value: float, held: DType) -> tuple[str, Argument]:
    return f"{STORED[held]} {name}", held.numpy.type(value)


# --- batch ------------------------------------------------------------------------------------------


@register_launched("cuda", "", "BatchNormalization")
def _batch_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op, held = operator(node, BatchNormalization), _held(node)
    if held is None:
        return None
    sizes = shape(node.inputs[0])
    used = [*context.used_outputs, True, True, True][: len(node.outputs)]
    names = ("x", "scale", "b", "input_mean", "input_var")
    given = _memory(node, names, ("y", "running_mean", "running_var"), used)
    given.append(_number("epsilon", op.epsilon, held))
    passes, once = [], []
    if op.training_mode:
        passes = [_MOMENTS]
        statistics = ["const A mean = p0.mean;", "const A var = p0.deviations / (A)count;"]
        given += [_number("keep", op.momentum, held), _number("take", 1 - op.momentum, held)]
        kind = node.outputs[1].dtype
        for name, read in zip(("mean", "var"), used[1:], strict=True):
            running = written(f"running_{name}", kind, "g", f"(A)gk_read(input_{name}[g]) * keep + {name} * take")
            once += [running] if read else []
    else:
        statistics = ["const A mean = (A)gk_read(input_mean[g]);", "const A var = (A)gk_read(input_var[g]);"]
    ahead = [*statistics, "const A factor = (A)gk_read(scale[g]) / gk_sqrt(var + epsilon);",
             "const A shift = (A)gk_read(b[g]);"]  # fmt: skip
    y = written("y", node.outputs[0].dtype, "at", "((A)gk_read(x[at]) - mean) * factor + shift")
    work = Work("batch_norm", given, passes, [y] if used[0] else [], ahead, once)
    return Groups.over(sizes, channel_axes(len(sizes)), held).kernel(work, inplace=((0, 0),))


@register_launched("cuda", DOMAIN, "BatchNormGrad")
def _batch_norm_grad(node: Node, context: KernelContext) -> CardKernel | None:
    op, held = operator(node, BatchNormGrad), _held(node)
    if held is None:
        return None
    sizes = shape(node.inputs[1])
    used = [*context.used_outputs, True, True, True][:3]
    given = _memory(node, ("dy", "x", "scale"), ("dx", "dscale", "db"), used)
    given.append(_number("epsilon", op.epsilon, held))
    read = ["const A d = (A)gk_read(dy[at]);", "const A h = ((A)gk_read(x[at]) - p0.mean) * r;"]
    statistics = ["const A r = (A)1 / gk_sqrt(p0.deviations / (A)count + epsilon);"]
    passes = [_MOMENTS, Pass("gk_sums<A, 2>", 2, [*read, "p1.s[0] += d;", "p1.s[1] += d * h;"], statistics)]
    ahead = ["const A factor = (A)gk_read(scale[g]) * r;", "const A mean_d = p1.s[0] / (A)count;",
             "const A mean_dh = p1.s[1] / (A)count;"]  # fmt: skip
    dx = written("dx", node.outputs[0].dtype, "at", "factor * (d - mean_d - h * mean_dh)")
    kind = node.outputs[1].dtype
    once = [
        written(name, kind, "g", f"p1.s[{i}]")
        for name, i, wanted in (("dscale", 1, used[1]), ("db", 0, used[2]))
        if wanted
    ]
    work = Work("batch_norm_grad", given, passes, [*read, dx] if used[0] else [], ahead, once)
    return Groups.over(sizes, channel_axes(len(sizes)), held).kernel(work, inplace=((0, 0), (1, 0)))


# --- images -----------------------------------------------------------------------------------------


@register_launched("cuda", "", "InstanceNormalization")
def _instance_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, InstanceNormalization)
    return _of_groups(node, shape(node.inputs[0])[1], op.epsilon)


@register_launched("cuda", "", "GroupNormalization")
def _group_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, GroupNormalization)
    return _of_groups(node, op.num_groups, op.epsilon)


def _of_groups(node: Node, groups: int, epsilon: float) -> CardKernel | None:
    """Channels of an image in so many groups, each of which lies in one piece."""
    held = _held(node)
    if held is None:
        return None
    count, channels, *spatial = shape(node.inputs[0])
    each, pixels = channels // groups, math.prod(spatial)
    over = Groups.over((count * groups, each * pixels), [1], held)
    within = Coordinates("c", 2, over.short)
    found, (channel, _) = within.lines("e")
    if each == 1:  # the channel is known ahead of its elements
        found, channel = [], "0"
    given = _memory(node, ("x", "scale", "b"), ("y",), (True,))
    given += [
        _number("epsilon", epsilon, held),
        ("gk_u32 divided", np.uint32(groups)),
        ("gk_u32 channels", np.uint32(each)),
    ]
    ahead = [
        "const A r = (A)1 / gk_sqrt(p0.deviations / (A)count + epsilon);",
        f"const {over.index} first = g % divided * channels;",
    ]
    value = "((A)gk_read(x[at]) - p0.mean) * r * (A)gk_read(scale[c]) + (A)gk_read(b[c])"
    lines = [*found, f"const {over.index} c = first + {channel};", written("y", node.output.dtype, "at", value)]
    places = [] if each == 1 else [(within, (each, pixels))]
    work = Work("group_norm", given, [_MOMENTS], lines, ahead, places=places)
    return over.kernel(work, inplace=((0, 0),))


@register_launched("cuda", "", "MeanVarianceNormalization")
def _mean_variance_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op, held, sizes = operator(node, MeanVarianceNormalization), _held(node), shape(node.inputs[0])
    if held is None:
        return None
    ahead = ["const A divisor = gk_sqrt(p0.deviations / (A)count) + (A)1e-9;"]
    y = written("y", node.output.dtype, "at", "((A)gk_read(x[at]) - p0.mean) / divisor")
    work = Work("mean_variance_norm", _memory(node, ("x",), ("y",), (True,)), [_MOMENTS], [y], ahead)
    return Groups.over(sizes, op.axes or range(len(sizes)), held).kernel(work, inplace=((0, 0),))


@register_launched("cuda", "", "LpNormalization")
def _lp_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op, held = operator(node, LpNormalization), _held(node)
    if held is None:
        return None
    size = "gk_abs(v)" if op.p == 1 else "v * v"
    passes = [Pass("gk_sums<A, 1>", 1, ["const A v = (A)gk_read(x[at]);", f"p0.s[0] += {size};"])]
    ahead = [f"const A norm = {'p0.s[0]' if op.p == 1 else 'gk_sqrt(p0.s[0])'};"]
    y = written("y", node.output.dtype, "at", "norm == 0 ? (A)0 : (A)gk_read(x[at]) / norm")
    work = Work("lp_norm", _memory(node, ("x",), ("y",), (True,)), passes, [y], ahead)
    return Groups.over(shape(node.inputs[0]), [op.axis], held).kernel(work, inplace=((0, 0),))
