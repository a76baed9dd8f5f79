"""Convert pixels to numbers, with a table for the 256 values of each channel."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from graphkit.ir.types import DType


@functools.lru_cache(maxsize=64)
def table(scale: float, mean: tuple[float, ...], std: tuple[float, ...], dtype: str, channels: int) -> np.ndarray:
    """Return (pixel * scale - mean) / std for all 256 values, [channels, 256], computed in float64 and rounded once.

    mean, std: one number per channel, one for all, or none (0 and 1).
    """
    values = np.arange(256) * scale
    offset = np.broadcast_to(np.array(mean or 0.0), channels)[:, None]
    spread = np.broadcast_to(np.array(std or 1.0), channels)[:, None]
    found: np.ndarray = ((values - offset) / spread).astype(DType(dtype).numpy)
    found.flags.writeable = False
    return found


def planes(channels: Sequence[np.ndarray], of_channel: np.ndarray) -> np.ndarray:
    """Convert channels, uint8 [H, W], to [C, H, W], each channel by its row of a `table`."""
    out = np.empty((len(channels), *channels[0].shape), of_channel.dtype)
    for row, channel, made in zip(of_channel, channels, out, strict=True):
        # Every uint8 is a valid index, so all modes give the same. "wrap" is the fastest; "raise" copies through a
        # buffer.
        np.take(row, channel, out=made, mode="wrap")
    return out


def interleaved(pixels: np.ndarray, of_channel: np.ndarray) -> np.ndarray:
    """Convert uint8 [H, W, C] to [H, W, C] in the same way."""
    out = np.empty(pixels.shape, of_channel.dtype)
    for channel in range(pixels.shape[2]):
        out[:, :, channel] = of_channel[channel][pixels[:, :, channel]]
    return out
