"""Slices, which are regular views, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cpu._base import constants, dtype, kernel, native, operand, row_major, shape
from graphkit.executor.devices.cpu.layout import view
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN
from graphkit.ops.tensor.slicing import slice_index


def _window(node: Node, first: int, sizes: Sequence[int]) -> tuple[list[range], list[int], int] | None:
    """What a slice of an array of `sizes` takes: the positions along each axis, strides, offset.

    `first` is the position of the operand `starts`. None when an operand is not known.
    """
    bounds = [operand(node, first + i) for i in range(4)]
    known = [constants(v) for v in bounds]
    if any(k is None and v is not None for k, v in zip(known, bounds, strict=True)):
        return None
    index = slice_index(sizes, *(None if k is None else np.array(k, np.int64) for k in known))
    spans = [range(size)[part] for size, part in zip(sizes, index, strict=True)]
    places = row_major(sizes)
    offset = sum(span.start * place for span, place in zip(spans, places, strict=True))
    return spans, [span.step * place for span, place in zip(spans, places, strict=True)], offset


@kernel("Slice")
def _slice(node: Node, context: KernelContext) -> Kernel | None:
    window = _window(node, 1, shape(node.inputs[0]))
    if window is None:
        return None
    spans, strides, offset = window
    return view(node, context, [len(span) for span in spans], strides, offset)


@kernel("SliceGrad", DOMAIN)
def _slice_grad(node: Node, context: KernelContext) -> Kernel | None:
    dy, dx = shape(node.inputs[0]), shape(node.output)
    window = _window(node, 2, dx)
    if window is None:
        return None
    _, strides, offset = window
    return native.StridedPlacement("SliceGrad", dy, dx, strides, offset, dtype(node), context.threads)
