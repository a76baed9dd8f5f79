"""Attention in tiles: scores are made, weighted and used in shared memory (Dao et al. 2022, arXiv:2205.14135).

A block has a tile of queries and goes through the keys. Of each tile of keys it computes scores from parts of queries
and keys in shared memory; corrects each query's largest score, sum and result (Milakov and Gimelshein 2018,
arXiv:1805.02867); and adds the values, by weights that shared memory hands from the threads of the keys to those of the
columns. A thread holds a few rows of four scores and of some columns of the result in registers. Where there are few
tiles of queries the keys are cut into slices, which a second launch puts together: the order of all sums is that of the
sizes alone.

Keys that a causal mask hides from all queries of a tile are not read: where their values are not finite, nothing is
made of it. Those that it hides from some have the weight 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphkit.executor.devices.cuda.attention.sizes import pack_of
from graphkit.executor.devices.cuda.attention.tiles import BESIDE, Tiles, indented
from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Given,
    Launch,
    Output,
    Scratch,
    source_of,
)
from graphkit.executor.devices.cuda.movement.sorting import aligned
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.ir.types import DType

# Threads along either side of a tile, scores of a thread in a row, and steps of either product in shared memory.
_SIDE, _WIDE, _DEPTH = 16, 4, 16
_KEYS = _SIDE * _WIDE
# Blocks that keep a card busy, and the least keys that one goes through before there is another slice.
_BUSY, _LEAST = 256, 256


@dataclass(frozen=True)
class Flash(Tiles):
    """Products are sums of products, in registers."""

    @property
    def short(self) -> bool:
        return self.of.short and self.of.results * self.slices + THREADS < 1 << 31

    # --- how the work is cut --------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """Columns of the result that a thread has: a power of 2."""
        found, most = 1, 64 // self.held.itemsize
        while found < most and found * _SIDE < self.of.width:
            found *= 2
        return found

    @property
    def per_thread(self) -> int:
        """Queries of a thread: as many as registers and shared memory hold, and there are rows for; a power of 2."""
        # A mask and long indices take registers too.
        most = min(8, 32 // self.columns) if self.of.mask is None and self.of.short else min(4, 16 // self.columns)
        most = max(most, 2) if self.held is DType.FLOAT32 else 2
        found = 1
        while found < most and found * _SIDE < self.of.rows:
            found *= 2
        # Tall tiles where these are enough to keep a card busy.
        while found > 2 and self._tiles(found) < _BUSY:
            found //= 2
        return found

    @property
    def chunks(self) -> int:
        """Blocks beside each other along the columns of the result."""
        return -(-self.of.width // (_SIDE * self.columns))

    def _tiles(self, per_thread: int) -> int:
        return -(-self.of.rows // (_SIDE * per_thread)) * self.chunks * self.of.batch * self.of.heads

    @property
    def slices(self) -> int:
        wanted = max(min(-(-_BUSY // self._tiles(self.per_thread)), self.of.keys // _LEAST), 1)
        return -(-self.of.keys // self._length(wanted))

    def _length(self, slices: int) -> int:
        """Keys of a slice: whole tiles."""
        each = -(-self.of.keys // slices)
        return -(-each // _KEYS) * _KEYS

    def kernel(self) -> CardKernel:
        if self.slices == 1:
            return CardKernel((self._tiled(),))
        rows = self.of.results // self.of.width * self.slices
        first = 0 if self.guard is None else self.guard.offset + aligned(4)
        statistics = first + aligned(rows * self.of.width * self.held.itemsize)
        size = aligned(rows * self.held.itemsize)
        places = (Scratch(first), Scratch(statistics), Scratch(statistics + size))
        return CardKernel((self._tiled(places), self._joined(places)), statistics + 2 * size)

    def _given(self, parts: tuple[Scratch, ...]) -> Given:
        found = self.operands()
        if parts:
            names = ("parts", "largest_of", "sum_of")
            found += [(f"{STORED[self.held]}* {name}", place) for name, place in zip(names, parts, strict=True)]
            found += self.numbers(wholes=self.of.batch * self.of.heads)
        else:
            found += [(f"{STORED[self.of.kind]}* y", Output(0)), *self.strides("y", self.of.y)]
        return found + self.numbers(chunks=self.chunks, slices=self.slices, length=self._length(self.slices))

    # --- the tiles ------------------------------------------------------------------------------------

    def _tiled(self, parts: tuple[Scratch, ...] = ()) -> Launch:
        guard, asked = self.guarded()
        lines = [
            *asked, *self._place(), *self._state(), f"for ({self.index} key0 = first; key0 < end; key0 += {_KEYS}u) {{",
            *indented([*self._scores(), *self._weights(), *self._values()]), "}",
            *(self._parts() if parts else self._stores()),
        ]  # fmt: skip
        given = [*self._given(parts), *guard]
        source = source_of("attention", [text for text, _ in given], lines, BESIDE)
        blocks = self._tiles(self.per_thread) * self.slices
        return Launch(source, blocks, tuple(argument for _, argument in given))

    def _place(self) -> list[str]:
        """Which queries, keys and columns the block has, and where they lie."""
        index, tall = self.index, _SIDE * self.per_thread
        return [
            f"typedef {STORED[self.held]} A;",
            f"typedef {STORED[self.of.kind]} T;",
            f"const {index} tiles = (rows + {tall - 1}u) / {tall}u;",
            f"const {index} row0 = gk_block % tiles * {tall}u, beside = gk_block / tiles;",
            f"const {index} column0 = beside % chunks * {_SIDE * self.columns}u, behind = beside / chunks;",
            f"const {index} slice = behind % slices, whole = behind / slices;",
            *self.heads(tall),
            f"const unsigned thread = threadIdx.x, across = thread % {_SIDE}u, down = thread / {_SIDE}u;",
            f"const {index} first = slice * length;",
            "end = end < first + length ? end : first + length;",
        ]

    def _state(self) -> list[str]:
        """Shared memory, and what the thread holds from tile to tile."""
        many, tall = self.per_thread, _SIDE * self.per_thread
        products = _DEPTH * (tall + _WIDE) + _DEPTH * (_KEYS + _WIDE)
        values = _DEPTH * _SIDE * self.columns
        return [
            f"alignas(16) __shared__ A memory[{max(products, values)}];",
            f"A (*left)[{tall + _WIDE}] = reinterpret_cast<A (*)[{tall + _WIDE}]>(memory);",
            f"A (*right)[{_KEYS + _WIDE}] = reinterpret_cast<A (*)[{_KEYS + _WIDE}]>"
            f"(memory + {_DEPTH * (tall + _WIDE)});",
            f"A (*values)[{_SIDE * self.columns}] = reinterpret_cast<A (*)[{_SIDE * self.columns}]>(memory);",
            f"alignas(16) __shared__ A weights[{_KEYS}][{tall + _WIDE}];",
            f"A largest[{many}], sum[{many}], result[{many}][{self.columns}];",
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            "    largest[i] = gk_limits<A>::lowest();",
            "    sum[i] = 0;",
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.columns}; ++j) {{",
            "        result[i][j] = 0;",
            "    }",
            "}",
        ]

    def _scores(self) -> list[str]:
        """`scores` of the thread's queries and keys, from parts of _DEPTH of their elements."""
        many, tall, index = self.per_thread, _SIDE * self.per_thread, self.index
        pack = pack_of(self.of.depth, self.of.kind.itemsize)
        return [
            f"A scores[{many}][{_WIDE}];",
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            "    #pragma unroll",
            f"    for (int j = 0; j < {_WIDE}; ++j) {{",
            "        scores[i][j] = 0;",
            "    }",
            "}",
            f"for ({index} d0 = 0; d0 < depth; d0 += {_DEPTH}u) {{",
            "    __syncthreads();",
            *indented(self._transposed("left", "q", "row0", "rows", tall, pack)),
            *indented(self._transposed("right", "k", "key0", "end", _KEYS, pack)),
            "    __syncthreads();",
            "    #pragma unroll 8",
            f"    for (int d = 0; d < {_DEPTH}; ++d) {{",
            f"        A a[{many}], b[{_WIDE}];",
            f"        gk_run<A, {many}>::load(&left[d][down * {many}u], {many}, a);",
            f"        gk_run<A, {_WIDE}>::load(&right[d][across * {_WIDE}u], {_WIDE}, b);",
            *indented(indented(_multiplied("scores", many, _WIDE))),
            "    }",
            "}",
        ]

    def _transposed(self, into: str, name: str, begin: str, end: str, count: int, pack: int) -> list[str]:
        """Brings _DEPTH elements of `count` rows into shared memory, each element's rows side by side; 0 beyond."""
        parts = _DEPTH // pack
        return [
            "#pragma unroll",
            f"for (unsigned at = thread; at < {count * parts}u; at += {THREADS}u) {{",
            f"    const unsigned part = at % {parts}u * {pack}u, line = at / {parts}u;",
            f"    const {self.index} row = {begin} + line, d = d0 + part;",
            f"    const gk_pack<T, {pack}> x = gk_load<T, {pack}>({name} + row * {name}row + d, "
            f"row < {end} && d < depth ? {pack} : 0);",
            "    #pragma unroll",
            f"    for (int e = 0; e < {pack}; ++e) {{",
            f"        {into}[part + e][line] = gk_read(x.e[e]);",
            "    }",
            "}",
        ]

    def _weights(self) -> list[str]:
        """Scores with scale and mask become weights in shared memory, and correct what is held."""
        many, index = self.per_thread, self.index
        return [
            # The weights of the tile before have been used.
            "__syncthreads();",
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            f"    const {index} row = row0 + down * {many}u + i;",
            *indented(self.limit()),
            "    A most = gk_limits<A>::lowest();",
            "    #pragma unroll",
            f"    for (int j = 0; j < {_WIDE}; ++j) {{",
            f"        const {index} key = key0 + across * {_WIDE}u + j;",
            "        A score = scores[i][j] * scale;",
            *indented(indented(self.masked())),
            "        scores[i][j] = key < limit ? score : gk_limits<A>::lowest();",
            "        most = gk_maximum(most, scores[i][j]);",
            "    }",
            *indented(_over_keys("most", "gk_maximum({0}, {1})")),
            "    most = gk_maximum(largest[i], most);",
            # Where nothing but minus infinity was seen all weights are 0, and so is their sum.
            "    const A base = most == gk_limits<A>::lowest() ? (A)0 : most;",
            "    const A kept = gk_exp(largest[i] - base);",
            "    largest[i] = most;",
            "    A total = 0;",
            "    #pragma unroll",
            f"    for (int j = 0; j < {_WIDE}; ++j) {{",
            "        const A weight = gk_exp(scores[i][j] - base);",
            "        total += weight;",
            f"        weights[across * {_WIDE}u + j][down * {many}u + i] = weight;",
            "    }",
            *indented(_over_keys("total", "{0} + {1}")),
            "    sum[i] = gk_mul_add(sum[i], kept, total);",
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.columns}; ++j) {{",
            "        result[i][j] *= kept;",
            "    }",
            "}",
        ]

    def _values(self) -> list[str]:
        """Adds the values of the tile's keys to `result`, _DEPTH keys at a time."""
        many, columns, index = self.per_thread, self.columns, self.index
        pack = pack_of(self.of.width, self.of.kind.itemsize)
        parts = _SIDE * columns // pack
        beside = min(columns, _WIDE)
        return [
            f"for (unsigned from = 0; from < {_KEYS}u && key0 + from < end; from += {_DEPTH}u) {{",
            "    __syncthreads();",
            "    #pragma unroll",
            f"    for (unsigned at = thread; at < {_DEPTH * parts}u; at += {THREADS}u) {{",
            f"        const unsigned part = at % {parts}u * {pack}u, line = at / {parts}u;",
            f"        const {index} key = key0 + from + line, column = column0 + part;",
            f"        const gk_pack<T, {pack}> x = gk_load<T, {pack}>(v + key * vrow + column, "
            f"key < end && column < width ? {pack} : 0);",
            "        #pragma unroll",
            f"        for (int e = 0; e < {pack}; ++e) {{",
            "            values[line][part + e] = gk_read(x.e[e]);",
            "        }",
            "    }",
            "    __syncthreads();",
            "    #pragma unroll 8",
            f"    for (int d = 0; d < {_DEPTH}; ++d) {{",
            f"        A a[{many}], b[{columns}];",
            f"        gk_run<A, {many}>::load(&weights[from + d][down * {many}u], {many}, a);",
            "        #pragma unroll",
            f"        for (int j = 0; j < {columns}; j += {beside}) {{",
            f"            gk_run<A, {beside}>::load(&values[d][j * {_SIDE}u + across * {beside}u], {beside}, b + j);",
            "        }",
            *indented(indented(_multiplied("result", many, columns))),
            "    }",
            "}",
        ]

    # --- what is written ------------------------------------------------------------------------------

    def _each(self, lines: list[str]) -> list[str]:
        """Lines for each `row` of the thread's, number `i`, and each run of its columns `j`, the first at `column`."""
        beside = min(self.columns, _WIDE)
        return [
            "#pragma unroll",
            f"for (int i = 0; i < {self.per_thread}; ++i) {{",
            f"    const {self.index} row = row0 + down * {self.per_thread}u + i;",
            "    if (row >= rows) {",
            "        break;",
            "    }",
            *indented(lines[:1]),
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.columns}; j += {self._pack()}) {{",
            f"        const {self.index} column = column0 + j / {beside}u * {beside * _SIDE}u + "
            f"across * {beside}u + j % {beside}u;",
            "        if (column < width) {",
            *indented(indented(indented(lines[1:]))),
            "        }",
            "    }",
            "}",
        ]

    def _pack(self) -> int:
        return math.gcd(min(self.columns, _WIDE), self.of.width)

    def _stores(self) -> list[str]:
        pack = self._pack()
        return self._each([
            # What saw nothing is 0 / 0.
            "const A share = (A)1 / sum[i];",
            f"gk_pack<T, {pack}> done;",
            "#pragma unroll",
            f"for (int e = 0; e < {pack}; ++e) {{",
            "    gk_write(done.e[e], result[i][j + e] * share);",
            "}",
            f"gk_store<T, {pack}>(y + batch * ybatch + head * yhead + row * yrow + column, done, {pack});",
        ])  # fmt: skip

    def _parts(self) -> list[str]:
        """Of a slice: what is not divided yet, each query's largest score, and its sum."""
        pack = min(self._pack(), 16 // self.held.itemsize)
        return self._each([
            f"const {self.index} line = (slice * wholes + whole) * rows + row;",
            f"for (int e = 0; e < {self._pack()}; e += {pack}) {{",
            f"    gk_run<A, {pack}>::store(parts + line * width + column + e, {pack}, &result[i][j + e]);",
            "}",
            "if (column == 0) {",
            "    largest_of[line] = largest[i];",
            "    sum_of[line] = sum[i];",
            "}",
        ])  # fmt: skip

    def _joined(self, parts: tuple[Scratch, ...]) -> Launch:
        """The launch that puts slices together."""
        of, held = self.of, STORED[self.held]
        places = Coordinates("i", 4, self.short)
        found, (batch, head, row, column) = places.lines("at")
        guard, asked = self.guarded()
        lines = [
            *asked,
            f"typedef {held} A;",
            *found,
            f"const {self.index} lines = count / width, line = at / width;",
            "A most = gk_limits<A>::lowest();",
            f"for ({self.index} slice = 0; slice < slices; ++slice) {{",
            "    most = gk_maximum(most, largest_of[slice * lines + line]);",
            "}",
            "const A base = most == gk_limits<A>::lowest() ? (A)0 : most;",
            "A total = 0, result = 0;",
            f"for ({self.index} slice = 0; slice < slices; ++slice) {{",
            f"    const {self.index} one = slice * lines + line;",
            "    const A kept = gk_exp(largest_of[one] - base);",
            "    total = gk_mul_add(sum_of[one], kept, total);",
            f"    result = gk_mul_add(parts[one * width + {column}], kept, result);",
            "}",
            f"gk_write(y[{batch} * ybatch + {head} * yhead + {row} * yrow + {column}], result * ((A)1 / total));",
        ]
        names = ("parts", "largest_of", "sum_of")
        given: list[tuple[str, Argument]] = [
            *((f"const {held}* {name}", place) for name, place in zip(names, parts, strict=True)),
            (f"{STORED[of.kind]}* y", Output(0)),
            *self.strides("y", of.y),
            *self.numbers(width=of.width, slices=self.slices),
            *guard,
        ]
        return for_each("attention_slices", (of.batch, of.heads, of.rows, of.width), places, given, lines)


def _multiplied(into: str, rows: int, columns: int) -> list[str]:
    """into[i][j] += a[i] * b[j]"""
    return [
        "#pragma unroll",
        f"for (int i = 0; i < {rows}; ++i) {{",
        "    #pragma unroll",
        f"    for (int j = 0; j < {columns}; ++j) {{",
        f"        {into}[i][j] = gk_mul_add(a[i], b[j], {into}[i][j]);",
        "    }",
        "}",
    ]


def _over_keys(name: str, joined: str) -> list[str]:
    """Joins a number over the threads of a row, which lie side by side in a warp."""
    return [f"{name} = {joined.format(name, f'gk_shuffle_xor({name}, {far})')};" for far in (1, 2, 4, 8)]
