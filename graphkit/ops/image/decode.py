"""ImageDecoder: decode an encoded image to pixels with Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure, TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import Onnx, Op, Sample, op

# The formats of the standard, under Pillow's names. PPM stands for PBM, PGM, PPM and PNM.
_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


def _file(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


_PIXELS = bytes(range(0, 240, 20))
_COLOURS = _file(b"P6 2 2 255\n" + _PIXELS)
_GREYS = _file(b"P5 4 3 255\n" + _PIXELS)
# Rows of a bitmap begin at multiples of four bytes, the last one first.
_BITMAP = _file(
    b"BM" + (70).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    + (40).to_bytes(4, "little") + (2).to_bytes(4, "little") + (2).to_bytes(4, "little") + b"\1\0\x18\0" + bytes(24)
    + _PIXELS[:6] + b"\0\0" + _PIXELS[6:] + b"\0\0"
)  # fmt: skip


@op
class ImageDecoder(Op):
    """Decode an image from the bytes of its file, uint8 [bytes], to pixels, uint8 [height, width, channels].

    Formats: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF, WebP. `pixel_format` is RGB, BGR or Grayscale. Transparency is
    dropped; of an animation, the first image is decoded. A file that cannot be decoded to its end, or has more pixels
    than Pillow's `Image.MAX_IMAGE_PIXELS`, raises RuntimeFailure. Needs the optional dependency Pillow.
    """

    pixel_format: str = "RGB"
    inputs = ("encoded_stream",)
    outputs = ("image",)
    types = {"encoded_stream": frozenset({DType.UINT8})}
    onnx = Onnx("ImageDecoder", since=20)
    samples = lambda: (
        Sample(_COLOURS),
        Sample(_COLOURS, pixel_format="BGR"),
        Sample(_COLOURS, pixel_format="Grayscale"),
        Sample(_GREYS, pixel_format="Grayscale"),
        Sample(_BITMAP),
        # onnx's evaluator returns no channels for an image without colours.
        Sample(_GREYS, pixel_format="BGR", onnx=False),
    )

    def infer(self, encoded_stream: TensorType) -> TensorType:
        channels = _CHANNELS.get(self.pixel_format)
        if channels is None:
            raise UsageError(f"pixel_format must be one of {', '.join(_CHANNELS)}, not {self.pixel_format!r}")
        if encoded_stream.rank not in (None, 1):
            raise TypeMismatch(f"ImageDecoder takes the bytes of one file, not {encoded_stream}")
        return TensorType(DType.UINT8, (dims.fresh(), dims.fresh(), channels))

    def reference(self, xp: Any, encoded_stream: Any) -> Any:
        pixels = decoded(encoded_stream.tobytes(), self.pixel_format == "Grayscale")
        return xp.asarray(np.ascontiguousarray(pixels[:, :, ::-1]) if self.pixel_format == "BGR" else pixels)


def decoded(data: bytes, grey: bool) -> np.ndarray:
    """Decode an image to uint8 [height, width, 1 if `grey` else 3].

    Raises RuntimeFailure for a damaged image, MissingDependency without Pillow. Sizes are compared with Pillow's
    limit before any pixel is decoded.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingDependency(f"ImageDecoder needs Pillow; install it with: {how_to_install('images')}") from None
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            limit, (width, height) = Image.MAX_IMAGE_PIXELS, picture.size
            if limit is not None and width * height > limit:
                raise RuntimeFailure(f"an image of {width} x {height} pixels is above Pillow's limit of {limit}")
            return _pixels(picture, grey)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RuntimeFailure(f"the image is above Pillow's limit: {error}") from None
    except UnidentifiedImageError:
        raise RuntimeFailure(f"{len(data)} bytes are not an image in one of {', '.join(_FORMATS)}") from None
    except (EOFError, IndexError, OSError, OverflowError, SyntaxError, ValueError) as error:
        raise RuntimeFailure(f"the image cannot be decoded: {error}") from None


def _pixels(picture: Any, grey: bool) -> np.ndarray:
    if picture.mode.startswith("I;16"):
        # Pillow would clip values above 255.
        high = (np.asarray(picture) >> 8).astype(np.uint8)
        return np.repeat(high[:, :, None], 1 if grey else 3, axis=2)
    if picture.mode in ("I", "F"):
        raise RuntimeFailure(f"an image of mode {picture.mode} has no pixels of 8 bits")
    array = np.asarray(picture.convert("L" if grey else "RGB"))
    return array[:, :, None] if grey else array
