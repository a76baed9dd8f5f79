"""Elementwise operators, single or fused, as one launch. A thread computes 16 bytes of elements, or one element.

The source depends on opcodes, types, and on how operands are broadcast. Sizes are arguments, so the same code runs for
other sizes.
"""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Fault,
    Input,
    Launch,
    Output,
    Source,
    launched,
    source_of,
)
from graphkit.executor.devices.cuda.text.axes import Axes, merged
from graphkit.executor.devices.cuda.text.expressions import STORED, Unsupported, statements
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import repeating
from graphkit.executor.devices.pointwise.instructions import PointwiseProgram
from graphkit.executor.devices.pointwise.programs import NAMES, program
from graphkit.executor.devices.pointwise.rules import RULES
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple

# Bytes of one memory access.
_ACCESS = 16


def pointwise(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of a node whose operator has rules; None for types without CUDA C++ code."""
    found = program(node, context)
    if found is None:
        return None
    try:
        return kernel_of(found)
    except Unsupported:
        return None


for _domain, _name in NAMES:
    launched(_name, _domain, fusable=_name in RULES)(pointwise)


def kernel_of(found: PointwiseProgram) -> CardKernel:
    """Return the kernel of a pointwise program. Raises Unsupported."""
    loop = _Loop(found)
    count = math.prod(found.shape)
    if count == 0:
        return CardKernel(())
    blocks = -(-count // (THREADS * loop.width))
    launch = Launch(loop.source(), blocks, (*loop.memory(), loop.places.number(count), *loop.sizes()))
    size = [None if given is None else (given[0], DType(given[1]).itemsize) for given in found.inputs]
    inplace = [
        (i, j)
        for i in loop.read
        for j, (value, kind) in enumerate(found.outputs)
        if value >= 0 and size[i] == (found.shape, DType(kind).itemsize)
    ]
    fault = f"integer division by zero in {found.divisions}" if found.divisions else ""
    return CardKernel((launch,), inplace=inplace, fault=fault)


class _Access(NamedTuple):
    """An operand that is read: its position, its type, its strides."""

    position: int
    kind: DType
    strides: tuple[int, ...]


class _Loop:
    """The distribution of the elements of a result over threads.

    width: number of elements of a thread. They are adjacent along the innermost axis.
    """

    def __init__(self, found: PointwiseProgram):
        self.found = found
        read = found.read
        self.read = [i for i, given in enumerate(found.inputs) if given is not None and i in read]
        self.written = [j for j, (value, _) in enumerate(found.outputs) if value >= 0]
        given = [found.inputs[i] for i in self.read]
        kinds = [DType(g[1]) for g in given if g is not None]
        strides = [repeating(g[0], found.shape) for g in given if g is not None]
        self.axes: Axes = merged(found.shape, *strides)
        self.operands = [_Access(*one) for one in zip(self.read, kinds, self.axes.strides, strict=True)]
        results = [DType(found.outputs[j][1]) for j in self.written]
        if not results or not all(kind in STORED for kind in (*kinds, *results)):
            raise Unsupported("a type without arithmetic")
        self.results = list(zip(self.written, results, strict=True))
        whole = [a.kind for a in self.operands if a.strides[-1] == 1] + results
        widest = _ACCESS // max(kind.itemsize for kind in whole)
        rows = len(self.axes.sizes) > 1
        self.width = widest if not rows or self.axes.sizes[-1] % widest == 0 else 1
        # Number of groups along each axis. A group is one element, or `width` elements along the innermost axis.
        self.groups = (*self.axes.sizes[:-1], self.axes.sizes[-1] // self.width)
        self.places = Coordinates("i", len(self.groups), math.prod(found.shape) + THREADS * _ACCESS < 1 << 31)
        self.whole = tuple(math.prod(self.axes.sizes[axis + 1 :]) for axis in range(len(self.axes.sizes)))
        self.moves = any(map(self._moving, self.operands))

    # --- arguments ----------------------------------------------------------------------------------------------

    def memory(self) -> list[Argument]:
        fault = [Fault()] if self.found.divisions else []
        return [*map(Input, self.read), *map(Output, self.written), *fault]

    def sizes(self) -> list[Argument]:
        sizes = self.places.arguments(self.groups) if self.moves else []
        return [*sizes, *(self.places.number(s) for a in self.operands for s in self._moving(a))]

    def _moving(self, operand: _Access) -> tuple[int, ...]:
        """Return the strides that are arguments: all but the innermost one.

        There are none if the operand has the layout of the result, or one element.
        """
        return () if operand.strides == self.whole or not any(operand.strides) else operand.strides[:-1]

    # --- the source ---------------------------------------------------------------------------------------------

    def source(self) -> Source:
        index = self.places.index
        parameters = [f"const {STORED[a.kind]}* x{a.position}" for a in self.operands]
        parameters += [f"{STORED[kind]}* y{j}" for j, kind in self.results]
        parameters += ["unsigned* fault"] if self.found.divisions else []
        parameters.append(f"{index} count")
        parameters += self.places.parameters() if self.moves else []
        for a in self.operands:
            parameters += [f"{index} step{a.position}_{axis}" for axis in range(len(self._moving(a)))]
        return source_of(self.found.name, parameters, [*self._place(index), *self._loads(), *self._results()])

    def _place(self, index: str) -> list[str]:
        """Return lines for the elements of a thread: `at`, the index of the first in the result; `left`, their number.

        For an operand i with another layout than the result, `oi` is the index of its first element.
        """
        lines = [
            f"const {index} group = ({index})gk_block * {THREADS}u + threadIdx.x;",
            f"const {index} at = group * {self.width}u;",
            "if (at >= count) {",
            "    return;",
            "}",
        ]
        if self.width > 1:
            lines.append(f"const int left = count - at < {self.width}u ? (int)(count - at) : {self.width};")
        if not self.moves:
            return lines
        found, places = self.places.lines("group")
        lines += found
        for a in self.operands:
            moving = self._moving(a)
            if not moving:
                continue
            terms = [f"{places[axis]} * step{a.position}_{axis}" for axis, s in enumerate(moving) if s]
            if a.strides[-1] == 1:
                terms.append(f"{places[-1]} * {self.width}u")
            lines.append(f"const {index} o{a.position} = {' + '.join(terms)};")
        return lines

    def _loads(self) -> list[str]:
        lines = []
        for a in self.operands:
            kind, x = STORED[a.kind], f"x{a.position}"
            if not any(a.strides):
                lines.append(f"const {kind} p{a.position} = {x}[0];")
            else:
                place = f"{x} + o{a.position}" if self._moving(a) else f"{x} + at"
                if self.width > 1 and a.strides[-1] == 1:
                    lines.append(f"const gk_pack<{kind}, {self.width}> p{a.position} = "
                                 f"gk_load<{kind}, {self.width}>({place}, left);")  # fmt: skip
                else:
                    lines.append(f"const {kind} p{a.position} = *({place});")
        return lines

    def _results(self) -> list[str]:
        loaded = [""] * len(self.found.inputs)
        for a in self.operands:
            packed = self.width > 1 and a.strides[-1] == 1
            loaded[a.position] = f"p{a.position}.e[k]" if packed else f"p{a.position}"
        lines, results = statements(self.found, loaded)
        if self.width == 1:
            stores = [f"gk_write(y{j}[at], {value});" for (j, _), value in zip(self.results, results, strict=True)]
            return [*lines, *stores]
        packs = [f"gk_pack<{STORED[kind]}, {self.width}> r{j};" for j, kind in self.results]
        writes = [f"gk_write(r{j}.e[k], {value});" for (j, _), value in zip(self.results, results, strict=True)]
        loop = ["#pragma unroll", f"for (int k = 0; k < {self.width}; ++k) {{", "    if (k < left) {"]
        loop += ["        " + line for line in (*lines, *writes)]
        stores = [f"gk_store<{STORED[kind]}, {self.width}>(y{j} + at, r{j}, left);" for j, kind in self.results]
        return [*packs, *loop, "    }", "}", *stores]
