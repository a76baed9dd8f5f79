"""Shapes of the rows of `operators.py`, for forward passes and gradients."""

from __future__ import annotations

from collections.abc import Sequence

# About a million elements.
SQUARE, ODD = (1024, 1024), (777, 1301)
IMAGES, ODD_IMAGES = (16, 64, 32, 32), (6, 40, 57, 35)
# Unusual: primes, 3 rows or columns, 1 or 2,000 channels; and 10 elements.
P2, P3 = (997, 1009), (3, 100003)
TALL, TINY = (100003, 3), (10,)
WIDE, PLANE = (1, 2000, 7, 7), (1, 1, 499, 509)


def one_window(images: Sequence[int], weights: Sequence[int], group: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return shapes of images and weights for one window, with 2 channels. Convolutions with groups keep their own."""
    channels = (2, 2, 2) if group == 1 else (images[1], *weights[:2])
    return (1, channels[0], *weights[2:]), (*channels[1:], *weights[2:])
