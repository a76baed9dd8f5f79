"""Files that are not images, are incomplete or too large are rejected with an error that names them."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from combinations import in_one_item
from PIL import Image

from graphkit import data
from graphkit.data.preprocessing.decode import opened
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import DamagedSample, InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
FORMS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def encoded(form, image=None):
    made = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(made, form)
    return made.getvalue()


def array(source, name=None):
    with opened(source, name) as picture:
        return Preprocess(resize=16, crop=(16, 16)).array(picture)


def png_header(width, height):
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (header, b"IDAT" + zlib.compress(bytes(100)))
    chunks = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@in_one_item()
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not one of JPEG, PNG"),
        (b"not an image, but text\n", "not one of JPEG, PNG"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read as an image"),
        (b"\xff\xd8\xff", "cannot be read as an image"),
        (b"%PDF-1.4\n", "not one of JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not one of JPEG, PNG"),
        (png_header(0, 5), "cannot be read as an image|0 x 5"),
        (b"P6 0 5 255\n", "cannot be read as an image|0 x 5"),
        (png_header(2**31 - 1, 2**31 - 1), "limit"),
        (png_header(60_000, 60_000), "limit"),
    ],
    ids=[
        "empty",
        "text",
        "signature",
        "jpeg-signature",
        "pdf",
        "postscript",
        "no-width",
        "no-width-ppm",
        "huge",
        "large",
    ],
)
def test_no_picture(tmp_path, content, message):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        array(path)
    assert str(path) in str(error.value)
    with pytest.raises(InputError, match=r"^the third: |^the third cannot"):
        array(content, "the third")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_large_one_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    path.write_bytes(png_header(10_000, 10_000))
    with pytest.raises(InputError, match=r"large\.png: an image of 10000 x 10000 pixels is above Pillow's limit"):
        array(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(InputError, match=r"large\.png cannot be read"):
        array(path)


@in_one_item()
@pytest.mark.parametrize("form", FORMS)
def test_every_cut_of_every_format(form, tmp_path):
    """A file that ends early is an error, or has all of its pixels already."""
    whole = encoded(form)
    wanted = array(whole)
    path = tmp_path / "cut"
    damaged = 0
    for end in np.unique(np.linspace(0, len(whole) - 1, 60).astype(int)):
        path.write_bytes(whole[:end])
        try:
            np.testing.assert_array_equal(array(path), wanted)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017
            damaged += 1
    assert damaged > 40


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_changed_bytes_end_in_a_picture_or_in_its_name(form, rng):
    whole = np.frombuffer(encoded(form), np.uint8)
    for _ in range(150):
        changed = whole.copy()
        for place in rng.integers(0, min(len(whole), 400), rng.integers(1, 6)):
            changed[place] = rng.integers(256)
        try:
            assert array(changed.tobytes(), "it").shape == (3, 16, 16)
        except InputError as error:
            assert str(error).startswith("it")  # noqa: PT017


@in_one_item()
@pytest.mark.parametrize("name", ["a\nb.png", "🦊.png", "a b\t.PNG", "-o.png", "a=b.png", os.fsdecode(b"\xff.png")])
def test_names_of_every_kind(tmp_path, name):
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(encoded("PNG"))
    found = data.read(tmp_path / "photos", size=8)
    assert found.take([0])[0].shape == (1, 3, 8, 8)
    (folder / name).write_bytes(b"")
    with pytest.raises(DamagedSample) as error:
        found.take([0])
    assert str(folder / name) in str(error.value)


def test_a_folder_by_the_name_of_a_picture_and_none_at_all(tmp_path):
    (tmp_path / "a.png").mkdir()
    for path in (tmp_path / "a.png", tmp_path / "none.png"):
        with pytest.raises(InputError, match=path.name):
            array(path)


def test_resized_pictures_have_a_bound():
    wide = encoded("PNG", Image.new("L", (20_000, 1)))
    with (
        opened(wide, "wide.png") as picture,
        pytest.raises(InputError, match=r"wide\.png: resized, it has 40960000 x 2048"),
    ):
        Preprocess(resize=2048).array(picture)


def test_a_damaged_one_is_named_or_left_out(photos):
    folder = photos({"cat": 3, "dog": 2})
    (folder / "cat" / "1.png").write_bytes(b"text")
    found = data.read(folder)
    with pytest.raises(DamagedSample, match=r"cat/1\.png cannot be read as an image"):
        list(found.batches(2))
    skipping = found.configured(on_damaged="skip")
    with pytest.warns(data.lazy.GraphkitWarning, match=r"cat/1\.png"):
        inputs = np.concatenate([batch.inputs for batch in skipping.batches(2, shuffle=False)])
    np.testing.assert_array_equal(inputs[1], inputs[2])
    assert list(skipping.damaged) == [1]
