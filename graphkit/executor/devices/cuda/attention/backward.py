"""The gradients of attention in tiles. Scores are computed again, with the statistics of the forward pass.

Dao 2023, arXiv:2307.08691. Each launch computes one gradient. A block computes a tile of its rows, and iterates over
the other rows: over keys for the gradient of q, over queries for those of k and v. For each pair of tiles, it computes
scores and (except for the gradient of v) the products of dy and v. From these, it computes weights, or the gradients of
scores, in shared memory. Then it adds the other rows times these numbers. No sum is divided over several blocks, so the
order of sums depends only on the sizes.

Pairs of tiles that a causal mask hides completely are not read, except if there are queries that see no key. The
weights of these queries are NaN, and so is the gradient of all values.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphkit.executor.devices.cuda.attention.registers import KEYS, SIDE, WIDE, RegisterTiles, Rows
from graphkit.executor.devices.cuda.attention.sizes import AttentionSizes, Strides, pack_of
from graphkit.executor.devices.cuda.attention.tiles import BESIDE, Tiles
from graphkit.executor.devices.cuda.launches import Given, Input, Launch, Output, Scratch, source_of
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.ir.types import DType

Wanted: TypeAlias = Literal["q", "k", "v"]

# Positions of the operands.
_Y, _LARGEST, _TOTAL, _DY = 4, 5, 6, 7
# Scratch memory with sum(dy * y) of each query.
_SUMS = Scratch(0)


def sums(of: AttentionSizes) -> Launch:
    """Return the launch that computes sum(dy * y) of each query."""
    kind, held = STORED[of.kind], STORED[held_type(of.kind)]
    tiles = Tiles(of)
    pack = pack_of(of.width, of.kind.itemsize)
    places = Coordinates("i", 3, of.short)
    found, (batch, head, row) = places.lines("at")
    place = f"{batch} * ybatch + {head} * yhead + {row} * yrow"
    lines = [
        *found,
        f"{held} sum = 0;",
        f"for ({tiles.index} first = {place}, d = 0; d < width; d += {pack}u) {{",
        f"    const gk_pack<{kind}, {pack}> a = gk_load<{kind}, {pack}>(y + first + d, {pack});",
        f"    const gk_pack<{kind}, {pack}> b = gk_load<{kind}, {pack}>(dy + first + d, {pack});",
        "    #pragma unroll",
        f"    for (int e = 0; e < {pack}; ++e) {{",
        f"        sum = gk_mul_add(({held})gk_read(a.e[e]), ({held})gk_read(b.e[e]), sum);",
        "    }",
        "}",
        "sums[at] = sum;",
    ]
    given: Given = [
        (f"const {kind}* y", Input(_Y)), (f"const {kind}* dy", Input(_DY)), (f"{held}* sums", _SUMS),
        *tiles.strides("y", of.y), *tiles.numbers(width=of.width),
    ]  # fmt: skip
    return for_each("attention_gradient_sums", (of.batch, of.heads, of.rows), places, given, lines)


@dataclass(frozen=True)
class Backward(Tiles):
    """The kernel of the gradient of one operand. Those of q and k need the launch `sums` before them."""

    wanted: Wanted = "q"

    @property
    def of_queries(self) -> bool:
        return self.wanted == "q"

    @property
    def wide(self) -> int:
        """Number of columns of the result."""
        return self.of.width if self.wanted == "v" else self.of.depth

    @property
    def columns_of_result(self) -> str:
        return "width" if self.wanted == "v" else "depth"

    @property
    def count(self) -> int:
        """Number of rows of the result."""
        return self.of.rows if self.of_queries else self.of.keys

    @property
    def mine(self) -> tuple[str, str]:
        """Variables with the first row of the block's tile, and the end of the rows."""
        return ("row0", "rows") if self.of_queries else ("key0", "keys")

    @property
    def other(self) -> tuple[str, str]:
        """The same variables for the tile of other rows in the loop."""
        return ("key0", "end") if self.of_queries else ("row0", "rows")

    @property
    def factors(self) -> tuple[str, ...]:
        """The arrays with the rows of the block: the factor of scores, and that of dy v^T."""
        return {"q": ("q", "dy"), "k": ("k", "v"), "v": ("k",)}[self.wanted]

    @property
    def other_factors(self) -> tuple[str, ...]:
        """The arrays with the other rows: the factor of scores, and that of dy v^T."""
        return {"q": ("k", "v"), "k": ("q", "dy"), "v": ("q",)}[self.wanted]

    @property
    def added_rows(self) -> str:
        """The array whose rows are added to the result, times weights."""
        return {"q": "k", "k": "q", "v": "dy"}[self.wanted]

    @abstractmethod
    def launch(self) -> Launch: ...

    # --- lines ----------------------------------------------------------------------------------------

    def given(self, **numbers: int) -> Given:
        of, kind, held = self.of, STORED[self.of.kind], STORED[self.held]
        found = [*self.operands(), (f"const {kind}* dy", Input(_DY)), *self.strides("dy", of.y)]
        found += [(f"const {held}* largest_of", Input(_LARGEST)), (f"const {held}* total_of", Input(_TOTAL))]
        if self.wanted != "v":
            found.append((f"const {held}* sums", _SUMS))
        position = "qkv".index(self.wanted)
        strides: Strides = (of.q, of.k, of.v)[position]
        return [*found, (f"{kind}* to", Output(position)), *self.strides("to", strides), *self.numbers(**numbers)]

    def place(self, tall: int, wide: int) -> list[str]:
        """Return lines that declare the rows and columns of the block, and the pointers to what it reads."""
        index, (mine, end) = self.index, self.mine
        lines = [
            f"typedef {STORED[self.held]} A;",
            f"typedef {STORED[self.of.kind]} T;",
            f"const {index} tiles = ({end} + {tall - 1}u) / {tall}u;",
            f"const {index} {mine} = gk_block % tiles * {tall}u, beside = gk_block / tiles;",
            f"const {index} column0 = beside % chunks * {wide}u, whole = beside / chunks;",
            *self.heads(),
            "dy += batch * dybatch + head * dyhead;",
            "to += batch * tobatch + head * tohead;",
            "const unsigned thread = threadIdx.x;",
        ]
        if self.of_queries:
            return [*lines, *self.seen(tall), f"const {index} first = 0;"]
        lines += [f"const {index} end = keys;"]
        if not self.of.op.causal:
            return [*lines, f"const {index} first = 0;"]
        # Earlier queries see no key of the tile.
        return [*lines, f"const {index} first = keys < rows || key0 < keys - rows ? 0 : key0 - (keys - rows);"]

    def numbers_of(self, number: str) -> list[str]:
        """Return lines that set `base[number]`, `share[number]` and `sum[number]` for query `row`; 0 after the last."""
        return [
            f"base[{number}] = share[{number}] = sum[{number}] = 0;",
            "if (row < rows) {",
            f"    const {self.index} line = whole * rows + row;",
            "    const A most = largest_of[line];",
            f"    base[{number}] = most == gk_limits<A>::lowest() ? (A)0 : most;",
            # For a query that sees no key, all weights are 0 / 0.
            f"    share[{number}] = (A)1 / total_of[line];",
            *([] if self.wanted == "v" else [f"    sum[{number}] = sums[line];"]),
            "}",
        ]

    def weighted(self, score: str, spread: str, number: str) -> list[str]:
        """Return lines that declare `weight`: that of query `row` and key `key`, or the gradient of their score.

        score, spread: Expressions of their products q k^T and dy v^T. number: index of the query's statistics.
        """
        lines = [
            *self.limit(),
            # The weight is 0 after the last query or key.
            "const bool near = row < rows && key < limit;",
            f"A score = {score} * scale;",
            "bool kept = near;",
        ]
        if self.of.mask is not None:
            element = "mask[row * mask2 + key * mask3]"
            change = [f"kept = {element} != 0;", "score = kept ? score : hidden;"]
            lines += [
                "if (near) {",
                *indented(change if self.of.mask_is_boolean else [f"score += gk_read({element});"]),
                "}",
            ]
        lines += [f"A weight = gk_exp((near ? score : gk_limits<A>::lowest()) - base[{number}]) * share[{number}];"]
        return lines if self.wanted == "v" else [*lines, f"weight = kept ? weight * ({spread} - sum[{number}]) : (A)0;"]


