"""Products of 8-bit floating-point numbers by cuBLASLt, and kernels that convert their operands.

cuBLASLt requires that the axis of the sum is contiguous in both operands, and that rows have multiples of 16 bytes. So
the kernel that rounds a matrix to 8 bits writes it in its own layout, transposed, or in both layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Given,
    Input,
    Launch,
    Matrix,
    Output,
    Product,
    Scaled,
    launched,
    source_of,
)
from graphkit.executor.devices.cuda.products import workspace_for
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, Divisor, for_each
from graphkit.executor.devices.cuda.text.joining import joined
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.float8 import (
    MOST_FACTOR,
    SLICES,
    Float8MatMul,
    ScaledFloat8,
    largest,
    slice_length,
)

# Each thread of a block reads the maximum of one slice.
assert SLICES == THREADS

# Rows and columns of a tile; adjacent elements that a thread rounds; bytes of a row of a tile in shared memory, chosen
# so that adjacent rows begin in different banks.
_TILE, _RUN, _LINE = 64, 16, 68

_CONVERSIONS = {DType.FLOAT8E4M3FN: "gk_to_e4m3", DType.FLOAT8E5M2: "gk_to_e5m2"}


@launched("AbsoluteMaxima", DOMAIN)
def _absolute_maxima(node: Node, context: KernelContext) -> CardKernel:
    """Return the kernel of the absolute maximum of each slice, with one block per slice that has elements.

    NaN and infinities are ignored. Maxima are compared as integers: the bits of non-negative floats have the same order
    as the floats.
    """
    x = node.operands[0]
    count, width = math.prod(shape(x)), 16 // x.dtype.itemsize
    length, kind = slice_length(count), STORED[x.dtype]
    blocks, places = max(-(-count // length), 1), Coordinates("i", 1, count + length + THREADS * width < 1 << 31)
    given: Given = [
        (f"const {kind}* x", Input(0)), ("float* maxima", Output(0)),
        (f"{places.index} elements", places.number(count)), (f"{places.index} length", places.number(length)),
        ("gk_u32 blocks", np.uint32(blocks)),
    ]  # fmt: skip
    lines = [
        "typedef gk_u32 A;",
        f"const {places.index} begin = gk_block * length;",
        f"const {places.index} end = begin + length < elements ? begin + length : elements;",
        "A most = 0;",
        f"for ({places.index} at = begin + threadIdx.x * {width}u; at < end; at += {THREADS * width}u) {{",
        f"    const int left = end - at < {width}u ? (int)(end - at) : {width};",
        f"    const gk_pack<{kind}, {width}> p = gk_load<{kind}, {width}>(x + at, left);",
        f"    for (int k = 0; k < {width}; ++k) {{",
        "        const gk_u32 size = __float_as_uint(gk_read(p.e[k])) & 0x7fffffffu;",
        "        most = size < 0x7f800000u && size > most ? size : most;",
        "    }",
        "}",
        *joined("most", "a > b ? a : b"),
        "if (threadIdx.x == 0) {", "    maxima[gk_block] = __uint_as_float(most);", "}",
        "if (gk_block == 0 && threadIdx.x >= blocks) {", "    maxima[threadIdx.x] = 0.0f;", "}",
    ]  # fmt: skip
    return CardKernel((_launch("absolute_maxima", blocks, given, lines),))


@launched("ScaledFloat8", DOMAIN)
def _scaled_float8(node: Node, context: KernelContext) -> CardKernel:
    """Return the kernel that scales and rounds a matrix, with one block per tile.

    Every block computes the scaling factor; the first one writes its reciprocal.
    """
    x, to = node.operands[0], operator(node, ScaledFloat8).to
    *leading, n = shape(x)
    m, kind = math.prod(leading), STORED[x.dtype]
    used = [*context.used_outputs, *[True] * len(node.outputs)]
    across = -(-n // _TILE)
    short = (m + _TILE) * (n + _TILE) < 1 << 31
    index, beside = "gk_u32" if short else "gk_u64", Divisor("beside", short)
    number = Coordinates("i", 1, short).number
    given: Given = [
        (f"const {kind}* x", Input(0)), ("const float* maxima", Input(1)),
        *([("gk_u8* rows", Output(0))] if used[0] else []), *([("gk_u8* columns", Output(1))] if used[1] else []),
        *([("float* scale", Output(2))] if used[2] else []),
        *((f"{index} {name}", number(size)) for name, size in (("m", m), ("n", n))), *beside.given(max(across, 1)),
    ]  # fmt: skip
    lines = [
        "typedef gk_u32 A;",
        "A most = __float_as_uint(maxima[threadIdx.x]);",
        *joined("most", "a > b ? a : b"),
        f"const float wanted = {largest(to):.1f}f / __uint_as_float(most), bound = {MOST_FACTOR:.1f}f;",
        "const float factor = most == 0 ? 1.0f : wanted < bound ? wanted : bound;",
        *(["if (gk_block == 0 && threadIdx.x == 0) {", "    *scale = 1.0f / factor;", "}"] if used[2] else []),
        f"const {index} down = {beside.quotient('gk_block')};",
        f"const {index} row0 = down * {_TILE}u, column0 = (gk_block - down * beside) * {_TILE}u;",
        f"const {index} widened = (n + {_RUN - 1}u) / {_RUN}u * {_RUN}u;",
        f"const {index} row = row0 + threadIdx.x / {_TILE // _RUN}u;",
        f"const {index} column = column0 + threadIdx.x % {_TILE // _RUN}u * {_RUN}u;",
        *_read_run(kind, n % (16 // x.dtype.itemsize) == 0),
        f"gk_pack<gk_u8, {_RUN}> found;",
        f"for (int k = 0; k < {_RUN}; ++k) {{", f"    found.e[k] = {_CONVERSIONS[to]}(run[k] * factor);", "}",
        *(_rows() if used[0] else []),
        *(_columns(index) if used[1] else []),
    ]  # fmt: skip
    return CardKernel((_launch(f"scaled_{to.value}", max(across * -(-m // _TILE), 1), given, lines),))


def _read_run(kind: str, aligned: bool) -> list[str]:
    """Return lines that read adjacent elements of a row to `run`, with zeros after the end of the row.

    aligned: whether rows begin at multiples of 16 bytes.
    """
    left = "row < m && column < n ? (n - column < {0}u ? (int)(n - column) : {0}) : 0"
    lines = [f"const int left = {left.format(_RUN)};", f"float run[{_RUN}];"]
    if not aligned:
        return [
            *lines,
            f"for (int k = 0; k < {_RUN}; ++k) {{",
            "    run[k] = k < left ? gk_read(x[row * n + column + k]) : 0.0f;",
            "}",
        ]
    return [
        *lines,
        f"{kind} stored[{_RUN}];",
        f"gk_run<{kind}, {_RUN}>::load(x + row * n + column, left, stored);",
        f"for (int k = 0; k < {_RUN}; ++k) {{", "    run[k] = gk_read(stored[k]);", "}",
    ]  # fmt: skip


def _rows() -> list[str]:
    return [
        "if (row < m && column < widened) {",
        f"    gk_store(rows + row * widened + column, found, {_RUN});",
        "}",
    ]


def _columns(index: str) -> list[str]:
    """Return lines that write the tile transposed. Each thread collects adjacent elements of a column."""
    return [
        f"__shared__ gk_u8 tile[{_TILE}][{_LINE}];",
        f"for (int k = 0; k < {_RUN}; ++k) {{",
        "    tile[row - row0][column - column0 + k] = found.e[k];",
        "}",
        "__syncthreads();",
        f"const {index} heightened = (m + {_RUN - 1}u) / {_RUN}u * {_RUN}u;",
        f"const gk_u32 turned = threadIdx.x / {_TILE // _RUN}u, first = threadIdx.x % {_TILE // _RUN}u * {_RUN}u;",
        "if (column0 + turned < n && row0 + first < heightened) {",
        f"    gk_pack<gk_u8, {_RUN}> line;",
        f"    for (int k = 0; k < {_RUN}; ++k) {{", "        line.e[k] = tile[first + k][turned];", "    }",
        f"    gk_store(columns + (column0 + turned) * heightened + row0 + first, line, {_RUN});",
        "}",
    ]  # fmt: skip


def _launch(name: str, blocks: int, given: Given, lines: Sequence[str]) -> Launch:
    source = source_of(name, [text for text, _ in given], lines)
    return Launch(source, blocks, tuple(argument for _, argument in given))


@launched("Float8MatMul", DOMAIN)
def _float8_mat_mul(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of a product. Row-major y = a b^T is y' = b a' in the column-major order of cuBLASLt."""
    a, b = node.operands[0], node.operands[2]
    (n, k), m = shape(b), math.prod(shape(a)[:-1])
    if m * n == 0:
        return CardKernel(())
    if k == 0:
        return _of_nothing(node)
    if k % _RUN or n % (16 // DType.BFLOAT16.itemsize):
        return None
    d = Matrix(Output(0), n, m, n)
    made = Product(
        DType.BFLOAT16,
        a=Matrix(Input(2), k, n, k),
        b=Matrix(Input(0), k, m, k),
        d=d,
        transposed=(True, False),
        alpha=operator(node, Float8MatMul).alpha,
        workspace=workspace_for(m * n, k),
        scaled=Scaled((b.dtype, a.dtype), (Input(3), Input(1))),
    )
    if operand(node, 4) is not None:
        made = made._replace(bias=Input(4))
    if operand(node, 5) is not None:
        made = made._replace(c=d._replace(memory=Input(5)), beta=1.0)
    return CardKernel((made,), scratch_bytes=made.workspace)


def _of_nothing(node: Node) -> CardKernel:
    """Return the kernel for sums of no terms, which cuBLASLt does not support: the bias plus the residual."""
    sizes = shape(node.output)
    places = Coordinates("i", 2, math.prod(sizes) + THREADS < 1 << 31)
    found, (_, column) = places.lines("at")
    given: Given = [("gk_bf16* y", Output(0))]
    terms = ["0.0f"]
    for position, name, place in ((4, "bias", column), (5, "residual", "at")):
        if operand(node, position) is not None:
            given.append((f"const gk_bf16* {name}", Input(position)))
            terms.append(f"gk_read({name}[{place}])")
    lines = [*found, f"gk_write(y[at], {' + '.join(terms)});"]
    return CardKernel((for_each("sum_of_nothing", (math.prod(sizes[:-1]), sizes[-1]), places, given, lines),))
