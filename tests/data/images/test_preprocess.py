"""From a picture to an array, and changes at random: against formulas written out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from graphkit.data.images.augment import Augment
from graphkit.data.images.decode import of_pixels
from graphkit.data.images.geometry import centred, erased, resized_crop, shorter_side
from graphkit.data.images.preprocess import IMAGENET, Preprocess
from graphkit.errors import InvalidModel, UsageError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 60, 3), np.uint8)


def array(preprocess, pixels=PIXELS):
    return preprocess.array(of_pixels(pixels))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_normalised(layout):
    mean, std = IMAGENET
    found = array(Preprocess(mean=mean, std=std, layout=layout))
    expected = ((PIXELS / 255 - mean) / std).astype(np.float32)
    if layout == "NCHW":
        expected = expected.transpose(2, 0, 1)
    np.testing.assert_array_equal(found, expected)
    assert found.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "uint8"])
def test_types(dtype):
    found = array(Preprocess(dtype=dtype))
    expected = PIXELS.transpose(2, 0, 1) if dtype == "uint8" else PIXELS.transpose(2, 0, 1) / 255
    assert found.dtype.name == dtype
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-2 if dtype == "bfloat16" else 1e-3)


def test_colours():
    blue_first = array(Preprocess(colours="BGR"))
    np.testing.assert_array_equal(blue_first, array(Preprocess())[::-1])
    grey = array(Preprocess(colours="L", dtype="uint8"))[0]
    np.testing.assert_array_equal(grey, np.asarray(Image.fromarray(PIXELS).convert("L")))


def test_resized_and_cut_as_torchvision_does():
    """Resize(24): the shorter side, the other truncated; CenterCrop(20): from round((have - want) / 2) on."""
    found = array(Preprocess(resize=24, crop=(20, 20), dtype="uint8")).transpose(1, 2, 0)
    resized = Image.fromarray(PIXELS).resize((36, 24), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[2:22, 8:28]
    # What is cut out is all that is resized: the same picture but for the rounding of its edges.
    assert np.abs(found.astype(int) - expected).max() <= 1
    padded = array(Preprocess(crop=(50, 50), dtype="uint8")).transpose(1, 2, 0)
    np.testing.assert_array_equal(padded[5:45], PIXELS[:, 5:55])
    assert not padded[:5].any()
    assert not padded[45:].any()


def test_geometry():
    assert shorter_side((60, 40), 24) == (36, 24)
    assert shorter_side((40, 60), 24) == (24, 36)
    assert shorter_side((333, 500), 224) == (224, 336)
    assert centred((36, 24), 20, 20) == (8, 2, 20, 20)
    assert centred((10, 10), 13, 12) == (-1, -1, 13, 12)
    draw = np.random.default_rng(1)
    windows = [resized_crop((60, 40), (0.08, 1.0), (3 / 4, 4 / 3), draw) for _ in range(4000)]
    shares = np.array([w.width * w.height / 2400 for w in windows])
    ratios = np.array([w.width / w.height for w in windows])
    assert all(w.left >= 0 and w.top >= 0 and w.left + w.width <= 60 and w.top + w.height <= 40 for w in windows)
    assert 0.07 < shares.min() < 0.1
    assert 0.65 < ratios.min() < 0.85
    assert 1.2 < ratios.max() < 1.5
    # Too narrow for any share: the middle, within the bounds of the ratio.
    assert resized_crop((100, 2), (1.0, 1.0), (1.0, 1.0), draw) == (49, 0, 2, 2)
    found = [erased((60, 40), (0.02, 0.33), (0.3, 3.3), draw) for _ in range(500)]
    assert all(w.left + w.width <= 60 and w.top + w.height <= 40 for w in found if w is not None)
    assert erased((1, 1), (0.02, 0.33), (0.3, 3.3), draw) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"filter": "cubic"}, {"colours": "HSV"}, {"layout": "CHW"}, {"dtype": "int8"}, {"resize": 0}, {"crop": (1, -1)},
        {"crop": (1,)}, {"scale": float("nan")}, {"mean": (1.0, 2.0)}, {"std": (0.0,)}, {"resize": (1 << 14, 1 << 15)},
        {"dtype": "uint8", "mean": (0.5,)},
    ],
)  # fmt: skip
def test_values_that_cannot_be(fields):
    with pytest.raises(UsageError, match=r"picture|uint8"):
        Preprocess(**fields)


def test_metadata():
    chosen = Preprocess(resize=(48, 64), crop=(40, 40), colours="BGR", mean=(1.0, 2.0, 3.0), std=(0.5,), scale=1.0)
    assert Preprocess.from_json(chosen.to_json()) == chosen
    assert Preprocess.from_json("not json") is None
    assert Preprocess.from_json('{"resize": 3}') is None, "somebody else's"
    stored = json.loads(chosen.to_json())
    for change in (
        {"version": 2}, {"mean": "x"}, {"crop": 3}, {"resize": [1, 2, 3]}, {"colours": 7}, {"scale": "a"},
        {"further": 1}, {"std": [0]}, {"resize": 10**30},
    ):  # fmt: skip
        with pytest.raises(InvalidModel, match="metadata: preprocessing of pictures"):
            Preprocess.from_json(json.dumps(stored | change))


# --- changes at random ------------------------------------------------------------------------------


def changed(augment, preprocess, seed=0, pixels=PIXELS):
    return augment.array(of_pixels(pixels), preprocess, np.random.default_rng(seed))


def test_changes_follow_from_the_generator():
    augment = Augment.parse("crop,flip,colour,hue,rotate,erase:1")
    preprocess = Preprocess.of_size(24, 24)
    one, again, other = (changed(augment, preprocess, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert one.shape == (3, 24, 24)
    assert 0 <= one.min() <= one.max() <= 1


def test_flips_and_shifts():
    plain = array(Preprocess())
    flips = [changed(Augment(flip=0.5), Preprocess(), seed) for seed in range(200)]
    turned = sum((found == plain[:, :, ::-1]).all() for found in flips)
    assert sum((found == plain).all() for found in flips) == 200 - turned
    assert 70 < turned < 130
    shifted = changed(Augment(pad=4), Preprocess(), 3)
    padded = np.pad(plain, ((0, 0), (4, 4), (4, 4)))
    places = [(y, x) for y in range(9) for x in range(9) if (padded[:, y : y + 40, x : x + 60] == shifted).all()]
    assert len(places) == 1


def test_colours_change_as_their_formulas_say():
    preprocess = Preprocess(dtype="uint8")
    for seed in range(5):
        by = np.random.default_rng(seed)
        by.permutation(1)
        factor = 1 + by.uniform(-0.4, 0.4)
        found = changed(Augment(brightness=0.4), preprocess, seed).transpose(1, 2, 0)
        np.testing.assert_array_equal(found, np.clip(PIXELS * factor, 0, 255).astype(np.uint8))
        grey = np.asarray(Image.fromarray(PIXELS).convert("L"))
        mean = int(grey.mean() + 0.5)
        found = changed(Augment(contrast=0.4), preprocess, seed).transpose(1, 2, 0)
        np.testing.assert_allclose(found, np.clip(mean + (PIXELS - float(mean)) * factor, 0, 255), atol=1.01)
        found = changed(Augment(saturation=0.4), preprocess, seed).transpose(1, 2, 0)
        wanted = np.clip(PIXELS * factor + (1 - factor) * (PIXELS @ [0.299, 0.587, 0.114])[..., None], 0, 255)
        np.testing.assert_allclose(found, wanted, atol=1.5)
    # Hues of greys stay, and a picture without colour has none to change.
    same = np.repeat(grey[..., None], 3, 2)
    np.testing.assert_array_equal(changed(Augment(hue=0.5), preprocess, 1, same).transpose(1, 2, 0), same)


def test_erased_is_the_mean():
    found = changed(Augment(erase=1.0), Preprocess(mean=IMAGENET[0], std=IMAGENET[1]), 4)
    gone = (found == 0).all(axis=0)
    assert 0.01 < gone.mean() < 0.4
    rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
    assert gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all(), "one rectangle"


@pytest.mark.parametrize(
    "text", ["flop", "flip:x", "pad:1.5", "flip:2", "crop:0", "crop,pad", "rotate:200", "hue:0.7", ""]
)
def test_changes_that_cannot_be(text):
    with pytest.raises(UsageError, match="changes of pictures"):
        Augment.parse(text)
    assert Augment.parse("none") is None


def test_crop_needs_a_size():
    with pytest.raises(UsageError, match="crop needs the size"):
        changed(Augment(crop=0.5), Preprocess())
