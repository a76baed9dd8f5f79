"""Pictures in files: what is decoded, and what is refused, by name."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from graphkit.data.images.decode import opened
from graphkit.data.images.preprocess import Preprocess
from graphkit.errors import InputError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 3), np.uint8)


def saved(image, form="PNG", **options):
    made = io.BytesIO()
    image.save(made, form, **options)
    return made.getvalue()


def pixels_of(data, mode="RGB"):
    with opened(data, "here") as picture:
        image, scale = picture.decoded(mode)
    assert scale == 1
    return np.asarray(image)


@pytest.mark.parametrize("form", ["PNG", "BMP", "PPM", "TIFF", "GIF"])
def test_formats_without_loss(form):
    image = Image.fromarray(PIXELS)
    if form == "GIF":
        image = image.quantize(16)
    np.testing.assert_array_equal(pixels_of(saved(image, form)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(Image.fromarray(PIXELS), exif=exif)
    # What a viewer does, by the standard's table: rows and columns that become left and top.
    turned = {
        1: PIXELS, 2: PIXELS[:, ::-1], 3: PIXELS[::-1, ::-1], 4: PIXELS[::-1],
        5: PIXELS.transpose(1, 0, 2), 6: np.rot90(PIXELS, -1), 7: PIXELS[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(PIXELS),
    }[orientation]  # fmt: skip
    np.testing.assert_array_equal(pixels_of(data), turned)
    with opened(data) as picture:
        assert picture.size == turned.shape[1::-1]


def test_modes():
    image = Image.fromarray(PIXELS)
    grey = image.convert("L")
    np.testing.assert_array_equal(pixels_of(saved(grey)), np.asarray(grey)[..., None].repeat(3, 2))
    np.testing.assert_array_equal(pixels_of(saved(image), "L"), np.asarray(grey))
    clear = image.copy()
    clear.putalpha(Image.fromarray(PIXELS[:, :, 0]))
    np.testing.assert_array_equal(pixels_of(saved(clear)), PIXELS)
    np.testing.assert_array_equal(pixels_of(saved(clear), "RGBA")[:, :, 3], PIXELS[:, :, 0])
    palette = image.quantize(8)
    palette.info["transparency"] = 0
    assert pixels_of(saved(palette, transparency=0)).shape == (6, 8, 3)
    two = image.convert("1")
    np.testing.assert_array_equal(pixels_of(saved(two), "L"), np.asarray(two.convert("L")))
    printed = image.convert("CMYK")
    assert np.abs(pixels_of(saved(printed, "TIFF")).astype(int) - np.asarray(printed.convert("RGB"))).max() == 0


def test_a_large_jpeg_is_decoded_smaller():
    rows, columns = np.mgrid[0:512, 0:768]
    smooth = np.stack([rows / 2, columns / 3, (rows + columns) / 5], 2).astype(np.uint8)
    data = saved(Image.fromarray(smooth), "JPEG", quality=95)
    with opened(data) as picture:
        image, scale = picture.decoded("RGB", (96.0, 64.0))
    assert scale > 1
    assert image.size == (768 // scale, 512 // scale)
    small = Preprocess(resize=(64, 96))
    with opened(data) as picture:
        found = small.array(picture)
    whole = np.asarray(Image.open(io.BytesIO(data)).resize((96, 64), Image.Resampling.BILINEAR)) / 255
    np.testing.assert_allclose(found.transpose(1, 2, 0), whole, atol=0.02)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of_size(width, height, bits=8):
    head = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


WHOLE = saved(Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "none of JPEG"),
        (b"this is a text", "none of JPEG"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read as a picture"),
        (WHOLE[:100], "cannot be read as a picture"),
        (WHOLE[: len(WHOLE) // 2], "cannot be read as a picture"),
        (saved(Image.fromarray(PIXELS), "JPEG")[:200], "cannot be read as a picture"),
        (png_of_size(100_000, 100_000), "above Pillow's limit|cannot be read as a picture"),
        (png_of_size(0, 5), "cannot be read as a picture|of 0 x 5 pixels"),
        (saved(Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257)), "more than 8 bits"),
        (saved(Image.fromarray(PIXELS[:, :, 0].astype(np.float32)), "TIFF"), "more than 8 bits"),
    ],
    ids=range(10),
)
def test_what_is_no_picture_is_named(tmp_path, data, message):
    path = tmp_path / "odd \N{SNOWMAN}\nname.png"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught, opened(path) as picture:
        picture.decoded("RGB")
    assert str(path) in str(caught.value)


def test_the_first_picture_of_an_animation():
    frames = [Image.fromarray(np.full((4, 4, 3), i, np.uint8)).quantize(4) for i in range(50)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (pixels_of(data) == 0).all()


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.png cannot be read as a picture"), opened(tmp_path / "none.png"):
        pass
