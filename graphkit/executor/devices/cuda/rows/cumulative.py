"""Cumulative sums and products: a block per row, or a thread per column; with few of them, a block or thread per slice.

A block processes a row tile by tile. Each thread has a few adjacent elements of a tile; a scan combines their partial
results. With slices, a first launch computes the totals of slices, so elements are read twice. The order of operations
depends only on the sizes, so a result has the same bits every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Given,
    Input,
    Launch,
    Output,
    Scratch,
    launched,
    source_of,
)
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.cuda.text.joining import joined, scanned
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, constants, operand, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import operator
from graphkit.ops.math.cumulative import Cumulative

# Adjacent elements per thread in a tile of a row; the longest row that a single thread processes.
_EACH, _ALONE = 4, 32
# Blocks, and threads, that occupy a GPU; the most slices of a row or column, and the least elements of a slice.
_BUSY_BLOCKS, _BUSY = 512, 1 << 16
_MOST_SLICES, _LEAST = 128, 64


@dataclass(frozen=True)
class _Scan:
    """A scan of an array [outer, size, inner] along `size`.

    join: The operation, an expression of `a` and `b`. first: Its neutral element.
    """

    name: str
    sizes: tuple[int, int, int]
    stored: DType
    join: str
    first: str
    exclusive: bool
    reverse: bool

    @property
    def held(self) -> DType:
        return held_type(self.stored)

    @property
    def by_rows(self) -> bool:
        return self.sizes[2] == 1 and self.sizes[1] > _ALONE

    @property
    def tile(self) -> int:
        """The lengths of slices are multiples of this number of elements."""
        return THREADS * _EACH if self.by_rows else 1

    @property
    def short(self) -> bool:
        return math.prod(self.sizes) + THREADS * _EACH < 1 << 31

    def kernel(self) -> CardKernel:
        outer, size, inner = self.sizes
        wanted = -(-_BUSY_BLOCKS // outer) if self.by_rows else -(-_BUSY // (outer * inner))
        least = 2 * self.tile if self.by_rows else _LEAST
        slices = max(min(wanted, size // least, _MOST_SLICES), 1)
        length = -(-size // (slices * self.tile)) * self.tile
        slices = -(-size // length)
        launches = [self._launch(slices, length, totals=True)] if slices > 1 else []
        launches.append(self._launch(slices, length, totals=False))
        scratch = outer * slices * inner * self.held.itemsize if slices > 1 else 0
        return CardKernel(tuple(launches), scratch_bytes=scratch, inplace=((0, 0),))

    def _launch(self, slices: int, length: int, *, totals: bool) -> Launch:
        """Return the launch that computes the totals of slices, or the one that computes the results."""
        stored, held = STORED[self.stored], STORED[self.held]
        places = Coordinates("i", 3, self.short)
        given: Given = [(f"const {stored}* x", Input(0))]
        if not totals:
            given.append((f"{stored}* y", Output(0)))
        if slices > 1:
            given.append((f"{held}* totals", Scratch(0)))
        names = {"size": self.sizes[1], "slices": slices, "length": length}
        given += [(f"{places.index} {name}", places.number(number)) for name, number in names.items()]
        begin = [f"typedef {held} A;"]
        carried = [] if totals or slices == 1 else self._carried(places.index)
        begin += [f"A carry = {self.first};"]
        make = self._of_row if self.by_rows else self._of_column
        return make(places, slices, given, begin, carried, totals)

    def _carried(self, index: str) -> list[str]:
        """Return lines that combine the totals of earlier slices in `carry`.

        The total of slice s has the index `total + s * between`.
        """
        return [
            f"for ({index} s = 0; s < slice; ++s) {{",
            "    const A a = carry, b = totals[total + s * between];",
            f"    carry = {self.join};",
            "}",
        ]

    def _at(self, place: str) -> str:
        return f"size - 1 - ({place})" if self.reverse else place

    def _of_row(
        self, places: Coordinates, slices: int, given: Given, begin: list[str],
        carried: list[str], totals: bool,
    ) -> Launch:  # fmt: skip
        index = places.index
        lines = [
            *begin, f"const {index} row = gk_block / slices, slice = gk_block % slices;",
            f"const {index} total = row * slices, between = 1;",
            f"const {index} end = slice * length + length < size ? slice * length + length : size;",
            *carried,
            *(self._total_of_row(index) if totals else self._tiles(index)),
        ]  # fmt: skip
        name = f"{self.name}_of_row"
        source = source_of(f"total_{name}" if totals else name, [text for text, _ in given], lines)
        return Launch(source, self.sizes[0] * slices, tuple(value for _, value in given))

    def _total_of_row(self, index: str) -> list[str]:
        return [
            f"for ({index} p = slice * length + threadIdx.x; p < end; p += {THREADS}u) {{",
            f"    const A a = carry, b = gk_read(x[row * size + {self._at('p')}]);",
            f"    carry = {self.join};",
            "}",
            *joined("carry", self.join),
            "if (threadIdx.x == 0) {",
            "    totals[total + slice * between] = carry;",
            "}",
        ]

    def _tiles(self, index: str) -> list[str]:
        element = f"row * size + {self._at('p + k')}"
        part = ["own[k] = part;", "part = next;"] if self.exclusive else ["part = next;", "own[k] = part;"]
        return [
            f"for ({index} tile = slice * length; tile < end; tile += {THREADS * _EACH}u) {{",
            f"    const {index} p = tile + threadIdx.x * {_EACH}u;",
            f"    A own[{_EACH}], part = {self.first};",
            "    #pragma unroll",
            f"    for (int k = 0; k < {_EACH}; ++k) {{",
            f"        const A a = part, b = p + k < end ? (A)gk_read(x[{element}]) : {self.first};",
            f"        const A next = {self.join};",
            *("        " + line for line in part),
            "    }",
            *("    " + line for line in scanned("part", self.join)),
            "    A before = carry;",
            "    if (threadIdx.x != 0) {",
            "        const A a = carry, b = part_before;",
            f"        before = {self.join};",
            "    }",
            "    #pragma unroll",
            f"    for (int k = 0; k < {_EACH}; ++k) {{",
            "        const A a = before, b = own[k];",
            "        if (p + k < end) {",
            f"            gk_write(y[{element}], {self.join});",
            "        }",
            "    }",
            "    const A a = carry, b = part_whole;",
            f"    carry = {self.join};",
            "}",
        ]

    def _of_column(
        self, places: Coordinates, slices: int, given: Given, begin: list[str],
        carried: list[str], totals: bool,
    ) -> Launch:  # fmt: skip
        outer, _, inner = self.sizes
        index = places.index
        found, (block, slice_, column) = places.lines("at")
        write = [f"gk_write(y[element], {'carry' if self.exclusive else 'next'});"]
        lines = [
            *begin, *found, f"const {index} slice = {slice_};",
            f"const {index} total = {block} * slices * isize2 + {column}, between = isize2;",
            f"const {index} end = slice * length + length < size ? slice * length + length : size;",
            *carried,
            f"for ({index} p = slice * length; p < end; ++p) {{",
            f"    const {index} element = ({block} * size + {self._at('p')}) * isize2 + {column};",
            "    const A a = carry, b = gk_read(x[element]);",
            f"    const A next = {self.join};",
            *("    " + line for line in ([] if totals else write)),
            "    carry = next;",
            "}",
            *(["totals[total + slice * between] = carry;"] if totals else []),
        ]  # fmt: skip
        name = f"{self.name}_of_column"
        return for_each(f"total_{name}" if totals else name, (outer, slices, inner), places, given, lines)


def _cumulative(node: Node, join: str, first: str) -> CardKernel | None:
    op, x = operator(node, Cumulative), node.inputs[0]
    assert x is not None
    axis, sizes = constants(operand(node, 1)), shape(x)
    if axis is None or x.dtype not in STORED or not sizes:
        return None
    if math.prod(sizes) == 0:
        return CardKernel(())
    return _Scan(op.name, around(sizes, axis[0]), x.dtype, join, first, op.exclusive, op.reverse).kernel()


@launched("CumSum")
def _cum_sum(node: Node, context: KernelContext) -> CardKernel | None:
    return _cumulative(node, "gk_add(a, b)", "(A)0")


@launched("CumProd")
def _cum_prod(node: Node, context: KernelContext) -> CardKernel | None:
    return _cumulative(node, "gk_mul(a, b)", "(A)1")
