"""Rotary embeddings. Each thread computes one element, and reads both elements of its pair."""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Fault, Input, Output, launched
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.nn.attention import RotaryEmbedding


@launched("RotaryEmbedding")
def _rotary_embedding(node: Node, context: KernelContext) -> CardKernel | None:
    op, stored = operator(node, RotaryEmbedding), node.operands[0].dtype
    x, cache, held = shape(node.inputs[0]), shape(node.inputs[1]), float_type(stored)
    ids = operand(node, 3)
    if held is None or math.prod(x) == 0:
        return None
    flat = len(x) == 3
    heads = op.num_heads or 1
    sizes = (*x[:2], heads, x[2] // heads) if flat else x
    batch, length, half = x[0], x[1] if flat else x[2], cache[-1]
    # There must be a position for each element of the sequence. A node that broadcasts positions is interpreted.
    if (shape(ids) != (batch, length)) if ids is not None else (cache[:-1] != (batch, length)):
        return None
    count = math.prod(x)
    places = Coordinates("i", 4, max(count, math.prod(cache)) + THREADS < 1 << 31)
    index, kind = places.index, STORED[stored]
    found, (example, outer, inner, d) = places.lines("at")
    given: list[tuple[str, Argument]] = [
        (f"const {kind}* x", Input(0)), (f"const {kind}* cosines", Input(1)), (f"const {kind}* sines", Input(2)),
        (f"{kind}* y", Output(0)), (f"{index} length", places.number(length)), (f"{index} half", places.number(half)),
    ]  # fmt: skip
    lines = [
        f"typedef {STORED[held]} A;",
        *found,
        f"if ({d} >= 2 * half) {{",
        "    y[at] = x[at];",
        "    return;",
        "}",
        f"{index} row = {example} * length + {outer if flat else inner};",
    ]
    if ids is not None:
        given += [
            ("const gk_i64* ids", Input(3)), (f"{index} positions", places.number(cache[0])),
            ("unsigned* fault", Fault()),
        ]  # fmt: skip
        lines += [
            "gk_i64 position = ids[row];",
            "position += position < 0 ? (gk_i64)positions : 0;",
            "if (position < 0 || position >= (gk_i64)positions) {",
            "    *fault = 1;",
            "    return;",
            "}",
            f"row = ({index})position;",
        ]
    first, number, far = f"{d} < half", f"{d} - (first ? 0 : half)", "half"
    if op.interleaved:
        first, number, far = f"{d} % 2 == 0", f"{d} / 2", "1"
    lines += [
        f"const bool first = {first};",
        f"const {index} pair = row * half + {number};",
        "const A c = gk_read(cosines[pair]), s = gk_read(sines[pair]), own = gk_read(x[at]);",
        f"const A other = gk_read(x[first ? at + {far} : at - {far}]);",
        "gk_write(y[at], first ? c * own - s * other : s * other + c * own);",
    ]
    launch = for_each("rotary", sizes, places, given, lines)
    fault = "" if ids is None else f"a position is outside of the {cache[0]} of the caches"
    return CardKernel((launch,), fault=fault)
