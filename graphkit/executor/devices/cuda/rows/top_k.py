"""The k largest or smallest elements of rows, in order: a block for a row.

A short row is sorted completely in shared memory. In a longer one, radix selection finds the k-th key: for eight bits
at a time, beginning with the highest, it counts the keys with each digit. Then the keys before the k-th one, and the
first of those that equal it, are sorted in the same way. So a long row is read once for every eight bits, and once
more. Pairs of key and position are all different, so the result is the same every time.
"""

from __future__ import annotations

import numpy as np

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Given,
    Input,
    Launch,
    Output,
    launched,
    source_of,
)
from graphkit.executor.devices.cuda.movement.sorting import BITONIC
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.joining import scanned
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import operator
from graphkit.ops.tensor.sorting import TopK

# Numbers of pairs (key, position) for which shared memory is declared: a small one, so that more blocks run, and the
# largest that a block sorts.
_ROOM = (256, 2048)


@launched("TopK")
def _top_k(node: Node, context: KernelContext) -> CardKernel | None:
    op, x = operator(node, TopK), node.inputs[0]
    assert x is not None
    sizes = shape(x)
    if x.dtype not in STORED or not sizes:
        return None
    outer, size, inner = around(sizes, op.axis)
    count = shape(node.outputs[0])[op.axis]
    used = (*context.used_outputs, True, True)[: len(node.outputs)]
    if outer * inner * count == 0 or not any(used):
        return CardKernel(())
    whole = size <= _ROOM[-1]
    padded = 1 << ((size if whole else count) - 1).bit_length()
    if padded > _ROOM[-1] or size + THREADS >= 1 << 31:
        return None
    kind = STORED[x.dtype]
    places = Coordinates("i", 1, outer * size * inner + THREADS < 1 << 31)
    given: Given = [
        (f"const {kind}* x", Input(0)), *([(f"{kind}* values", Output(0))] if used[0] else []),
        *([("gk_i64* positions", Output(1))] if used[1] else []),
        (f"{places.index} inner", places.number(inner)), ("gk_u32 size", np.uint32(size)),
        ("gk_u32 wanted", np.uint32(count)), ("gk_u32 padded", np.uint32(padded)),
    ]  # fmt: skip
    wide = x.dtype in (DType.FLOAT64, DType.INT64, DType.UINT64)
    room = next(n for n in _ROOM if padded <= n)
    order = "~" if op.largest else ""
    key = f"({order}gk_ordered(gk_read(row[(gk_u64)j * inner])))"
    lines = [
        f"typedef {'gk_u64' if wide else 'gk_u32'} K;", "typedef gk_u32 A;",
        f"__shared__ K keys[{room}];", f"__shared__ gk_u32 spots[{room}];",
        f"const {places.index} block = gk_block / inner, column = gk_block % inner;",
        f"const {kind}* row = x + block * size * inner + column;",
        f"for (gk_u32 t = threadIdx.x; t < padded; t += {THREADS}u) {{",
        "    keys[t] = ~(K)0;", "    spots[t] = 0xffffffffu;", "}",
        *(_all_of(key) if whole else _chosen(key, 64 if wide else 32)), *BITONIC,
        f"for (gk_u32 t = threadIdx.x; t < wanted; t += {THREADS}u) {{",
        f"    const {places.index} to = (block * wanted + t) * inner + column;",
        *(["    values[to] = row[(gk_u64)spots[t] * inner];"] if used[0] else []),
        *(["    positions[to] = spots[t];"] if used[1] else []), "}",
    ]  # fmt: skip
    source = source_of("top_k", [text for text, _ in given], lines)
    return CardKernel((Launch(source, outer * inner, tuple(value for _, value in given)),))


def _all_of(key: str) -> list[str]:
    """Return lines that copy all elements of a row to `keys` and `spots`. key: expression of the key of element j."""
    return [
        f"for (gk_u32 j = threadIdx.x; j < size; j += {THREADS}u) {{",
        f"    keys[j] = {key};",
        "    spots[j] = j;",
        "}",
        "__syncthreads();",
    ]


def _chosen(key: str, bits: int) -> list[str]:
    """Return lines that select the `wanted` smallest keys of a row, and write them to `keys` and `spots`.

    They find the largest of these keys, `last`. They select all keys below it, and the first `rest` that equal it.
    """
    return [
        f"__shared__ gk_u32 found[{THREADS}];",
        "__shared__ gk_u32 digit, among, taken;",
        "K last = 0;",
        "gk_u32 rest = wanted;",
        f"for (int shift = {bits - 8}; shift >= 0; shift -= 8) {{",
        "    found[threadIdx.x] = 0;",
        "    __syncthreads();",
        f"    for (gk_u32 j = threadIdx.x; j < size; j += {THREADS}u) {{",
        f"        const K key = {key};",
        "        if ((key ^ last) >> shift >> 8 == 0) {",
        "            atomicAdd(&found[(gk_u32)(key >> shift) & 255u], 1u);",
        "        }",
        "    }",
        "    __syncthreads();",
        "    A digits = found[threadIdx.x];",
        *("    " + line for line in scanned("digits", "a + b")),
        "    const gk_u32 before = threadIdx.x == 0 ? 0 : digits_before;",
        "    if (before < rest && rest <= digits) {",
        "        digit = threadIdx.x;",
        "        among = rest - before;",
        "    }",
        "    __syncthreads();",
        "    last |= (K)digit << shift;",
        "    rest = among;",
        "}",
        "if (threadIdx.x == 0) {",
        "    taken = 0;",
        "}",
        "__syncthreads();",
        "gk_u32 equals = 0;",
        f"for (gk_u32 tile = 0; tile < size; tile += {THREADS}u) {{",
        "    const gk_u32 j = tile + threadIdx.x;",
        f"    const K key = j < size ? (K){key} : ~(K)0;",
        "    const bool equal = j < size && key == last;",
        "    A rank = equal;",
        *("    " + line for line in scanned("rank", "a + b")),
        "    if (j < size && (key < last || (equal && equals + rank <= rest))) {",
        "        const gk_u32 to = atomicAdd(&taken, 1u);",
        "        keys[to] = key;",
        "        spots[to] = j;",
        "    }",
        "    equals += rank_whole;",
        "}",
        "__syncthreads();",
    ]
