"""Reductions: a block, or a warp, for each result where rows are reduced; a thread where columns are.

What is reduced is cut into slices where there are few results, which a second launch puts together. The order of all
sums is that of the sizes alone: a result has the same bits every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Input,
    Launch,
    Output,
    Scratch,
    source_of,
)
from graphkit.executor.devices.cuda.text.axes import Axes, parted
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.joining import joined, threads_for
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


def reduction(name: str, x: Sequence[int], axes: Sequence[int], kind: DType) -> CardKernel | None:
    """The kernel of FUNCTIONS[name] over `axes` of an operand of shape `x`; None where there is none."""
    function = FUNCTIONS[name]
    if kind not in STORED or kind is DType.BOOL or (function.floats and kind not in FLOATS):
        return None
    if math.prod(x) == 0:
        return None
    kept, reduced = parted(x, axes)
    return _Reduction(name, function, kind, DType.FLOAT32 if kind in HALVES else kind, kept, reduced).kernel()


@dataclass(frozen=True)
class _Reduction:
    """stored: the type of elements in memory, held: of partial results."""

    name: str
    function: Function
    stored: DType
    held: DType
    kept: Axes
    reduced: Axes

    @property
    def by_rows(self) -> bool:
        """Whether neighbours in memory are reduced to one, rather than side by side."""
        return self.kept.strides[0][-1] != 1

    @property
    def together(self) -> int:
        """Threads that make one result."""
        return threads_for(self.reduced.elements) if self.by_rows else 1

    @property
    def short(self) -> bool:
        return self.kept.elements * self.reduced.elements + THREADS < 1 << 31

    def kernel(self) -> CardKernel:
        results, count = self.kept.elements, self.reduced.elements
        slices = max(min(-(-_BUSY // (results * self.together)), count // (_LEAST * self.together)), 1)
        length = -(-count // slices)
        slices = -(-count // length)
        if slices == 1:
            return CardKernel((self._launch(1, count, Input(0), Output(0), first=True, into=self.stored),))
        inner, outer = (1, slices) if self.by_rows else (results, 1)
        second = replace(
            self,
            stored=self.held,
            kept=Axes((results,), ((outer,),)),
            reduced=Axes((slices,), ((inner,),)),
        )
        launches = (
            self._launch(slices, length, Input(0), Scratch(0), first=True),
            second._launch(1, slices, Scratch(0), Output(0), whole=count, into=self.stored),
        )
        return CardKernel(launches, scratch_bytes=results * slices * self.held.itemsize)

    def _launch(
        self,
        slices: int,
        length: int,
        x: Argument,
        y: Argument,
        *,
        first: bool = False,
        whole: int = 0,
        into: DType | None = None,
    ) -> Launch:
        """One pass over slices of `length`. first: it applies the function's element. whole: what is reduced in all,
        where that is not what this pass reduces. into: the type of results, if they are the last ones."""
        kept, reduced = (
            Coordinates(name, len(axes.sizes), self.short) for name, axes in (("k", self.kept), ("r", self.reduced))
        )
        index, results, count = kept.index, self.kept.elements, self.reduced.elements
        sizes = dict(results=results, slices=slices, length=length, count=count, whole=whole or count)
        sizes |= {f"kstep{axis}": stride for axis, stride in enumerate(self.kept.strides[0])}
        sizes |= {f"rstep{axis}": stride for axis, stride in enumerate(self.reduced.strides[0])}
        parameters = [
            f"const {STORED[self.stored]}* x", f"{STORED[into or self.held]}* y",
            *(f"{index} {name}" for name in sizes), *kept.parameters(), *reduced.parameters(),
        ]  # fmt: skip
        arguments: tuple[Argument, ...] = (
            x, y, *map(kept.number, sizes.values()),
            *kept.arguments(self.kept.sizes), *reduced.arguments(self.reduced.sizes),
        )  # fmt: skip
        lines = [*self._place(index), *self._loop(kept, reduced, first=first)]
        lines += joined("part", self.function.join, self.together)
        written = self.function.last if into else "a"
        lines += ["const A a = part;", "if (lane == 0) {", f"    gk_write(y[unit], {written});", "}"]
        source = source_of(f"reduce_{self.name}", parameters, lines)
        # Columns: blocks of one slice, so that their threads lie side by side.
        per_block = THREADS // self.together
        blocks = -(-results * slices // per_block) if self.by_rows else -(-results // per_block) * slices
        return Launch(source, blocks, arguments)

    def _place(self, index: str) -> list[str]:
        """What the thread makes, `unit`: slice `slice` of result `at`; `lane`: its number among those that make it."""
        together, per_block = self.together, THREADS // self.together
        if self.by_rows:
            return [
                f"const {index} unit = ({index})blockIdx.x * {per_block}u + threadIdx.x / {together}u;",
                f"const {index} lane = threadIdx.x % {together}u;",
                "if (unit >= results * slices) {", "    return;", "}",
                f"const {index} at = unit / slices;", f"const {index} slice = unit % slices;",
            ]  # fmt: skip
        return [
            f"const {index} tiles = (results + {THREADS - 1}u) / {THREADS}u;",
            f"const {index} at = blockIdx.x % tiles * {THREADS}u + threadIdx.x;",
            f"const {index} slice = blockIdx.x / tiles;",
            f"const {index} unit = slice * results + at;",
            "if (at >= results) {", "    return;", "}",
            f"const {index} lane = 0;",
        ]  # fmt: skip

    def _loop(self, kept: Coordinates, reduced: Coordinates, *, first: bool) -> list[str]:
        """The partial result of the thread, `part`."""
        index = kept.index
        outer, places = kept.lines("at")
        base = " + ".join(f"{p} * kstep{axis}" for axis, p in enumerate(places))
        inner, steps = reduced.lines("r")
        offset = " + ".join(f"{p} * rstep{axis}" for axis, p in enumerate(steps))
        return [
            f"typedef {STORED[self.held]} A;", *outer,
            f"const {STORED[self.stored]}* from = x + {base};",
            f"const {index} end = slice * length + length < count ? slice * length + length : count;",
            f"A part = {self.function.first};",
            f"for ({index} r = slice * length + lane; r < end; r += {self.together}u) {{",
            *("    " + line for line in inner),
            f"    const A x = gk_read(from[{offset}]);",
            f"    const A a = part, b = {self.function.element if first else 'x'};",
            f"    part = {self.function.join};",
            "}",
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
