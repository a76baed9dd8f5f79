"""Deformable convolution, pooling of regions and correlation, against plain loops that follow MXNet's rules."""

import math

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InvalidModel, UnsupportedError
from tests.mxnet_io.symbols import compare, imported

f32 = np.float32


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def interpolated(plane, y, x):
    """Return a bilinear interpolation at a position that is clipped to the plane."""
    height, width = plane.shape
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    ly, lx = y - top, x - left
    upper = plane[top, left] * (1 - lx) + plane[top, right] * lx
    return upper * (1 - ly) + (plane[bottom, left] * (1 - lx) + plane[bottom, right] * lx) * ly


def faded(plane, y, x):
    """Return a bilinear interpolation in a plane that is surrounded by zeros."""
    if not (-1 < y < plane.shape[0] and -1 < x < plane.shape[1]):
        return 0
    return interpolated(np.pad(plane, 1), y + 1, x + 1)


def clipped(plane, y, x):
    inside = 0 <= y < plane.shape[0] and 0 <= x < plane.shape[1]
    return interpolated(plane, y, x) if inside else 0


def deformable(read, x, offset, mask, weight, bias, stride, pad, dilate, group, parts):
    filters, per_group, *kernel = weight.shape
    batch, channels = x.shape[:2]
    points = kernel[0] * kernel[1]
    out = np.zeros((batch, filters, *offset.shape[2:]))
    for n, f, oy, ox in np.ndindex(out.shape):
        total = 0 if bias is None else bias[f]
        for c, i, j in np.ndindex(per_group, *kernel):
            channel = f // (filters // group) * per_group + c
            part, point = channel // (channels // parts), i * kernel[1] + j
            dy, dx = offset[n, 2 * (part * points + point) :][:2, oy, ox]
            y, x_ = oy * stride[0] - pad[0] + i * dilate[0] + dy, ox * stride[1] - pad[1] + j * dilate[1] + dx
            factor = 1 if mask is None else mask[n, part * points + point, oy, ox]
            total += weight[f, c, i, j] * factor * read(x[n, channel], y, x_)
        out[n, f, oy, ox] = total
    return out


