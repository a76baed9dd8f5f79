"""Im2Col and its gradient. A thread copies one element of a column, or sums all copies of an element of the image."""

from __future__ import annotations

import math
from typing import Any

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output, launched
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.cuda.windows.windows import MOST_AXES, Windows
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import constants, shape
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.im2col import ColumnBlocks


def _blocks(node: Node, image: Value | None, block: Value | None) -> Windows | None:
    """Return the blocks of an image; None if their size is not known, or for too many axes."""
    (n, channels, *spatial), known = shape(image), constants(block)
    if known is None or not 1 <= len(spatial) <= MOST_AXES or node.output.dtype not in STORED:
        return None
    window, positions = operator(node, ColumnBlocks).window(spatial, known)
    static: Any = positions
    return Windows(n, channels, tuple(spatial), tuple(static), window, each=math.prod(known))


@launched("Im2Col", DOMAIN)
def _im2col(node: Node, context: KernelContext) -> CardKernel | None:
    blocks = _blocks(node, node.inputs[0], node.inputs[1])
    if blocks is None:
        return None
    if 0 in shape(node.output):
        return CardKernel(())
    kind, signed = STORED[node.output.dtype], blocks.signed
    places = Coordinates("i", 1 + 2 * len(blocks.axes), blocks.short)
    found, (plane, *rest) = places.lines("at")
    elements, positions = rest[: len(blocks.axes)], rest[len(blocks.axes) :]
    far = [f"({signed}){k}" + (f" * dilation{a}" if blocks.dilated else "") for a, k in enumerate(elements)]
    inside = " && ".join(f"({places.index})place{a} < ({places.index})size{a}" for a in blocks.axes)
    offset = " + ".join(f"({places.index})place{a} * xstep{a}" for a in blocks.axes)
    lines = [
        *found,
        *(
            f"const {signed} place{a} = ({signed}){positions[a]} * stride{a} - begin{a} + {far[a]};"
            for a in blocks.axes
        ),
        f"y[at] = {inside} ? x[{plane} * xplane + {offset}] : {kind}();",
    ]
    given: list[tuple[str, Argument]] = [(f"const {kind}* x", Input(0)), (f"{kind}* y", Output(0)), *blocks.given()]
    sizes = (blocks.lead * blocks.channels, *blocks.window.kernel, *blocks.positions)
    return CardKernel((for_each("im2col", sizes, places, given, lines),))


@launched("Col2Im")
def _col2im(node: Node, context: KernelContext) -> CardKernel | None:
    kind, blocks = node.output.dtype, _blocks(node, node.output, node.inputs[2])
    if blocks is None:
        return None
    if 0 in shape(node.output):
        return CardKernel(())
    held = STORED[held_type(kind)]
    # An element of a block is a row of all positions.
    column = f"x[from + (plane * (rows - 1) + {blocks.number_in_window()}) * yplane]"
    lines = [
        f"{held} sum = 0;",
        *blocks.around([f"sum = gk_add(sum, ({held})gk_read({column}));"]),
        "gk_write(y[at], sum);",
    ]
    given: list[tuple[str, Argument]] = [
        (f"const {STORED[kind]}* x", Input(0)), (f"{STORED[kind]}* y", Output(0)),
        (f"{blocks.places.index} rows", blocks.places.number(blocks.elements)),
    ]  # fmt: skip
    return CardKernel((blocks.over_x("col2im", given, lines),))
