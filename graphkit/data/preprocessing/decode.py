"""Decode image files with Pillow: limited in size, upright, and no larger than needed."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import InputError, MissingDependency
from graphkit.named_tuples import NamedTuple

# File suffixes that are taken for images; Pillow's names of the formats that are decoded, whatever the suffix is.
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

# EXIF's orientation tag. Its values that swap width and height; that store the left side last; that store the top last.
_ORIENTATION, _SIDEWAYS = 0x0112, frozenset({5, 6, 7, 8})
_FROM_RIGHT, _FROM_BOTTOM = frozenset({2, 3, 6, 7}), frozenset({3, 4, 7, 8})

# A JPEG is decoded at a reduced size of at least this factor times the final size, as in Pillow's `thumbnail`.
_REDUCING_GAP = 2

# Exceptions of Pillow for files that are not images, or are incomplete. Warnings can be exceptions, too (-W error).
_DAMAGED = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, NotImplementedError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, Warning, struct.error, zlib.error,
)  # fmt: skip


class Decoded(NamedTuple):
    """A decoded Pillow image. A pixel covers `scale` pixels of the original, which begins at the given corner."""

    image: Any
    scale: int
    left: float
    top: float


class Picture:
    """An image whose header was read. name: its name in errors; size: (width, height), upright; mode: Pillow's."""

    def __init__(self, image: Any, name: str, orientation: int = 1):
        self.name, self._image, self._orientation = name, image, orientation
        width, height = image.size
        self.size: tuple[int, int] = (height, width) if orientation in _SIDEWAYS else (width, height)
        self.mode: str = image.mode
        self._scale = 1

    def decoded(self, mode: str, least: tuple[float, float] | None = None) -> Decoded:
        """Decode the image upright, in mode L, RGB or RGBA.

        A JPEG much larger than `least` is decoded at 1/2, 1/4 or 1/8 of its size, from fewer coefficients of its cosine
        transform; otherwise scale is 1. Modes L and RGB drop transparency.

        Args:
            mode: The colours.
            least: (width, height) to which the image will be resized.

        Raises:
            InputError: The image is damaged.
        """
        from PIL import ImageOps

        image = self._image
        with _naming(self.name):
            if least is not None:
                width, height = least[::-1] if self._orientation in _SIDEWAYS else least
                before = image.width
                # `draft` returns None if the image is not a JPEG, or is already decoded.
                drafted = image.draft(None, (width * _REDUCING_GAP, height * _REDUCING_GAP))
                self._scale = self._scale if drafted is None else round(before / drafted[1][2])
            if self._orientation != 1:
                image = ImageOps.exif_transpose(image)
            if image.mode == "P" and mode != "RGBA":
                # Converting a palette with transparency to another mode makes Pillow warn.
                image = image.convert("RGBA")
            image.load()
            image = image if image.mode == mode else image.convert(mode)
        return Decoded(image, self._scale, *self._corner(*image.size))

    def _corner(self, width: int, height: int) -> tuple[float, float]:
        """The position of the original's corner in the decoded image.

        A reduced image may have an incomplete last column or row. If the image was turned, this comes first.
        """
        left, top = (whole - own / self._scale for whole, own in zip((width, height), self.size, strict=True))
        return left * (self._orientation in _FROM_RIGHT), top * (self._orientation in _FROM_BOTTOM)


def pixel_count(data: bytes) -> int:
    """Return the number of pixels of an image, by its header; 0 if it cannot be read, or Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return 0
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return int(image.width * image.height)
    except (Image.DecompressionBombError, *_DAMAGED):
        return 0


@contextlib.contextmanager
def opened(source: Path | bytes, name: str | None = None) -> Iterator[Picture]:
    """Open an image in a file, or in bytes; it can be decoded within the block.

    Animations give their first image. 16-bit colours of PNG files are cut to their high byte.

    Args:
        source: The path or the bytes.
        name: Name of the image in errors (default: the path).

    Raises:
        InputError: It is not an image, is empty, is above Pillow's pixel limit (checked before decoding), or has a
            channel with more than 8 bits (except 16-bit colours of PNG).
        MissingDependency: Pillow is not installed.
    """
    name = name if name is not None else str(source) if isinstance(source, Path) else "an image"
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependency(f"{name}: images need Pillow; install it with: {how_to_install('images')}") from None
    with _naming(name):
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS)
    with image:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            size = f"{image.width} x {image.height}"
            raise InputError(f"{name}: an image of {size} pixels is above Pillow's limit of {limit}")
        if image.mode.startswith(("I", "F")):
            raise InputError(f"{name}: its pixels have more than 8 bits ({image.mode}); pass it as .npy")
        if not image.width or not image.height:
            raise InputError(f"{name}: the image is empty: it has {image.width} x {image.height} pixels")
        with _naming(name):
            if image.format == "TIFF":
                # Pillow turns TIFF images upright when it loads them, so the tag must be read after loading.
                image.load()
            turned = image.getexif().get(_ORIENTATION)
        yield Picture(image, name, turned if isinstance(turned, int) and 2 <= turned <= 8 else 1)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Convert Pillow's exceptions to an error that names the image."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError:
        raise InputError(f"{name} cannot be read as an image: its format is not one of {', '.join(_FORMATS)}") from None
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise InputError(f"{name} cannot be read as an image: {error or type(error).__name__}") from None


def of_pixels(pixels: np.ndarray) -> Picture:
    """Return an image from uint8 [H, W] or [H, W, 3]. Raises MissingDependency without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependency(f"images need Pillow; install it with: {how_to_install('images')}") from None
    return Picture(Image.fromarray(pixels), "an array")
