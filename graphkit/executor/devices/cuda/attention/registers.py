"""Products of tiles in registers, without tensor cores. A thread computes a few rows of scores and of results."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from graphkit.executor.devices.cuda.attention.sizes import pack_of
from graphkit.executor.devices.cuda.attention.tiles import Tiles
from graphkit.executor.devices.cuda.launches import THREADS
from graphkit.executor.devices.cuda.text.lines import indented

# Threads along each side of a tile, scores of a thread in a row, and terms of a product in shared memory at a time.
SIDE, WIDE, DEPTH = 16, 4, 16
# Rows of the tiles over which a block iterates.
KEYS = SIDE * WIDE

# Rows of an array: its name, the first row of the tile, and the end of the rows.
Rows = tuple[str, str, str]


@dataclass(frozen=True)
class RegisterTiles(Tiles):
    """A block computes SIDE * `per_thread` rows, and iterates over tiles of KEYS other rows."""

    @property
    @abstractmethod
    def wide(self) -> int:
        """Number of columns of the result."""

    @property
    @abstractmethod
    def per_thread(self) -> int:
        """Number of rows of a thread, a power of 2."""

    @property
    def columns(self) -> int:
        """Number of columns of the result that a thread computes, a power of 2."""
        found, most = 1, 64 // self.held.itemsize
        while found < most and found * SIDE < self.wide:
            found *= 2
        return found

    @property
    def chunks(self) -> int:
        """Number of blocks along the columns of the result."""
        return -(-self.wide // (SIDE * self.columns))

    @property
    def pack(self) -> int:
        """Adjacent elements of the result in one access."""
        return math.gcd(min(self.columns, WIDE), self.wide)

    def shared(self) -> list[str]:
        """Return lines that declare shared memory, and the thread's part of the result."""
        many, tall = self.per_thread, SIDE * self.per_thread
        products = DEPTH * (tall + WIDE) + DEPTH * (KEYS + WIDE)
        values = DEPTH * SIDE * self.columns
        return [
            f"alignas(16) __shared__ A memory[{max(products, values)}];",
            f"A (*left)[{tall + WIDE}] = reinterpret_cast<A (*)[{tall + WIDE}]>(memory);",
            f"A (*right)[{KEYS + WIDE}] = reinterpret_cast<A (*)[{KEYS + WIDE}]>(memory + {DEPTH * (tall + WIDE)});",
            f"A (*values)[{SIDE * self.columns}] = reinterpret_cast<A (*)[{SIDE * self.columns}]>(memory);",
            f"alignas(16) __shared__ A weights[{KEYS}][{tall + WIDE}];",
            f"A result[{many}][{self.columns}];",
            *_cleared("result", many, self.columns),
        ]

    def product(self, into: str, left: Rows, right: Rows, columns: str, size: int) -> list[str]:
        """Return lines that compute `into`, the products of the thread's rows of `left` with WIDE rows of `right`.

        They load DEPTH elements of each row at a time. columns: variable with the length of rows. size: its value.
        """
        many, tall = self.per_thread, SIDE * self.per_thread
        pack = pack_of(size, self.of.kind.itemsize)
        return [
            f"A {into}[{many}][{WIDE}];",
            *_cleared(into, many, WIDE),
            f"for ({self.index} d0 = 0; d0 < {columns}; d0 += {DEPTH}u) {{",
            "    __syncthreads();",
            *indented(self._transposed("left", left, tall, columns, pack)),
            *indented(self._transposed("right", right, KEYS, columns, pack)),
            "    __syncthreads();",
            "    #pragma unroll 8",
            f"    for (int d = 0; d < {DEPTH}; ++d) {{",
            f"        A a[{many}], b[{WIDE}];",
            f"        gk_run<A, {many}>::load(&left[d][down * {many}u], {many}, a);",
            f"        gk_run<A, {WIDE}>::load(&right[d][across * {WIDE}u], {WIDE}, b);",
            *indented(indented(_multiplied(into, many, WIDE))),
            "    }",
            "}",
        ]

    def _transposed(self, into: str, rows: Rows, count: int, columns: str, pack: int) -> list[str]:
        """Return lines that copy DEPTH elements of `count` rows to shared memory, transposed, with 0 after the ends."""
        parts, (name, begin, end) = DEPTH // pack, rows
        return [
            "#pragma unroll",
            f"for (unsigned at = thread; at < {count * parts}u; at += {THREADS}u) {{",
            f"    const unsigned part = at % {parts}u * {pack}u, line = at / {parts}u;",
            f"    const {self.index} row = {begin} + line, d = d0 + part;",
            f"    const gk_pack<T, {pack}> x = gk_load<T, {pack}>({name} + row * {name}row + d, "
            f"row < {end} && d < {columns} ? {pack} : 0);",
            "    #pragma unroll",
            f"    for (int e = 0; e < {pack}; ++e) {{",
            f"        {into}[part + e][line] = gk_read(x.e[e]);",
            "    }",
            "}",
        ]

    def added(self, name: str, begin: str, end: str, width: str) -> list[str]:
        """Return lines that add the rows of a tile, times `weights`, to `result`. width: their number of columns."""
        many, columns, index = self.per_thread, self.columns, self.index
        pack = pack_of(self.wide, self.of.kind.itemsize)
        parts = SIDE * columns // pack
        beside = min(columns, WIDE)
        return [
            f"for (unsigned from = 0; from < {KEYS}u && {begin} + from < {end}; from += {DEPTH}u) {{",
            "    __syncthreads();",
            "    #pragma unroll",
            f"    for (unsigned at = thread; at < {DEPTH * parts}u; at += {THREADS}u) {{",
            f"        const unsigned part = at % {parts}u * {pack}u, line = at / {parts}u;",
            f"        const {index} row = {begin} + from + line, column = column0 + part;",
            f"        const gk_pack<T, {pack}> x = gk_load<T, {pack}>({name} + row * {name}row + column, "
            f"row < {end} && column < {width} ? {pack} : 0);",
            "        #pragma unroll",
            f"        for (int e = 0; e < {pack}; ++e) {{",
            "            values[line][part + e] = gk_read(x.e[e]);",
            "        }",
            "    }",
            "    __syncthreads();",
            "    #pragma unroll 8",
            f"    for (int d = 0; d < {DEPTH}; ++d) {{",
            f"        A a[{many}], b[{columns}];",
            f"        gk_run<A, {many}>::load(&weights[from + d][down * {many}u], {many}, a);",
            "        #pragma unroll",
            f"        for (int j = 0; j < {columns}; j += {beside}) {{",
            f"            gk_run<A, {beside}>::load(&values[d][j * {SIDE}u + across * {beside}u], {beside}, b + j);",
            "        }",
            *indented(indented(_multiplied("result", many, columns))),
            "    }",
            "}",
        ]

    def each(self, begin: str, end: str, width: str, once: list[str], lines: list[str]) -> list[str]:
        """Return loops over the thread's part of the result.

        For each row, with number `i` and index `row`, they run `once`. For each group of adjacent columns, with first
        number `j` and index `column`, they run `lines`.
        """
        beside = min(self.columns, WIDE)
        return [
            "#pragma unroll",
            f"for (int i = 0; i < {self.per_thread}; ++i) {{",
            f"    const {self.index} row = {begin} + down * {self.per_thread}u + i;",
            f"    if (row >= {end}) {{",
            "        break;",
            "    }",
            *indented(once),
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.columns}; j += {self.pack}) {{",
            f"        const {self.index} column = column0 + j / {beside}u * {beside * SIDE}u + "
            f"across * {beside}u + j % {beside}u;",
            f"        if (column < {width}) {{",
            *indented(indented(indented(lines))),
            "        }",
            "    }",
            "}",
        ]


def _cleared(name: str, rows: int, columns: int) -> list[str]:
    return [
        "#pragma unroll",
        f"for (int i = 0; i < {rows}; ++i) {{",
        "    #pragma unroll",
        f"    for (int j = 0; j < {columns}; ++j) {{",
        f"        {name}[i][j] = 0;",
        "    }",
        "}",
    ]


def _multiplied(into: str, rows: int, columns: int) -> list[str]:
    """Return lines that compute into[i][j] += a[i] * b[j]."""
    return [
        "#pragma unroll",
        f"for (int i = 0; i < {rows}; ++i) {{",
        "    #pragma unroll",
        f"    for (int j = 0; j < {columns}; ++j) {{",
        f"        {into}[i][j] = gk_mul_add(a[i], b[j], {into}[i][j]);",
        "    }",
        "}",
    ]
