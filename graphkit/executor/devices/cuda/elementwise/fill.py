"""Kernels whose elements depend on their position: constants, ranges, one-hot rows, diagonals, triangles.

Each element is written once. Adjacent threads write adjacent elements.
"""

from __future__ import annotations

import math

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, CardKernel, Given, Input, Launch, Output, launched
from graphkit.executor.devices.cuda.movement.copies import UNITS, unit_of
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each, for_each_run
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import HALVES
from graphkit.ops._base import operator
from graphkit.ops.tensor.fill import ConstantOfShape, EyeLike, OneHot
from graphkit.ops.tensor.select import Trilu

# Bytes of one memory access.
_ACCESS = 16


def _places(*sizes: int) -> Coordinates:
    return Coordinates("i", len(sizes), math.prod(sizes) + THREADS < 1 << 31)


@launched("ConstantOfShape")
def _constant_of_shape(node: Node, context: KernelContext) -> CardKernel | None:
    value, y = operator(node, ConstantOfShape).value, node.output
    unit = unit_of(y)
    if unit not in UNITS or unit > np.dtype(np.uint64).itemsize:
        return None
    return CardKernel(filled(y, 0, np.zeros(1, np.float32) if value is None else value.array))


def filled(y: Value, output: int, element: np.ndarray) -> tuple[Launch, ...]:
    """Return the launch that fills result `output` with one element of 1, 2, 4 or 8 bytes; no launch if y is empty."""
    unit, count = unit_of(y), math.prod(shape(y))
    if count == 0:
        return ()
    (bits,) = element.reshape(1).view(f"u{unit}")
    kind, width = UNITS[unit], _ACCESS // unit
    lines = [
        f"gk_pack<{kind}, {width}> filled;",
        f"for (int k = 0; k < {width}; ++k) {{", "    filled.e[k] = element;", "}",
        "gk_store(y + first, filled, left);",
    ]  # fmt: skip
    given: Given = [(f"{kind}* y", Output(output)), (f"{kind} element", bits)]
    return (for_each_run("fill", count, width, given, lines),)


@launched("Range")
def _range(node: Node, context: KernelContext) -> CardKernel | None:
    y = node.output
    if y.dtype not in STORED or y.dtype in HALVES:
        return None
    (count,), kind = shape(y), STORED[y.dtype]
    if count == 0:
        return CardKernel(())
    names = ("start", "limit", "delta")
    given: Given = [(f"const {kind}* {names[i]}", Input(i)) for i in (0, 2)]
    lines = [f"y[at] = gk_add(*start, gk_mul(({kind})at, *delta));"]
    return CardKernel((for_each("range", (count,), _places(count), [*given, (f"{kind}* y", Output(0))], lines),))


@launched("EyeLike")
def _eye_like(node: Node, context: KernelContext) -> CardKernel | None:
    y, diagonal = node.output, operator(node, EyeLike).k
    if y.dtype not in STORED:
        return None
    if math.prod(shape(y)) == 0:
        return CardKernel(())
    kind = STORED[y.dtype]
    held = STORED[held_type(y.dtype)]
    places = _places(*shape(y))
    found, (row, column) = places.lines("at")
    lines = [*found, f"gk_write(y[at], ({held})((gk_i64){column} - (gk_i64){row} == diagonal));"]
    given: Given = [(f"{kind}* y", Output(0)), ("gk_i64 diagonal", np.int64(diagonal))]
    return CardKernel((for_each("eye", shape(y), places, given, lines),))


@launched("OneHot")
def _one_hot(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of OneHot. Indices that are not integers are truncated, as in the reference."""
    indices, y = node.inputs[0], node.output
    assert indices is not None
    unit, sizes = unit_of(y), shape(y)
    if unit not in UNITS or indices.dtype not in STORED:
        return None
    if math.prod(sizes) == 0:
        return CardKernel(())
    walk = around(sizes, operator(node, OneHot).axis)
    places = _places(*walk)
    found, (block, place, column) = places.lines("at")
    lines = [
        *found,
        f"gk_i64 index = gk_cast<gk_i64>(gk_read(indices[{block} * isize2 + {column}]));",
        "index += index < 0 ? (gk_i64)isize1 : 0;",
        f"y[at] = values[index == (gk_i64){place}];",
    ]
    given: Given = [
        (f"const {STORED[indices.dtype]}* indices", Input(0)), (f"const {UNITS[unit]}* values", Input(2)),
        (f"{UNITS[unit]}* y", Output(0)),
    ]  # fmt: skip
    return CardKernel((for_each("one_hot", walk, places, given, lines),))


@launched("Trilu")
def _trilu(node: Node, context: KernelContext) -> CardKernel | None:
    x, k, unit = shape(node.inputs[0]), operand(node, 1), unit_of(node.output)
    if unit not in UNITS:
        return None
    if math.prod(x) == 0:
        return CardKernel(())
    kind, walk = UNITS[unit], (math.prod(x[:-2]), *x[-2:])
    places = _places(*walk)
    found, (_, row, column) = places.lines("at")
    inside = f"(gk_i64){column} - (gk_i64){row} {'>=' if operator(node, Trilu).upper else '<='}"
    lines = [*found, f"y[at] = {inside} {'0' if k is None else '*k'} ? x[at] : {kind}();"]
    given: Given = [(f"const {kind}* x", Input(0)), (f"{kind}* y", Output(0))]
    given += [] if k is None else [("const gk_i64* k", Input(1))]
    return CardKernel((for_each("trilu", walk, places, given, lines),), inplace=((0, 0),))
