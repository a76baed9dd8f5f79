"""What a node pads, for every device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.operands import constants
from graphkit.ir.graph import Value
from graphkit.ops.tensor.pad import pad_sources, pad_widths
from graphkit.ops.xp import numpy_xp


def known_widths(rank: int, pads: Value | None, axes: Value | None) -> list[tuple[int, int]] | None:
    """(before, after) for every axis of an array of `rank` axes; None when an operand is not known."""
    widths, where = constants(pads), constants(axes)
    if widths is None or (where is None and axes is not None):
        return None
    known = None if where is None else np.array(where, np.int64)
    return pad_widths(rank, np.array(widths, np.int64), known)


def pad_maps(mode: str, sizes: Sequence[int], pads: Value | None, axes: Value | None) -> list[list[int] | None] | None:
    """For each axis the positions that padding an array of `sizes` copies, -1 for the fill value; None: as it is.

    None in place of the list when an operand is not known.
    """
    widths = known_widths(len(sizes), pads, axes)
    if widths is None:
        return None
    maps: list[list[int] | None] = []
    for size, (before, after) in zip(sizes, widths, strict=True):
        if before == after == 0:
            maps.append(None)
        elif mode == "constant":
            position = np.arange(-before, size + after)
            kept = (position >= max(-before, 0)) & (position < size + min(after, 0))
            maps.append(np.where(kept, position, -1).tolist())
        else:
            maps.append(pad_sources(numpy_xp, size, before, after, mode).tolist())
    return maps
