"""Preprocess: how images are converted to the input of a network, in training and in later use."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.preprocessing import numbers
from graphkit.data.preprocessing.decode import Picture, opened
from graphkit.data.preprocessing.geometry import centred, shorter_side
from graphkit.errors import InputError, InvalidModel, UsageError, did_you_mean
from graphkit.signatures import typed_constructor

# Means and standard deviations of ImageNet's training images, red, green, blue, and of CIFAR-10's.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

# Colours -> Pillow's mode that contains them, number of channels.
_COLOURS = {"L": ("L", 1), "RGB": ("RGB", 3), "BGR": ("RGB", 3), "RGBA": ("RGBA", 4)}
OF_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
LAYOUTS = ("NCHW", "NHWC")
_DTYPES = ("float32", "float16", "bfloat16", "float64", "uint8")
# Pillow's constants of filters.
_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}

# Maximum length of a side, and maximum number of pixels, of a resized image.
_LONGEST, _MOST = 1 << 15, 1 << 27

# Images with a crop above _SMALL are resized to crop / _MARGIN, as is usual for ImageNet.
_SMALL, _MARGIN = 96, 0.875

_SCHEMA, _VERSION = "graphkit.preprocessing", 1


@typed_constructor("gk.data")
@dataclass(frozen=True)
class Preprocess:
    """Converts an image to an array: resize, crop, then (pixel * scale - mean) / std in each channel.

    Args:
        resize: Length of the shorter side; the ratio of the sides is kept. Or (height, width). None keeps the size.
        filter: nearest, box, bilinear, hamming, bicubic or lanczos, as in Pillow. If an image is shrunk, all filters
            except nearest average over all its pixels.
        crop: (height, width) of the centre that is cut out, with black where the image is smaller. None keeps the whole
            image.
        colours: RGB, BGR, L (grey) or RGBA. Without RGBA, the transparency of an image is dropped,
            not blended.
        scale: Factor on pixels from 0 to 255.
        mean: One number, or one per channel in the order of `colours`, for scaled pixels.
        std: Like `mean`.
        layout: NCHW or NHWC.
        dtype: float32, float16, bfloat16, float64, or uint8, which keeps the pixels unchanged.

    Raises:
        UsageError: An argument has another value than described here.
    """

    resize: int | tuple[int, int] | None = None
    filter: str = "bilinear"
    crop: tuple[int, int] | None = None
    colours: str = "RGB"
    scale: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str = "NCHW"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for field, known in (
            ("filter", _FILTERS), ("colours", _COLOURS), ("layout", LAYOUTS), ("dtype", _DTYPES),
        ):  # fmt: skip
            value = getattr(self, field)
            if value not in known:
                raise UsageError(f"{field} of images: unknown {value!r}{did_you_mean(str(value), known)}")
        for field, sizes in (("resize", self.resize), ("crop", self.crop)):
            flat = sizes if isinstance(sizes, tuple) else () if sizes is None else (sizes,)
            if any(isinstance(s, bool) or not isinstance(s, int) or not 1 <= s <= _LONGEST for s in flat) or (
                isinstance(sizes, tuple) and len(sizes) != 2
            ):
                raise UsageError(
                    f"{field} of images: {sizes!r} is not a size; sides must be from 1 to {_LONGEST} pixels"
                )
            if math.prod(flat) > _MOST:
                raise UsageError(f"{field} of images: {sizes!r} is above the limit of {_MOST} pixels")
        if not math.isfinite(self.scale):
            raise UsageError(f"scale of images: expected a finite number, not {self.scale!r}")
        for field, values in (("mean", self.mean), ("std", self.std)):
            if values and len(values) not in (1, self.channels):
                raise UsageError(f"{field} of images: {len(values)} numbers for {self.channels} channels")
            if not all(map(math.isfinite, values)) or (field == "std" and 0 in values):
                raise UsageError(
                    f"{field} of images: numbers must be finite, and those of std not 0; found {list(values)}"
                )
        if self.dtype == "uint8" and (self.scale, self.mean, self.std) != (1 / 255, (), ()):
            raise UsageError(
                "dtype uint8 keeps pixels unchanged: leave out scale, mean and std, or choose a float dtype"
            )

    @classmethod
    def of_size(cls, height: int, width: int, **fields: Any) -> Preprocess:
        """Return the usual preprocessing for images of this size: resize the shorter side, and cut out the centre.

        The shorter side is resized to max(height, width) if that is at most 96, else to max(height, width) / 0.875. For
        224 this gives 256, as for ImageNet.
        """
        longer = max(height, width)
        return cls(
            **{"resize": longer if longer <= _SMALL else round(longer / _MARGIN), "crop": (height, width), **fields}
        )

    def __str__(self) -> str:
        """Describe the preprocessing in words: sizes, colours, arithmetic, layout."""
        size = []
        if isinstance(self.resize, tuple):
            size.append(f"resized to {self.resize[0]} x {self.resize[1]}")
        elif self.resize is not None:
            size.append(f"resized to {self.resize} on the shorter side")
        if self.crop is not None:
            size.append(f"the middle {self.crop[0]} x {self.crop[1]} cut out")
        colours = "grey" if self.colours == "L" else self.colours
        return ", ".join([*(size or ["in its own size"]), colours, self._arithmetic(), f"{self.layout} {self.dtype}"])

    def _arithmetic(self) -> str:
        if self.dtype == "uint8":
            return "pixels as they are"
        factor = round(1 / self.scale) if self.scale else 0
        scaled = "pixel" if self.scale == 1 else f"pixel / {factor}" if factor and 1 / factor == self.scale else ""
        scaled = scaled or f"pixel * {self.scale:g}"
        mean, std = (_few(numbers) for numbers in (self.mean, self.std))
        centred = f"({scaled} - {mean})" if mean else f"({scaled})" if std else scaled
        return f"{centred} / {std}" if std else centred

    @property
    def channels(self) -> int:
        """Number of channels of the resulting array: 1 for L, 4 for RGBA, else 3."""
        return _COLOURS[self.colours][1]

    @property
    def mode(self) -> str:
        """Pillow's name of the colours."""
        return _COLOURS[self.colours][0]

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of all resulting images; None if it depends on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Shape of the resulting array: [C, H, W] or [H, W, C]; None if it depends on the image."""
        if self.size is None:
            return None
        return (self.channels, *self.size) if self.layout == "NCHW" else (*self.size, self.channels)

    def image(self, picture: Picture) -> Any:
        """Return the image as a Pillow image, resized and then cropped."""
        size = self._resized(picture.size)
        whole = self.part(picture, (0, 0, *picture.size), size)
        if self.crop is None:
            return whole
        left, top, width, height = centred(size, self.crop[1], self.crop[0])
        # Resizing only the window would round differently: by up to a pixel with hard-edged filters.
        return whole.crop((left, top, left + width, top + height))

    def part(self, picture: Picture, box: tuple[float, float, float, float], size: tuple[int, int]) -> Any:
        """Return a part of the image, (left, top, right, bottom), as a Pillow image, resized to (width, height).

        Raises InputError if the image is damaged, or too large after resizing.
        """
        if size[0] * size[1] > _MOST:
            raise InputError(
                f"{picture.name}: resized, it has {size[0]} x {size[1]} pixels, more than the limit of {_MOST}"
            )
        part = box[2] - box[0], box[3] - box[1]
        if size == part:
            decoded = picture.decoded(self.mode).image
            return decoded if size == picture.size else decoded.crop(box)
        whole = (picture.size[0] * size[0] / part[0], picture.size[1] * size[1] / part[1])
        decoded, scale, *corner = picture.decoded(self.mode, whole)
        left, top, right, bottom = (edge / scale + start for edge, start in zip(box, (*corner, *corner), strict=True))
        within = (left, top, min(right, decoded.width), min(bottom, decoded.height))
        return decoded.resize(size, _FILTERS[self.filter], box=within)

    def numbers(self, image: Any) -> np.ndarray:
        """Return the array of a Pillow image that is already resized and cropped: [C, H, W] or [H, W, C]."""
        table = numbers.table(self.scale, self.mean, self.std, self.dtype, self.channels)
        if self.layout == "NCHW" and self.dtype != "uint8":
            # Contiguous channels are converted several times faster than every third byte.
            channels = [np.asarray(channel) for channel in image.split()]
            return numbers.planes(channels[::-1] if self.colours == "BGR" else channels, table)
        pixels = np.asarray(image)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        pixels = pixels[:, :, ::-1] if self.colours == "BGR" else pixels
        if self.dtype == "uint8":
            return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels)
        return numbers.interleaved(pixels, table)

    def array(self, picture: Picture) -> np.ndarray:
        """Return the array of an opened image: [C, H, W] or [H, W, C]. For files, call `read`.

        Raises InputError if the image is damaged.
        """
        return self.numbers(self.image(picture))

    def read(self, *paths: str | os.PathLike[str]) -> np.ndarray:
        """Return a batch of image files: [N, C, H, W] or [N, H, W, C].

        Raises InputError, which names the file, for an image that is damaged or has another shape than the first.
        """
        if not paths:
            raise UsageError("there is no image to read")
        made: list[np.ndarray] = []
        for path in paths:
            with opened(Path(path)) as picture:
                made.append(self.array(picture))
            if made[-1].shape != made[0].shape:
                have, first = list(made[-1].shape), list(made[0].shape)
                raise InputError(
                    f"{path}: its shape is {have}, but that of {paths[0]} is {first}; set a size for all images "
                    "(resize, crop)"
                )
        return np.stack(made)

    def _resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the whole image after resizing."""
        if self.resize is None:
            return size
        return self.resize[::-1] if isinstance(self.resize, tuple) else shorter_side(size, self.resize)

    # --- as metadata -----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the text that the metadata of a model store under "preprocessing"."""
        return json.dumps({"schema": _SCHEMA, "version": _VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Preprocess | None:
        """Read the text of `to_json`; None for a text of another program. Raises InvalidModel if it is incomplete."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            if _SCHEMA in text:
                raise InvalidModel(f"metadata: preprocessing of images: {error}") from None
            return None
        if not isinstance(found, dict) or found.pop("schema", None) != _SCHEMA:
            return None
        if found.pop("version", None) != _VERSION:
            raise InvalidModel("metadata: preprocessing of images: its version is not known")
        known = {field.name for field in dataclasses.fields(cls)}
        if found.keys() != known:
            raise InvalidModel(
                f"metadata: preprocessing of images: it must have the keys {', '.join(sorted(known))}, not "
                f"{', '.join(found)}"
            )
        try:
            for field, form in (("scale", (int, float)), ("mean", list), ("std", list)):
                if not isinstance(found[field], form):
                    raise TypeError(f"{field} is {found[field]!r}")
            found |= {"mean": tuple(map(float, found["mean"])), "std": tuple(map(float, found["std"]))}
            for field in ("resize", "crop"):
                found[field] = tuple(found[field]) if isinstance(found[field], list) else found[field]
            if isinstance(found["crop"], int):
                raise TypeError(f"crop is {found['crop']!r}")
            return cls(**found)
        except (TypeError, ValueError, OverflowError, UsageError) as error:
            raise InvalidModel(f"metadata: preprocessing of images: {error}") from None


def _few(numbers: tuple[float, ...]) -> str:
    """A number, or one per channel in brackets; empty for none."""
    listed = ", ".join(f"{number:g}" for number in numbers)
    return f"[{listed}]" if len(numbers) > 1 else listed
