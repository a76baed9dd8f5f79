"""Images at coordinates between their elements, against PyTorch and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import TypeMismatch
from graphkit.executor.devices.cpu import native
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F

SHAPES = [
    ((2, 3, 5, 7), (2, 4, 6)), ((1, 16, 8, 8), (1, 65, 3)), ((3, 37, 6, 4), (3, 13, 1)), ((2, 1, 1, 1), (2, 2, 2)),
    ((1, 70, 3, 9), (1, 1, 200)), ((2, 5, 1, 6), (2, 0, 3)),
]  # fmt: skip


def points_of(rng: np.random.Generator, points: tuple[int, ...]) -> np.ndarray:
    """Coordinates of a grid: some on elements, some on edges, some far outside."""
    grid = rng.uniform(-1.4, 1.4, (*points, 2)).astype(np.float32)
    flat = grid.reshape(-1)
    flat[::5], flat[1::7], flat[2::11] = -1.0, 1.0, 0.0
    flat[3::13], flat[4::17] = 1e30, -1e30
    return grid


@in_one_item()
@pytest.mark.parametrize(("image", "points"), SHAPES, ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("corners", [False, True])
def test_grid_sample_equals_torch(
    every_isa: str, image: tuple[int, ...], points: tuple[int, ...], padding: str, corners: bool
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, grid = rng.standard_normal(image).astype(np.float32), points_of(rng, points)
    # PyTorch converts coordinates to integers before it compares them: give it finite ones.
    known = torch.tensor(np.clip(grid, -100, 100))
    expected = torch.nn.functional.grid_sample(torch.tensor(x), known, "bilinear", padding, corners).numpy()
    y = F.grid_sample(
        gk.input("x", list(image)), gk.input("g", [*points, 2]), padding_mode=padding, align_corners=corners
    )
    bits = set()
    for threads in (1, 2, 3):
        executor = gk.Model({"y": y}).compile(threads=threads)
        assert "LinearSample" in str(executor.plan)
        result = executor.run({"x": x, "g": grid})["y"]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5)
        bits.add(result.tobytes())
    assert len(bits) == 1


@in_one_item()
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [2, 20, 34])
def test_deform_conv_equals_onnx_runtime(channels: int, groups: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, channels, 9, 7)).astype(np.float32)
    w = rng.standard_normal((5, channels, 3, 2)).astype(np.float32)
    offset = (2.5 * rng.standard_normal((2, 12 * groups, 9, 6))).astype(np.float32)
    mask = rng.random((2, 6 * groups, 9, 6), np.float32)
    feeds = {"x": x, "w": w, "offset": offset, "mask": mask}
    given = {name: gk.input(name, list(a.shape)) for name, a in feeds.items()}
    y = F.deform_conv(
        given["x"], given["w"], given["offset"], None, given["mask"], offset_group=groups, pads=(1, 0, 1, 0)
    )
    model = gk.Model({"y": y})
    expected = OnnxRuntimeModel(model.to_onnx(opset=22)).run(feeds)["y"]
    for threads in (1, 2):
        executor = model.compile(threads=threads)
        assert "LinearSample" in str(executor.plan)
        np.testing.assert_allclose(executor.run(feeds)["y"], expected, rtol=1e-4, atol=1e-4)


def test_sizes_that_change() -> None:
    torch = pytest.importorskip("torch")
    y = F.grid_sample(gk.input("x", ["n", "c", "h", "w"]), gk.input("g", ["n", "a", "b", 2]))
    executor = gk.Model({"y": y}).compile(threads=2)
    rng = np.random.default_rng(2)
    for image, points in SHAPES * 2:
        x, grid = rng.standard_normal(image).astype(np.float32), rng.uniform(-1, 1, (*points, 2)).astype(np.float32)
        expected = torch.nn.functional.grid_sample(torch.tensor(x), torch.tensor(grid), align_corners=False).numpy()
        np.testing.assert_allclose(executor.run({"x": x, "g": grid})["y"], expected, rtol=1e-4, atol=2e-5)


def test_numbers_that_are_not_finite() -> None:
    """A NaN coordinate gives 0, or NaN with `border`. Elements outside of the image are not read."""
    x = np.array([[[[np.inf, 1.0], [2.0, np.nan]]]], np.float32)
    row = np.array([[np.nan, -1.0, -5.0, 0.0, 1.0, 0.5, 1.0]], np.float32)
    column = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 1.0, np.inf]], np.float32)

    def sampled(border: bool) -> np.ndarray:
        kernel = native.LinearSample(x.shape, row.shape, border=border, threads=1)
        y = np.full((1, 7, 1), -1, np.float32)
        kernel([x, row, column], [y])
        return y.reshape(-1)

    np.testing.assert_array_equal(sampled(False)[[0, 2, 6]], 0.0)
    assert np.isnan(sampled(False)[5])
    assert np.isnan(sampled(True)[[0, 5, 6]]).all()
    assert sampled(True)[2] == np.inf or np.isnan(sampled(True)[2])


def test_gradients_of_what_is_sampled() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 5, 4)).astype(np.float32)
    grid = rng.uniform(-0.9, 0.9, (2, 3, 3, 2)).astype(np.float32)
    y = F.grid_sample(gk.input("x", list(x.shape)), gk.input("g", list(grid.shape)))
    loss = F.reduce_sum(F.mul(y, y), keepdims=0)
    found = gk.grad(gk.Model({"loss": loss}), of="loss", wrt=["x", "g"]).compile().run({"x": x, "g": grid})
    given = [torch.tensor(a, requires_grad=True) for a in (x, grid)]
    (torch.nn.functional.grid_sample(*given, align_corners=False) ** 2).sum().backward()
    for name, tensor in zip(("x_grad", "g_grad"), given, strict=True):
        np.testing.assert_allclose(found[name], tensor.grad.numpy(), rtol=1e-3, atol=1e-4)


@in_one_item()
@pytest.mark.parametrize("points", [0, 1, 5, 6, 70])
@pytest.mark.parametrize("channels", [1, 2, 16, 19, 37])
@pytest.mark.parametrize("border", [False, True])
def test_few_points_equal_many(every_isa: str, points: int, channels: int, border: bool) -> None:
    """Few points read the image where it is, and many read a copy: the bits are equal."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, channels, 17, 11)).astype(np.float32)
    x[:, :, 3, 4], x[:, :, 16, 10] = np.nan, np.inf
    row, column = (rng.uniform(-3, size + 3, (2, 300)).astype(np.float32) for size in x.shape[2:])
    row[:, ::9], column[:, ::11] = 1e30, -1e30
    row[:, 1::13] = np.nan

    def sampled(count: int, threads: int) -> np.ndarray:
        kernel = native.LinearSample(x.shape, (2, count), border=border, threads=threads)
        assert (kernel.scratch_bytes > x.nbytes) == (channels > 1 and count >= 6)
        y = np.full((2, count, channels), -1, np.float32)
        kernel([x, row[:, :count].copy(), column[:, :count].copy()], [y])
        return y

    every = sampled(300, 1)
    for threads in (1, 3):
        np.testing.assert_array_equal(sampled(points, threads), every[:, :points])


