"""Files of every mode become the pixels that Pillow has of them, upright; large JPEGs are decoded at less."""

from __future__ import annotations

import io
import itertools
import struct
import zlib

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item
from PIL import Image

from graphkit.data.preprocessing.decode import of_pixels, opened
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 14, 3), np.uint8)
PHOTO = Image.fromarray(PIXELS)
PALETTE = PHOTO.quantize(16)


def encoded(image, form, **options):
    made = io.BytesIO()
    image.save(made, form, **options)
    return made.getvalue()


def pixels_of(source, colours="RGB"):
    with opened(source) as picture:
        return Preprocess(colours=colours, layout="NHWC", dtype="uint8").array(picture)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def sixteen_bit_png(values):
    """A PNG of uint16 [H, W, 3], which Pillow does not write: section 11 of the standard."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


FORMS = [
        ("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGB", "PNG"), ("RGBA", "PNG"),
        ("1", "BMP"), ("L", "BMP"), ("P", "BMP"), ("RGB", "BMP"), ("RGB", "PPM"), ("L", "PPM"),
        ("L", "JPEG"), ("RGB", "JPEG"), ("CMYK", "JPEG"), ("YCbCr", "JPEG"),
        ("1", "TIFF"), ("L", "TIFF"), ("RGB", "TIFF"), ("RGBA", "TIFF"), ("CMYK", "TIFF"), ("YCbCr", "TIFF"),
        ("P", "GIF"), ("RGB", "WEBP"), ("RGBA", "WEBP"),
]  # fmt: skip


@each_case(itertools.product(FORMS, ["L", "RGB", "RGBA"]), group=lambda case: case[0][1])
def test_every_mode(case):
    (mode, form), colours = case
    data = encoded(PHOTO.convert(mode), form)
    with Image.open(io.BytesIO(data)) as image:
        wanted = np.asarray(image.convert(colours)).reshape(10, 14, -1)
    np.testing.assert_array_equal(pixels_of(data, colours), wanted)


@pytest.mark.parametrize("transparency", [3, bytes(range(0, 256, 16))], ids=["one", "each"])
def test_palettes_with_transparency_keep_their_colours(transparency):
    data = encoded(PALETTE, "PNG", transparency=transparency)
    np.testing.assert_array_equal(pixels_of(data), np.asarray(PALETTE.convert("RGB")))
    alpha = pixels_of(data, "RGBA")[..., 3]
    indices = np.asarray(PALETTE)
    opaque = np.where(indices == 3, 0, 255) if transparency == 3 else np.frombuffer(transparency, np.uint8)[indices]
    np.testing.assert_array_equal(alpha, opaque)


@in_one_item()
@pytest.mark.parametrize(("mode", "value"), [("L", 3), ("RGB", (1, 2, 3)), ("1", 0)])
def test_a_colour_that_stands_for_transparency(mode, value):
    image = PHOTO.convert(mode)
    np.testing.assert_array_equal(
        pixels_of(encoded(image, "PNG", transparency=value)), np.asarray(image.convert("RGB"))
    )


def test_transparency_is_dropped_and_not_blended():
    image = PHOTO.copy()
    image.putalpha(0)
    np.testing.assert_array_equal(pixels_of(encoded(image, "PNG")), PIXELS)


def test_colours_of_16_bits_are_cut_to_their_high_byte():
    values = np.random.default_rng(1).integers(0, 1 << 16, (5, 4, 3), np.uint16)
    np.testing.assert_array_equal(pixels_of(sixteen_bit_png(values)), values >> 8)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_greys_of_16_bits_are_refused(tmp_path, form):
    path = tmp_path / "deep.png"
    path.write_bytes(encoded(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), form))
    with pytest.raises(InputError, match=r"deep\.png: its pixels have more than 8 bits \(I;16.*as \.npy"):
        pixels_of(path)


# EXIF 2.3, tag Orientation: where row 0 and column 0 of what is stored are in the scene.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@each_case(itertools.product(["PNG", "TIFF", "JPEG", "WEBP"], UPRIGHT), group=lambda case: case[0])
def test_all_orientations(case):
    form, orientation = case
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    with Image.open(io.BytesIO(encoded(PHOTO, form, **({"lossless": True} if form == "WEBP" else {})))) as plain:
        wanted = UPRIGHT[orientation](np.asarray(plain.convert("RGB")))
    with opened(data) as picture:
        assert picture.size == (wanted.shape[1], wanted.shape[0])
    np.testing.assert_array_equal(pixels_of(data), wanted)


@in_one_item()
@pytest.mark.parametrize("value", [0, 9, 65535])
def test_orientations_that_are_none(value):
    exif = Image.Exif()
    exif[0x0112] = value
    np.testing.assert_array_equal(pixels_of(encoded(PHOTO, "PNG", exif=exif)), PIXELS)


def smooth(width, height):
    return PHOTO.resize((width, height), Image.Resampling.BICUBIC)


@in_one_item()
@pytest.mark.parametrize(
    ("size", "target", "decoded"),
    [((800, 640), 40, (100, 80)), ((800, 640), 80, (200, 160)), ((803, 641), 150, (402, 321)), ((800, 640), 400, None)],
)
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_a_large_jpeg_is_decoded_at_less(size, target, decoded, orientation):
    exif = Image.Exif()
    exif[0x0112], turned = orientation, orientation > 4
    data = encoded(smooth(*size), "JPEG", quality=95, exif=exif)
    height, width = (size[0] * target // size[1], target) if turned else (target, size[0] * target // size[1])
    with opened(data) as picture:
        upright = size[::-1] if turned else size
        assert picture.size == upright
        image, scale, *_ = picture.decoded("RGB", (width, height))
        expected = decoded or size
        assert image.size == (expected[::-1] if turned else expected)
        assert scale == -(-size[0] // expected[0])
        assert picture.decoded("RGB").scale == scale, "it stays what it is"
    with opened(data) as picture:
        fast = Preprocess(resize=(height, width), dtype="uint8", layout="NHWC").array(picture)
    full = Image.fromarray(pixels_of(data)).resize((width, height), Image.Resampling.BILINEAR)
    # By the fewer coefficients; a shift by a pixel of the file makes it more than 1 already.
    assert np.abs(fast.astype(int) - np.asarray(full)).mean() < 0.6


def test_a_part_of_a_large_jpeg_is_where_it_was():
    image = smooth(800, 640)
    box = (160, 80, 480, 400)
    with opened(encoded(image, "JPEG", quality=95)) as picture:
        part = Preprocess(resize=(40, 40)).part(picture, box, (40, 40))
        assert picture.decoded("RGB").scale == 4
    wanted = image.resize((40, 40), Image.Resampling.BILINEAR, box=box)
    assert np.abs(np.asarray(part).astype(int) - np.asarray(wanted)).mean() < 1


def test_pixels_in_memory():
    array = Preprocess(dtype="uint8", layout="NHWC").array(of_pixels(PIXELS))
    np.testing.assert_array_equal(array, PIXELS)
    grey = Preprocess(dtype="uint8", layout="NHWC", colours="L").array(of_pixels(PIXELS[..., 0]))
    np.testing.assert_array_equal(grey[..., 0], PIXELS[..., 0])


def test_photos_of_several_pictures_as_telephones_write_them(tmp_path):
    PHOTO.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[Image.new("RGB", (14, 10))])
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "MPO"
        wanted = np.asarray(image)
    np.testing.assert_array_equal(pixels_of(tmp_path / "a.jpg"), wanted)


def test_the_first_picture_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue", "green")]
    for form in ("GIF", "WEBP", "TIFF"):
        path = tmp_path / f"a.{form.lower()}"
        options = {"lossless": True} if form == "WEBP" else {}
        frames[0].save(path, form, save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(pixels_of(path), np.broadcast_to(np.uint8([255, 0, 0]), (4, 6, 3)))
