"""Implicit matrix products: elements of factors are computed from other arrays, such as the windows of a convolution.

A block computes a tile of the result from tiles of both factors in shared memory, DEPTH terms of the sum at a time. A
thread keeps a few rows of four results in registers, and reads the next elements while it computes. If there are few
tiles, the sum is divided into slices (split-K), which a second launch adds. The order of sums depends only on the
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Launch,
    Output,
    Scratch,
    source_of,
)
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, Divisor, for_each
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.executor.devices.cuda.windows.epilogues import NOTHING, Finish
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple

# Terms of the sum in shared memory, threads along each side of a tile, and results of a thread in a row.
DEPTH, SIDE, WIDE = 16, 16, 4
COLUMNS = SIDE * WIDE
# The most bytes of a thread's results in a column, so that they fit in registers.
_TALLEST = 32
# Blocks that occupy a GPU, and the least terms of a slice.
_BUSY, _LEAST = 512, 16 * DEPTH


class Factor(NamedTuple):
    """A factor of a product, whose elements are computed.

    Attributes:
        lines: Lines that set `value`, which is 0 before, to an element. They can use `group`, `row` (in the left
            factor) or `column` (in the right one), and `d`, the number of the term.
        given: Parameters with arguments.
        once: Lines that run once for each term, before its elements.
        before: Lines that run once for a thread.
    """

    lines: list[str]
    given: tuple[tuple[str, Argument], ...] = ()
    once: list[str] = []
    before: list[str] = []


@dataclass(frozen=True)
class Tiled:
    """For each group, the product of a matrix [rows, depth] and a matrix [depth, columns].

    In memory, the result is [columns / inner, groups * rows, inner].

    Attributes:
        held: Type of sums.
        result: Type of the result.
        short: Whether 32 bits are enough for all indices.
        by_depth: Whether terms, and not columns, are adjacent in the memory of the right factor.
        finish: The epilogue.
    """

    name: str
    groups: int
    rows: int
    columns: int
    depth: int
    inner: int
    left: Factor
    right: Factor
    held: DType
    result: DType
    short: bool
    by_depth: bool = False
    finish: Finish = NOTHING

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    @property
    def per_thread(self) -> int:
        """Number of rows of a thread, a power of 2: as many as registers hold, if the matrix has enough rows."""
        found, most = 1, _TALLEST // self.held.itemsize
        while found < most and found * SIDE < self.rows:
            found *= 2
        # Use the tallest tiles only if there are enough of them to occupy the GPU.
        if found == most and self._tiles(found) < _BUSY:
            found //= 2
        return found

    def _tiles(self, per_thread: int) -> int:
        return -(-self.rows // (SIDE * per_thread)) * -(-self.columns // COLUMNS) * self.groups

    @property
    def slices(self) -> int:
        wanted = max(min(-(-_BUSY // self._tiles(self.per_thread)), self.depth // _LEAST), 1)
        return -(-self.depth // self._length(wanted))

    def _length(self, slices: int) -> int:
        """Return the number of terms of a slice, a multiple of DEPTH."""
        each = -(-self.depth // slices)
        return -(-each // DEPTH) * DEPTH

    def kernel(self) -> CardKernel:
        """Return the kernel. All sizes must be above 0."""
        if self.slices == 1:
            return CardKernel((self._tiled(Output(0), self.result),), inplace=self.finish.inplace)
        count = self.groups * self.rows * self.columns
        first = self._tiled(Scratch(0), self.held)
        return CardKernel(
            (first, self._added(count)), self.slices * count * self.held.itemsize, inplace=self.finish.inplace
        )

    # --- the tiles ------------------------------------------------------------------------------------

    def _tiled(self, y: Argument, into: DType) -> Launch:
        places, slices, many = Coordinates("y", 2, self.short), self.slices, self.slices > 1
        sizes = dict(groups=self.groups, rows=self.rows, columns=self.columns, depth=self.depth, slices=slices)
        sizes["length"] = self._length(slices)
        given: list[tuple[str, Argument]] = [(f"{STORED[into]}* y", y), *self.left.given, *self.right.given]
        given += [] if many else self.finish.given
        given += [(f"{self.index} {name}", places.number(size)) for name, size in sizes.items()]
        # The results of a slice are stored as [rows, columns], the result itself with rows of `inner` elements.
        inner = self.columns if many else self.inner
        parameters = [*(text for text, _ in given), *places.parameters()]
        arguments = [*(argument for _, argument in given), *places.arguments((1, inner))]
        packed = inner % WIDE == 0
        lines = [*self._place(), *self._fetch(), *self._loop(), *self._stores(into, packed=packed, finished=not many)]
        blocks = self._tiles(self.per_thread) * slices
        return Launch(source_of(self.name, parameters, lines), blocks, tuple(arguments))

    def _place(self) -> list[str]:
        """Return lines that declare the tile and the slice of a block, shared memory, and registers."""
        index, tall = self.index, SIDE * self.per_thread
        return [
            f"typedef {STORED[self.held]} A;",
            f"alignas(16) __shared__ A left[{DEPTH}][{tall + 4}];",
            f"alignas(16) __shared__ A right[{DEPTH}][{COLUMNS + 4}];",
            # Adjacent blocks read the same columns.
            f"const {index} row_tiles = (rows + {tall - 1}u) / {tall}u;",
            f"const {index} column_tiles = (columns + {COLUMNS - 1}u) / {COLUMNS}u;",
            f"const {index} row0 = gk_block % row_tiles * {tall}u, rest = gk_block / row_tiles;",
            f"const {index} column0 = rest % column_tiles * {COLUMNS}u, slice_of = rest / column_tiles;",
            f"const {index} group = slice_of % groups, slice = slice_of / groups;",
            f"const {index} first = slice * length, end = depth - first < length ? depth : first + length;",
            f"const unsigned thread = threadIdx.x, deep = thread % {DEPTH}u, side = thread / {DEPTH}u;",
            f"A sums[{self.per_thread}][{WIDE}], next_left[{self.per_thread}], next_right[{WIDE}];",
            "#pragma unroll",
            f"for (int i = 0; i < {self.per_thread}; ++i) {{",
            "    #pragma unroll",
            f"    for (int j = 0; j < {WIDE}; ++j) {{",
            "        sums[i][j] = 0;",
            "    }",
            "}",
        ]

    def _fetch(self) -> list[str]:
        """Return lines that declare `fetch(from)`. It reads a thread's elements of both factors for DEPTH terms."""
        index = self.index
        left = [
            f"const {index} d = from + deep;",
            *self.left.once,
            "#pragma unroll",
            f"for (int i = 0; i < {self.per_thread}; ++i) {{",
            f"    const {index} row = row0 + side + {SIDE}u * i;",
            *_element(self.left, "row < rows && d < end", "next_left[i]"),
            "}",
        ]
        if self.by_depth:
            before = self.right.before
            right = [
                f"const {index} d = from + deep;",
                *self.right.once,
                "#pragma unroll",
                f"for (int i = 0; i < {WIDE}; ++i) {{",
                f"    const {index} column = column0 + side + {SIDE}u * i;",
                *_element(self.right, "column < columns && d < end", "next_right[i]"),
                "}",
            ]
        else:
            before = [f"const {index} column = column0 + thread % {COLUMNS}u;", *self.right.before]
            right = [
                "#pragma unroll",
                f"for (int i = 0; i < {WIDE}; ++i) {{",
                f"    const {index} d = from + thread / {COLUMNS}u + {THREADS // COLUMNS}u * i;",
                *_element(self.right, "column < columns && d < end", "next_right[i]"),
                "}",
            ]
        fetch = ["{", *indented(left), "}", "{", *indented(right), "}"]
        return [*before, f"const auto fetch = [&]({index} from) {{", *indented(fetch), "};"]

    def _loop(self) -> list[str]:
        """Return the loop that computes the sums of a slice, `sums`."""
        many, index = self.per_thread, self.index
        row, column = "deep", f"side + {SIDE}u * i"
        if not self.by_depth:
            row, column = f"thread / {COLUMNS}u + {THREADS // COLUMNS}u * i", f"thread % {COLUMNS}u"
        whole = 16 // self.held.itemsize
        pack = min(many, whole)
        return [
            "fetch(first);",
            f"for ({index} step = first; step < end; step += {DEPTH}u) {{",
            "    #pragma unroll",
            f"    for (int i = 0; i < {many}; ++i) {{",
            f"        left[deep][side + {SIDE}u * i] = next_left[i];",
            "    }",
            "    #pragma unroll",
            f"    for (int i = 0; i < {WIDE}; ++i) {{",
            f"        right[{row}][{column}] = next_right[i];",
            "    }",
            "    __syncthreads();",
            f"    if (step + {DEPTH}u < end) {{",
            f"        fetch(step + {DEPTH}u);",
            "    }",
            "    #pragma unroll",
            f"    for (int k = 0; k < {DEPTH}; ++k) {{",
            f"        gk_pack<A, {pack}> a[{many // pack}];",
            f"        gk_pack<A, {whole}> b[{WIDE // whole}];",
            *_packs("a", "left", many, pack, f"thread / {SIDE}u"),
            *_packs("b", "right", WIDE, whole, f"thread % {SIDE}u"),
            "        #pragma unroll",
            f"        for (int i = 0; i < {many}; ++i) {{",
            "            #pragma unroll",
            f"            for (int j = 0; j < {WIDE}; ++j) {{",
            f"                sums[i][j] = gk_mul_add(a[i / {pack}].e[i % {pack}], b[j / {whole}].e[j % {whole}], "
            "sums[i][j]);",
            "            }",
            "        }",
            "    }",
            "    __syncthreads();",
            "}",
        ]

    def _stores(self, into: DType, *, packed: bool, finished: bool) -> list[str]:
        """Return lines that write a thread's results.

        packed: Write adjacent results together. finished: Apply the epilogue first.
        """
        index, kind = self.index, STORED[into]
        found, (outer, within) = Coordinates("y", 2, self.short).lines("column")
        channels = "groups * rows" if finished else "slices * groups * rows"
        channel = "group * rows + row" if finished else "(slice * groups + group) * rows + row"
        head = [
            f"{index} place[{WIDE}];",
            "#pragma unroll",
            f"for (int j = 0; j < {WIDE}; ++j) {{",
            f"    const {index} column = column0 + thread % {SIDE}u * {WIDE}u + j;",
            *indented(found),
            f"    place[j] = {outer} * ({channels}) * ysize1 + {within};",
            "}",
        ]
        each = [
            "A v = sums[i][j];",
            f"const {index} to = channel * ysize1 + place[j];",
            *(self.finish.lines if finished else ()),
        ]
        pack = min(WIDE, 16 // into.itemsize)
        if packed:
            rows = [
                "if (column >= columns) {", "    continue;", "}",
                f"gk_pack<{kind}, {pack}> done[{WIDE // pack}];",
                "#pragma unroll",
                f"for (int j = 0; j < {WIDE}; ++j) {{", *indented(each),
                f"    gk_write(done[j / {pack}].e[j % {pack}], v);", "}",
                "#pragma unroll",
                f"for (int j = 0; j < {WIDE}; j += {pack}) {{",
                f"    gk_store<{kind}, {pack}>(y + channel * ysize1 + place[j], done[j / {pack}], {pack});",
                "}",
            ]  # fmt: skip
        else:
            rows = [
                "#pragma unroll",
                f"for (int j = 0; j < {WIDE}; ++j) {{",
                "    if (column + j >= columns) {", "        break;", "    }",
                *indented(each), "    gk_write(y[to], v);", "}",
            ]  # fmt: skip
        return [
            "{", *indented(head),
            "    #pragma unroll",
            f"    for (int i = 0; i < {self.per_thread}; ++i) {{",
            f"        const {index} row = row0 + thread / {SIDE}u * {self.per_thread}u + i;",
            f"        const {index} column = column0 + thread % {SIDE}u * {WIDE}u;",
            "        if (row >= rows) {", "            break;", "        }",
            f"        const {index} channel = {channel};",
            *indented(indented(rows)),
            "    }", "}",
        ]  # fmt: skip

    # --- slices ---------------------------------------------------------------------------------------

    def _added(self, count: int) -> Launch:
        """Return the launch that adds slices and applies the epilogue."""
        channels = self.groups * self.rows
        places, inner = Coordinates("y", 2, self.short), Divisor("inner", self.short)
        found, (channel, column) = places.lines("at")
        lines = [
            f"typedef {STORED[self.held]} A;",
            "A v = 0;",
            f"for ({self.index} slice = 0; slice < slices; ++slice) {{",
            "    v += parts[slice * count + at];",
            "}",
            *found,
            f"const {self.index} channel = {channel}, image = {inner.quotient(column)};",
            f"const {self.index} to = (image * channels + channel) * inner + ({column} - image * inner);",
            *self.finish.lines,
            "gk_write(y[to], v);",
        ]
        given: list[tuple[str, Argument]] = [
            (f"const {STORED[self.held]}* parts", Scratch(0)), (f"{STORED[self.result]}* y", Output(0)),
            *self.finish.given,
            (f"{self.index} slices", places.number(self.slices)), (f"{self.index} channels", places.number(channels)),
            *inner.given(self.inner),
        ]  # fmt: skip
        assert count == channels * self.columns
        return for_each(f"{self.name}_slices", (channels, self.columns), places, given, lines)


def _element(factor: Factor, condition: str, into: str) -> list[str]:
    return [
        "    A value = 0;",
        f"    if ({condition}) {{",
        *indented(indented(factor.lines)),
        "    }",
        f"    {into} = value;",
    ]


def _packs(name: str, tile: str, count: int, pack: int, number: str) -> list[str]:
    """Return lines that read a thread's `count` elements of term k from a tile in shared memory."""
    return [
        "        #pragma unroll",
        f"        for (int i = 0; i < {count // pack}; ++i) {{",
        f"            {name}[i] = *reinterpret_cast<const gk_pack<A, {pack}>*>"
        f"(&{tile}[k][{number} * {count}u + {pack}u * i]);",
        "        }",
    ]
