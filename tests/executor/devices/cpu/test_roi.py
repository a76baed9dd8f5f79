"""Native kernels of regions against the operators' references."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.ops.image.roi import NonMaxSuppression, RoiAlign
from graphkit.ops.xp import numpy_xp

SEEDS = range(12)


pytestmark = pytest.mark.usefixtures("isa")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("seed", SEEDS)
def test_roi_align(seed, mode, threads):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, int(rng.integers(1, 5)), *rng.integers(1, 12, 2))).astype(np.float32)
    corners = rng.uniform(-4, 14, (7, 4)).astype(np.float32)
    corners[1] = [3, 3, 2, 2]  # no area
    corners[2] = [-50, -50, -40, -40]  # outside
    rois = np.where(rng.uniform(size=(7, 1)) < 0.7, np.sort(corners.reshape(7, 2, 2), axis=1).reshape(7, 4), corners)
    images = rng.integers(0, 2, 7)
    height, width, samples = int(rng.integers(1, 4)), int(rng.integers(1, 8)), int(rng.integers(0, 3))
    transformation = ("half_pixel", "output_half_pixel")[seed % 2]
    scale = float(rng.choice([0.25, 1.0, 2.0]))
    op = RoiAlign(
        mode=mode, output_height=height, output_width=width, sampling_ratio=samples, spatial_scale=scale,
        coordinate_transformation_mode=transformation,
    )  # fmt: skip
    kernel = native.RoiAlign(
        x.shape, 7, height=height, width=width, samples=samples, scale=scale,
        half_pixel=transformation == "half_pixel", maximum=mode == "max", threads=threads,
    )  # fmt: skip
    y = np.full((7, x.shape[1], height, width), np.nan, np.float32)
    kernel([x, rois, images], [y])
    np.testing.assert_allclose(y, op.reference(numpy_xp, x, rois, images), rtol=1e-5, atol=2e-5)


def test_roi_align_of_what_cannot_be():
    kernel = native.RoiAlign((1, 1, 4, 4), 1, height=1, width=1, samples=0, scale=1.0, half_pixel=True, maximum=False)
    x, y = np.ones((1, 1, 4, 4), np.float32), np.empty((1, 1, 1, 1), np.float32)
    with pytest.raises(native.Error, match="image 3"):
        kernel([x, np.zeros((1, 4), np.float32), np.array([3])], [y])
    with pytest.raises(native.Error, match="too large"):
        kernel([x, np.array([[0, 0, 1e12, 1]], np.float32), np.array([0])], [y])
    kernel([x, np.full((1, 4), np.nan, np.float32), np.array([0])], [y])
    assert y[0, 0, 0, 0] == 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_non_max_suppression(seed, threads):
    rng = np.random.default_rng(seed)
    images, classes, count = (int(v) for v in rng.integers(1, [3, 5, 60]))
    boxes = rng.uniform(0, 6, (images, count, 4)).astype(np.float32)
    scores = rng.integers(0, 7, (images, classes, count)).astype(np.float32) / 7  # with ties
    centred, most, overlap = seed % 2, int(rng.integers(0, count + 3)), float(rng.choice([0.0, 0.3, 0.7]))
    least = None if seed % 3 == 0 else 0.4
    op = NonMaxSuppression(center_point_box=centred)
    expected = op.reference(
        numpy_xp, boxes, scores, np.array(most), np.float32(overlap).reshape(1),
        None if least is None else np.float32(least).reshape(1),
    )  # fmt: skip
    kernel = native.NonMaxSuppression(
        images, classes, count, most=most, overlap=overlap, least=least, centred=bool(centred), threads=threads
    )
    rows, found = np.full((kernel.capacity, 3), -1, np.int64), np.empty((), np.int64)
    kernel([boxes, scores], [rows, found])
    np.testing.assert_array_equal(rows[: int(found)], expected)


def test_suppression_runs_natively_in_a_program():
    boxes, scores = gk.input("boxes", [1, "B", 4]), gk.input("scores", [1, 2, "B"])
    limits = [gk.constant(np.array([4])), gk.constant(np.array([0.5], np.float32))]
    executor = gk.Model({"y": gk.non_max_suppression(boxes, scores, *limits)}).compile()
    rng = np.random.default_rng(0)
    for count in (5, 9):
        feeds = {
            "boxes": np.sort(rng.uniform(0, 4, (1, count, 2, 2)), axis=2).reshape(1, count, 4).astype(np.float32),
            "scores": rng.uniform(size=(1, 2, count)).astype(np.float32),
        }
        arrays = (feeds["boxes"], feeds["scores"], np.array([4]), np.array([0.5], np.float32))
        np.testing.assert_array_equal(executor.run(feeds)["y"], NonMaxSuppression().reference(numpy_xp, *arrays))
    bound = gk.Model({"y": gk.non_max_suppression(gk.input("b", [1, 5, 4]), gk.input("s", [1, 2, 5]), *limits)})
    steps = {step.op: step.kernel for step in bound.compile().plan.steps}
    assert steps["NonMaxSuppression"] == "native"


def test_a_program_names_the_node_of_a_region_outside():
    rois, images = gk.input("rois", [1, 4]), gk.input("images", [1], dtype="int64")
    net = gk.Model({"y": gk.roi_align(gk.input("x", [1, 1, 4, 4]), rois, images, name="align")})
    with pytest.raises(RuntimeFailure, match="align"):
        net.compile().run(
            {"x": np.ones((1, 1, 4, 4), np.float32), "rois": np.zeros((1, 4), np.float32), "images": np.array([1])}
        )
