"""Sizes and windows for resizing and cropping images, by torchvision's formulas, in pixels."""

from __future__ import annotations

import math

import numpy as np

from graphkit.named_tuples import NamedTuple

# Number of random windows that are tried. If none fits, `resized_crop` takes the centre, and `erased` erases nothing.
_TRIES = 10


class Window(NamedTuple):
    """A part of an image: its upper left corner, which may lie outside, and its size."""

    left: int
    top: int
    width: int
    height: int


def shorter_side(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return (width, height) with a shorter side of `side` pixels, in proportion: torchvision's Resize."""
    short, long = sorted(size)
    other = max(1, int(side * long / short))
    return (side, other) if size[0] <= size[1] else (other, side)


def centred(size: tuple[int, int], width: int, height: int) -> Window:
    """Return the centre window, beyond the edges if the image is smaller: torchvision's CenterCrop."""
    return Window(_start(size[0], width), _start(size[1], height), width, height)


def _start(have: int, want: int) -> int:
    return -((want - have) // 2) if want > have else round((have - want) / 2)


def resized_crop(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], draw: np.random.Generator
) -> Window:
    """Return a random window for torchvision's RandomResizedCrop.

    The share of the area is uniform within `scale`, the logarithm of width / height uniform within `ratio`. If ten
    draws do not fit into the image, the window is the centre, as large as the bounds of the ratio allow.
    """
    width, height = size
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*scale)
        aspect = math.exp(draw.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Window(int(draw.integers(width - w + 1)), int(draw.integers(height - h + 1)), w, h)
    aspect = width / height
    w = width if aspect <= ratio[1] else max(1, round(height * ratio[1]))
    h = height if aspect >= ratio[0] else max(1, round(width / ratio[0]))
    return Window((width - w) // 2, (height - h) // 2, w, h)


def erased(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], draw: np.random.Generator
) -> Window | None:
    """Return the window that torchvision's RandomErasing erases; None if ten draws did not fit into the image."""
    width, height = size
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*scale)
        aspect = math.exp(draw.uniform(low, high))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w < width and 0 < h < height:
            return Window(int(draw.integers(width - w + 1)), int(draw.integers(height - h + 1)), w, h)
    return None
