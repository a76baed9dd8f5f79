"""FlashAttention: attention in tiles, without storing scores in global memory (Dao et al. 2022, arXiv:2205.14135).

A block computes a tile of queries, and iterates over tiles of keys. For each tile of keys, it computes scores from
parts of queries and keys in shared memory. It updates the largest score, the sum and the result of each query (online
softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Then it adds the values times weights, which threads exchange
through shared memory. A thread keeps a few rows of four scores, and of some columns of the result, in registers. If
there are few tiles of queries, the keys are divided into slices, which a second launch combines. The order of sums
depends only on the sizes.

Keys that a causal mask hides from all queries of a tile are not read, so their values have no effect, even if they are
not finite. Keys that it hides from some queries get the weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.executor.devices.cuda.attention.registers import KEYS, SIDE, WIDE, RegisterTiles
from graphkit.executor.devices.cuda.attention.tiles import BESIDE
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
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.ir.types import DType

# Blocks that occupy a GPU, and the least keys of a slice.
_BUSY, _LEAST = 256, 256


@dataclass(frozen=True)
class Flash(RegisterTiles):
    """The kernel without tensor cores."""

    @property
    def short(self) -> bool:
        return self.of.short and self.of.results * self.slices + THREADS < 1 << 31

    # --- division of the work -------------------------------------------------------------------------

    @property
    def wide(self) -> int:
        return self.of.width

    @property
    def per_thread(self) -> int:
        """Number of queries of a thread, a power of 2: as many as registers and shared memory hold."""
        # A mask and 64-bit indices need registers, too.
        most = min(8, 32 // self.columns) if self.of.mask is None and self.of.short else min(4, 16 // self.columns)
        most = max(most, 2) if self.held is DType.FLOAT32 else 2
        found = 1
        while found < most and found * SIDE < self.of.rows:
            found *= 2
        # Use tall tiles only if there are enough of them to occupy the GPU.
        while found > 2 and self._tiles(found) < _BUSY:
            found //= 2
        return found

    def _tiles(self, per_thread: int) -> int:
        return -(-self.of.rows // (SIDE * per_thread)) * self.chunks * self.of.batch * self.of.heads

    @property
    def slices(self) -> int:
        wanted = max(min(-(-_BUSY // self._tiles(self.per_thread)), self.of.keys // _LEAST), 1)
        return -(-self.of.keys // self._length(wanted))

    def _length(self, slices: int) -> int:
        """Return the number of keys of a slice, a multiple of KEYS."""
        each = -(-self.of.keys // slices)
        return -(-each // KEYS) * KEYS

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
            found += [(f"{STORED[self.of.kind]}* y", Output(0)), *self.strides("y", self.of.y), *self.statistics()]
        return found + self.numbers(chunks=self.chunks, slices=self.slices, length=self._length(self.slices))

    # --- the tiles ------------------------------------------------------------------------------------

    def _tiled(self, parts: tuple[Scratch, ...] = ()) -> Launch:
        guard, asked = self.guarded()
        lines = [
            *asked, *self._place(), *self._state(), f"for ({self.index} key0 = first; key0 < end; key0 += {KEYS}u) {{",
            *indented([
                *self.product("scores", ("q", "row0", "rows"), ("k", "key0", "end"), "depth", self.of.depth),
                *self._weights(), *self.added("v", "key0", "end", "width"),
            ]), "}",
            *(self._parts() if parts else self._stores()),
        ]  # fmt: skip
        given = [*self._given(parts), *guard]
        source = source_of("attention", [text for text, _ in given], lines, BESIDE)
        blocks = self._tiles(self.per_thread) * self.slices
        return Launch(source, blocks, tuple(argument for _, argument in given))

    def _place(self) -> list[str]:
        """Return lines that declare the queries, keys and columns of the block, and the pointers to them."""
        index, tall = self.index, SIDE * self.per_thread
        return [
            f"typedef {STORED[self.held]} A;",
            f"typedef {STORED[self.of.kind]} T;",
            f"const {index} tiles = (rows + {tall - 1}u) / {tall}u;",
            f"const {index} row0 = gk_block % tiles * {tall}u, beside = gk_block / tiles;",
            f"const {index} column0 = beside % chunks * {SIDE * self.columns}u, behind = beside / chunks;",
            f"const {index} slice = behind % slices, whole = behind / slices;",
            *self.heads(),
            *self.seen(tall),
            f"const unsigned thread = threadIdx.x, across = thread % {SIDE}u, down = thread / {SIDE}u;",
            f"const {index} first = slice * length;",
            "end = end < first + length ? end : first + length;",
        ]

    def _state(self) -> list[str]:
        """Return lines that declare shared memory, and the state of a thread that it keeps from tile to tile."""
        many = self.per_thread
        return [
            *self.shared(),
            f"A largest[{many}], sum[{many}];",
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            "    largest[i] = gk_limits<A>::lowest();",
            "    sum[i] = 0;",
            "}",
        ]

    def _weights(self) -> list[str]:
        """Return lines that convert scores to weights in shared memory, and rescale the state of the thread."""
        many, index = self.per_thread, self.index
        return [
            # Wait until all threads have used the weights of the previous tile.
            "__syncthreads();",
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            f"    const {index} row = row0 + down * {many}u + i;",
            *indented(self.limit()),
            "    A most = gk_limits<A>::lowest();",
            "    #pragma unroll",
            f"    for (int j = 0; j < {WIDE}; ++j) {{",
            f"        const {index} key = key0 + across * {WIDE}u + j;",
            "        A score = scores[i][j] * scale;",
            *indented(indented(self.masked())),
            "        scores[i][j] = key < limit ? score : gk_limits<A>::lowest();",
            "        most = gk_maximum(most, scores[i][j]);",
            "    }",
            *indented(_over_keys("most", "gk_maximum({0}, {1})")),
            "    most = gk_maximum(largest[i], most);",
            # If all scores so far are minus infinity, all weights and their sum are 0.
            "    const A base = most == gk_limits<A>::lowest() ? (A)0 : most;",
            "    const A kept = gk_exp(largest[i] - base);",
            "    largest[i] = most;",
            "    A total = 0;",
            "    #pragma unroll",
            f"    for (int j = 0; j < {WIDE}; ++j) {{",
            "        const A weight = gk_exp(scores[i][j] - base);",
            "        total += weight;",
            f"        weights[across * {WIDE}u + j][down * {many}u + i] = weight;",
            "    }",
            *indented(_over_keys("total", "{0} + {1}")),
            "    sum[i] = gk_mul_add(sum[i], kept, total);",
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.columns}; ++j) {{",
            "        result[i][j] *= kept;",
            "    }",
            "}",
        ]

    # --- results --------------------------------------------------------------------------------------

    def _stores(self) -> list[str]:
        pack = self.pack
        # For a query that sees no key, this is 0 / 0: the result is NaN.
        once = ["const A share = (A)1 / sum[i];"]
        once += self.recorded("column0 + across == 0", "(batch * heads + head) * rows + row", "largest[i]", "sum[i]")
        return self.each("row0", "rows", "width", once, [
            f"gk_pack<T, {pack}> done;",
            "#pragma unroll",
            f"for (int e = 0; e < {pack}; ++e) {{",
            "    gk_write(done.e[e], result[i][j + e] * share);",
            "}",
            f"gk_store<T, {pack}>(y + batch * ybatch + head * yhead + row * yrow + column, done, {pack});",
        ])  # fmt: skip

    def _parts(self) -> list[str]:
        """Return lines that write the results of a slice: undivided sums of values, largest scores, sums of weights."""
        pack = min(self.pack, 16 // self.held.itemsize)
        once = [f"const {self.index} line = (slice * wholes + whole) * rows + row;"]
        return self.each("row0", "rows", "width", once, [
            f"for (int e = 0; e < {self.pack}; e += {pack}) {{",
            f"    gk_run<A, {pack}>::store(parts + line * width + column + e, {pack}, &result[i][j + e]);",
            "}",
            "if (column == 0) {",
            "    largest_of[line] = largest[i];",
            "    sum_of[line] = sum[i];",
            "}",
        ])  # fmt: skip

    def _joined(self, parts: tuple[Scratch, ...]) -> Launch:
        """Return the launch that combines slices."""
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
            *self.recorded(f"{column} == 0", "line", "most", "total"),
        ]
        names = ("parts", "largest_of", "sum_of")
        given: list[tuple[str, Argument]] = [
            *((f"const {held}* {name}", place) for name, place in zip(names, parts, strict=True)),
            (f"{STORED[of.kind]}* y", Output(0)),
            *self.strides("y", of.y),
            *self.numbers(width=of.width, slices=self.slices),
            *self.statistics(),
            *guard,
        ]
        return for_each("attention_slices", (of.batch, of.heads, of.rows, of.width), places, given, lines)


def _over_keys(name: str, joined: str) -> list[str]:
    """Return lines that reduce a number over the threads of a row, which are adjacent in a warp."""
    return [f"{name} = {joined.format(name, f'gk_shuffle_xor({name}, {far})')};" for far in (1, 2, 4, 8)]
