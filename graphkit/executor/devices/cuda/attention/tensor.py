"""FlashAttention on tensor cores, in float16, bfloat16 or TF32.

Each warp computes 16 of the 128 queries of its block. Queries, keys and transposed values are in shared memory. Scores
and results stay in the registers of the lanes that compute them, because `gk_multiply` returns scores in the layout in
which it takes weights (Dao 2023, arXiv:2307.08691). Weights are rounded to the type of the operands before they are
multiplied by the values.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.executor.devices.cuda.attention.sizes import AttentionSizes, pack_of
from graphkit.executor.devices.cuda.attention.tiles import BESIDE, Tiles
from graphkit.executor.devices.cuda.launches import THREADS, CardKernel, Launch, Output, source_of
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.ir.types import HALVES, DType

# Size of a product of tensor cores: rows, columns, and bytes of each operand along the sum.
SIDE, NARROW, TERMS = 16, 8, 32
_QUERIES = THREADS // 32 * SIDE
# Padding of rows in shared memory, in elements, so that lanes read from different banks.
PAD = 8
# The most bytes of a row in shared memory. A block has 48 KiB of it.
WIDEST = 256


def padded(columns: int) -> int:
    """Return the number of elements of a row in shared memory. Those after `columns` are zeros."""
    return max(SIDE, 1 << (columns - 1).bit_length())


@dataclass(frozen=True)
class TensorTiles(Tiles):
    """Tiles of rows in shared memory, and their products.

    Each lane has the variables `line`, its row among those of the block, and `pair`, the first of its two columns.
    """

    @property
    def terms(self) -> int:
        """Number of terms of a product of tensor cores."""
        return TERMS // self.of.kind.itemsize

    def copied(self, into: str, rows: tuple[str, str, str], count: int, columns: str, size: int) -> list[str]:
        """Return lines that copy `count` rows to shared memory, with 0 after their ends.

        rows: The array, the first row, and the end of the rows. columns: Variable with the length of a row. size: Its
        value.
        """
        name, begin, end = rows
        pack = pack_of(size, self.of.kind.itemsize)
        parts = padded(size) // pack
        return [
            "#pragma unroll 4",
            f"for (unsigned at = thread; at < {count * parts}u; at += {THREADS}u) {{",
            f"    const unsigned part = at % {parts}u * {pack}u, to = at / {parts}u;",
            f"    const {self.index} row = {begin} + to;",
            f"    gk_pack<T, {pack}> x = gk_load<T, {pack}>({name} + row * {name}row + part, "
            f"row < {end} && part < {columns} ? {pack} : 0);",
            *indented(_factors("x", pack)),
            f"    *reinterpret_cast<gk_pack<T, {pack}>*>(&{into}[to][part]) = x;",
            "}",
        ]

    def product(self, into: str, rows: str, near: str, size: int, tiles: int) -> list[str]:
        """Return lines that compute `into`: products of the warp's `rows` and of `tiles` * 8 rows at pointer `near`."""
        return [
            f"A {into}[{tiles}][4];",
            "#pragma unroll",
            f"for (int n = 0; n < {tiles}; ++n) {{",
            f"    {into}[n][0] = {into}[n][1] = {into}[n][2] = {into}[n][3] = 0;",
            "}",
            "#pragma unroll",
            f"for (unsigned d = 0; d < {padded(size)}u; d += {self.terms}u) {{",
            "    gk_u32 a[4];",
            f"    gk_rows(a, &{rows}[line][d + pair], &{rows}[line + 8u][d + pair]);",
            "    #pragma unroll",
            f"    for (unsigned n = 0; n < {tiles}u; ++n) {{",
            "        gk_u32 b[2];",
            f"        gk_column(b, &{near}[n * 8u + thread % 32u / 4u][d + pair]);",
            f"        gk_multiply({into}[n], a, b, T());",
            "    }",
            "}",
        ]


