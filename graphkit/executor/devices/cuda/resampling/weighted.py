"""Weighted sums along axes in one launch: resizing, and the adjoints of resizing and padding.

A thread computes one result, by nested loops over the elements that have a weight along each axis. Tables in GPU memory
contain the weights that are not 0. Operands are read through the cache, once for each sum that contains them. There are
no intermediate results between axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Input, Output, Table
from graphkit.executor.devices.cuda.resampling.axis import Axis, joined_axes
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.operands import row_major
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS
from graphkit.ops.image.resampling import Taps


@dataclass(frozen=True)
class Resampled(Axis):
    """An axis whose results are weighted sums.

    taps: the weights. outside: which results get the fill value; None: none of them.
    """

    taps: Taps
    outside: np.ndarray | None = None


def resampled(name: str, node: Node, axes: Sequence[Axis], fill: float = 0.0) -> CardKernel | None:
    """Return the kernel that resamples a node's first operand; None for unsupported types and sizes."""
    kind = node.output.dtype
    if kind not in FLOATS or kind not in STORED or node.operands[0].dtype is not kind:
        return None
    changed = [axis for axis in axes if isinstance(axis, Resampled)]
    if any(max(axis.size, len(axis.taps.sources)) >= 1 << 31 for axis in changed):
        return None
    count = math.prod(axis.results for axis in axes)
    if count == 0:
        return CardKernel(())
    axes = joined_axes(axes)
    held = held_type(kind)
    short = max(count, math.prod(axis.size for axis in axes)) + THREADS < 1 << 31
    places = Coordinates("i", len(axes), short)
    given: list[tuple[str, Argument]] = [(f"const {STORED[kind]}* x", Input(0)), (f"{STORED[kind]}* y", Output(0))]
    found, coordinates = places.lines("at")
    lines = [f"typedef {STORED[held]} A;", *found]
    plain, summed = ["0"], []
    for a, (axis, step) in enumerate(zip(axes, row_major([axis.size for axis in axes]), strict=True)):
        given.append((f"{places.index} step{a}", places.number(step)))
        if not isinstance(axis, Resampled):
            plain.append(f"{coordinates[a]} * step{a}")
            continue
        summed.append(a)
        given += [
            (f"const gk_i32* sources{a}", Table(axis.taps.sources.astype(np.int32))),
            (f"const {STORED[held]}* weights{a}", Table(axis.taps.weights.astype(held.numpy))),
            (f"const gk_i32* spans{a}", Table(_spans(axis))),
        ]
        lines += [
            f"const gk_i32 first{a} = spans{a}[{coordinates[a]} * 2u];",
            f"const gk_i32 last{a} = spans{a}[{coordinates[a]} * 2u + 1u];",
        ]
    if any(axis.outside is not None for axis in changed):
        given.append((f"{STORED[held]} fill", held.numpy.type(fill)))
        outside = " || ".join(f"last{a} < first{a}" for a in summed)
        lines += [f"if ({outside}) {{", "    gk_write(y[at], fill);", "    return;", "}"]
    lines += [f"const {places.index} from = {' + '.join(plain)};", *_sums(places.index, summed)]
    return CardKernel((for_each(name, [axis.results for axis in axes], places, given, lines),))


def _spans(axis: Resampled) -> np.ndarray:
    """Return, for each result, the index of its first weight and the end. For the fill value, the end is smaller."""
    spans = np.stack([axis.taps.starts[:-1], axis.taps.starts[1:]], axis=1).astype(np.int32)
    if axis.outside is not None:
        spans[axis.outside] = (1, 0)
    return spans


def _sums(index: str, summed: Sequence[int]) -> list[str]:
    """Return nested loops that sum over all axes with weights, the outermost first, and a line that stores the sum."""
    names = ["from", *(f"from{a}" for a in summed)]
    lines = [f"const A element = gk_read(x[{names[-1]}]);"]
    last = "element"
    for position in reversed(range(len(summed))):
        a = summed[position]
        loop = [
            f"const {index} from{a} = {names[position]} + ({index})sources{a}[t{a}] * step{a};",
            *lines,
            f"sum{a} = gk_mul_add(weights{a}[t{a}], {last}, sum{a});",
        ]
        lines = [
            f"A sum{a} = 0;",
            f"for (gk_i32 t{a} = first{a}; t{a} < last{a}; ++t{a}) {{",
            *("    " + line for line in loop),
            "}",
        ]
        last = f"sum{a}"
    return [*lines, f"gk_write(y[at], {last});"]
