"""Encodes arrays as PNG images (ISO/IEC 15948): 8 bits, grey or RGB."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether samples of this shape are images: [C, H, W] with 1 or 3 channels, at least 2 x 2."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def pixels(sample: np.ndarray) -> np.ndarray:
    """Convert a sample [C, H, W] to uint8 [H, W, C].

    uint8 stays as it is. Floats in [0, 1] become 0 to 255. Other values (normalised images) are scaled from their
    minimum and maximum to 0 and 255, all channels alike. Values that are not finite become black.
    """
    moved = np.moveaxis(sample, 0, -1)
    if moved.dtype == np.uint8:
        return moved
    values = moved.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    scaled = (values / 2 - low / 2) / max(high / 2 - low / 2, np.finfo(np.float64).tiny)  # halves: no overflow
    return np.rint(np.clip(np.nan_to_num(scaled), 0.0, 1.0) * 255).astype(np.uint8)


def encode(image: np.ndarray) -> bytes:
    """Return a PNG file of uint8 [H, W, C] with 1 or 3 channels."""
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _RGB, 0, 0, 0)
    # Each row begins with the number of its filter; 0: no filter.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = image.reshape(height, -1)
    return b"".join(
        [_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), _chunk(b"IEND", b"")]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
