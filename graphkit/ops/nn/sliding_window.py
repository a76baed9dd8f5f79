"""Geometry of the sliding windows of convolutions and pools: on symbolic sizes, on arrays and in graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims, limits
from graphkit.ir.dims import Dim, DimExpr
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F, Op
from graphkit.text import quantity

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Window(NamedTuple):
    """A window on the spatial axes, one entry per axis; `begin` and `end` are the padding on either side.

    Sizes and paddings may be symbolic: the kernel's when weights are, the padding's under auto_pad=SAME_*.
    """

    kernel: tuple[Any, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[Any, ...]
    end: tuple[Any, ...]

    @property
    def span(self) -> tuple[Dim, ...]:
        """Number of positions that the dilated kernel covers, per axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_static(self) -> bool:
        return not any(isinstance(v, DimExpr) for v in (*self.kernel, *self.begin, *self.end))

    @property
    def pads(self) -> tuple[int, ...]:
        """Return ONNX's `pads`: all beginnings, then all ends. The window must be static."""
        return (*self.begin, *self.end)


class Sliding(Op):
    """Attributes of the operators that slide a window, with their ONNX meaning."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] | None = None
    kernel_shape: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def window_attributes(self) -> dict[str, Any]:
        """Return the attributes of this class, for a related operator."""
        return {key: getattr(self, key) for key in ("auto_pad", "dilations", "kernel_shape", "pads", "strides")}

    def per_axis(self, key: str, rank: int, default: int, least: int) -> tuple[int, ...]:
        """Return an attribute with one entry per spatial axis. Raises TypeMismatch if an entry is below `least`."""
        given: tuple[int, ...] | None = getattr(self, key)
        if given is None:
            return (default,) * rank
        if len(given) != rank or any(v < least for v in given):
            raise TypeMismatch(
                f"{key}={given}: expected {quantity(rank, 'integer')} of at least {least}, one for each spatial axis"
            )
        return given

    def explicit_pads(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the attribute `pads` as (beginnings, ends)."""
        if self.pads is None:
            return (0,) * rank, (0,) * rank
        if len(self.pads) != 2 * rank or any(p < 0 for p in self.pads):
            raise TypeMismatch(
                f"pads={self.pads}: expected {2 * rank} integers of at least 0: the pads at the beginning of each "
                "spatial axis, then those at the end of each"
            )
        return self.pads[:rank], self.pads[rank:]

    def checked_auto_pad(self) -> str:
        mode = self.auto_pad or "NOTSET"
        if mode not in AUTO_PADS:
            raise UsageError(f"{self.name}: auto_pad={mode!r} is not one of {', '.join(AUTO_PADS)}")
        return mode

    def window(self, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> Window:
        """Return the window over an input of these spatial sizes, with auto_pad resolved. Raises TypeMismatch."""
        rank = len(spatial)
        if len(kernel) != rank:
            raise TypeMismatch(f"the kernel has {quantity(len(kernel), 'spatial size')}, but x has {rank} spatial axes")
        strides = self.per_axis("strides", rank, 1, 1)
        dilations = self.per_axis("dilations", rank, 1, 1)
        mode = self.checked_auto_pad()
        begin: tuple[Dim, ...]
        end: tuple[Dim, ...]
        begin, end = self.explicit_pads(rank) if mode == "NOTSET" else ((0,) * rank, (0,) * rank)
        plain = Window(tuple(kernel), strides, dilations, begin, end)
        if not mode.startswith("SAME"):
            return plain
        totals = [
            # With stride 1 the padding does not depend on the size.
            dims.dim_max((dims.ceildiv(n, s) - 1) * s + span - n, 0)
            for n, s, span in zip(spatial, strides, plain.span, strict=True)
        ]
        smaller = tuple(dims.floordiv(t, 2) for t in totals)
        larger = tuple(t - half for t, half in zip(totals, smaller, strict=True))
        begin, end = (smaller, larger) if mode == "SAME_UPPER" else (larger, smaller)
        return plain._replace(begin=begin, end=end)

    def positions(self, spatial: Sequence[Dim], window: Window, ceil: bool = False) -> tuple[Dim, ...]:
        """Return the number of window positions along each axis. Raises TypeMismatch if the padded input is too small.

        ceil: also count a last window that extends beyond the padding, unless it would start in the padding after the
        input.
        """
        if self.checked_auto_pad().startswith("SAME"):
            return tuple(dims.ceildiv(n, s) for n, s in zip(spatial, window.strides, strict=True))
        result = []
        for n, s, span, b, e in zip(spatial, window.strides, window.span, window.begin, window.end, strict=True):
            free = n + b + e - span
            count = dims.floordiv(free, s) + 1
            if ceil and s > 1:
                count = dims.ceildiv(free, s) + 1
                # A last window can start after the input only if stride + end padding > span.
                if not (isinstance(span, int) and isinstance(e, int) and s + e <= span):
                    count = dims.dim_min(count, dims.ceildiv(n + b, s))
            if not isinstance(count, DimExpr) and count < 0:
                raise TypeMismatch(f"the kernel size {span} is greater than the input size {n} padded by {b} and {e}")
            result.append(count)
        return tuple(result)


# --- arrays ---------------------------------------------------------------------------------------


def pad_spatial(xp: Any, x: Any, begin: Sequence[int], end: Sequence[int], value: Any = 0) -> Any:
    """Pad the last axes of x. Return x itself if there is nothing to pad."""
    if not any(begin) and not any(end):
        return x
    lead = x.ndim - len(begin)
    shape = [n + b + e for n, b, e in zip(x.shape[lead:], begin, end, strict=True)]
    limits.require_memory(math.prod(x.shape[:lead]) * math.prod(shape) * x.dtype.itemsize, "padding")
    padded = xp.full((*x.shape[:lead], *shape), value, dtype=x.dtype)
    padded[(..., *(slice(b, b + n) for b, n in zip(begin, x.shape[lead:], strict=True)))] = x
    return padded


def taps(window: Window, positions: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Yield, for each kernel offset, the offset, and the index of the padded elements that it reads at all positions.

    If the window has no position, yield only the first offset: the kernel may be much larger than the image.
    """
    offsets = np.ndindex(*window.kernel) if all(positions) else [(0,) * len(positions)]
    for offset in offsets:
        limits.check_time()
        slices = tuple(
            slice(o * d, o * d + (n - 1) * s + 1 if n else o * d, s)
            for o, d, s, n in zip(offset, window.dilations, window.strides, positions, strict=True)
        )
        yield offset, (..., *slices)


def overrun(spatial: Sequence[int], window: Window, positions: Sequence[int]) -> tuple[int, ...]:
    """Return the padding at the end that the last position needs, at least the declared padding."""
    return tuple(
        max(e, (o - 1) * s + span - n - b)
        for n, b, e, o, s, span in zip(
            spatial, window.begin, window.end, positions, window.strides, window.span, strict=True
        )
    )


# --- graphs ---------------------------------------------------------------------------------------


def spatial_sizes(x: Any) -> Any:
    """Return the spatial sizes of [N, C, *spatial]: an int64 array if static, else a graph value."""
    sizes = None if x.shape is None else x.shape[2:]
    if sizes is None or any(isinstance(d, DimExpr) for d in sizes):
        return F.shape(x, start=2)
    return np.asarray(sizes, np.int64)


def cut(x: Any, start: Any, size: Any) -> Any:
    """Return x[:, :, start : start + size] along all spatial axes. start, size: int64 vectors, arrays or values."""
    axes = np.arange(2, x.rank, dtype=np.int64)
    stop = start + size if isinstance(start, np.ndarray) and isinstance(size, np.ndarray) else F.add(start, size)
    return F.slice(x, start, stop, axes)


def padding(op: Sliding, x: Any, w: Any, window: Window, positions: Any) -> tuple[Any, Any]:
    """Return `window.begin` and `window.end` as int64 vectors: arrays if static, else values computed from sizes.

    x: [N, C, *spatial], w: [M, C / group, *kernel], positions: [N, M, *positions]; only their shapes are used.
    """
    if not any(isinstance(v, DimExpr) for v in (*window.begin, *window.end)):
        return np.asarray(window.begin, np.int64), np.asarray(window.end, np.int64)
    one, two, zero = (np.array(v, np.int64) for v in (1, 2, 0))
    strides, dilations = np.asarray(window.strides, np.int64), np.asarray(window.dilations, np.int64)
    last_start = F.mul(F.sub(F.shape(positions, start=2), one), strides)
    last_offset = F.mul(F.sub(F.shape(w, start=2), one), dilations)
    reach = F.add(F.add(last_start, last_offset), one)
    total = F.max(F.sub(reach, spatial_sizes(x)), zero)
    smaller = F.div(total, two)
    larger = F.sub(total, smaller)
    return (smaller, larger) if op.auto_pad == "SAME_UPPER" else (larger, smaller)


def transposed_convolution(op: Sliding, dy: Any, w: Any, x: Any, window: Window, group: int) -> Any:
    """Build the adjoint of sliding `window` over x, as a ConvTranspose of dy with w. The result has x's spatial shape.

    dy: [N, M, *positions]; w: [M, C / group, *kernel]; only the shape of x is used. If sizes do not determine the
    position of the last window, too many rows are computed, and the surplus is cut off.
    """
    common: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations, "group": group}
    surplus = None if x.shape is None or not window.is_static else _surplus(x.shape[2:], window, dy)
    if surplus is not None:
        pads = (*window.begin, *(max(e, 0) for e in surplus))
        missing = [max(-e, 0) for e in surplus]
        return F.conv_transpose(dy, w, pads=pads, output_padding=missing if any(missing) else None, **common)
    slack = [s - 1 for s in window.strides]
    full = F.conv_transpose(dy, w, output_padding=slack if any(slack) else None, **common)
    begin, _ = padding(op, x, w, window, dy)
    return cut(full, begin, spatial_sizes(x))


def _surplus(spatial: Sequence[Dim], window: Window, dy: Any) -> list[int] | None:
    """Return how far the last window extends beyond x, per axis (negative: rows of x after it); None if unknown."""
    if dy.shape is None:
        return None
    result: list[int] = []
    for n, o, b, s, span in zip(spatial, dy.shape[2:], window.begin, window.strides, window.span, strict=True):
        reach = (o - 1) * s + span - b - n
        if isinstance(reach, DimExpr):
            return None
        result.append(reach)
    return result
