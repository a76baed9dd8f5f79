"""Reductions: a block, or a warp, for each result where rows are reduced; a thread where columns are.

What is reduced is cut into slices where there are few results, which a second launch puts together. The order of all
sums is that of the sizes alone: a result has the same bits every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from graphkit.executor.devices.cuda.expressions import STORED
from graphkit.executor.devices.cuda.indexing import Coordinates
from graphkit.executor.devices.cuda.joining import THREADS, joined, threads_for
from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Launch, Output, Scratch, source_of
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.reductions import reduced_axes, repeated_axes
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, HALVES, DType
from graphkit.ops._base import DOMAIN

# Threads that keep a card busy, and what one of them reduces at least before there is another slice.
_BUSY, _LEAST = 1 << 16, 32


class Function(NamedTuple):
    """A reduction in CUDA C++: of an element `x`, of two partial results `a` and `b`, and of the last one, `a`.

    first: the partial result of nothing. floats: whether it is one of floats alone.
    """

    element: str
    join: str
    last: str
    first: str
    floats: bool = False


FUNCTIONS = {
    "Sum": Function("x", "gk_add(a, b)", "a", "(A)0"),
    "Mean": Function("x", "gk_add(a, b)", "a / (A)whole", "(A)0", floats=True),
    "Max": Function("x", "gk_maximum(a, b)", "a", "gk_limits<A>::lowest()"),
    "Min": Function("x", "gk_minimum(a, b)", "a", "gk_limits<A>::highest()"),
    "Prod": Function("x", "gk_mul(a, b)", "a", "(A)1"),
    "L1": Function("gk_abs(x)", "gk_add(a, b)", "a", "(A)0"),
    "L2": Function("gk_mul(x, x)", "gk_add(a, b)", "gk_sqrt(a)", "(A)0", floats=True),
    "SumSquare": Function("gk_mul(x, x)", "gk_add(a, b)", "a", "(A)0"),
    "LogSum": Function("x", "gk_add(a, b)", "gk_log(a)", "(A)0", floats=True),
}


@dataclass(frozen=True)
class _Axes:
    """Sizes and strides, in elements, of some axes of an operand, the outermost first; at least one."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.sizes)


def reduction(name: str, x: Sequence[int], axes: Sequence[int], kind: DType) -> CardKernel | None:
    """The kernel of FUNCTIONS[name] over `axes` of an operand of shape `x`; None where there is none."""
    function = FUNCTIONS[name]
    if kind not in STORED or kind is DType.BOOL or (function.floats and kind not in FLOATS):
        return None
    reduced, kept = _split(x, axes)
    if math.prod(x) == 0:
        return None
    held = "float" if kind in HALVES else STORED[kind]
    return _Reduction(name, function, STORED[kind], held, kept, reduced).kernel()


def _split(x: Sequence[int], axes: Sequence[int]) -> tuple[_Axes, _Axes]:
    """What is reduced, and what is kept; neighbours of a kind are one axis."""
    gone = {axis % len(x) for axis in axes} if x else set()
    found: dict[bool, tuple[list[int], list[int]]] = {True: ([], []), False: ([], [])}
    stride, before = math.prod(x), None
    for axis, size in enumerate(x):
        stride //= max(size, 1)
        if size == 1:
            continue
        sizes, strides = found[axis in gone]
        if before is (axis in gone):
            sizes[-1] *= size
            strides[-1] = stride
        else:
            sizes.append(size)
            strides.append(stride)
        before = axis in gone
    return tuple(_Axes(tuple(sizes) or (1,), tuple(strides) or (0,)) for sizes, strides in found.values())  # type: ignore[return-value]


