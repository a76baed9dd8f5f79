"""Normalisations of channels: over batches, instances, groups of channels, and other axes.

Statistics are computed in one pass (Welford; Chan, Golub and LeVeque). An operand is read once for them, and once for
the result. Gradients read it once more in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Given, Input, Output, launched
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work, written
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last_norm import (
    ChannelsLastBatchNorm,
    ChannelsLastBatchNormGrad,
    _ChannelsLastNorm,
)
from graphkit.ops.nn.norm import BatchNormalization, BatchNormGrad
from graphkit.ops.nn.norm_image import (
    GroupNormalization,
    InstanceNormalization,
    LpNormalization,
    MeanVarianceNormalization,
)
from graphkit.ops.nn.statistics import channel_axes

_MOMENTS = Pass("gk_moments<A>", 4, ["p0.take((A)gk_read(x[at]));"])


def _held(node: Node, x: int = 0) -> DType | None:
    """Return the type in which to compute; None if operand `x` is empty, or an operand's type has no arithmetic."""
    kinds = {value.dtype for value in node.operands}
    if math.prod(shape(node.inputs[x])) == 0 or any(float_type(kind) is None for kind in kinds):
        return None
    return DType.FLOAT64 if DType.FLOAT64 in kinds else DType.FLOAT32


def _memory(
    node: Node, names: Sequence[str], outputs: Sequence[str], used: Sequence[bool]
) -> list[tuple[str, Argument]]:
    """Return parameters for the operands that are present, and for the results that are used."""
    given: list[tuple[str, Argument]] = [
        (f"const {STORED[value.dtype]}* {name}", Input(i))
        for i, (name, value) in enumerate(zip(names, node.inputs, strict=False))
        if value is not None
    ]
    return given + [
        (f"{STORED[value.dtype]}* {name}", Output(i))
        for i, (name, value, read) in enumerate(zip(outputs, node.outputs, used, strict=False))
        if read
    ]


def _number(name: str, value: float, held: DType) -> tuple[str, Argument]:
    return f"{STORED[held]} {name}", held.numpy.type(value)


# --- batch ------------------------------------------------------------------------------------------


@launched("BatchNormalization")
def _batch_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op, held = operator(node, BatchNormalization), _held(node)
    if held is None:
        return None
    sizes = shape(node.inputs[0])
    used = [*context.used_outputs, True, True, True][: len(node.outputs)]
    names = ("x", "scale", "b", "input_mean", "input_var")
    given = _memory(node, names, ("y", "running_mean", "running_var"), used)
    given.append(_number("epsilon", op.epsilon, held))
    passes: list[Pass] = []
    once: list[str] = []
    if op.training_mode:
        passes = [_MOMENTS]
        statistics = _OWN_STATISTICS
        running, once = _running(node, op.momentum, held, used)
        given += running
    else:
        statistics = ["const A mean = (A)gk_read(input_mean[g]);", "const A var = (A)gk_read(input_var[g]);"]
    ahead = [*statistics, "const A factor = (A)gk_read(scale[g]) / gk_sqrt(var + epsilon);",
             "const A shift = (A)gk_read(b[g]);"]  # fmt: skip
    y = written("y", node.outputs[0].dtype, "at", "((A)gk_read(x[at]) - mean) * factor + shift")
    work = Work("batch_norm", given, passes, [y] if used[0] else [], ahead, once)
    return Groups.over(sizes, channel_axes(len(sizes)), held).kernel(work, inplace=((0, 0),))


@launched("BatchNormGrad", DOMAIN)
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


_OWN_STATISTICS = ["const A mean = p0.mean;", "const A var = p0.deviations / (A)count;"]


def _running(node: Node, momentum: float, held: DType, used: Sequence[bool]) -> tuple[Given, list[str]]:
    """Return parameters, and lines that write those running statistics (results 1 and 2) that are used."""
    given = [_number("keep", momentum, held), _number("take", 1 - momentum, held)]
    kind = node.outputs[1].dtype
    lines = [
        written(f"running_{name}", kind, "g", f"(A)gk_read(input_{name}[g]) * keep + {name} * take")
        for name, read in zip(("mean", "var"), used[1:], strict=False)
        if read
    ]
    return given, lines


# --- batch, channels last ---------------------------------------------------------------------------


def _limits(op: _ChannelsLastNorm, held: DType) -> Given:
    return [_number(name, limit, held) for name, limit in zip(("low", "high"), op.limits, strict=True)]


