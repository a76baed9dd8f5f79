"""Random augmentation: effect on the pixels and frequency. Seed, epoch and sample determine everything."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
from combinations import in_one_item
from PIL import Image

from graphkit import data
from graphkit.data.images.augment import _CHANGES, Augment
from graphkit.data.preprocessing.decode import of_pixels
from graphkit.data.preprocessing.geometry import erased, resized_crop
from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from graphkit.errors import UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
PICTURE = of_pixels(PIXELS)
PLAIN = Preprocess(resize=(12, 10), dtype="uint8", layout="NHWC")


def generator(seed):
    return np.random.default_rng(seed)


# --- what each does ----------------------------------------------------------------------------------------


def test_nothing_is_changed_where_nothing_is_said():
    np.testing.assert_array_equal(Augment().array(PICTURE, PLAIN, generator(0)), PIXELS)


def test_flips():
    np.testing.assert_array_equal(Augment(flip=1.0).array(PICTURE, PLAIN, generator(0)), PIXELS[:, ::-1])
    flipped = [(Augment(flip=0.3).array(PICTURE, PLAIN, generator(i)) != PIXELS).any() for i in range(2000)]
    assert abs(np.mean(flipped) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 2000)


def test_shifts_before_black():
    """Every shift of up to 2 pixels each way comes, and is a part of the image with a black edge."""
    edged = np.pad(PIXELS, ((2, 2), (2, 2), (0, 0)))
    parts = {edged[t : t + 12, s : s + 10].tobytes(): (t, s) for t in range(5) for s in range(5)}
    found = [parts[Augment(pad=2).array(PICTURE, PLAIN, generator(i)).tobytes()] for i in range(1000)]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 25
    assert np.abs(counts - 40).max() < 5 * math.sqrt(40)


def test_crops_are_as_large_as_torchvision_says():
    """An area uniform from 8% to all of it, a ratio uniform in its logarithm from 3/4 to 4/3, anywhere."""
    draw = generator(0)
    windows = np.array([resized_crop((1000, 1000), (0.08, 1.0), (3 / 4, 4 / 3), draw) for _ in range(4000)], float)
    left, top, width, height = windows.T
    assert (left >= 0).all()
    assert (left + width <= 1000).all()
    assert (top + height <= 1000).all()
    small = width * height < 0.5e6  # these always fit, whatever the ratio
    area, ratio = (width * height / 1e6)[small], np.log(width / height)[small]
    for values, low, high in ((area, 0.08, 0.5), (ratio, math.log(3 / 4), math.log(4 / 3))):
        counts, _ = np.histogram(values, 10, (low - 2e-3, high + 2e-3))
        assert np.abs(counts - len(values) / 10).max() < 5 * math.sqrt(len(values) / 10)
    place = (left / np.maximum(1000 - width, 1))[small]
    assert abs(place.mean() - 0.5) < 4 / math.sqrt(12 * len(place))


def test_a_picture_that_no_crop_fits_gives_its_middle():
    assert resized_crop((100, 4), (0.9, 1.0), (1.0, 1.0), generator(0)) == (48, 0, 4, 4)
    assert resized_crop((4, 100), (0.9, 1.0), (1.0, 1.0), generator(0)) == (0, 48, 4, 4)
    assert resized_crop((1, 1), (0.08, 1.0), (3 / 4, 4 / 3), generator(0)) == (0, 0, 1, 1)


def test_a_crop_is_that_part_resized():
    seen = Augment(crop=0.2).array(PICTURE, Preprocess(crop=(6, 5), dtype="uint8", layout="NHWC"), generator(3))
    left, top, width, height = resized_crop((10, 12), (0.2, 1.0), (3 / 4, 4 / 3), generator(3))
    box = (left, top, left + width, top + height)
    wanted = Image.fromarray(PIXELS).resize((5, 6), Image.Resampling.BILINEAR, box=box)
    np.testing.assert_array_equal(seen, np.asarray(wanted))


def test_colours_against_their_formulas():
    pixels = PIXELS.astype(np.float64)
    image = Image.fromarray(PIXELS)
    grey = np.asarray(image.convert("L"), np.float64)[..., None]
    wanted = {
        "brightness": pixels * 1.4,
        "contrast": (pixels - np.round(grey.mean())) * 1.4 + np.round(grey.mean()),
        "saturation": (pixels - grey) * 1.4 + grey,
    }
    for name, values in wanted.items():
        seen = np.asarray(_CHANGES[name](image, 0.4), np.float64)
        assert np.abs(seen - np.clip(values, 0, 255)).max() <= 1.5, name
    hue = np.asarray(_CHANGES["hue"](image, 0.25), np.float64) / 255
    for seen, was in zip(hue.reshape(-1, 3), pixels.reshape(-1, 3) / 255, strict=True):
        h, s, v = colorsys.rgb_to_hsv(*was)
        assert np.abs(seen - colorsys.hsv_to_rgb((h + 0.25) % 1, s, v)).max() < 0.04


def test_grey_and_transparent_pictures_keep_what_they_have():
    changes = Augment(brightness=0.9, contrast=0.9, saturation=0.9, hue=0.5)
    made = Preprocess(resize=(12, 10), colours="L", dtype="uint8", layout="NHWC")
    assert changes.array(PICTURE, made, generator(0)).shape == (12, 10, 1)
    image = Image.fromarray(PIXELS)
    image.putalpha(Image.fromarray(PIXELS[..., 0]))
    seen = changes.array(
        of_pixels(np.asarray(image)), Preprocess(colours="RGBA", dtype="uint8", layout="NHWC"), generator(0)
    )
    np.testing.assert_array_equal(seen[..., 3], PIXELS[..., 0])
    assert (seen[..., :3] != PIXELS).any()


def test_turned_by_degrees():
    seen = np.stack([Augment(rotate=90.0).array(PICTURE, PLAIN, generator(i)) for i in range(3)])
    wanted = [
        np.asarray(Image.fromarray(PIXELS).rotate(generator(i).uniform(-90, 90), Image.Resampling.BILINEAR))
        for i in range(3)
    ]
    np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_rectangle_becomes_the_mean(layout):
    white = of_pixels(np.full((50, 40, 3), 255, np.uint8))
    made = Preprocess(mean=IMAGENET[0], std=IMAGENET[1], layout=layout)
    shares = []
    for seed in range(200):
        array = Augment(erase=1.0).array(white, made, generator(seed))
        gone = (array == 0).all(axis=0 if layout == "NCHW" else 2)
        rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
        assert gone[np.ix_(rows, columns)].all(), "one rectangle"
        assert gone.sum() == len(rows) * len(columns)
        shares.append(gone.mean())
    assert 0.015 < min(s for s in shares if s) < 0.05
    assert 0.25 < max(shares) < 0.345
    erase = [(Augment(erase=0.25).array(white, made, generator(i)) == 0).any() for i in range(1000)]
    assert abs(np.mean(erase) - 0.25) < 0.06
    assert erased((1, 1), (0.02, 0.33), (0.3, 3.3), generator(0)) is None


# --- reproducible ------------------------------------------------------------------------------------------

ALL = "pad:1,flip,colour,hue,rotate,erase"


def whole(batches):
    return [(batch.inputs.tobytes(), batch.targets.tobytes()) for batch in batches]


@pytest.mark.parametrize("augment", ["crop,flip", ALL])
def test_seed_epoch_and_sample_decide(photos, augment):
    folder = photos({"cat": 7, "dog": 6}, size=(16, 14))
    found = data.read(folder, size=12, augment=augment)
    first = whole(found.batches(4, seed=5, epoch=2))
    assert whole(data.read(folder, size=12, augment=augment).batches(4, seed=5, epoch=2)) == first
    assert whole(found.batches(4, seed=6, epoch=2)) != first
    assert whole(found.batches(4, seed=5, epoch=3)) != first
    assert whole(found.batches(4, seed=5, epoch=2, start=2)) == first[2:], "gone on with from within the epoch"
    with data.Workers(2) as workers:
        assert whole(found.batches(4, seed=5, epoch=2, workers=workers)) == first
        assert whole(found.batches(4, seed=5, epoch=2, start=2, workers=workers)) == first[2:]
    ranks = [next(iter(found.batches(2, seed=5, epoch=2, rank=r, ranks=2))).inputs.tobytes() for r in range(2)]
    assert b"".join(ranks) == first[0][0]
    # The augmented image of a sample does not depend on the batch size.
    one = {
        t.tobytes() + x.tobytes()
        for b in found.batches(1, seed=5, epoch=2)
        for x, t in zip(b.inputs, b.targets, strict=True)
    }
    many = {
        t.tobytes() + x.tobytes()
        for b in found.batches(5, seed=5, epoch=2)
        for x, t in zip(b.inputs, b.targets, strict=True)
    }
    assert one == many


def test_nothing_is_changed_in_validation(photos):
    folder = photos({"cat": 4, "dog": 4})
    found, plain = data.read(folder, size=6, augment=ALL), data.read(folder, size=6)
    assert whole(found.batches(4, shuffle=False)) == whole(plain.batches(4, shuffle=False))
    np.testing.assert_array_equal(found.take([1])[0], plain.take([1])[0])
    train, test = data.load(folder, size=6, augment=ALL)
    assert train.augments
    assert whole(found.augmented(None).batches(4, seed=1)) == whole(plain.batches(4, seed=1))
    assert len(test) + len(train) == 8


# --- their text --------------------------------------------------------------------------------------------


def test_texts():
    assert Augment.parse("none") is None
    assert Augment.parse("crop,flip") == Augment(crop=0.08, flip=0.5)
    assert Augment.parse(" pad , colour:0.2") == Augment(pad=4, brightness=0.2, contrast=0.2, saturation=0.2)
    assert Augment.parse("colour:0.2,brightness:0.6,hue:0.05,rotate:5,erase:1") == Augment(
        brightness=0.6, contrast=0.2, saturation=0.2, hue=0.05, rotate=5.0, erase=1.0
    )


@in_one_item()
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "did you mean 'flip'"),
        ("", "augment: unknown ''"),
        ("flip:x", "'x' is not a number"),
        ("flip:2", "flip must be from 0 to 1"),
        ("flip:nan", "flip must be from 0 to 1"),
        ("hue:0.7", "hue must be from 0 to 0.5"),
        ("pad:1.5", "the number of pixels must be an integer"),
        ("crop:0", "crop must be above 0"),
        ("crop,pad", "use only one of them"),
        ("flip,crop,flip:0.1", "'flip' is given twice"),
    ],
)
def test_texts_that_say_nothing(text, message):
    with pytest.raises(UsageError, match=message):
        Augment.parse(text)


def test_a_crop_needs_a_size(photos):
    found = data.read(photos({"cat": 2}), resize="6", crop="none", augment="crop")
    with pytest.raises(UsageError, match="crop needs a fixed size"):
        next(iter(found.batches(2)))
