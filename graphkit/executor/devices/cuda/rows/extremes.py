"""Positions of extreme elements: a warp or a block for a row, a thread for a column. Each element is read once."""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Given,
    Input,
    Launch,
    Output,
    source_of,
)
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.cuda.text.joining import joined, threads_for
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType
from graphkit.ops._base import operator
from graphkit.ops.tensor.sorting import ArgExtreme


def _arg_extreme(node: Node, largest: bool) -> CardKernel | None:
    op, x = operator(node, ArgExtreme), node.inputs[0]
    assert x is not None
    sizes = shape(x)
    axis = op.axis % max(len(sizes), 1)
    if x.dtype not in STORED or not sizes:
        return None
    outer, size, inner = math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])
    if outer * inner == 0:
        return CardKernel(())
    if size == 0:
        return None
    held = STORED[DType.FLOAT32 if x.dtype in HALVES else x.dtype]
    begin = [f"typedef gk_placed<{held}> A;", "A part;", "part.at = -1;"]
    join = f"gk_extreme<{str(largest).lower()}, {str(op.select_last_index).lower()}>(a, b)"
    short = outer * size * inner + THREADS < 1 << 31
    memory: Given = [(f"const {STORED[x.dtype]}* x", Input(0)), ("gk_i64* y", Output(0))]
    make = _of_rows if inner == 1 else _of_columns
    return CardKernel((make((outer, size, inner), short, memory, begin, join),))


def _step(index: str, first: str, step: str, address: str, join: str) -> list[str]:
    """The loop of a thread over elements of its row or column."""
    return [
        f"for ({index} j = {first}; j < size; j += {step}) {{",
        f"    const A a = part, b = {{gk_read(x[{address}]), (gk_i64)j}};",
        f"    part = {join};",
        "}",
    ]


def _of_rows(sizes: tuple[int, int, int], short: bool, memory: Given, begin: list[str], join: str) -> Launch:
    rows, size, _ = sizes
    numbers, together = Coordinates("i", 1, short), threads_for(size)
    index = numbers.index
    lines = [
        f"const {index} row = ({index})blockIdx.x * {THREADS // together}u + threadIdx.x / {together}u;",
        "if (row >= rows) {", "    return;", "}",
        *begin, *_step(index, f"threadIdx.x % {together}u", f"{together}u", "row * size + j", join),
        *joined("part", join, together),
        f"if (threadIdx.x % {together}u == 0) {{", "    y[row] = part.at;", "}",
    ]  # fmt: skip
    parameters = [*(text for text, _ in memory), f"{index} rows", f"{index} size"]
    arguments = (*(value for _, value in memory), numbers.number(rows), numbers.number(size))
    return Launch(source_of("extreme_of_row", parameters, lines), -(-rows // (THREADS // together)), arguments)


def _of_columns(sizes: tuple[int, int, int], short: bool, memory: Given, begin: list[str], join: str) -> Launch:
    outer, size, inner = sizes
    places = Coordinates("i", 2, short)
    found, (block, column) = places.lines("at")
    address = f"({block} * size + j) * isize1 + {column}"
    lines = [*found, *begin, *_step(places.index, "0", "1", address, join), "y[at] = part.at;"]
    given = [*memory, (f"{places.index} size", places.number(size))]
    return for_each("extreme_of_column", (outer, inner), places, given, lines)


@register_launched("cuda", "", "ArgMax")
def _arg_max(node: Node, context: KernelContext) -> CardKernel | None:
    return _arg_extreme(node, largest=True)


@register_launched("cuda", "", "ArgMin")
def _arg_min(node: Node, context: KernelContext) -> CardKernel | None:
    return _arg_extreme(node, largest=False)
