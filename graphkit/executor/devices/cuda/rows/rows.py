"""Rows of the last axes that one launch goes over several times. A warp, or a block, has a row.

A row of few elements is read once and stays in registers; a longer one is read again for each pass over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Argument, Input, Launch, source_of
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.joining import threads_for
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType

# Elements of a row that a thread keeps in registers.
_KEPT = 8


@dataclass(frozen=True)
class Rows:
    """count: rows; size: elements of each. stored: the type of x in memory, held: of what is computed."""

    count: int
    size: int
    stored: DType
    held: DType

    @property
    def together(self) -> int:
        return threads_for(self.size)

    @property
    def kept(self) -> int:
        """Elements that a thread keeps; 0 where a row has more."""
        each = -(-self.size // self.together)
        return each if each <= _KEPT else 0

    @property
    def index(self) -> str:
        return "gk_u32" if self.count * self.size + THREADS < 1 << 31 else "gk_u64"

    def begin(self) -> list[str]:
        """Whose row it is, `row`, `lane` within it, where it lies, `from`, and its elements where they are kept."""
        index, together = self.index, self.together
        lines = [
            f"typedef {STORED[self.held]} A;",
            f"const {index} row = ({index})blockIdx.x * {THREADS // together}u + threadIdx.x / {together}u;",
            f"const {index} lane = threadIdx.x % {together}u;",
            "if (row >= rows) {",
            "    return;",
            "}",
            f"const {STORED[self.stored]}* from = x + row * size;",
        ]
        if self.kept:
            lines += [f"A kept[{self.kept}];", *self._loop(["kept[k] = gk_read(from[j]);"])]
        return lines

    def each(self, *lines: str) -> list[str]:
        """The lines for every element of the thread: `v`, number `j` of its row."""
        return self._loop([f"const A v = {'kept[k]' if self.kept else 'gk_read(from[j])'};", *lines])

    def _loop(self, lines: Sequence[str]) -> list[str]:
        index, together = self.index, self.together
        if not self.kept:
            head = f"for ({index} j = lane; j < size; j += {together}u) {{"
            return [head, *("    " + line for line in lines), "}"]
        return [
            "#pragma unroll",
            f"for (int k = 0; k < {self.kept}; ++k) {{",
            f"    const {index} j = lane + k * {together}u;",
            "    if (j < size) {",
            *("        " + line for line in lines),
            "    }",
            "}",
        ]

    def launch(
        self, name: str, parameters: Sequence[str], arguments: Sequence[Argument], lines: Sequence[str]
    ) -> Launch:
        """parameters, arguments: beside x, which is the first operand, and the sizes."""
        given = [f"const {STORED[self.stored]}* x", *parameters, f"{self.index} rows", f"{self.index} size"]
        wide: type[np.unsignedinteger[Any]] = np.uint32 if self.index == "gk_u32" else np.uint64
        source = source_of(name, given, [*self.begin(), *lines])
        blocks = -(-self.count // (THREADS // self.together))
        return Launch(source, blocks, (Input(0), *arguments, wide(self.count), wide(self.size)))


def held_type(stored: DType, wide: bool = False) -> DType | None:
    """The type that is computed in: float, or double; None for what is no float, or has no arithmetic."""
    if stored not in FLOATS or stored not in STORED:
        return None
    return DType.FLOAT64 if wide or stored is DType.FLOAT64 else DType.FLOAT32


def rows_of(node: Node, size: int, wide: bool = False) -> Rows | None:
    """The rows of a node's first operand; None where it is empty, or of a type without arithmetic."""
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.static_shape
    held = held_type(x.dtype, wide)
    if math.prod(shape) == 0 or held is None:
        return None
    return Rows(math.prod(shape) // size, size, x.dtype, held)