@dataclass(frozen=True)
class _Reduction:
    """held: the C type of partial results."""

    name: str
    function: Function
    stored: str
    held: str
    kept: _Axes
    reduced: _Axes

    @property
    def by_rows(self) -> bool:
        """Whether neighbours in memory are reduced to one, rather than side by side."""
        return self.kept.strides[-1] != 1

    @property
    def short(self) -> bool:
        return self.kept.count * self.reduced.count + THREADS < 1 << 31

    def kernel(self) -> CardKernel:
        results, count = self.kept.count, self.reduced.count
        together = self._together
        busy = results * (together if self.by_rows else 1)
        slices = max(min(-(-_BUSY // busy), count // (_LEAST * (together if self.by_rows else 1))), 1)
        length = -(-count // slices)
        slices = -(-count // length)
        if slices == 1:
            return CardKernel((self._launch(1, count, Input(0), Output(0), first=True, last=True),))
        size = results * slices * (8 if self.held in ("double", "gk_i64", "gk_u64") else 4)
        inner = _Axes((slices,), (1,)) if self.by_rows else _Axes((slices,), (results,))
        outer = _Axes((results,), (slices,)) if self.by_rows else _Axes((results,), (1,))
        second = replace(self, stored=self.held, kept=outer, reduced=inner)
        launches = (
            self._launch(slices, length, Input(0), Scratch(0), first=True, last=False),
            second._launch(1, slices, Scratch(0), Output(0), first=False, last=True, whole=count, into=self.stored),
        )
        return CardKernel(launches, scratch_bytes=size)

    @property
    def _together(self) -> int:
        """Threads that make one result of a row."""
        return threads_for(self.reduced.count)

    def _launch(
        self,
        slices: int,
        length: int,
        x: Argument,
        y: Argument,
        *,
        first: bool,
        last: bool,
        whole: int = 0,
        into: str = "",
    ) -> Launch:
        """One pass over slices of `length`; `first` applies the function's element, `last` its end."""
        wide: type[np.unsignedinteger[Any]] = np.uint32 if self.short else np.uint64
        kept, reduced = (
            Coordinates(name, len(axes.sizes), self.short) for name, axes in (("k", self.kept), ("r", self.reduced))
        )
        index = kept.index
        y_type = (into or self.stored) if last else self.held
        parameters = [
            f"const {self.stored}* x", f"{y_type}* y", f"{index} results", f"{index} slices", f"{index} length",
            f"{index} count", f"{index} whole", *kept.parameters(), *reduced.parameters(),
        ]  # fmt: skip
        parameters += [f"{index} kstep{axis}" for axis in range(kept.rank)]
        parameters += [f"{index} rstep{axis}" for axis in range(reduced.rank)]
        lines = self._lines(kept, reduced, first=first, last=last)
        source = source_of(f"reduce_{self.name}", parameters, lines, THREADS)
        results, count = self.kept.count, self.reduced.count
        sizes = (results, slices, length, count, whole or count)
        arguments: tuple[Argument, ...] = (
            x, y, *map(wide, sizes), *kept.arguments(self.kept.sizes), *reduced.arguments(self.reduced.sizes),
            *map(wide, self.kept.strides), *map(wide, self.reduced.strides),
        )  # fmt: skip
        units = results * slices
        per_block = THREADS // self._together if self.by_rows else THREADS
        # Columns: blocks of one slice, so that their threads lie side by side.
        blocks = -(-units // per_block) if self.by_rows else -(-results // THREADS) * slices
        return Launch(source, blocks, THREADS, arguments)

    def _lines(self, kept: Coordinates, reduced: Coordinates, *, first: bool, last: bool) -> list[str]:
        index, together = kept.index, self._together
        if self.by_rows:
            place = [
                f"const {index} unit = ({index})blockIdx.x * {THREADS // together}u + threadIdx.x / {together}u;",
                f"const {index} lane = threadIdx.x % {together}u;",
                "if (unit >= results * slices) {", "    return;", "}",
                f"const {index} at = unit / slices;", f"const {index} slice = unit % slices;",
            ]  # fmt: skip
        else:
            place = [
                f"const {index} tiles = (results + {THREADS - 1}u) / {THREADS}u;",
                f"const {index} at = blockIdx.x % tiles * {THREADS}u + threadIdx.x;",
                f"const {index} slice = blockIdx.x / tiles;",
                f"const {index} unit = slice * results + at;",
                "if (at >= results) {", "    return;", "}",
                f"const {index} lane = 0;",
            ]  # fmt: skip
        outer, places = kept.lines("at")
        base = " + ".join(f"{p} * kstep{axis}" for axis, p in enumerate(places))
        inner, steps = reduced.lines("r")
        offset = " + ".join(f"{p} * rstep{axis}" for axis, p in enumerate(steps))
        element = self.function.element if first else "x"
        loop = [
            f"for ({index} r = slice * length + lane; r < end; r += {together if self.by_rows else 1}u) {{",
            *("    " + line for line in inner),
            f"    const A x = gk_read(from[{offset}]);",
            f"    const A a = part, b = {element};",
            f"    part = {self.function.join};",
            "}",
        ]
        write = f"gk_write(y[unit], {self.function.last if last else 'a'});"
        return [
            f"typedef {self.held} A;", *place, *outer,
            f"const {self.stored}* from = x + {base};",
            f"const {index} end = slice * length + length < count ? slice * length + length : count;",
            f"A part = {self.function.first};", *loop,
            *(joined("part", self.function.join, together) if self.by_rows else []),
            "const A a = part;",
            *(["if (lane == 0) {", f"    {write}", "}"] if self.by_rows else [write]),
        ]  # fmt: skip


def _over(name: str, node: Node, axes: Sequence[int] | None) -> CardKernel | None:
    x = node.inputs[0]
    assert x is not None
    if axes is None or x.dtype is not node.output.dtype:
        return None
    return reduction(name, x.tensor.static_shape, axes, x.dtype)


def _register(name: str) -> None:
    @register_launched("cuda", "", f"Reduce{name}")
    def make(node: Node, context: KernelContext) -> CardKernel | None:
        return _over(name, node, reduced_axes(node))


for _name in FUNCTIONS:
    _register(_name)


@register_launched("cuda", DOMAIN, "ReduceToShapeOf")
def _reduce_to_shape_of(node: Node, context: KernelContext) -> CardKernel | None:
    return _over("Sum", node, repeated_axes(node))


def _pooled(name: str, node: Node, context: KernelContext) -> CardKernel | None:
    x = node.inputs[0]
    assert x is not None
    return _over(name, node, range(2, len(x.tensor.static_shape)))


@register_launched("cuda", "", "GlobalAveragePool")
def _global_average_pool(node: Node, context: KernelContext) -> CardKernel | None:
    return _pooled("Mean", node, context)


@register_launched("cuda", "", "GlobalMaxPool")
def _global_max_pool(node: Node, context: KernelContext) -> CardKernel | None:
    return _pooled("Max", node, context)
