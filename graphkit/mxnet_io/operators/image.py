"""Resizing and sampling of images: UpSampling, BilinearResize2D, BilinearSampler, SpatialTransformer, ROI pooling."""

from __future__ import annotations

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import (
    Call,
    along_axis,
    as_indices,
    converter,
    rank_of,
    require_elements,
    reshape,
    scalar,
    shape_of,
    sizes_of,
    static_sizes,
)
from graphkit.mxnet_io.operators.convolution import window
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


@converter("UpSampling")
def upsampling(call: Call) -> Value:
    """Repeat each element `scale` times along both axes, or interpolate by a transposed convolution with a weight.

    Several operands of different sizes are each brought to the size of the first result, and joined or added.
    """
    attributes = call.attributes
    scale = attributes.integer("scale", 1)
    kind = attributes.choice("sample_type", "nearest", "bilinear")
    joined = attributes.choice("multi_input_mode", "concat", "sum")
    filters = attributes.integer("num_filter", 0)
    if kind == "bilinear":
        kernel, pad = 2 * scale - scale % 2, -(-(scale - 1) // 2)
        channels = filters or static_sizes(call[1], [0])[0]
        result: Value = F.conv_transpose(
            call[0], call[1], group=channels, strides=(scale, scale), pads=(pad,) * 4, kernel_shape=(kernel, kernel),
            name=call.name,
        )  # fmt: skip
        return result
    operands = call.operands()
    if len(operands) == 1:
        return _repeated(operands[0], scale)
    height = static_sizes(operands[0], [2])[0] * scale
    grown = [_repeated(v, height // static_sizes(v, [2])[0]) for v in operands]
    result = F.concat(*grown, axis=1) if joined == "concat" else F.sum(*grown)
    return result


def _repeated(x: Value, scale: int) -> Value:
    scales = np.asarray([1, 1, scale, scale], np.float32)
    result: Value = F.resize(
        x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    return result


@converter("_contrib_BilinearResize2D")
def bilinear_resize(call: Call) -> Value:
    """Bilinear interpolation; with align_corners, the default, the corners of both images coincide."""
    attributes = call.attributes
    mode = attributes.choice(
        "mode", "size", "like", "odd_scale", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"
    )
    corners = attributes.flag("align_corners", True)
    height, width = attributes.integer("height", 1), attributes.integer("width", 1)
    factors = attributes.number("scale_height", 0.0), attributes.number("scale_width", 0.0)
    x = call[0]
    if mode == "like":
        sizes = sizes_of(call[1], 2, 3)
    elif mode == "odd_scale":
        both = zip(static_sizes(x, (2, 3)), factors, strict=True)
        sizes = constant(i64(*(int(s * f) if s % 2 == 0 else int((s - 1) * f) + 1 for s, f in both)))
    elif mode != "size":
        sizes = constant(i64(*(_rounded(size, mode) for size in static_sizes(x, (2, 3)))))
    elif all(factors):
        sizes = constant(i64(*(int(s * f) for s, f in zip(static_sizes(x, (2, 3)), factors, strict=True))))
    else:
        sizes = constant(i64(height, width))
    result: Value = F.resize(
        x, None, None, F.concat(sizes_of(x, 0, 1), sizes, axis=0), mode="linear", name=call.name,
        coordinate_transformation_mode="align_corners" if corners else "half_pixel",
    )  # fmt: skip
    return result


def _rounded(size: int, mode: str) -> int:
    odd = "odd" in mode
    if size % 2 == odd:
        return size
    return size + (1 if mode.endswith("up") else -1)


# --- sampling at coordinates ----------------------------------------------------------------------------------


@converter("BilinearSampler")
def bilinear_sampler(call: Call) -> Value:
    """Sample at grid [batch, 2, height, width], x then y from -1 to 1; outside of the image is 0."""
    call.attributes.ignore("cudnn_off")
    return _sampled(call[0], call[1])


def _sampled(x: Value, grid: Value) -> Value:
    places = F.transpose(grid, perm=(0, 2, 3, 1))
    result: Value = F.grid_sample(x, places, align_corners=True, mode="linear", padding_mode="zeros")
    return result


@converter("GridGenerator")
def grid_generator(call: Call) -> Value:
    """The grid of an affine transformation [batch, 6], or of a flow [batch, 2, height, width] in pixels."""
    kind = call.attributes.choice("transform_type", "affine", "warp")
    target = call.attributes.integers("target_shape", (0, 0))
    if kind == "affine":
        return _affine(call.x, *target)
    flow = call.x
    height, width = static_sizes(flow, (2, 3))
    require_elements(height, width)
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    base = constant(np.stack([columns, rows])[None].astype(flow.dtype.numpy))
    extent = np.asarray([max(width - 1, 1), max(height - 1, 1)], flow.dtype.numpy).reshape(1, 2, 1, 1) / 2
    result: Value = F.sub(F.div(F.add(flow, base), constant(extent)), scalar(1.0, flow))
    return result


def _affine(theta: Value, height: int, width: int) -> Value:
    """Return [batch, 2, height, width]: theta [batch, 2, 3] times (x, y, 1) at the points of a regular grid."""
    require_elements(height, width)
    ys, xs = np.meshgrid(_points(height), _points(width), indexing="ij")
    points = np.stack([xs.ravel(), ys.ravel(), np.ones(height * width)]).astype(theta.dtype.numpy)
    product = F.mat_mul(reshape(theta, [-1, 2, 3]), constant(points))
    return reshape(product, [0, 2, height, width])


def _points(count: int) -> np.ndarray:
    """Return equally spaced coordinates from -1 to 1."""
    return -1.0 + np.arange(count) * 2.0 / max(count - 1, 1)


@converter("SpatialTransformer")
def spatial_transformer(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("cudnn_off")
    attributes.choice("transform_type", "affine")
    attributes.choice("sampler_type", "bilinear")
    height, width = attributes.integers("target_shape", (0, 0))
    x = call[0]
    if not height:
        height, width = static_sizes(x, (2, 3))
    return _sampled(x, _affine(call[1], height, width))


# --- regions ------------------------------------------------------------------------------------------------


@converter("ROIPooling", "_npx_roi_pooling")
def roi_pooling(call: Call) -> Value:
    """The maximum over each bin of a region [batch index, x1, y1, x2, y2]."""
    attributes = call.attributes
    result: Value = F.max_roi_pool(
        call[0], call[1], pooled_shape=attributes.integers("pooled_size"), name=call.name,
        spatial_scale=attributes.number("spatial_scale", 1.0),
    )  # fmt: skip
    return result


@converter("_contrib_ROIAlign")
def roi_align(call: Call) -> Value:
    """The mean of interpolated samples in each bin of a region [batch index, x1, y1, x2, y2].

    A region with a negative batch index gives 0: GluonCV's feature pyramids mark regions of other levels so. With
    position_sensitive, each bin is pooled from channels of its own: those of an output are one after another.
    """
    attributes = call.attributes
    by_position = attributes.flag("position_sensitive", False)
    height, width = attributes.integers("pooled_size")
    regions = call[1]
    corners = F.slice(regions, i64(1), i64(5), i64(1))
    batch = as_indices(F.squeeze(F.slice(regions, i64(0), i64(1), i64(1)), i64(1)))
    aligned = attributes.flag("aligned", False)
    pooled: Value = F.roi_align(
        call[0], corners, F.max(batch, np.int64(0)), output_height=height, output_width=width,
        sampling_ratio=max(attributes.integer("sample_ratio", -1), 0),
        spatial_scale=attributes.number("spatial_scale", 1.0),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
    counts = reshape(F.greater_or_equal(batch, np.int64(0)), [-1, 1, 1, 1])
    result: Value = F.where(counts, pooled, scalar(0.0, pooled), name=call.name)
    if not by_position:
        return result
    # Bin i of the channels i, i + bins, i + 2 * bins, ...
    bins = height * width
    own = constant(i64(*range(0, bins * bins, bins + 1)))
    (channels,) = static_sizes(call[0], [1])
    chosen = F.gather(reshape(result, [0, channels // bins, bins * bins]), own, axis=2)
    return reshape(chosen, [0, 0, height, width])


@converter("_image_normalize", "_npx__image_normalize")
def normalize(call: Call) -> Value:
    """(x - mean) / std for each channel of images [..., channels, height, width]."""
    x = call.x
    rank = rank_of(x)
    mean, std = (_per_channel(call, name, default, x, rank) for name, default in (("mean", 0.0), ("std", 1.0)))
    result: Value = F.div(F.sub(x, mean), std)
    return result


def _per_channel(call: Call, name: str, default: float, x: Value, rank: int) -> Value:
    numbers = call.attributes.numbers(name, (default,))
    return along_axis(constant(np.asarray(numbers, x.dtype.numpy)), rank - 3, rank)


# Eigenvectors of the colours of ImageNet times their eigenvalues, as MXNet has them.
_LIGHTING = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]) * [
    55.46, 4.794, 1.148,
]  # fmt: skip


@converter("_image_adjust_lighting", "_npx__image_adjust_lighting")
def adjust_lighting(call: Call) -> Value:
    """Add a colour, a sum of eigenvectors with the factors alpha, to an image [height, width, 3].

    Results of uint8 saturate, and those of other integers wrap around. A grey image [height, width, 1] stays as it is.
    """
    x, alpha = call.x, call.attributes.numbers("alpha")
    if len(alpha) != 3:
        raise InvalidModel(f"alpha {alpha}: three numbers are expected")
    if rank_of(x) != 3:
        raise InvalidModel(f"{x} has rank {x.rank}; an image [height, width, channels] is expected")
    channels = shape_of(x)[2]
    if is_static(channels) and channels not in (1, 3):
        raise InvalidModel(f"{x} has {channels} channels; 1 or 3 are expected")
    if channels == 1:
        return x
    shift = np.float32(_LIGHTING @ alpha)
    if x.dtype.is_float:
        result: Value = F.add(x, constant(shift.astype(x.dtype.numpy)))
        return result
    shifted = F.add(F.cast(x, to="float32"), shift)
    if x.dtype is DType.UINT8:
        shifted = F.clip(shifted, np.float32(0), np.float32(255))
    result = F.cast(F.cast(shifted, to=DType.INT32), to=x.dtype)
    return result


@converter("_image_to_tensor", "_npx__image_to_tensor")
def to_tensor(call: Call) -> Value:
    """Images [..., height, width, channels] of 0 to 255 to [..., channels, height, width] of 0 to 1."""
    x = F.cast(call.x, to="float32")
    rank = rank_of(x)
    moved = F.transpose(x, perm=(*range(rank - 3), rank - 1, rank - 3, rank - 2))
    result: Value = F.div(moved, np.float32(255.0))
    return result


@converter("_image_resize", "_npx__image_resize")
def resize_image(call: Call) -> Value:
    """Resize images [..., height, width, channels] to `size`, (width, height): to the nearest pixel, or bilinearly.

    A single size is that of both sides, or of the shorter side with keep_ratio. Results of uint8 may differ by 1 from
    MXNet's, which interpolates them in integers.
    """
    attributes = call.attributes
    kind = attributes.integer("interp", 1)
    if kind not in (0, 1):
        raise UnsupportedError(f"interp {kind}: nearest (0) and bilinear (1) are supported")
    x, size, kept = call.x, attributes.integers("size"), attributes.flag("keep_ratio", False)
    width, height = size if len(size) == 2 else _sides(x, size[0], kept)
    rank = rank_of(x)
    lead = range(rank - 3)
    pixels = x if x.dtype.is_float else F.cast(x, to="float32")
    images = F.transpose(pixels, perm=(*lead, rank - 1, rank - 3, rank - 2))
    images = images if rank == 4 else F.unsqueeze(images, i64(0))
    sizes = F.concat(sizes_of(images, 0, 1), i64(height, width), axis=0)
    if kind == 1:
        found = F.resize(images, None, None, sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    else:
        found = F.resize(
            images, None, None, sizes, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
    found = F.transpose(found if rank == 4 else F.squeeze(found, i64(0)), perm=(*lead, rank - 2, rank - 1, rank - 3))
    result: Value = found if x.dtype.is_float else F.cast(F.round(found), to=x.dtype)
    return result


def _sides(x: Value, size: int, kept: bool) -> tuple[int, int]:
    """Return width and height for a single size."""
    if not kept:
        return size, size
    rank = rank_of(x)
    height, width = static_sizes(x, (rank - 3, rank - 2))
    return (width * size // height, size) if height < width else (size, height * size // width)


@converter("_image_crop", "_npx__image_crop")
def crop_image(call: Call) -> Value:
    """Cut images [..., height, width, channels] at column x and row y."""
    attributes = call.attributes
    left, top = attributes.integer("x", 0), attributes.integer("y", 0)
    right, bottom = left + attributes.integer("width", 0), top + attributes.integer("height", 0)
    result: Value = F.slice(call.x, i64(top, left), i64(bottom, right), i64(-3, -2), name=call.name)
    return result


@converter(
    "_image_flip_left_right", "_npx__image_flip_left_right", "_image_flip_top_bottom", "_npx__image_flip_top_bottom"
)
def flip_image(call: Call) -> Value:
    """Mirror images [..., height, width, channels]."""
    axis = -2 if call.op.endswith("left_right") else -3
    end = -np.iinfo(np.int64).max
    result: Value = F.slice(call.x, i64(-1), i64(end), i64(axis), i64(-1), name=call.name)
    return result


@converter("im2col")
def image_to_columns(call: Call) -> Value:
    """The block of elements under a kernel at each position, as columns [batch, channels * kernel, positions]."""
    kernel = call.attributes.integers("kernel")
    result: Value = F.im2_col(call.x, i64(*kernel), **window(call, kernel), name=call.name)
    return result


@converter("col2im")
def columns_to_image(call: Call) -> Value:
    """Add columns to an image of the size output_size: the adjoint of im2col."""
    kernel, size = call.attributes.integers("kernel"), call.attributes.integers("output_size")
    result: Value = F.col2_im(call.x, i64(*size), i64(*kernel), **window(call, kernel), name=call.name)
    return result
