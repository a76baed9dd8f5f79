"""Augment: changes at random, by which a network sees another picture of the same thing in every epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.data.images.decode import Picture
from graphkit.data.images.geometry import erased, resized_crop
from graphkit.data.images.preprocess import Preprocess
from graphkit.errors import UsageError, did_you_mean
from graphkit.signatures import typed_constructor

# Pillow's number of the flip from left to right, and of the bilinear filter.
_FLIP, _BILINEAR = 0, 2

# Red, green and blue in grey: ITU-R 601-2, as Pillow's mode L.
_LUMA = (0.299, 0.587, 0.114)

# What a text that names a change gives it where it says no number: fields and their values.
_NAMED: dict[str, tuple[tuple[str, ...], float]] = {
    "crop": (("crop",), 0.08),
    "pad": (("pad",), 4.0),
    "flip": (("flip",), 0.5),
    "rotate": (("rotate",), 10.0),
    "colour": (("brightness", "contrast", "saturation"), 0.4),
    "brightness": (("brightness",), 0.4),
    "contrast": (("contrast",), 0.4),
    "saturation": (("saturation",), 0.4),
    "hue": (("hue",), 0.1),
    "erase": (("erase",), 0.25),
}


@typed_constructor("gk.data")
@dataclass(frozen=True)
class Augment:
    """Changes at random, in this order; nothing is changed where nothing is said.

    - crop: the smallest share of a picture's area that is cut out and resized in place of Preprocess' own resizing and
      cutting, with a ratio of width to height within `ratio` (torchvision's RandomResizedCrop);
    - pad: the picture is shifted by up to so many pixels each way, with black behind it (RandomCrop with padding);
    - flip: the probability with which left and right change places;
    - brightness, contrast, saturation: factors from 1 - x to 1 + x; hue: shifts by -x to x of the circle of colours
      (ColorJitter); in an order at random. Of grey pictures, and of those with transparency, hue and saturation stay;
    - rotate: by up to so many degrees either way, with black corners;
    - erase: the probability with which a rectangle of 2% to 33% of the picture becomes the mean (RandomErasing).

    Colours and places are those of bytes, so that none is beyond 0 to 255. Raises UsageError for what cannot be.
    """

    crop: float | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0
    flip: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    rotate: float = 0.0
    erase: float = 0.0

    def __post_init__(self) -> None:
        bounds = {
            "crop": 1.0, "pad": 1 << 15, "flip": 1.0, "brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.5,
            "rotate": 180.0, "erase": 1.0,
        }  # fmt: skip
        for name, most in bounds.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise UsageError(f"changes of pictures: {name} is from 0 to {most:g}, not {value!r}")
        if self.crop == 0 or not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise UsageError(f"changes of pictures: no area is {self.crop!r} of a picture with a ratio of {self.ratio}")
        if self.crop is not None and self.pad:
            raise UsageError("changes of pictures: crop and pad both choose what is cut out; take one of them")

    @classmethod
    def parse(cls, text: str) -> Augment | None:
        """`crop,flip` or `pad:4,flip:0.5,colour:0.2`: names with their numbers, else usual ones; None for `none`."""
        if text == "none":
            return None
        fields: dict[str, Any] = {}
        seen: set[str] = set()
        for part in text.split(","):
            name, colon, number = part.strip().partition(":")
            if name not in _NAMED:
                raise UsageError(f"changes of pictures: {name!r}{did_you_mean(name, [*_NAMED, 'none'])}")
            if name in seen:
                raise UsageError(f"changes of pictures: {name!r} is there twice")
            seen.add(name)
            try:
                value = float(number) if colon else _NAMED[name][1]
            except ValueError:
                raise UsageError(f"changes of pictures: {part.strip()!r}: {number!r} is no number") from None
            if name == "pad" and not value.is_integer():
                raise UsageError(f"changes of pictures: {part.strip()!r}: pixels are whole")
            fields |= dict.fromkeys(_NAMED[name][0], int(value) if name == "pad" else value)
        return cls(**fields)

    def image(self, picture: Picture, preprocess: Preprocess, draw: np.random.Generator) -> Any:
        """Pillow's image of a picture, cut, resized and changed."""
        if self.crop is None:
            image = preprocess.image(picture)
            if self.pad:
                left, top = (int(n) for n in draw.integers(-self.pad, self.pad + 1, 2))
                image = image.crop((left, top, left + image.width, top + image.height))
        else:
            image = self._cropped(picture, preprocess, draw)
        if self.flip and draw.random() < self.flip:
            image = image.transpose(_FLIP)
        image = self._coloured(image, draw)
        if self.rotate:
            image = image.rotate(draw.uniform(-self.rotate, self.rotate), _BILINEAR)
        return image

    def array(self, picture: Picture, preprocess: Preprocess, draw: np.random.Generator) -> np.ndarray:
        """The array of a picture: what `preprocess` makes of it, changed."""
        image = self.image(picture, preprocess, draw)
        array = preprocess.numbers(image)
        if self.erase and draw.random() < self.erase:
            window = erased(image.size, (0.02, 0.33), (0.3, 3.3), draw)
            if window is not None:
                rows = slice(window.top, window.top + window.height)
                columns = slice(window.left, window.left + window.width)
                array[(slice(None), rows, columns) if preprocess.layout == "NCHW" else (rows, columns)] = 0
        return array

    def _cropped(self, picture: Picture, preprocess: Preprocess, draw: np.random.Generator) -> Any:
        if preprocess.size is None:
            raise UsageError("changes of pictures: crop needs the size that pictures come to; say it: size=224")
        height, width = preprocess.size
        window = resized_crop(picture.size, (self.crop or 1.0, 1.0), self.ratio, draw)
        right, bottom = window.left + window.width, window.top + window.height
        return preprocess.part(picture, (window.left, window.top, right, bottom), (width, height))

    def _coloured(self, image: Any, draw: np.random.Generator) -> Any:
        changes = [
            (name, amount)
            for name in ("brightness", "contrast", "saturation", "hue")
            if (amount := getattr(self, name)) and (name in ("brightness", "contrast") or image.mode == "RGB")
        ]
        for place in draw.permutation(len(changes)) if changes else ():
            name, amount = changes[place]
            image = _CHANGES[name](image, draw.uniform(-amount, amount))
        return image


def _through(image: Any, values: np.ndarray) -> Any:
    """Each colour through a table of 256 values; transparency stays."""
    of_colour = np.clip(values, 0, 255).astype(np.uint8).tolist()
    colours = [band for band in image.getbands() if band != "A"]
    opaque = list(range(256)) if len(colours) < len(image.getbands()) else []
    return image.point(of_colour * len(colours) + opaque)


def _brighter(image: Any, by: float) -> Any:
    return _through(image, np.arange(256) * (1 + by))


def _contrasted(image: Any, by: float) -> Any:
    """Away from the mean of the grey picture, or towards it."""
    counts = image.convert("L").histogram()
    mean = int(np.dot(counts, np.arange(256)) / sum(counts) + 0.5)
    return _through(image, mean + (np.arange(256) - mean) * (1 + by))


def _saturated(image: Any, by: float) -> Any:
    """Away from the grey picture, or towards it."""
    rows = [[-by * share for share in _LUMA] for _ in range(3)]
    for channel in range(3):
        rows[channel][channel] += 1 + by
    return image.convert("RGB", tuple(value for row in rows for value in (*row, 0.0)))


def _turned(image: Any, by: float) -> Any:
    """Around the circle of hues."""
    values = np.arange(256)
    shifted = ((values + round(by * 255)) % 256).tolist()
    return image.convert("HSV").point(shifted + values.tolist() * 2).convert("RGB")


_CHANGES = {"brightness": _brighter, "contrast": _contrasted, "saturation": _saturated, "hue": _turned}