@dataclass(frozen=True)
class TensorFlash(TensorTiles):
    """The kernel on tensor cores. `of` must be supported (see `computes`)."""

    @staticmethod
    def computes(of: AttentionSizes, tf32: bool) -> bool:
        """Whether this kernel supports an attention. tf32: float32 elements may be rounded to TF32."""
        known = of.kind in HALVES or (tf32 and of.kind is DType.FLOAT32)
        return known and 0 < of.depth <= WIDEST // of.kind.itemsize

    @property
    def depth(self) -> int:
        """Number of elements of a query in shared memory."""
        return padded(self.of.depth)

    @property
    def width(self) -> int:
        """Number of columns of the result that a block computes."""
        return min(padded(self.of.width), WIDEST // self.of.kind.itemsize)

    @property
    def keys(self) -> int:
        """Number of keys of a tile."""
        return 32 if max(self.depth, self.width) * self.of.kind.itemsize <= WIDEST // 2 else 16

    @property
    def chunks(self) -> int:
        """Number of blocks along the columns of the result."""
        return -(-self.of.width // self.width)

    def kernel(self) -> CardKernel:
        of, kind = self.of, STORED[self.of.kind]
        guard, asked = self.guarded()
        given = [*self.operands(), (f"{kind}* y", Output(0)), *self.strides("y", of.y), *self.statistics()]
        given += [*self.numbers(chunks=self.chunks), *guard]
        lines = [
            *asked, *self._place(), *self._state(), f"for ({self.index} key0 = 0; key0 < end; key0 += {self.keys}u) {{",
            *indented([*self._scores(), *self._weights(), *self._values()]), "}", *self._stores(),
        ]  # fmt: skip
        blocks = -(-of.rows // _QUERIES) * self.chunks * of.batch * of.heads
        source = source_of("attention_tensor", [text for text, _ in given], lines, BESIDE)
        return CardKernel((Launch(source, blocks, tuple(argument for _, argument in given)),))

    # --- lines ----------------------------------------------------------------------------------------

    def _place(self) -> list[str]:
        """Return lines that declare the queries and columns of the block and of the lane, and the pointers to them."""
        index = self.index
        return [
            f"typedef {STORED[self.of.kind]} T;",
            "typedef float A;",
            f"const {index} tiles = (rows + {_QUERIES - 1}u) / {_QUERIES}u;",
            f"const {index} row0 = gk_block % tiles * {_QUERIES}u, beside = gk_block / tiles;",
            f"const {index} column0 = beside % chunks * {self.width}u, whole = beside / chunks;",
            *self.heads(),
            *self.seen(_QUERIES),
            f"const unsigned thread = threadIdx.x, line = thread / 32u * {SIDE}u + thread % 32u / 4u;",
            "const unsigned pair = thread % 4u * 2u;",
        ]

    def _state(self) -> list[str]:
        """Return lines that declare shared memory and the state of a lane, and read the queries of the block.

        A lane has the rows `line` and `line + 8`.
        """
        depth, tiles = self.depth + PAD, self.width // NARROW
        return [
            f"alignas(16) __shared__ T queries[{_QUERIES}][{depth}];",
            # First for keys, then for values.
            f"alignas(16) __shared__ T memory[{max(self.keys * depth, self.width * (self.keys + PAD))}];",
            f"T (*near)[{depth}] = reinterpret_cast<T (*)[{depth}]>(memory);",
            f"T (*values)[{self.keys + PAD}] = reinterpret_cast<T (*)[{self.keys + PAD}]>(memory);",
            *self.copied("queries", ("q", "row0", "rows"), _QUERIES, "depth", self.of.depth),
            "A largest[2] = {gk_limits<A>::lowest(), gk_limits<A>::lowest()}, sum[2] = {0, 0};",
            f"A result[{tiles}][4];",
            "#pragma unroll",
            f"for (int n = 0; n < {tiles}; ++n) {{",
            "    result[n][0] = result[n][1] = result[n][2] = result[n][3] = 0;",
            "}",
        ]

    def _scores(self) -> list[str]:
        """Return lines that compute `scores`, those of the warp's queries and the keys of a tile."""
        return [
            # Wait until all threads have used the values of the previous tile.
            "__syncthreads();",
            *self.copied("near", ("k", "key0", "end"), self.keys, "depth", self.of.depth),
            "__syncthreads();",
            *self.product("scores", "queries", "near", self.of.depth, self.keys // NARROW),
        ]

    def _weights(self) -> list[str]:
        """Return lines that convert scores to weights, and rescale the state of the lane."""
        tiles, index = self.keys // NARROW, self.index
        over = [
            "most = gk_maximum(most, gk_shuffle_xor(most, 1));",
            "most = gk_maximum(most, gk_shuffle_xor(most, 2));",
        ]
        return [
            "#pragma unroll",
            "for (int i = 0; i < 2; ++i) {",
            f"    const {index} row = row0 + line + 8u * i;",
            *indented(self.limit()),
            "    A most = gk_limits<A>::lowest();",
            "    #pragma unroll",
            f"    for (int j = 0; j < {2 * tiles}; ++j) {{",
            f"        const {index} key = key0 + j / 2 * 8u + pair + j % 2;",
            "        A& own = scores[j / 2][i * 2 + j % 2];",
            "        A score = own * scale;",
            *indented(indented(self.masked())),
            "        own = key < limit ? score : gk_limits<A>::lowest();",
            "        most = gk_maximum(most, own);",
            "    }",
            *indented(over),
            "    most = gk_maximum(largest[i], most);",
            # If all scores so far are minus infinity, all weights and their sum are 0.
            "    const A base = most == gk_limits<A>::lowest() ? (A)0 : most;",
            "    const A kept = gk_exp(largest[i] - base);",
            "    largest[i] = most;",
            "    A total = 0;",
            "    #pragma unroll",
            f"    for (int j = 0; j < {2 * tiles}; ++j) {{",
            "        A& own = scores[j / 2][i * 2 + j % 2];",
            "        own = gk_exp(own - base);",
            "        total += own;",
            "    }",
            "    total += gk_shuffle_xor(total, 1);",
            "    total += gk_shuffle_xor(total, 2);",
            "    sum[i] = gk_mul_add(sum[i], kept, total);",
            "    #pragma unroll",
            f"    for (int n = 0; n < {self.width // NARROW}; ++n) {{",
            "        result[n][i * 2] *= kept;",
            "        result[n][i * 2 + 1] *= kept;",
            "    }",
            "}",
        ]

    def _values(self) -> list[str]:
        """Return lines that add the values of a tile, times their weights."""
        pack = pack_of(self.of.width, self.of.kind.itemsize)
        parts = self.width // pack
        reached = "column0 + part < width"
        one = f"gk_load<T, {pack}>(v + key * vrow + column0 + part, key < end && {reached} ? {pack} : 0)"
        other = f"gk_load<T, {pack}>(v + (key + 1u) * vrow + column0 + part, key + 1u < end && {reached} ? {pack} : 0)"
        return [
            # Wait until all threads have used the keys.
            "__syncthreads();",
            "#pragma unroll 2",
            f"for (unsigned at = thread; at < {self.keys // 2 * parts}u; at += {THREADS}u) {{",
            f"    const unsigned part = at / {self.keys // 2}u * {pack}u, two = at % {self.keys // 2}u * 2u;",
            f"    const {self.index} key = key0 + two;",
            f"    const gk_pack<T, {pack}> one = {one};",
            f"    const gk_pack<T, {pack}> other = {other};",
            "    #pragma unroll",
            f"    for (int e = 0; e < {pack}; ++e) {{",
            "        gk_put_two(&values[part + e][two], gk_factor(one.e[e]), gk_factor(other.e[e]));",
            "    }",
            "}",
            "__syncthreads();",
            "#pragma unroll",
            f"for (unsigned s = 0; s < {self.keys // self.terms}u; ++s) {{",
            "    gk_u32 a[4];",
            f"    gk_given(a, &scores[s * {self.terms // NARROW}u], T());",
            "    #pragma unroll",
            f"    for (unsigned n = 0; n < {self.width // NARROW}u; ++n) {{",
            "        gk_u32 b[2];",
            f"        gk_column(b, &values[n * 8u + thread % 32u / 4u][s * {self.terms}u + pair]);",
            "        gk_multiply(result[n], a, b, T());",
            "    }",
            "}",
        ]

    def _stores(self) -> list[str]:
        pack = 2 if self.of.width % 2 == 0 else 1
        query = "(batch * heads + head) * rows + row"
        return [
            "#pragma unroll",
            "for (int i = 0; i < 2; ++i) {",
            f"    const {self.index} row = row0 + line + 8u * i;",
            "    if (row >= rows) {",
            "        break;",
            "    }",
            # For a query that sees no key, this is 0 / 0: the result is NaN.
            "    const A share = (A)1 / sum[i];",
            *indented(self.recorded("column0 + pair == 0", query, "largest[i]", "sum[i]")),
            "    T* to = y + batch * ybatch + head * yhead + row * yrow;",
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.width // 4}; j += {pack}) {{",
            f"        const {self.index} column = column0 + j / 2 * 8u + pair + j % 2;",
            "        if (column < width) {",
            f"            gk_pack<T, {pack}> done;",
            "            #pragma unroll",
            f"            for (int e = 0; e < {pack}; ++e) {{",
            "                gk_write(done.e[e], result[j / 2][i * 2 + j % 2 + e] * share);",
            "            }",
            f"            gk_store<T, {pack}>(to + column, done, {pack});",
            "        }",
            "    }",
            "}",
        ]  # fmt: skip


def _factors(name: str, pack: int) -> list[str]:
    """Return lines that round the elements of a pack to the precision of products."""
    return ["#pragma unroll", f"for (int e = 0; e < {pack}; ++e) {{", f"    {name}.e[e] = gk_factor({name}.e[e]);", "}"]
