"""Pictures as inputs: x=photo.png is decoded, and brought to the layout, size and type of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from graphkit.errors import InputError, MissingDependency, UsageError
from graphkit.ir.types import DType, TensorType, Type

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# Channels of a picture, and Pillow's name for pictures that have them.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Images:
    """How pixels become numbers: (pixel * scale - mean) / std, per channel; layout: NCHW or NHWC, None: by the shape.

    An input of uint8 takes the pixels as they are.
    """

    scale: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str | None = None

    def read(self, path: Path, name: str, kind: Type) -> np.ndarray:
        """The array of a picture for input `name`; raises InputError for a file or an input that does not fit."""
        if not isinstance(kind, TensorType) or not (kind.dtype.is_float or kind.dtype is DType.UINT8):
            raise InputError(f"{path}: a picture fits inputs of floats or uint8; {name!r} is {kind}")
        layout = self._layout(path, name, kind)
        shape = kind.known_shape
        size = dict(zip(layout, shape[-3:], strict=True))
        channels = size["C"] if isinstance(size["C"], int) else 3
        if channels not in _MODES:
            raise InputError(f"{path}: a picture has 1, 3 or 4 channels; {name!r} is {kind}")
        if len(shape) == 4 and isinstance(shape[0], int) and shape[0] != 1:
            raise InputError(f"{path}: one picture, and {name!r} is {kind}; put a batch into an .npy file")
        pixels = _decoded(path, channels, size["H"], size["W"])
        array = self._normalised(pixels, path, kind)
        array = array.transpose(2, 0, 1) if layout == "CHW" else array
        return np.ascontiguousarray(array.reshape([1] * (len(shape) - 3) + list(array.shape)))

    def _layout(self, path: Path, name: str, kind: TensorType) -> str:
        """CHW or HWC."""
        if kind.rank not in (3, 4):
            raise InputError(f"{path}: a picture is [N, C, H, W] or [N, H, W, C], also without N; {name!r} is {kind}")
        if self.layout is not None:
            return self.layout[1:]
        first, last = kind.known_shape[-3], kind.known_shape[-1]
        if (first in _MODES) == (last in _MODES):
            raise InputError(
                f"{path}: the shape does not say where the channels of {name!r}, {kind}, are: "
                "add --image-layout NCHW or NHWC"
            )
        return "CHW" if first in _MODES else "HWC"

    def _normalised(self, pixels: np.ndarray, path: Path, kind: TensorType) -> np.ndarray:
        """uint8 [H, W, C] in the input's type."""
        if kind.dtype is DType.UINT8:
            if self != Images(layout=self.layout):
                raise UsageError(f"{path}: the input takes uint8, pixels as they are; no --image-scale, -mean or -std")
            return pixels
        array: np.ndarray = pixels.astype(np.float64) * self.scale
        for option, values in (("mean", self.mean), ("std", self.std)):
            if values and len(values) not in (1, pixels.shape[2]):
                raise UsageError(f"--image-{option} has {len(values)} numbers for {pixels.shape[2]} channels of {path}")
        array = (array - np.asarray(self.mean or 0.0)) / np.asarray(self.std or 1.0)
        return array.astype(kind.dtype.numpy)


# What Pillow raises for files that are no picture, or not a whole one.
_DAMAGED = (EOFError, IndexError, OSError, OverflowError, SyntaxError, ValueError)


def _decoded(path: Path, channels: int, height: Any, width: Any) -> np.ndarray:
    """uint8 [H, W, C] in the size asked for, upright; its own size where a dimension is no number."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise MissingDependency(
            f"{path}: pictures need Pillow; install it with: pip install 'graphkit[images]'"
        ) from None
    try:
        with Image.open(path) as picture:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and picture.width * picture.height > limit:
                size = f"{picture.width} x {picture.height}"
                raise InputError(f"{path}: a picture of {size} pixels is above Pillow's limit of {limit}")
            if picture.mode.startswith(("I", "F")):
                raise InputError(f"{path}: its pixels have more than 8 bits ({picture.mode}); give them as .npy")
            upright = ImageOps.exif_transpose(picture).convert(_MODES[channels])
    except (*_DAMAGED, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{path} cannot be read as a picture: {error}") from None
    wanted = (
        width if isinstance(width, int) else upright.width,
        height if isinstance(height, int) else upright.height,
    )
    if upright.size != wanted:
        upright = upright.resize(wanted, Image.Resampling.BILINEAR)
    return np.asarray(upright).reshape(wanted[1], wanted[0], channels)


class _Numbers(click.ParamType):
    """Numbers with commas between them."""

    name = "X,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in value.split(",")) if isinstance(value, str) else tuple(value)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 0.485,0.456,0.406", param, ctx)
        if not np.isfinite(numbers).all() or (param is not None and param.name == "image_std" and 0 in numbers):
            self.fail(f"{value!r} holds a number that cannot be used", param, ctx)
        return numbers


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--image-scale, --image-mean, --image-std, --image-layout as image_... arguments: see `images_of`."""
    command = click.option(
        "--image-layout", type=click.Choice(["NCHW", "NHWC"]), help="Layout of pictures, where the shape does not say."
    )(command)
    command = click.option("--image-std", type=_Numbers(), default=(), help="Divide by this, per channel.")(command)
    command = click.option(
        "--image-mean", type=_Numbers(), default=(), help="Then subtract this, one number or one per channel."
    )(command)
    return click.option(
        "--image-scale", type=float, default=1 / 255, show_default="1/255",
        help="Multiply pixels (0 to 255) of pictures by this, for inputs of floats.",
    )(command)  # fmt: skip


def images_of(options: dict[str, Any]) -> Images:
    """What `image_options` gave."""
    return Images(options["image_scale"], options["image_mean"], options["image_std"], options["image_layout"])
