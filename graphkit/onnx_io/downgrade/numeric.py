"""Mod, normalisation, Resize, pooling, GridSample, RoiAlign: semantics that older opsets lack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.onnx_io.downgrade import ALWAYS, Site, Spelling, rewrites, spells
from graphkit.onnx_io.tensors import dtype_of_code
from graphkit.ops import F, constant, operator
from graphkit.ops.image.resize import Resize
from graphkit.ops.image.roi import RoiAlign
from graphkit.ops.math.arithmetic import Mod
from graphkit.ops.nn.norm import BatchNormalization, LayerNormalization


@rewrites("Mod", below=28)
def _floored_remainder(site: Site) -> Sequence[Value] | None:
    # Before opset 28, fmod=0 was only for integers.
    a, b = site.operand(0), site.operand(1)
    if operator(site.node, Mod).fmod or not a.dtype.is_float:
        return None
    remainder = F.mod(a, b, fmod=True)
    zero = constant(np.zeros((), a.dtype.numpy))
    differs = F.less(F.mul(F.sign(remainder), F.sign(b)), zero)
    return [F.where(differs, F.add(remainder, b), remainder)]


@rewrites("LayerNormalization", below=ALWAYS)
def _other_statistics(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime's kernels support mean and deviation only in float32.
    op = operator(site.node, LayerNormalization)
    counted_from_front = site.operand(0).rank is None and op.axis >= 0
    wide = dtype_of_code(op.stash_type)
    return None if wide is DType.FLOAT32 or counted_from_front else _layer_statistics(site)


@rewrites("LayerNormalization", below=17)
def _layer_statistics(site: Site) -> Sequence[Value]:
    x, scale, bias = site.operand(0), site.operand(1), site.input(2)
    op = operator(site.node, LayerNormalization)
    axis = op.axis
    if x.rank is None and axis >= 0:
        raise site.fail("an axis counted from the front of a tensor of unknown rank")
    axes = constant(np.asarray(range(axis - (x.rank or 0) if axis >= 0 else axis, 0), np.int64))
    stash = dtype_of_code(op.stash_type)
    # ONNX Runtime has no bfloat16 kernels for these operators.
    wide = DType.FLOAT32 if stash is DType.BFLOAT16 else stash

    def cast(value: Value, to: DType) -> Value:
        return value if value.dtype is to else F.cast(value, to=to)

    stashed = cast(x, wide)
    mean = F.reduce_mean(stashed, axes, keepdims=True)
    centred = F.sub(stashed, mean)
    variance = F.reduce_mean(F.mul(centred, centred), axes, keepdims=True)
    inverse = F.reciprocal(F.sqrt(F.add(variance, constant(np.asarray(op.epsilon, wide.numpy)))))
    y = F.mul(cast(F.mul(centred, inverse), x.dtype), scale)
    return [y if bias is None else F.add(y, bias), cast(mean, stash), cast(inverse, stash)]


@rewrites("BatchNormalization", below=14)
def _batch_statistics(site: Site) -> Sequence[Value] | None:
    # Before opset 14, the training mode was not specified well enough, so it is written as other operators.
    op = operator(site.node, BatchNormalization)
    if not op.training_mode:
        return None
    x, scale, bias, mean, variance = (site.operand(i) for i in range(5))
    if x.rank is None:
        raise site.fail("training_mode=1 on a tensor of unknown rank")
    axes = constant(np.asarray([a for a in range(x.rank) if a != 1], np.int64))
    column = constant(np.asarray([-1, *[1] * (x.rank - 2)], np.int64))
    batch_mean = F.reduce_mean(x, axes, keepdims=True)
    centred = F.sub(x, batch_mean)
    batch_variance = F.reduce_mean(F.mul(centred, centred), axes, keepdims=True)
    epsilon = constant(np.asarray(op.epsilon, x.dtype.numpy))
    normal = F.div(centred, F.sqrt(F.add(batch_variance, epsilon)))
    gain, offset = (v if v.dtype is x.dtype else F.cast(v, to=x.dtype) for v in (scale, bias))
    y = F.add(F.mul(normal, F.reshape(gain, column)), F.reshape(offset, column))
    flat = constant(np.asarray([-1], np.int64))

    def running(old: Value, batch: Value) -> Value:
        momentum = constant(np.asarray(op.momentum, old.dtype.numpy))
        rest = constant(np.asarray(1 - op.momentum, old.dtype.numpy))
        new = F.reshape(batch, flat)
        new = new if new.dtype is old.dtype else F.cast(new, to=old.dtype)
        return F.add(F.mul(old, momentum), F.mul(new, rest))

    return [y, running(mean, batch_mean), running(variance, batch_variance)]


@spells("BatchNormalization", below=14)
def _inference_only(spelling: Spelling) -> None:
    spelling.only("training_mode", 0)


@spells("Resize", below=19)
def _known_coordinates(spelling: Spelling) -> None:
    if spelling.attrs.get("coordinate_transformation_mode") == "half_pixel_symmetric":
        raise spelling.fail("coordinate_transformation_mode='half_pixel_symmetric'")


@rewrites("Resize", below=ALWAYS)
def _half_pixel_of_the_nearest(site: Site) -> Sequence[Value] | None:
    """tf_half_pixel_for_nn was removed in opset 13. With floor, it equals half_pixel with round_prefer_ceil."""
    op = operator(site.node, Resize)
    if op.coordinate_transformation_mode != "tf_half_pixel_for_nn":
        return None
    if op.mode != "nearest" or op.nearest_mode != "floor":
        how = op.nearest_mode if op.mode == "nearest" else op.mode
        raise site.fail(f"coordinate_transformation_mode='tf_half_pixel_for_nn' with {how!r}")
    same = op.replace(coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")
    return [site.node.rebuilt(site.inputs, same).output]


@rewrites("Resize", below=18)
def _sizes_of_all_axes(site: Site) -> Sequence[Value] | None:
    op, x = operator(site.node, Resize), site.operand(0)
    if not op.axes:
        return None
    if x.rank is None:
        raise site.fail("axes of a tensor of unknown rank")
    place = [a % x.rank for a in op.axes]
    inputs: list[Value | None] = [x, None, None, None]
    if site.input(1) is not None:
        raise site.fail("a region of interest for some axes")
    for index in (2, 3):
        given = site.input(index)
        if given is not None:
            whole = constant(np.ones(x.rank, np.float32)) if index == 2 else F.shape(x)
            positions = constant(np.asarray(place, np.int64).reshape(-1, 1))
            inputs[index] = F.scatter_nd(whole, positions, given)
    return [site.node.rebuilt(inputs, op.replace(axes=None)).output]


@spells("Resize", below=18)
def _plain_resize(spelling: Spelling) -> None:
    spelling.only("antialias", 0)
    spelling.only("keep_aspect_ratio_policy", "stretch")
    spelling.attrs.pop("axes", None)


@spells("AveragePool", below=19)
@spells("LpPool", below=18)
def _undilated(spelling: Spelling) -> None:
    if any(d != 1 for d in spelling.attrs.pop("dilations", None) or ()):
        raise spelling.fail("a dilated window")


@spells("GridSample", below=20)
def _old_mode_names(spelling: Spelling) -> None:
    mode = spelling.attrs.get("mode", "linear")
    spelling.attrs["mode"] = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)


@rewrites("GridSample", below=20)
def _sampled_volume(site: Site) -> Sequence[Value] | None:
    # Before opset 20, GridSample supported only images.
    return None if site.operand(0).rank == 4 else [site.op.expand(*site.inputs)]


@rewrites("RoiAlign", below=16)
def _half_pixel(site: Site) -> Sequence[Value] | None:
    # Before opset 16, RoiAlign did not shift regions by half a pixel.
    if operator(site.node, RoiAlign).coordinate_transformation_mode == "output_half_pixel":
        return None
    return [site.op.expand(*site.inputs)]


@spells("RoiAlign", below=16)
def _output_half_pixel(spelling: Spelling) -> None:
    if spelling.attrs.pop("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        raise spelling.fail("coordinate_transformation_mode='half_pixel'")