@in_one_item()
@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize(
    ("stride", "pad", "dilate", "group", "parts", "biased"),
    [((1, 1), (1, 1), (1, 1), 1, 1, True), ((2, 1), (1, 2), (1, 2), 2, 2, False)],
)
def test_deformable_convolution(tmp_path, modulated, stride, pad, dilate, group, parts, biased):
    x, weight = floats(2, 4, 5, 6), floats(4, 4 // group, 3, 2, seed=1)
    height, width = (
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip((5, 6), (3, 2), stride, pad, dilate, strict=True)
    )
    offset = floats(2, parts * 12, height, width, seed=2) * 2
    mask = floats(2, parts * 6, height, width, seed=3) if modulated else None
    bias = floats(4, seed=4) if biased else None
    inputs = {"x": x, "offset": offset, "mask": mask, "w": weight, "b": bias}
    attributes = {"kernel": (3, 2), "num_filter": 4, "stride": stride, "pad": pad, "dilate": dilate, "num_group": group,
                  "num_deformable_group": parts, "no_bias": not biased}  # fmt: skip
    wanted = deformable(
        faded if modulated else clipped, x, offset, mask, weight, bias, stride, pad, dilate, group, parts
    )
    op = "_contrib_ModulatedDeformableConvolution" if modulated else "_contrib_DeformableConvolution"
    inputs = {name: array for name, array in inputs.items() if array is not None}
    symbolic = {"x": ("N", 4, "H", "W"), "offset": ("N", offset.shape[1], "P", "Q"), "w": weight.shape, "b": (4,)}
    if modulated:
        symbolic["mask"] = ("N", mask.shape[1], "P", "Q")
    shapes = {name: symbolic[name] for name in inputs} if group == 2 else None
    compare(tmp_path, op, inputs, attributes, wanted, tolerance=1e-5, shapes=shapes)


def test_deformable_convolution_at_the_border(tmp_path):
    # Positions -0.5 and -1 read 0; from the last element to one pixel after it, the last element.
    x, weight = np.asarray([1, 2, 3, 4], f32).reshape(1, 1, 1, 4), np.ones((1, 1, 1, 1), f32)
    offset = np.zeros((1, 2, 1, 4), f32)
    offset[0, 1, 0] = [-0.5, -2, 1.75, 1]
    attributes = {"kernel": (1, 1), "num_filter": 1, "no_bias": True}
    inputs = {"x": x, "offset": offset, "w": weight}
    wanted = np.asarray([0, 0, 4, 0], f32).reshape(1, 1, 1, 4)
    compare(tmp_path, "_contrib_DeformableConvolution", inputs, attributes, wanted)


# --- pooling ------------------------------------------------------------------------------------------------

# Batch index and corners in pixels of the image: halves, beyond the image, empty, all of it.
REGIONS = np.asarray(
    [[0, 2.5, 3.5, 20.2, 17], [1, -6, -3, 30, 40], [1, 100, 100, 120, 130], [0, 9, 9, 8, 8], [1, 0, 0, 23, 19]], f32
)


def away_from_zero(x):
    return math.copysign(math.floor(abs(x) + 0.5), x)


def region_bounds(region, scale):
    x1, y1, x2, y2 = (away_from_zero(float(v)) for v in region[1:])
    left, top = f32(x1) * f32(scale), f32(y1) * f32(scale)
    width, height = f32(x2 + 1) * f32(scale) - left, f32(y2 + 1) * f32(scale) - top
    return left, top, max(width, f32(0.1)), max(height, f32(0.1))


@pytest.mark.parametrize(("size", "group", "scale"), [(3, 0, 0.25), (4, 2, 0.3)])
def test_psroi_pooling(tmp_path, size, group, scale):
    outputs, parts = 2, group or size
    x = floats(2, outputs * parts * parts, 5, 6)
    wanted = np.zeros((len(REGIONS), outputs, size, size))
    for n, c, i, j in np.ndindex(wanted.shape):
        left, top, width, height = region_bounds(REGIONS[n], scale)
        high, wide = height / f32(size), width / f32(size)
        rows = np.clip([math.floor(f32(i) * high + top), math.ceil(f32(i + 1) * high + top)], 0, 5)
        columns = np.clip([math.floor(f32(j) * wide + left), math.ceil(f32(j + 1) * wide + left)], 0, 6)
        channel = (c * parts + i * parts // size) * parts + j * parts // size
        found = x[int(REGIONS[n, 0]), channel, slice(*rows), slice(*columns)]
        wanted[n, c, i, j] = found.mean(dtype=np.float64) if found.size else 0
    attributes = {"spatial_scale": scale, "output_dim": outputs, "pooled_size": size, "group_size": group}
    shapes = {"x": ("N", x.shape[1], "H", "W"), "regions": ("regions", 5)} if group else None
    inputs = {"x": x, "regions": REGIONS}
    compare(tmp_path, "_contrib_PSROIPooling", inputs, attributes, wanted, tolerance=1e-5, shapes=shapes)


def test_psroi_pooling_refuses_another_count_of_channels(tmp_path):
    attributes = {"spatial_scale": 1, "output_dim": 2, "pooled_size": 3}
    with pytest.raises(InvalidModel, match="need 18 channels"):
        imported(tmp_path, "_contrib_PSROIPooling", {"x": floats(1, 17, 4, 4), "regions": REGIONS}, attributes)


@in_one_item()
@pytest.mark.parametrize(("classes", "parts"), [(0, 0), (1, 3), (2, 2)])
def test_deformable_psroi_pooling(tmp_path, classes, parts):
    outputs, group, size, samples, scale, factor = 4, 2, 3, 2, 0.25, 0.3
    parts_ = parts or size
    x, shifts = floats(2, outputs * group * group, 5, 6), floats(len(REGIONS), 2 * classes, parts_, parts_, seed=1)
    wanted = np.zeros((len(REGIONS), outputs, size, size))
    for n, c, i, j in np.ndindex(wanted.shape):
        left, top, width, height = region_bounds(REGIONS[n], scale)
        dx = dy = 0
        if classes:
            label = c // (outputs // classes)
            dx, dy = shifts[n, 2 * label : 2 * label + 2, i * parts_ // size, j * parts_ // size] * factor
        found = []
        for u, v in np.ndindex(samples, samples):
            y = top - 0.5 + i * height / size + dy * height + u * height / size / samples
            x_ = left - 0.5 + j * width / size + dx * width + v * width / size / samples
            if -0.5 <= y <= 4.5 and -0.5 <= x_ <= 5.5:
                channel = (c * group + i * group // size) * group + j * group // size
                found.append(interpolated(x[int(REGIONS[n, 0]), channel], y, x_))
        wanted[n, c, i, j] = np.mean(found) if found else 0
    attributes = {"spatial_scale": scale, "output_dim": outputs, "pooled_size": size, "group_size": group,
                  "sample_per_part": samples, "trans_std": factor, "part_size": parts,
                  "no_trans": not classes}  # fmt: skip
    inputs = {"x": x, "regions": REGIONS, **({"shifts": shifts} if classes else {})}
    compare(tmp_path, "_contrib_DeformablePSROIPooling", inputs, attributes, wanted, tolerance=1e-5)


def test_rotated_roi_align(tmp_path):
    x = floats(2, 3, 6, 7)
    regions = np.asarray(
        [[0, 12, 10, 16, 8, 30], [1, 20, 4, 30, 20, -75], [1, 5, 5, 1, 1, 0], [0, 90, 90, 8, 8, 10]], f32
    )
    height, width, samples, scale = 2, 3, 2, 0.25
    wanted = np.zeros((len(regions), 3, height, width))
    for n, c, i, j in np.ndindex(wanted.shape):
        batch, cx, cy, w, h, angle = regions[n].astype(np.float64)
        cx, cy, w, h = cx * scale, cy * scale, max(w * scale, 1), max(h * scale, 1)
        cos, sin, total = math.cos(math.radians(angle)), math.sin(math.radians(angle)), 0
        for u, v in np.ndindex(samples, samples):
            yy = -h / 2 + i * h / height + (u + 0.5) * h / height / samples
            xx = -w / 2 + j * w / width + (v + 0.5) * w / width / samples
            x_, y = xx * cos + yy * sin + cx, yy * cos - xx * sin + cy
            if -1 <= y <= 6 and -1 <= x_ <= 7:
                total += interpolated(x[int(batch), c], y, x_)
        wanted[n, c, i, j] = total / samples**2
    attributes = {"pooled_size": (height, width), "spatial_scale": scale, "sampling_ratio": samples}
    compare(tmp_path, "_contrib_RROIAlign", {"x": x, "regions": regions}, attributes, wanted, tolerance=1e-5)


def test_rotated_roi_align_refuses_adaptive_samples(tmp_path):
    inputs = {"x": floats(1, 1, 4, 4), "regions": floats(1, 6)}
    with pytest.raises(UnsupportedError, match="sampling_ratio must be above 0"):
        imported(tmp_path, "_contrib_RROIAlign", inputs, {"pooled_size": (2, 2), "spatial_scale": 1})


@pytest.mark.parametrize("aligned", [False, True])
def test_position_sensitive_roi_align(tmp_path, aligned):
    x, regions = floats(2, 12, 6, 7), np.asarray([[0, 2, 3, 20, 17], [1, 0, 4, 12, 22]], f32)
    height, width, samples, scale = 2, 3, 2, 0.25
    wanted = np.zeros((2, 2, height, width))
    for n, c, i, j in np.ndindex(wanted.shape):
        left, top, right, bottom = regions[n, 1:] * scale - (0.5 if aligned else 0)
        high, wide = (bottom - top) / height, (right - left) / width
        plane = x[int(regions[n, 0]), (c * height + i) * width + j]
        wanted[n, c, i, j] = np.mean([
            interpolated(plane, top + (i + (u + 0.5) / samples) * high, left + (j + (v + 0.5) / samples) * wide)
            for u, v in np.ndindex(samples, samples)
        ])  # fmt: skip
    attributes = {"pooled_size": (height, width), "spatial_scale": scale, "sample_ratio": samples,
                  "position_sensitive": True, "aligned": aligned}  # fmt: skip
    compare(tmp_path, "_contrib_ROIAlign", {"x": x, "regions": regions}, attributes, wanted, tolerance=1e-5)


@pytest.mark.parametrize("position_sensitive", [False, True])
def test_regions_of_no_image_are_zero(tmp_path, position_sensitive):
    """GluonCV's feature pyramids set the batch index of regions of other levels to -1. MXNet 1.9.1 returns 0 there."""
    x, regions = floats(2, 4, 6, 7), np.asarray([[0, 2, 3, 20, 17], [1, 0, 4, 12, 22], [0, 1, 1, 9, 9]], f32)
    attributes = {"pooled_size": (2, 2), "spatial_scale": 0.25, "position_sensitive": position_sensitive}
    whole = imported(tmp_path, "_contrib_ROIAlign", {"x": x, "regions": regions}, attributes)
    wanted = np.array(next(iter(whole.run({"x": x, "regions": regions}).values())))
    assert np.abs(wanted[1]).min() > 0
    wanted[1], regions[1, 0] = 0, -1
    compare(tmp_path, "_contrib_ROIAlign", {"x": x, "regions": regions}, attributes, wanted, tolerance=1e-5)


# --- correlation and count sketch ---------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(
    ("kernel", "most", "stride1", "stride2", "pad", "multiplied"),
    [(1, 1, 1, 1, 0, True), (3, 4, 2, 2, 4, True), (1, 0, 1, 1, 0, False), (3, 3, 2, 2, 3, False)],
)
def test_correlation(tmp_path, kernel, most, stride1, stride2, pad, multiplied):
    a, b = floats(2, 3, 6, 7), floats(2, 3, 6, 7, seed=1)
    first, second = (np.pad(v, ((0, 0), (0, 0), (pad, pad), (pad, pad))) for v in (a, b))
    border, reach = most + kernel // 2, most // stride2
    sizes = [math.ceil((size + 2 * pad - 2 * border) / stride1) for size in (6, 7)]
    wanted = np.zeros((2, (2 * reach + 1) ** 2, *sizes))
    for n, d, i, j in np.ndindex(wanted.shape):
        dy, dx = (step - reach for step in divmod(d, 2 * reach + 1))
        y, x = i * stride1 + most, j * stride1 + most
        p = first[n, :, y : y + kernel, x : x + kernel]
        q = second[n, :, y + dy * stride2 :, x + dx * stride2 :][:, :kernel, :kernel]
        wanted[n, d, i, j] = np.mean(p * q if multiplied else abs(p - q))
    attributes = {"kernel_size": kernel, "max_displacement": most, "stride1": stride1, "stride2": stride2,
                  "pad_size": pad, "is_multiply": multiplied}  # fmt: skip
    shapes = dict.fromkeys("ab", ("N", "C", "H", "W")) if kernel == 3 else None
    compare(tmp_path, "Correlation", {"a": a, "b": b}, attributes, wanted, shapes=shapes)


@pytest.mark.parametrize("shape", [(3, 8), (1, 2, 3, 8)])
def test_count_sketch(tmp_path, shape):
    x, signs = floats(*shape), np.asarray([[1, -1, 1, 1, -1, -1, 1, -1]], f32)
    places = np.asarray([[0, 4, 4, 2, 0, 0, 3, 2]], f32)
    wanted = np.zeros((*shape[:-1], 5))
    for j in range(8):
        wanted[..., int(places[0, j])] += signs[0, j] * x[..., j]
    compare(tmp_path, "_contrib_count_sketch", {"x": x, "h": places, "s": signs}, {"out_dim": 5}, wanted)