@launched("ChannelsLastBatchNorm", DOMAIN)
def _channels_last_batch_norm(node: Node, context: KernelContext) -> CardKernel | None:
    op, held, rank = operator(node, ChannelsLastBatchNorm), _held(node), len(shape(node.inputs[0]))
    if held is None:
        return None
    used = [*context.used_outputs, *[True] * 5][:5]
    names = ("x", "scale", "b", "input_mean", "input_var", "residual")
    given = _memory(node, names, ("y", "running_mean", "running_var", "mean_of", "inv_std_dev"), used)
    running, once = _running(node, op.momentum, held, used)
    given += [*running, _number("epsilon", op.epsilon, held)]
    statistics = ("mean_of", "mean"), ("inv_std_dev", "r")
    once += [
        written(name, node.outputs[3].dtype, "g", value)
        for (name, value), read in zip(statistics, used[3:], strict=True)
        if read
    ]
    ahead = [*_OWN_STATISTICS, "const A r = (A)1 / gk_sqrt(var + epsilon);",
             "const A factor = (A)gk_read(scale[g]) * r;", "const A shift = (A)gk_read(b[g]);"]  # fmt: skip
    lines = ["A v = ((A)gk_read(x[at]) - mean) * factor + shift;"]
    residual = operand(node, 5) is not None
    if residual:
        lines.append("v += (A)gk_read(residual[at]);")
    if op.activation:
        given += _limits(op, held)
        lines.append(
            "v = gk_maximum(v, low);" if op.activation == "Relu" else "v = gk_minimum(gk_maximum(v, low), high);"
        )
    lines.append(written("y", node.outputs[0].dtype, "at", "v"))
    work = Work("batch_norm", given, [_MOMENTS], lines if used[0] else [], ahead, once)
    inplace = _of_one_type(node, [(0, 0), (5, 0)])
    return Groups.over(shape(node.inputs[0]), range(rank - 1), held).kernel(work, inplace=inplace)


@launched("ChannelsLastBatchNormGrad", DOMAIN)
def _channels_last_batch_norm_grad(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of the gradient.

    The gradient of y passes to elements that the activation has passed, and to NaN.
    """
    op, held, sizes = operator(node, ChannelsLastBatchNormGrad), _held(node), shape(node.inputs[1])
    if held is None:
        return None
    used = [*context.used_outputs, *[True] * 4][:4]
    names = ("dy", "x", "scale", "b", "mean", "inv_std_dev", "y", "addend")
    given = _memory(node, names, ("dx", "dscale", "db", "dresidual"), used)
    from_y, added = (operand(node, position) is not None for position in (6, 7))
    read = ["A d = (A)gk_read(dy[at]);", "const A h = ((A)gk_read(x[at]) - middle) * r;"]
    if added:
        read.append("d += (A)gk_read(addend[at]);")
    if op.activation:
        given += _limits(op, held)
        read.append(f"const A z = {'(A)gk_read(y[at])' if from_y else 'h * weight + shift'};")
        read.append(f"d = {'z <= low' if op.activation == 'Relu' else 'z < low || z > high'} ? (A)0 : d;")
    known = ["const A middle = (A)gk_read(mean[g]), r = (A)gk_read(inv_std_dev[g]);",
             "const A weight = (A)gk_read(scale[g]), shift = (A)gk_read(b[g]);"]  # fmt: skip
    sums = Pass("gk_sums<A, 2>", 2, [*read, "p0.s[0] += d;", "p0.s[1] += d * h;"], known)
    ahead = ["const A factor = weight * r;", "const A mean_d = p0.s[0] / (A)count;",
             "const A mean_dh = p0.s[1] / (A)count;"]  # fmt: skip
    results = ("dx", 0, "factor * (d - mean_d - h * mean_dh)"), ("dresidual", 3, "d")
    writes = [written(name, node.outputs[i].dtype, "at", value) for name, i, value in results if used[i]]
    once = [
        written(name, node.outputs[i].dtype, "g", f"p0.s[{place}]")
        for name, i, place in (("dscale", 1, 1), ("db", 2, 0))
        if used[i]
    ]
    work = Work("batch_norm_grad", given, [sums], [*read, *writes] if writes else [], ahead, once)
    inplace = _of_one_type(node, [(0, 0), (0, 3), (7, 0), (7, 3)])
    return Groups.over(sizes, range(len(sizes) - 1), held).kernel(work, inplace=inplace)


def _of_one_type(node: Node, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those of the pairs (operand, result) whose operand is present, and has the type of the result."""
    found = []
    for position, result in pairs:
        x = operand(node, position)
        if x is not None and x.dtype is node.outputs[result].dtype:
            found.append((position, result))
    return found


# --- images -----------------------------------------------------------------------------------------


@launched("InstanceNormalization")
def _instance_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, InstanceNormalization)
    return _of_groups(node, shape(node.inputs[0])[1], op.epsilon)


@launched("GroupNormalization")
def _group_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, GroupNormalization)
    return _of_groups(node, op.num_groups, op.epsilon)


def _of_groups(node: Node, groups: int, epsilon: float) -> CardKernel | None:
    """Return the kernel of a normalisation over groups of channels. The elements of a group are contiguous."""
    held = _held(node)
    if held is None:
        return None
    count, channels, *spatial = shape(node.inputs[0])
    each, pixels = channels // groups, math.prod(spatial)
    over = Groups.over((count * groups, each * pixels), [1], held)
    within = Coordinates("c", 2, over.short)
    found, (channel, _) = within.lines("e")
    if each == 1:  # all elements of a group have one channel
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


@launched("MeanVarianceNormalization")
def _mean_variance_normalization(node: Node, context: KernelContext) -> CardKernel | None:
    op, held, sizes = operator(node, MeanVarianceNormalization), _held(node), shape(node.inputs[0])
    if held is None:
        return None
    ahead = ["const A divisor = gk_sqrt(p0.deviations / (A)count) + (A)1e-9;"]
    y = written("y", node.output.dtype, "at", "((A)gk_read(x[at]) - p0.mean) / divisor")
    work = Work("mean_variance_norm", _memory(node, ("x",), ("y",), (True,)), [_MOMENTS], [y], ahead)
    return Groups.over(sizes, op.axes or range(len(sizes)), held).kernel(work, inplace=((0, 0),))


@launched("LpNormalization")
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
