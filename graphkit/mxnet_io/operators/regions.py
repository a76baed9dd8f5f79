"""Sampling at positions that a network computes, pooling of regions by position, and correlation of images.

Source: src/operator/contrib/deformable_convolution-inl.h, psroi_pooling.cc, deformable_psroi_pooling.cc, rroi_align.cc
and src/operator/correlation.cc of MXNet 1.9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.frontend.control import foreach
from graphkit.ir.graph import Value
from graphkit.ir.limits import require_memory
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import (
    Call,
    along_axis,
    as_floats,
    as_indices,
    converter,
    rank_of,
    ranked_operands,
    require_elements,
    reshape,
    scalar,
    sizes_of,
    static_sizes,
)
from graphkit.mxnet_io.operators.boxes import positions
from graphkit.mxnet_io.operators.convolution import window
from graphkit.ops import F, constant
from graphkit.ops.axes import i64, reshape_like

# --- deformable convolution ---------------------------------------------------------------------------------


@converter("_contrib_DeformableConvolution", "_npx_deformable_convolution")
def deformable_convolution(call: Call) -> Value:
    """Convolution whose elements are read at shifted positions: offsets [batch, groups * kernel * 2, height, width].

    Positions outside of 0 to size (excluded) read 0; from size - 1 on, they read the last element. ONNX's DeformConv
    fades to 0 within one pixel around the image instead: so the offsets are changed, and a mask is added.
    """
    return _deformable(call, modulated=False)


@converter("_contrib_ModulatedDeformableConvolution", "_npx_modulated_deformable_convolution")
def modulated_deformable_convolution(call: Call) -> Value:
    """Deformable convolution with a mask [batch, groups * kernel, height, width], by which elements are multiplied.

    Around the image, elements fade to 0 within one pixel.
    """
    call.attributes.ignore("im2col_step")
    return _deformable(call, modulated=True)


def _deformable(call: Call, modulated: bool) -> Value:
    attributes = call.attributes
    kernel = attributes.integers("kernel")
    require_elements(*kernel)
    if len(kernel) != 2:
        raise InvalidModel(f"kernel {kernel} must have 2 sizes")
    places = window(call, kernel)
    attributes.integer("num_filter", 0)
    attributes.choice("layout", "NCHW")
    group, parts = attributes.integer("num_group", 1), attributes.integer("num_deformable_group", 1)
    x, offsets = ranked_operands(call, 0, 1)
    if modulated:
        mask, position = call[2], 3
    else:
        (offsets, mask), position = _inside(x, offsets, kernel, places), 2
    bias = None if attributes.flag("no_bias", False) else call[position + 1]
    result: Value = F.deform_conv(
        x, call[position], offsets, bias, mask, group=group, offset_group=parts, kernel_shape=kernel, **places,
        name=call.name,
    )  # fmt: skip
    return result


def _inside(x: Value, offsets: Value, kernel: Sequence[int], places: dict[str, Sequence[int]]) -> tuple[Value, Value]:
    """Return offsets that lead at most to the last element, and a mask that is 0 for positions outside of the image."""
    (channels,) = static_sizes(offsets, [1])
    points = np.meshgrid(*(np.arange(size) for size in kernel), indexing="ij")
    groups = channels // (2 * points[0].size)
    split = F.reshape(offsets, F.concat(i64(0, channels // 2, 2), sizes_of(offsets, 2, 3), axis=0))
    changed, inside = [], []
    for axis in (0, 1):
        shift = split[:, :, axis]
        begin = np.tile(points[axis].ravel() * places["dilations"][axis] - places["pads"][axis], groups)
        steps = along_axis(positions(offsets, 2 + axis) * places["strides"][axis], 1 + axis, 3)
        base = as_floats(steps + begin.reshape(-1, 1, 1), x)
        size = as_floats(sizes_of(x, 2 + axis), x)
        place = base + shift
        inside.append((place >= 0) & (place < size))
        changed.append(F.unsqueeze(F.where(place > size - 1, size - 1 - base, shift), i64(2)))
    return reshape_like(F.concat(*changed, axis=2), offsets), as_floats(inside[0] & inside[1], x)


# --- interpolation ------------------------------------------------------------------------------------------


def _interpolated(flat: Value, y: Value, x: Value, image: Value, base: Value) -> Value:
    """Return bilinear interpolations at y and x, which are clipped to the image.

    Args:
        flat: Pixels [places], or [places, channels].
        y, x: Positions [...].
        image: An image [_, _, height, width].
        base: The place of the image's first pixel in `flat`, int64, which is broadcast to [...].
    """
    low, high, weights = [], [], []
    for axis, position in enumerate((y, x)):
        last = F.squeeze(sizes_of(image, 2 + axis), i64(0)) - 1
        clipped = F.clip(position, scalar(0.0, position), as_floats(last, position))
        floor = F.floor(clipped)
        low.append(as_indices(floor))
        high.append(F.min(low[-1] + 1, last))
        weights.append((1.0 - (clipped - floor), clipped - floor))
    width = F.squeeze(sizes_of(image, 3), i64(0))
    total: Value | None = None
    for row, vertical in zip((low[0], high[0]), weights[0], strict=True):
        for column, horizontal in zip((low[1], high[1]), weights[1], strict=True):
            weight = vertical * horizontal
            found = F.gather(flat, base + row * width + column, axis=0)
            part = found * (weight if rank_of(flat) == 1 else F.unsqueeze(weight, i64(-1)))
            total = part if total is None else total + part
    assert total is not None
    return total


def _area(x: Value) -> Value:
    """Return height * width of images [_, _, height, width]."""
    height, width = (F.squeeze(sizes_of(x, axis), i64(0)) for axis in (2, 3))
    result: Value = height * width
    return result


@converter("_contrib_RROIAlign")
def rotated_roi_align(call: Call) -> Value:
    """The mean of interpolated samples in each bin of a rotated region [batch index, x, y, width, height, degrees]."""
    attributes = call.attributes
    height, width = attributes.integers("pooled_size")
    scale, samples = attributes.number("spatial_scale", 1.0), attributes.integer("sampling_ratio", -1)
    if samples <= 0:
        raise UnsupportedError("sampling_ratio must be above 0: otherwise, the number of samples depends on the region")
    x, regions = ranked_operands(call, 0, 1)
    centre_x, centre_y, wide, high = (along_axis(regions[:, i] * scale, 0, 3) for i in range(1, 5))
    angle = along_axis(regions[:, 5] * (math.pi / 180), 0, 3)
    lines = []
    for size, count, axis in ((high, height, 1), (wide, width, 2)):
        size = F.max(size, scalar(1.0, size))
        points = (np.arange(count * samples) + 0.5) / samples  # in units of a bin
        lines.append(size / count * along_axis(constant(points.astype(x.dtype.numpy)), axis, 3) - size / 2)
    ys, xs = lines
    column = xs * F.cos(angle) + ys * F.sin(angle) + centre_x
    row = ys * F.cos(angle) - xs * F.sin(angle) + centre_y
    rows, columns = (as_floats(sizes_of(x, axis), x) for axis in (2, 3))
    inside = (row >= -1) & (row <= rows) & (column >= -1) & (column <= columns)
    (channels,) = static_sizes(x, [1])
    pixels = reshape(F.transpose(x, perm=(0, 2, 3, 1)), [-1, channels])
    found = _interpolated(pixels, row, column, x, along_axis(as_indices(regions[:, 0]), 0, 3) * _area(x))
    found = F.where(F.unsqueeze(inside, i64(-1)), found, scalar(0.0, x))
    bins = reshape(found, [-1, height, samples, width, samples, channels])
    result: Value = F.transpose(F.reduce_mean(bins, i64(2, 4), keepdims=False), perm=(0, 3, 1, 2), name=call.name)
    return result


# --- pooling by position --------------------------------------------------------------------------------------


def _rounded(x: Value) -> Value:
    """Round halves away from zero."""
    result: Value = F.sign(x) * F.floor(F.abs(x) + 0.5)
    return result


def _channels_by_position(x: Value, outputs: int, group: int, size: int) -> np.ndarray:
    """Return the channel of x that each element of the result is pooled from, [outputs, size, size]."""
    (channels,) = static_sizes(x, [1])
    if channels != outputs * group * group:
        raise InvalidModel(
            f"output_dim {outputs} and group_size {group} need {outputs * group * group} channels, not {x}"
        )
    part = np.clip(np.arange(size) * group // size, 0, group - 1)
    return (np.arange(outputs)[:, None, None] * group + part[:, None]) * group + part


def _bounds(regions: Value, scale: float) -> list[tuple[Value, Value]]:
    """Return (begin, size) along y and x of regions [_, 5], in pixels of the feature map."""
    corners = _rounded(regions[:, 1:5])
    found = []
    for axis in (1, 0):
        begin = corners[:, axis] * scale
        size = F.max((corners[:, 2 + axis] + 1) * scale - begin, scalar(0.1, regions))
        found.append((begin, size))
    return found


@converter("_contrib_PSROIPooling")
def psroi_pooling(call: Call) -> Value:
    """The mean of each bin of a region [batch index, x1, y1, x2, y2], where each bin has channels of its own.

    The sums over bins are differences of sums over all elements above and to the left, in float64. If an element is not
    finite, all sums that contain it are NaN; in MXNet, only those of its bin.
    """
    attributes = call.attributes
    size, outputs = attributes.integer("pooled_size", 0), attributes.integer("output_dim", 0)
    require_elements(outputs, size, size)
    group = attributes.integer("group_size", 0) or size
    x, regions = ranked_operands(call, 0, 1)
    bounds = _bounds(regions, attributes.number("spatial_scale", 1.0))
    edges = []
    for axis, (begin, extent) in enumerate(bounds):
        step, points = F.unsqueeze(extent / size, i64(1)), np.arange(size + 1, dtype=x.dtype.numpy)
        places = [points[:-1] * step + F.unsqueeze(begin, i64(1)), points[1:] * step + F.unsqueeze(begin, i64(1))]
        last = F.squeeze(sizes_of(x, 2 + axis), i64(0))
        whole = [as_indices(F.floor(places[0])), as_indices(F.ceil(places[1]))]
        edges.append([F.unsqueeze(F.clip(v, np.int64(0), last), i64(1, 3 - axis)) for v in whole])
    (top, bottom), (left, right) = edges
    sums = F.cum_sum(F.cum_sum(F.cast(x, to=DType.FLOAT64), np.int64(2)), np.int64(3))
    sums = F.pad(sums, i64(0, 0, 1, 1, 0, 0, 0, 0))
    flat, (channels, width) = reshape(sums, [-1]), (F.squeeze(sizes_of(sums, axis), i64(0)) for axis in (1, 3))
    channel = along_axis(as_indices(regions[:, 0]), 0, 4) * channels + _channels_by_position(x, outputs, group, size)

    def total(row: Value, column: Value) -> Value:
        result: Value = F.gather(flat, channel * _area(sums) + row * width + column, axis=0)
        return result

    found = total(bottom, right) - total(top, right) - total(bottom, left) + total(top, left)
    area = (bottom - top) * (right - left)
    mean = found / F.cast(F.max(area, constant(np.int64(1))), to=DType.FLOAT64)
    result: Value = F.where(area > 0, F.cast(mean, to=x.dtype), scalar(0.0, x), name=call.name)
    return result


@converter("_contrib_DeformablePSROIPooling")
def deformable_psroi_pooling(call: Call) -> Value:
    """The mean of interpolated samples in each bin of a region, where each bin has channels and a shift of its own.

    Operands: data, regions [_, 5], shifts [_, 2 * classes, part_size, part_size] as fractions of the region's size.
    """
    attributes = call.attributes
    size, outputs = attributes.integer("pooled_size", 0), attributes.integer("output_dim", 0)
    require_elements(outputs, size, size)
    group, parts = attributes.integer("group_size", 0), attributes.integer("part_size", 0) or size
    samples, factor = attributes.integer("sample_per_part", 1), attributes.number("trans_std", 0.0)
    shifted = not attributes.flag("no_trans", False)
    x, regions = ranked_operands(call, 0, 1)
    bounds = _bounds(regions, attributes.number("spatial_scale", 1.0))
    shifts = _shifts(ranked_operands(call, 2)[0], outputs, size, parts, factor) if shifted else [None, None]
    lines, inside = [], None
    for axis, (begin, extent) in enumerate(bounds):
        begin, extent = (along_axis(v, 0, 6) for v in (begin, extent))
        bins, within = np.arange(size), np.arange(samples)
        points = along_axis(constant(bins.astype(x.dtype.numpy)), 2 + axis, 6) * (extent / size) + (begin - 0.5)
        shift = shifts[axis]
        if shift is not None:
            points = points + F.unsqueeze(shift, i64(4, 5)) * extent
        line = points + along_axis(constant(within.astype(x.dtype.numpy)), 4 + axis, 6) * (extent / size / samples)
        count = as_floats(sizes_of(x, 2 + axis), x)
        good = (line >= -0.5) & (line <= count - 0.5)
        inside = good if inside is None else inside & good
        lines.append(line)
    assert inside is not None
    channels = F.squeeze(sizes_of(x, 1), i64(0))
    channel = along_axis(as_indices(regions[:, 0]), 0, 4) * channels + _channels_by_position(x, outputs, group, size)
    found = _interpolated(reshape(x, [-1]), lines[0], lines[1], x, F.unsqueeze(channel * _area(x), i64(4, 5)))
    total = F.reduce_sum(F.where(inside, found, scalar(0.0, x)), i64(4, 5), keepdims=False)
    number = F.reduce_sum(as_floats(inside, x), i64(4, 5), keepdims=False)
    result: Value = F.div(total, F.max(number, scalar(1.0, x)), name=call.name)
    return result


def _shifts(shifts: Value, outputs: int, size: int, parts: int, factor: float) -> list[Value]:
    """Return the shifts along y and x of each bin, [regions, outputs, size, size]."""
    (count,) = static_sizes(shifts, [1])
    classes = count // 2
    part = np.floor(np.arange(size, dtype=np.float32) / np.float32(size) * np.float32(parts)).astype(np.int64)
    bins = F.gather(F.gather(shifts, constant(part), axis=2), constant(part), axis=3)
    label = np.arange(outputs, dtype=np.int64) // (outputs // classes)
    return [F.gather(bins, constant(2 * label + axis), axis=1) * factor for axis in (1, 0)]


# --- correlation --------------------------------------------------------------------------------------------


@converter("Correlation")
def correlation(call: Call) -> Value:
    """Compare patches of an image with patches of another one around the same position.

    The result [batch, displacements, height, width] has the mean of products, or of absolute differences, over the
    channels and the elements of a patch. Displacements go by stride2 up to max_displacement, row by row.
    """
    attributes = call.attributes
    kernel, most = attributes.integer("kernel_size", 1), attributes.integer("max_displacement", 1)
    stride, step = attributes.integer("stride1", 1), attributes.integer("stride2", 1)
    pad, multiplied = attributes.integer("pad_size", 0), attributes.flag("is_multiply", True)
    if kernel % 2 == 0:
        raise InvalidModel(f"kernel_size {kernel} must be odd")
    pads = i64(0, 0, pad, pad, 0, 0, pad, pad)
    first, second = (F.pad(x, pads) for x in ranked_operands(call, 0, 1))
    rows, columns = (positions(first, axis)[most : -most or None] for axis in (2, 3))
    centre = F.gather(F.gather(first, rows, axis=2), columns, axis=3)
    require_memory(16 * (2 * (most // step) + 1) ** 2, f"displacements up to {most}")
    shifts = np.arange(-(most // step), most // step + 1) * step
    displacements = np.stack(np.meshgrid(shifts, shifts, indexing="ij"), axis=-1).reshape(-1, 2)

    def compared(shift: Value, state: tuple[()]) -> tuple[Value, tuple[()]]:
        moved = F.gather(F.gather(second, rows + shift[0], axis=2), columns + shift[1], axis=3)
        pairs = centre * moved if multiplied else F.abs(centre - moved)
        return F.reduce_mean(pairs, i64(1), keepdims=False), state

    maps, _ = foreach(compared, constant(displacements.astype(np.int64)), ())
    result: Value = F.average_pool(
        F.transpose(maps, perm=(1, 0, 2, 3)), kernel_shape=(kernel, kernel), strides=(stride, stride), name=call.name
    )
    return result