@in_one_item()
@pytest.mark.parametrize("border", [False, True])
@pytest.mark.parametrize("points", [1, 15, 16, 70, 300])
def test_one_channel_equals_a_channel_of_several(every_isa: str, points: int, border: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 17, 11)).astype(np.float32)
    x[:, :, 3, 4], x[:, :, 16, 10] = np.nan, -np.inf
    row, column = (rng.uniform(-3, size + 3, (2, points)).astype(np.float32) for size in x.shape[2:])
    row[:, ::9], column[:, ::11], row[:, 1::13] = 1e30, -1e30, np.nan

    def sampled(image: np.ndarray, threads: int) -> np.ndarray:
        y = np.full((2, points, image.shape[1]), -1, np.float32)
        native.LinearSample(image.shape, row.shape, border=border, threads=threads)([image, row, column], [y])
        return y

    for threads in (1, 3):
        single = sampled(x[:, 1:2].copy(), threads)[..., 0]
        np.testing.assert_array_equal(single, sampled(x, 1)[..., 1])


@in_one_item()
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize(("spatial", "axis"), [((0, 5), 2), ((4, 0), 3)])
def test_images_without_elements(mode: str, spatial: tuple[int, int], axis: int) -> None:
    """They have no samples, and no points give an empty result."""
    images, grid = [1, 2, *spatial], gk.input("g", [1, 3, 3, 2])
    with pytest.raises(TypeMismatch, match=f"cannot be sampled: axis {axis} has size 0"):
        F.grid_sample(gk.input("x", images), grid, mode=mode)
    y = F.grid_sample(gk.input("x", images), gk.input("g", [1, 0, 3, 2]), mode=mode)
    feeds = {"x": np.zeros(images, np.float32), "g": np.zeros((1, 0, 3, 2), np.float32)}
    assert gk.Model({"y": y}).compile().run(feeds)["y"].shape == (1, 2, 0, 3)


def test_sizes_that_change_to_images_without_elements() -> None:
    y = F.grid_sample(gk.input("x", [1, 2, "h", "w"]), gk.input("g", [1, "a", 3, 2]))
    executor = gk.Model({"y": y}).compile(threads=1)
    for points in (3, 0, 3):
        feeds = {"x": np.zeros((1, 2, 4, 0), np.float32), "g": np.zeros((1, points, 3, 2), np.float32)}
        if points == 0:
            assert executor.run(feeds)["y"].shape == (1, 2, 0, 3)
            continue
        with pytest.raises(TypeMismatch, match="cannot be sampled: axis 3 has size 0"):
            executor.run(feeds)
