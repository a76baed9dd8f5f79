"""Resizing, sampling at coordinates, pooling over regions, and transformations of images."""

import itertools
import math

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats, positive
from tests.mxnet_io.operator_checks import check

IMAGE = floats(2, 3, 4, 5)


def repeated(x, scale):
    return x.repeat(scale, 2).repeat(scale, 3)


def interpolated(x, rows, columns, zeros=False):
    """Bilinear interpolation of one channel at positions; outside, the nearest element, or 0."""
    found = np.zeros(rows.shape)
    for place in np.ndindex(rows.shape):
        y, z = rows[place], columns[place]
        for i, j in itertools.product((math.floor(y), math.floor(y) + 1), (math.floor(z), math.floor(z) + 1)):
            inside = 0 <= i < x.shape[0] and 0 <= j < x.shape[1]
            weight = (1 - abs(y - i)) * (1 - abs(z - j))
            if inside or not zeros:
                found[place] += weight * x[min(max(i, 0), x.shape[0] - 1), min(max(j, 0), x.shape[1] - 1)]
    return found


def resized(x, height, width, corners=True):
    def places(size, wanted):
        if corners:
            return np.arange(wanted) * ((size - 1) / max(wanted - 1, 1))
        return np.maximum((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0)

    rows, columns = np.meshgrid(places(x.shape[2], height), places(x.shape[3], width), indexing="ij")
    return np.stack([[interpolated(channel, rows, columns) for channel in image] for image in x])


def bilinear_weight(channels, scale):
    """The weight that the initialiser Bilinear gives: [channels, 1, k, k] for k = 2 scale - scale % 2."""
    size = 2 * scale - scale % 2
    factor = math.ceil(size / 2)
    centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
    line = 1 - np.abs(np.arange(size) / factor - centre)
    return np.broadcast_to(np.outer(line, line), (channels, 1, size, size)).astype(np.float32).copy()


def upsampled(x, weight, scale):
    """A transposed convolution with stride `scale`, each channel by itself, cut to `scale` times the size."""
    size, pad = weight.shape[2], math.ceil((scale - 1) / 2)
    y = np.zeros((*x.shape[:2], *((n - 1) * scale + size for n in x.shape[2:])))
    for i, j in np.ndindex(x.shape[2:]):
        y[..., i * scale : i * scale + size, j * scale : j * scale + size] += (
            x[..., i : i + 1, j : j + 1] * weight[:, 0]
        )
    return y[..., pad : pad + x.shape[2] * scale, pad : pad + x.shape[3] * scale]


UPSAMPLING = [
    case("UpSampling", IMAGE, gives=repeated(IMAGE, 2), scale=2, sample_type="nearest", num_args=1),
    case(
        "UpSampling",
        floats(1, 2, 4, 4),
        floats(1, 3, 2, 2),
        scale=2,
        sample_type="nearest",
        num_args=2,
        gives=np.concatenate([repeated(floats(1, 2, 4, 4), 2), repeated(floats(1, 3, 2, 2), 4)], 1),
    ),
    case(
        "UpSampling",
        floats(1, 2, 4, 4),
        floats(1, 2, 8, 8),
        scale=2,
        sample_type="nearest",
        num_args=2,
        multi_input_mode="sum",
        gives=repeated(floats(1, 2, 4, 4), 2) + floats(1, 2, 8, 8),
    ),
    case(
        "UpSampling",
        IMAGE,
        bilinear_weight(3, 2),
        gives=upsampled(IMAGE, bilinear_weight(3, 2), 2),
        scale=2,
        num_filter=3,
        sample_type="bilinear",
        num_args=2,
        weights=[1],
    ),
    case(
        "UpSampling",
        IMAGE,
        bilinear_weight(3, 3),
        gives=upsampled(IMAGE, bilinear_weight(3, 3), 3),
        scale=3,
        num_filter=3,
        sample_type="bilinear",
        num_args=2,
        weights=[1],
    ),
]
RESIZING = [
    case("_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 7, 3), height=7, width=3),
    case(
        "_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 8, 10, False), height=8, width=10, align_corners=False
    ),
    case("_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 8, 7), scale_height=2.0, scale_width=1.5),
    case("_contrib_BilinearResize2D", IMAGE, floats(2, 1, 6, 9), gives=resized(IMAGE, 6, 9), mode="like"),
    case("_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 4, 4), mode="to_even_down"),
    case("_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 4, 6), mode="to_even_up"),
    case("_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 3, 5), mode="to_odd_down"),
    case("_contrib_BilinearResize2D", IMAGE, gives=resized(IMAGE, 5, 5), mode="to_odd_up"),
    case(
        "_contrib_BilinearResize2D",
        IMAGE,
        gives=resized(IMAGE, 8, 7),
        mode="odd_scale",
        scale_height=2.0,
        scale_width=1.5,
    ),
]


def sampled(x, grid):
    """x at grid [batch, 2, height, width]: x, then y, from -1 to 1."""
    columns, rows = ((grid[:, i] + 1) * (x.shape[3 - i] - 1) / 2 for i in (0, 1))
    return np.stack(
        [[interpolated(c, r, k, zeros=True) for c in image] for image, r, k in zip(x, rows, columns, strict=True)]
    )


def affine(theta, height, width):
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    points = np.stack([x.ravel(), y.ravel(), np.ones(height * width)])
    return (theta.reshape(-1, 2, 3).astype(np.float64) @ points).reshape(-1, 2, height, width)


GRID = 0.9 * np.tanh(floats(2, 2, 3, 3, seed=3))
WIDE = 2.5 * GRID
THETA = np.float32([[0.8, 0.1, 0.05, -0.2, 0.9, -0.1], [1.2, 0, 0, 0, 0.7, 0.3]])
FLOW = floats(2, 2, 4, 5, seed=4)
_rows, _columns = np.meshgrid(np.arange(4), np.arange(5), indexing="ij")
WARPED = (FLOW + np.stack([_columns, _rows])) / np.float32([2, 1.5]).reshape(1, 2, 1, 1) - 1
SAMPLING = [
    case("BilinearSampler", IMAGE, GRID, gives=sampled(IMAGE, GRID), tolerance=1e-4),
    case("BilinearSampler", IMAGE, WIDE, gives=sampled(IMAGE, WIDE), tolerance=1e-4),
    case("GridGenerator", THETA, gives=affine(THETA, 3, 4), transform_type="affine", target_shape=(3, 4)),
    case("GridGenerator", FLOW, gives=WARPED, transform_type="warp"),
    case(
        "SpatialTransformer",
        IMAGE,
        THETA,
        gives=sampled(IMAGE, affine(THETA, 3, 4)),
        transform_type="affine",
        sampler_type="bilinear",
        target_shape=(3, 4),
        tolerance=1e-4,
    ),
]


def region_maximum(x, roi, size, scale):
    """ROIPooling of one region, with rounded corners and overlapping bins; an empty bin is 0."""
    image = x[int(roi[0])]
    left, top, right, bottom = (math.floor(v * scale + 0.5) for v in roi[1:])
    height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
    y = np.zeros((len(image), *size))
    for i, j in np.ndindex(*size):
        rows = [
            min(max(edge + top, 0), x.shape[2])
            for edge in (math.floor(i * height / size[0]), math.ceil((i + 1) * height / size[0]))
        ]
        columns = [
            min(max(edge + left, 0), x.shape[3])
            for edge in (math.floor(j * width / size[1]), math.ceil((j + 1) * width / size[1]))
        ]
        part = image[:, slice(*rows), slice(*columns)]
        y[:, i, j] = part.max((1, 2)) if part.size else 0
    return y


def region_mean(x, roi, size, scale, samples, aligned):
    """ROIAlign of one region: the mean of interpolated samples of each bin; samples far outside are 0."""
    image, shift = x[int(roi[0])], 0.5 if aligned else 0.0
    left, top, right, bottom = (v * scale - shift for v in roi[1:])
    extent = [bottom - top, right - left]
    if not aligned:
        extent = [max(v, 1.0) for v in extent]
    bins = [e / s for e, s in zip(extent, size, strict=True)]
    counts = [samples if samples > 0 else math.ceil(b) for b in bins]
    y = np.zeros((len(image), *size))
    for i, j in np.ndindex(*size):
        lines = [top + bins[0] * (i + (a + 0.5) / counts[0]) for a in range(counts[0])]
        places = [left + bins[1] * (j + (a + 0.5) / counts[1]) for a in range(counts[1])]
        for r, c in itertools.product(lines, places):
            if -1 <= r <= x.shape[2] and -1 <= c <= x.shape[3]:
                at = [np.full((1,), min(max(v, 0), n - 1)) for v, n in ((r, x.shape[2]), (c, x.shape[3]))]
                y[:, i, j] += [interpolated(channel, *at)[0] for channel in image]
    return y / (counts[0] * counts[1])


MAP = floats(2, 2, 8, 9)
REGIONS = np.float32([[0, 1, 2, 6, 7], [1, 0, 0, 3, 3], [1, 4, 1, 12, 9]])
SCALED = REGIONS * np.float32([1, 2, 2, 2, 2])
REGION_POOLING = [
    case(
        "ROIPooling",
        MAP,
        REGIONS,
        gives=np.stack([region_maximum(MAP, r, (3, 2), 1.0) for r in REGIONS]),
        pooled_size=(3, 2),
        spatial_scale=1.0,
    ),
    case(
        "ROIPooling",
        MAP,
        SCALED,
        gives=np.stack([region_maximum(MAP, r, (2, 2), 0.5) for r in SCALED]),
        pooled_size=(2, 2),
        spatial_scale=0.5,
    ),
    *(
        case(
            "_contrib_ROIAlign",
            MAP,
            SCALED,
            gives=np.stack([region_mean(MAP, r, (3, 2), 0.5, n, a) for r in SCALED]),
            pooled_size=(3, 2),
            spatial_scale=0.5,
            sample_ratio=n,
            aligned=a,
            tolerance=1e-4,
        )
        for n, a in ((2, False), (-1, False), (2, True))
    ),
]

PHOTO = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
PHOTOS = np.stack([PHOTO, PHOTO[::-1]])
TENSOR = positive(3, 4, 5)
PLAIN = floats(4, 5, 3)
ENLARGED = resized(PLAIN.transpose(2, 0, 1)[None], 6, 7, corners=False)[0].transpose(1, 2, 0)
KEPT = resized(PLAIN.transpose(2, 0, 1)[None], 8, 10, corners=False)[0].transpose(1, 2, 0)
TRANSFORMS = [
    case("_image_resize", PLAIN, gives=ENLARGED, size=(7, 6)),
    case("_image_resize", np.stack([PLAIN, -PLAIN]), gives=np.stack([ENLARGED, -ENLARGED]), size=(7, 6)),
    case("_image_resize", PLAIN, gives=KEPT, size=8, keep_ratio=True),
    case("_image_resize", PHOTO, gives=PHOTO[[0, 0, 1, 2, 2, 3]][:, [0, 0, 1, 2, 2, 3, 4]], size=(7, 6), interp=0),
    case("_image_to_tensor", PHOTO, gives=np.float32(PHOTO.transpose(2, 0, 1) / 255)),
    case("_image_to_tensor", PHOTOS, gives=np.float32(PHOTOS.transpose(0, 3, 1, 2) / 255)),
    case("_image_normalize", TENSOR, gives=(TENSOR - 0.5) / 2, mean=(0.5,), std=(2.0,)),
    case("_image_normalize", TENSOR[None], gives=((TENSOR - np.reshape([0.1, 0.2, 0.3], (3, 1, 1))) / np.reshape([1,
         2, 4], (3, 1, 1)))[None],
         mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0)),
    case("_image_crop", PHOTO, gives=PHOTO[1:3, 2:5], x=2, y=1, width=3, height=2),
    case("_image_flip_left_right", PHOTO, gives=PHOTO[:, ::-1]),
    case("_image_flip_top_bottom", PHOTO, gives=PHOTO[::-1]),
    case("im2col", MAP, gives=np.stack([
        [image[c, i : i + 6, j : j + 8].ravel() for c in range(2) for i in range(3) for j in range(2)] for image in MAP
    ]), kernel=(3, 2)),
    case("im2col", MAP, gives=np.stack([
        [np.pad(image, [(0, 0), (1, 1), (0, 0)])[c, i : i + 7 : 2,
             2 * j : 2 * j + 7].ravel() for c in range(2) for i in range(3) for j in range(2)]
        for image in MAP
    ]), kernel=(3, 2), stride=(2, 1), dilate=(1, 2), pad=(1, 0)),
    case("col2im", np.ones((1, 8, 6), np.float32), output_size=(3, 4), kernel=(2, 2),
         gives=np.broadcast_to(np.float32([[1, 2, 2, 1], [2, 4, 4, 2], [1, 2, 2, 1]]), (1, 2, 3, 4))),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("cases", [UPSAMPLING + RESIZING, SAMPLING, REGION_POOLING + TRANSFORMS])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
