"""Augment: random changes of images, so that a network sees another version of each in every epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.data.preprocessing.decode import Picture
from graphkit.data.preprocessing.geometry import erased, resized_crop
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import UsageError, did_you_mean
from graphkit.signatures import typed_constructor

# Pillow's constants for the horizontal flip, and for the bilinear filter.
_FLIP, _BILINEAR = 0, 2

# Weights of red, green and blue in grey: ITU-R 601-2, as in Pillow's mode L.
_LUMA = (0.299, 0.587, 0.114)

# Names of changes in `Augment.parse` -> the fields that they set, and their value if the text gives no number.
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
    """Random changes of images, applied in this order. By default nothing is changed.

    - crop: a random part of the image is cut out (torchvision's RandomResizedCrop). `crop` is the smallest share of the
      area, and `ratio` the limits of width divided by height. This replaces the resizing and cropping of Preprocess.
    - pad: the image is shifted by up to this number of pixels in each direction, with black behind it (RandomCrop
      with padding).
    - flip: the probability of a horizontal flip.
    - brightness, contrast, saturation: a random factor from 1 - x to 1 + x. hue: a random shift by -x to x turns of the
      colour circle (ColorJitter). These four are applied in random order. Saturation and hue of grey images and of
      images with transparency stay unchanged.
    - rotate: rotation by up to this number of degrees in either direction, with black corners.
    - erase: the probability that a rectangle of 2% to 33% of the image becomes 0 in the preprocessed array, that is the
      `mean` of Preprocess (RandomErasing).

    Changes of colour are computed on bytes and clipped to 0 to 255. Raises UsageError for invalid values, and with
    `crop` for a Preprocess without a fixed size.
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
                raise UsageError(f"augment: {name} must be from 0 to {most:g}, not {value!r}")
        if self.crop == 0 or not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise UsageError(
                "augment: crop must be above 0, and ratio must be two ascending numbers above 0, not "
                f"{self.crop!r} and {self.ratio}"
            )
        if self.crop is not None and self.pad:
            raise UsageError("augment: crop and pad both choose which part is cut out; use only one of them")

    @classmethod
    def parse(cls, text: str) -> Augment | None:
        """Return the Augment of a text such as `crop,flip` or `pad:4,flip:0.5,colour:0.2`; None for `none`.

        Names without a number get default values.
        """
        if text == "none":
            return None
        fields: dict[str, Any] = {}
        seen: set[str] = set()
        for part in text.split(","):
            name, colon, number = part.strip().partition(":")
            if name not in _NAMED:
                raise UsageError(f"augment: unknown {name!r}{did_you_mean(name, [*_NAMED, 'none'])}")
            if name in seen:
                raise UsageError(f"augment: {name!r} is given twice")
            seen.add(name)
            try:
                value = float(number) if colon else _NAMED[name][1]
            except ValueError:
                raise UsageError(f"augment: {part.strip()!r}: {number!r} is not a number") from None
            if name == "pad" and not value.is_integer():
                raise UsageError(f"augment: {part.strip()!r}: the number of pixels must be an integer")
            fields |= dict.fromkeys(_NAMED[name][0], int(value) if name == "pad" else value)
        return cls(**fields)

    def image(self, picture: Picture, preprocess: Preprocess, draw: np.random.Generator) -> Any:
        """Return an opened image as a Pillow image, resized and cropped by `preprocess` and changed at random.

        draw: source of the random numbers.
        """
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
        """Return the array of an image, preprocessed and changed."""
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
            raise UsageError(
                "augment: crop needs a fixed size of images; set it, for example size=224 (--data-option size=224)"
            )
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
    """Map each colour by a table of 256 values; transparency does not change."""
    of_colour = np.clip(values, 0, 255).astype(np.uint8).tolist()
    colours = [band for band in image.getbands() if band != "A"]
    opaque = list(range(256)) if len(colours) < len(image.getbands()) else []
    return image.point(of_colour * len(colours) + opaque)


def _brighter(image: Any, by: float) -> Any:
    return _through(image, np.arange(256) * (1 + by))


def _contrasted(image: Any, by: float) -> Any:
    """Move colours away from, or towards, the mean of the grey image."""
    counts = image.convert("L").histogram()
    mean = int(np.dot(counts, np.arange(256)) / sum(counts) + 0.5)
    return _through(image, mean + (np.arange(256) - mean) * (1 + by))


def _saturated(image: Any, by: float) -> Any:
    """Move colours away from, or towards, the grey image."""
    rows = [[-by * share for share in _LUMA] for _ in range(3)]
    for channel in range(3):
        rows[channel][channel] += 1 + by
    return image.convert("RGB", tuple(value for row in rows for value in (*row, 0.0)))


def _turned(image: Any, by: float) -> Any:
    """Rotate the hues."""
    values = np.arange(256)
    shifted = ((values + round(by * 255)) % 256).tolist()
    return image.convert("HSV").point(shifted + values.tolist() * 2).convert("RGB")


_CHANGES = {"brightness": _brighter, "contrast": _contrasted, "saturation": _saturated, "hue": _turned}