@dataclass(frozen=True)
class RegisterBackward(Backward, RegisterTiles):
    """The kernel without tensor cores."""

    @property
    def per_thread(self) -> int:
        """Number of rows of a thread, a power of 2: as many as fit in registers, if there are enough rows."""
        # A mask, 64-bit indices, and the conversion of float16 or bfloat16 need registers, too.
        if self.of.mask is None and self.of.short:
            most = max(min(4, 32 // self.columns), 2)
        else:
            most = max(min(4 if self.of.short and self.of.kind is DType.FLOAT32 else 2, 16 // self.columns), 2)
        if self.held is DType.FLOAT64:
            most = 2
        found = 1
        while found < most and found * SIDE < self.count:
            found *= 2
        return found

    def launch(self) -> Launch:
        tall, (name, end) = SIDE * self.per_thread, self.other
        given = self.given(chunks=self.chunks)
        lines = [
            *self.place(tall, SIDE * self.columns),
            f"const unsigned across = thread % {SIDE}u, down = thread / {SIDE}u;",
            *self.shared(), *self._of_rows(),
            f"for ({self.index} {name} = first; {name} < {end}; {name} += {KEYS}u) {{",
            *indented([*self._products(), *self._weights()]),
            *indented(self.added(self.added_rows, name, end, self.columns_of_result)), "}", *self._stores(),
        ]  # fmt: skip
        blocks = -(-self.count // tall) * self.chunks * self.of.batch * self.of.heads
        source = source_of(f"attention_gradient_{self.wanted}", [text for text, _ in given], lines, BESIDE)
        return Launch(source, blocks, tuple(argument for _, argument in given))

    def _of_rows(self) -> list[str]:
        """Return lines that read the statistics of the block's queries, if its rows are queries."""
        if not self.of_queries:
            return []
        many = self.per_thread
        return [
            f"A base[{many}], share[{many}], sum[{many}];",
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            f"    const {self.index} row = row0 + down * {many}u + i;",
            *indented(self.numbers_of("i")),
            "}",
        ]

    def _products(self) -> list[str]:
        lines = []
        names = zip(("scores", "spreads"), self.factors, self.other_factors, strict=False)
        for (into, mine, other), columns, size in zip(
            names, ("depth", "width"), (self.of.depth, self.of.width), strict=False
        ):
            left: Rows = (mine, *self.mine)
            right: Rows = (other, *self.other)
            lines += self.product(into, left, right, columns, size)
        return lines

    def _weights(self) -> list[str]:
        """Return lines that write weights, or gradients of scores, to shared memory."""
        many, index = self.per_thread, self.index
        mine = f"const {index} {'row' if self.of_queries else 'key'} = {self.mine[0]} + down * {many}u + i;"
        other = f"const {index} {'key' if self.of_queries else 'row'} = {self.other[0]} + across * {WIDE}u + j;"
        lines = []
        if not self.of_queries:
            lines = [
                f"A base[{WIDE}], share[{WIDE}], sum[{WIDE}];",
                "#pragma unroll",
                f"for (int j = 0; j < {WIDE}; ++j) {{",
                f"    {other}",
                *indented(self.numbers_of("j")),
                "}",
            ]
        return [
            # Wait until all threads have used the weights of the previous tile.
            "__syncthreads();",
            *lines,
            "#pragma unroll",
            f"for (int i = 0; i < {many}; ++i) {{",
            f"    {mine}",
            "    #pragma unroll",
            f"    for (int j = 0; j < {WIDE}; ++j) {{",
            f"        {other}",
            *indented(indented(self.weighted("scores[i][j]", "spreads[i][j]", "i" if self.of_queries else "j"))),
            f"        weights[across * {WIDE}u + j][down * {many}u + i] = weight;",
            "    }",
            "}",
        ]

    def _stores(self) -> list[str]:
        factor = "" if self.wanted == "v" else " * scale"
        return self.each(*self.mine, self.columns_of_result, [], [
            f"gk_pack<T, {self.pack}> done;",
            "#pragma unroll",
            f"for (int e = 0; e < {self.pack}; ++e) {{",
            f"    gk_write(done.e[e], result[i][j + e]{factor});",
            "}",
            f"gk_store<T, {self.pack}>(to + row * torow + column, done, {self.pack});",
        ])  # fmt: skip
