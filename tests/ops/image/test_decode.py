"""ImageDecoder: the standard's formats, and files that are not images, too short, or too large."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from PIL import Image

import graphkit as gk
from graphkit.errors import MissingDependency, RuntimeFailure, TypeMismatch, UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)


def encoded(picture: Image.Image, kind: str, **options: Any) -> np.ndarray:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def decoder(pixel_format: str = "RGB") -> gk.Model:
    stream = gk.input("stream", ["bytes"], dtype="uint8")
    return gk.Model({"image": gk.image_decoder(stream, pixel_format=pixel_format, name="decode")})


def decoded(data: np.ndarray, pixel_format: str = "RGB") -> np.ndarray:
    return decoder(pixel_format).run({"stream": data})["image"]


@in_one_item()
@pytest.mark.parametrize(
    ("kind", "options"),
    [("BMP", {}), ("PNG", {}), ("PPM", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG2000", {})],
)
def test_formats_that_lose_nothing(kind: str, options: dict[str, Any]) -> None:
    data = encoded(Image.fromarray(PIXELS), kind, **options)
    np.testing.assert_array_equal(decoded(data), PIXELS)
    np.testing.assert_array_equal(decoded(data, "BGR"), PIXELS[:, :, ::-1])
    grey = decoded(data, "Grayscale")
    assert grey.shape == (6, 5, 1)
    # ITU-R 601-2, as Pillow and libjpeg have it.
    np.testing.assert_allclose(grey[:, :, 0], PIXELS @ [0.299, 0.587, 0.114], atol=1)


def test_jpeg() -> None:
    smooth = np.add.outer(np.arange(32), np.arange(32))[:, :, None].repeat(3, 2).astype(np.uint8) * 2
    assert np.abs(decoded(encoded(Image.fromarray(smooth), "JPEG", quality=95)).astype(int) - smooth).max() < 8


@in_one_item()
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_pictures_of_other_modes_have_three_channels(mode: str) -> None:
    """A bit, grey, a palette, transparency, 16 bits: always uint8 [height, width, channels]."""
    if mode == "I;16":
        picture = Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257)
    else:
        picture = Image.fromarray(PIXELS).convert(mode)
    data = encoded(picture, "PNG")
    assert decoded(data).shape == (6, 5, 3)
    assert decoded(data, "Grayscale").shape == (6, 5, 1)
    if mode == "I;16":
        np.testing.assert_array_equal(decoded(data, "Grayscale")[:, :, 0], PIXELS[:, :, 0])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("kind", ["BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_truncated_files_name_the_node(kind: str) -> None:
    data = encoded(Image.fromarray(PIXELS.repeat(20, 0).repeat(20, 1)), kind)
    for part in (len(data) // 2, 20, 0):
        with pytest.raises(RuntimeFailure, match=r"'decode'.*(cannot be decoded|are not an image)"):
            decoded(data[:part])


@in_one_item()
@pytest.mark.parametrize("data", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(40), b"GIF89a" + bytes(40)])
def test_what_is_no_picture(data: bytes) -> None:
    """GIF is an image format, but not one of the standard."""
    with pytest.raises(RuntimeFailure, match=r"'decode'.*(are not an image|cannot be decoded)"):
        decoded(np.frombuffer(data, np.uint8))


def bomb(width: int, height: int) -> np.ndarray:
    """A PNG that announces a size and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return np.frombuffer(b"\x89PNG\r\n\x1a\n" + content, np.uint8)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(10_000, 10_000), (60_000, 60_000)])
def test_decompression_bombs(width: int, height: int) -> None:
    """Also below twice Pillow's limit, where Pillow itself only warns."""
    with pytest.raises(RuntimeFailure, match=r"'decode'.*above Pillow's limit"):
        decoded(bomb(width, height))


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(PIXELS), "PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match=r"'decode'.*pip install '\.\[images\]'"):
        decoded(data)


def test_refused() -> None:
    with pytest.raises(UsageError, match="pixel_format must be one of RGB, BGR, Grayscale"):
        gk.image_decoder(gk.input("x", [3], dtype="uint8"), pixel_format="CMYK")
    with pytest.raises(TypeMismatch, match="the bytes of one file"):
        gk.image_decoder(gk.input("x", [3, 3], dtype="uint8"))
    with pytest.raises(TypeMismatch, match="uint8"):
        gk.image_decoder(gk.input("x", [3]))


def test_a_file_has_no_gradient() -> None:
    stream = gk.input("stream", ["bytes"], dtype="uint8")
    weight = gk.input("w", [3])
    net = gk.Model({"y": gk.cast(gk.image_decoder(stream), to="float32") * weight})
    with pytest.raises(UsageError, match=r"stream.*is not a float tensor"):
        gk.grad(net, wrt=["stream"])
    slope = gk.grad(net, wrt=["w"]).run(
        {"stream": encoded(Image.fromarray(PIXELS), "PNG"), "w": np.ones(3, np.float32)}
    )
    np.testing.assert_allclose(slope["w_grad"], PIXELS.astype(np.float32).sum((0, 1)))


def test_a_whole_pipeline_exports() -> None:
    """The pipeline reads the bytes of a file and returns numbers. The export keeps the operator and the results."""
    stream = gk.input("stream", ["bytes"], dtype="uint8")
    scaled = gk.cast(gk.image_decoder(stream), to="float32") * np.float32(1 / 255)
    net = gk.Model({"y": gk.transpose(scaled, perm=(2, 0, 1))}, name="pipeline")
    data = encoded(Image.fromarray(PIXELS), "PNG")
    again = gk.load(net.to_onnx(opset=21).SerializeToString())
    np.testing.assert_array_equal(again.run({"stream": data})["y"], net.run({"stream": data})["y"])
