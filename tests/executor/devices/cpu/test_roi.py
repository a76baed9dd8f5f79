"""Native kernels of regions against the operators' references."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import OutOfMemory, RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.ops.image.roi import NonMaxSuppression, RoiAlign
from graphkit.ops.xp import numpy_xp

SEEDS = range(12)


pytestmark = pytest.mark.usefixtures("every_isa")


@in_one_item()
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


@in_one_item("values")
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [1 << 21, (1 << 31) - 1, 1 << 40])
def test_more_samples_than_anybody_waits_for_are_refused(mode, ratio):
    x, rois = gk.input("x", (1, 1, 4, 4)), np.array([[0, 0, 3, 3]], np.float32)
    net = gk.Model({"y": gk.roi_align(x, rois, np.array([0]), mode=mode, sampling_ratio=ratio)})
    with pytest.raises(OutOfMemory, match="RoiAlign"):
        net.compile(max_memory=1 << 24).run({"x": np.ones((1, 1, 4, 4), np.float32)})


def test_regions_of_too_many_samples_to_look_at_are_refused():
    kernel = native.RoiAlign((1, 1, 4, 4), 1, height=1, width=1, samples=0, scale=1.0, half_pixel=True, maximum=True)
    x, y = np.ones((1, 1, 4, 4), np.float32), np.empty((1, 1, 1, 1), np.float32)
    with pytest.raises(native.Error, match="too large"):
        kernel([x, np.array([[0, 0, 1e5, 1e5]], np.float32), np.array([0])], [y])
    kernel([x, np.array([[0, 0, 1e3, 1e3]], np.float32), np.array([0])], [y])
    assert y[0, 0, 0, 0] == 1


def operands(most, overlap, least):
    """The limits of NonMaxSuppression as arrays; None where one is absent."""
    given = ((most, np.int64), (overlap, np.float32), (least, np.float32))
    return [None if v is None else np.array([v], dtype) for v, dtype in given]


@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_non_max_suppression(seed, threads):
    rng = np.random.default_rng(seed)
    images, classes, count = (int(v) for v in rng.integers(1, [3, 5, 60]))
    count *= 1 if seed % 4 else 20
    boxes = rng.uniform(0, 6, (images, count, 4)).astype(np.float32)
    scores = rng.integers(0, 7, (images, classes, count)).astype(np.float32) / 7  # with ties
    most, overlap = int(rng.integers(0, count + 3)), float(rng.choice([0.0, 0.3, 0.7, -0.1]))
    limits = operands(most, overlap, None if seed % 3 == 0 else 0.4)
    op = NonMaxSuppression(center_point_box=seed % 2)
    expected = op.reference(numpy_xp, boxes, scores, *limits)
    (rows,) = native.NonMaxSuppression(bool(seed % 2), threads)([boxes, scores, *limits])
    np.testing.assert_array_equal(rows, expected)
    assert rows.dtype == np.int64


def test_non_max_suppression_of_extremes():
    suppress, op = native.NonMaxSuppression(False), NonMaxSuppression()
    for images, classes, count in ((0, 2, 3), (2, 0, 3), (2, 3, 0)):
        empty = np.zeros((images, count, 4), np.float32), np.zeros((images, classes, count), np.float32)
        (rows,) = suppress([*empty, *operands(4, 0.5, None)])
        assert rows.shape == (0, 3)
    rng = np.random.default_rng(1)
    boxes = rng.uniform(0, 6, (1, 40, 4)).astype(np.float32)
    boxes[0, ::7, 1], boxes[0, 3, 2], boxes[0, 5] = np.nan, np.inf, 2  # NaN, an infinite box, one without area
    scores = rng.uniform(size=(1, 2, 40)).astype(np.float32)
    scores[0, 0, ::5], scores[0, 1, 1], scores[0, 1, 2] = np.nan, np.inf, -np.inf
    for least in (None, 0.2, np.nan, -np.inf):
        for most in (-3, 0, 1, 2**40):
            arrays = [boxes, scores, *operands(most, 0.3, least)]
            with np.errstate(invalid="ignore"):
                expected = op.reference(numpy_xp, *arrays)
            np.testing.assert_array_equal(suppress(arrays)[0], expected)
    (rows,) = suppress([boxes, scores])  # without limits nothing is taken
    assert rows.shape == (0, 3)


def test_an_overlap_equal_to_the_threshold_hides_nothing():
    boxes = np.array([[[0, 0, 1, 3], [0, 1, 1, 3], [0, 0, 1, 3]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    for overlap, kept in ((np.float32(2) / np.float32(3), [0, 1]), (np.nextafter(np.float32(2 / 3), 0), [0])):
        (rows,) = native.NonMaxSuppression(False)([boxes, scores, *operands(3, overlap, None)])
        assert rows[:, 2].tolist() == kept


def test_a_score_equal_to_the_threshold_is_not_chosen():
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]], np.float32)
    arrays = [boxes, np.array([[[0.5, 0.75, 0.25]]], np.float32), *operands(3, 0.5, 0.5)]
    for rows in (native.NonMaxSuppression(False)(arrays)[0], NonMaxSuppression().reference(numpy_xp, *arrays)):
        assert rows.tolist() == [[0, 0, 1]]


def test_suppression_of_what_does_not_fit():
    suppress = native.NonMaxSuppression(False)
    boxes, scores = np.zeros((1, 3, 4), np.float32), np.zeros((1, 2, 3), np.float32)
    for wrong in ([boxes[..., :3].copy(), scores], [boxes, scores[..., :2].copy()], [boxes[0], scores]):
        with pytest.raises(native.Error, match=r"expected boxes \[N, B, 4\]"):
            suppress(wrong)
    with pytest.raises(native.Error, match="operand 2 is empty"):
        suppress([boxes, scores, np.zeros(0, np.int64)])
    with pytest.raises(ValueError, match="not of type float32"):
        suppress([boxes.astype(np.float64), scores])


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
