"""Preprocess against its formulas, written out, and against torchvision's sizes and windows."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item
from PIL import Image

from graphkit.data.images.options import preprocess_of
from graphkit.data.preprocessing import numbers
from graphkit.data.preprocessing.decode import of_pixels
from graphkit.data.preprocessing.geometry import centred, shorter_side
from graphkit.data.preprocessing.image import CIFAR, IMAGENET, Preprocess
from graphkit.errors import InvalidModel, UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (33, 47, 3), np.uint8)
PICTURE = of_pixels(PIXELS)
FILTERS = {
    "nearest": Image.Resampling.NEAREST, "lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC, "box": Image.Resampling.BOX, "hamming": Image.Resampling.HAMMING,
}  # fmt: skip


def torchvision_resize(height, width, size):
    """torchvision.transforms.functional._compute_resized_output_size for one number, (height, width)."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = size, int(size * long / short)
    new_w, new_h = (new_short, new_long) if width <= height else (new_long, new_short)
    return new_h, new_w


def torchvision_centre(array, crop_height, crop_width):
    """torchvision.transforms.functional.center_crop of [H, W, C]: padded with 0 first where it is smaller."""
    height, width = array.shape[:2]
    if crop_width > width or crop_height > height:
        left = (crop_width - width) // 2 if crop_width > width else 0
        top = (crop_height - height) // 2 if crop_height > height else 0
        right = (crop_width - width + 1) // 2 if crop_width > width else 0
        bottom = (crop_height - height + 1) // 2 if crop_height > height else 0
        array = np.pad(array, ((top, bottom), (left, right), (0, 0)))
        height, width = array.shape[:2]
    top, left = round((height - crop_height) / 2.0), round((width - crop_width) / 2.0)
    return array[top : top + crop_height, left : left + crop_width]


RESIZES, CROPS = [7, 33, 50, (20, 61), (33, 47), None], [(7, 7), (20, 30), (64, 70), (5, 90), None]


@each_case(itertools.product(FILTERS, RESIZES, CROPS), group=lambda case: case[0])
def test_resized_and_cut_as_torchvision_does(case):
    filter, resize, crop = case
    made = Preprocess(resize=resize, crop=crop, filter=filter, dtype="uint8", layout="NHWC")
    size = (33, 47) if resize is None else resize if isinstance(resize, tuple) else torchvision_resize(33, 47, resize)
    wanted = np.asarray(Image.fromarray(PIXELS).resize(size[::-1], FILTERS[filter]))
    wanted = wanted if crop is None else torchvision_centre(wanted, *crop)
    np.testing.assert_array_equal(made.array(PICTURE), wanted)
    assert made.shape is None or made.shape == wanted.shape
    assert (made.shape is None) == (crop is None and not isinstance(resize, tuple))


def test_sizes_and_windows_are_torchvisions():
    for height, width, size in itertools.product((1, 2, 3, 7, 100, 333), (1, 2, 5, 8, 100, 500), (1, 2, 31, 224)):
        assert shorter_side((width, height), size)[::-1] == torchvision_resize(height, width, size)
    rows = np.arange(1, 10)[:, None, None] * 16 + np.arange(1, 12)[None, :, None]
    for height, width in itertools.product(range(1, 14), range(1, 14)):
        window = centred((11, 9), width, height)
        part = Image.fromarray(rows[..., 0].astype(np.uint8)).crop(
            (window.left, window.top, window.left + window.width, window.top + window.height)
        )
        np.testing.assert_array_equal(np.asarray(part)[..., None], torchvision_centre(rows, height, width))


DTYPES, LAYOUTS, COLOURS = ["float32", "float64", "float16", "bfloat16"], ["NCHW", "NHWC"], ["RGB", "BGR", "L", "RGBA"]


@each_case(itertools.product(COLOURS, LAYOUTS, DTYPES), group=lambda case: case[0])
def test_numbers(case):
    colours, layout, dtype = case
    channels = {"L": 1, "RGBA": 4}.get(colours, 3)
    mean, std = np.linspace(0.3, 0.6, channels), np.linspace(0.2, 0.3, channels)
    made = Preprocess(
        colours=colours, layout=layout, dtype=dtype, mean=tuple(mean.tolist()), std=tuple(std.tolist())
    ).array(PICTURE)
    pixels = np.asarray(Image.fromarray(PIXELS).convert("RGB" if colours == "BGR" else colours)).reshape(33, 47, -1)
    pixels = pixels[..., ::-1] if colours == "BGR" else pixels
    wanted = (pixels / 255 - mean) / std
    wanted = wanted.transpose(2, 0, 1) if layout == "NCHW" else wanted
    assert made.dtype.name == dtype
    assert made.shape == wanted.shape
    assert made.flags.c_contiguous
    epsilon = {"float64": 1e-15, "float32": 1e-7, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(made.astype(np.float64), wanted, rtol=epsilon, atol=4 * epsilon)


def test_one_number_for_all_channels_and_pixels_unscaled():
    made = Preprocess(scale=1.0, mean=(127.5,), std=(128.0,)).array(PICTURE)
    np.testing.assert_array_equal(made, ((PIXELS - 127.5) / 128).astype(np.float32).transpose(2, 0, 1))
    np.testing.assert_array_equal(Preprocess(scale=1.0).array(PICTURE), PIXELS.astype(np.float32).transpose(2, 0, 1))


@pytest.mark.parametrize("step", [1, -1])
def test_views_of_pixels(step):
    table = numbers.table(1 / 255, *IMAGENET, "float32", 3)
    view = PIXELS[::2, ::3, ::step]
    wanted = np.stack([table[c][view[:, :, c]] for c in range(3)])
    np.testing.assert_array_equal(numbers.planes([view[:, :, c] for c in range(3)], table), wanted)
    np.testing.assert_array_equal(numbers.interleaved(view, table), wanted.transpose(1, 2, 0))


def test_what_is_usual_for_a_size():
    assert Preprocess.of_size(224, 224) == Preprocess(resize=256, crop=(224, 224))
    assert Preprocess.of_size(299, 299).resize == 342
    assert Preprocess.of_size(32, 32) == Preprocess(resize=32, crop=(32, 32))
    assert Preprocess.of_size(28, 96, colours="L") == Preprocess(resize=96, crop=(28, 96), colours="L")


@in_one_item()
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resize": 0}, "resize of images: 0 is not a size"),
        ({"resize": True}, "resize must be an integer or a list of integers or None"),
        ({"resize": 1.5}, "resize must be an integer or a list of integers or None"),
        ({"resize": 1 << 16}, "not a size"),
        ({"resize": (1, 2, 3)}, "not a size"),
        ({"crop": (1 << 15, 1 << 15)}, "above the limit of 134217728 pixels"),
        ({"filter": "bilinaer"}, "did you mean 'bilinear'"),
        ({"colours": "rgb"}, "known: 'L', 'RGB', 'BGR', 'RGBA'"),
        ({"layout": "CHWN"}, "layout"),
        ({"dtype": "int8"}, "dtype"),
        ({"scale": float("nan")}, "scale"),
        ({"mean": (1.0, 2.0)}, "2 numbers for 3 channels"),
        ({"mean": (float("inf"),)}, "numbers must be finite"),
        ({"std": (1.0, 0.0, 1.0)}, "those of std not 0"),
        ({"dtype": "uint8", "mean": (0.5,)}, "dtype uint8 keeps pixels unchanged"),
    ],
    ids=str,
)
def test_what_it_cannot_be(fields, message):
    with pytest.raises(UsageError, match=message):
        Preprocess(**fields)


EXAMPLES = (
    Preprocess(),
    Preprocess.of_size(224, 200, mean=IMAGENET[0], std=IMAGENET[1], filter="bicubic"),
    Preprocess(resize=(5, 7), colours="BGR", scale=0.1 + 0.2, mean=(1e-30,), layout="NHWC", dtype="bfloat16"),
    Preprocess(resize=32, dtype="uint8", colours="L"),
    Preprocess(mean=CIFAR[0], std=CIFAR[1], crop=(1, 32768)),
)


@in_one_item()
@pytest.mark.parametrize("made", EXAMPLES, ids=range(len(EXAMPLES)))
def test_through_json(made):
    assert Preprocess.from_json(made.to_json()) == made


@in_one_item()
@pytest.mark.parametrize(
    "text", ["", "crop 224", "{}", "[1]", '"graph"', '{"schema": "other", "version": 1}', "[" * 10**5]
)
def test_words_of_others_say_nothing(text):
    assert Preprocess.from_json(text) is None


@in_one_item()
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "its version is not known"),
        ({"more": 1}, "it must have the keys .*std, not .*more"),
        ({"resize": "64"}, "resize must be an integer or a list of integers or None"),
        ({"resize": [1, 2.5]}, "resize must be an integer or a list of integers or None"),
        ({"crop": 64}, "crop is 64"),
        ({"crop": [64]}, "not a size"),
        ({"filter": ["a"]}, "filter must be a string"),
        ({"filter": "cubic"}, "cubic"),
        ({"mean": "123"}, "mean is '123'"),
        ({"mean": [None]}, "NoneType"),
        ({"std": [0]}, "those of std not 0"),
        ({"std": {"0": 1}}, "std is"),
        ({"scale": "1"}, "scale is '1'"),
        ({"scale": float("nan")}, "expected a finite number"),
        ({"scale": 10**400}, "int too large"),
        ({"dtype": None}, "None"),
    ],
    ids=str,
)
def test_damaged_words_are_named(change, message):
    text = json.dumps(json.loads(Preprocess().to_json()) | change)
    with pytest.raises(InvalidModel, match=f"^metadata: preprocessing of images: .*{message}"):
        Preprocess.from_json(text)


def test_cut_and_shortened_words_are_named():
    text = Preprocess().to_json()
    with pytest.raises(InvalidModel, match="metadata: preprocessing of images"):
        Preprocess.from_json(text[:-1])
    found = json.loads(text)
    del found["std"]
    with pytest.raises(InvalidModel, match=r"it must have the keys .*std, not (?!.*std)"):
        Preprocess.from_json(json.dumps(found))


def test_preprocess_must_be_an_object() -> None:
    with pytest.raises(UsageError, match=r"expected a gk\.data\.Preprocess, not 'RGB'"):
        preprocess_of("RGB", size=8)
