"""Elements that are moved: regular views, parts that are joined or split.

Elements are known by their size alone, and as many neighbours as lie side by side on both ends are moved at once, up to
16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Input, Launch, Output
from graphkit.executor.devices.cuda.text.axes import merged
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, row_major, shape
from graphkit.executor.devices.registry import register_launched
from graphkit.executor.devices.views import VIEWS
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops._base import operator
from graphkit.ops.tensor.concat import Concat, Split

# C types by the bytes that are moved at once.
UNITS = {1: "gk_u8", 2: "gk_u16", 4: "gk_u32", 8: "gk_u64", 16: "gk_pair"}


class End(NamedTuple):
    """Where elements lie on one end: strides along the axes, and an offset, in elements."""

    strides: tuple[int, ...]
    offset: int = 0


class _Copy(NamedTuple):
    sizes: tuple[int, ...]
    source: End
    target: End
    unit: int  # bytes


def _widened(copy: _Copy) -> _Copy:
    """As many elements at once as begin at multiples of so many bytes on both ends."""
    ends = copy.source, copy.target
    if any(end.strides[-1] != 1 for end in ends):
        return copy
    times = 16 // copy.unit
    for number in (copy.sizes[-1], *(n for end in ends for n in (*end.strides[:-1], end.offset))):
        times = math.gcd(times, number)
    source, target = (End((*(s // times for s in end.strides[:-1]), 1), end.offset // times) for end in ends)
    return _Copy((*copy.sizes[:-1], copy.sizes[-1] // times), source, target, copy.unit * times)


def copied(sizes: Sequence[int], source: End, target: End, unit: int, x: Argument, y: Argument) -> Launch | None:
    """The launch that moves elements of `unit` bytes; None without one, or for a size that there is no move for."""
    count = math.prod(sizes)
    if count == 0 or unit not in UNITS:
        return None
    axes = merged(sizes, source.strides, target.strides)
    x_strides, y_strides = axes.strides
    copy = _widened(_Copy(axes.sizes, End(x_strides, source.offset), End(y_strides, target.offset), unit))
    reach = [
        abs(end.offset) + sum(abs(s) * n for s, n in zip(end.strides, copy.sizes, strict=True))
        for end in (copy.source, copy.target)
    ]
    places = Coordinates("i", len(copy.sizes), max(count + THREADS, *reach) < 1 << 31)
    kind, signed = UNITS[copy.unit], "gk_i32" if places.short else "gk_i64"
    found, coordinates = places.lines("at")
    given: list[tuple[str, Argument]] = [(f"const {kind}* x", x), (f"{kind}* y", y)]
    for name, end in (("from", copy.source), ("to", copy.target)):
        given += [(f"{places.index} {name}{axis}", places.number(s)) for axis, s in enumerate(end.strides)]
        given.append((f"{places.index} {name}", places.number(end.offset)))
        terms = [name, *(f"{place} * {name}{axis}" for axis, place in enumerate(coordinates))]
        # Strides may be negative: sums wrap around to the number that they stand for.
        found.append(f"const {signed} {name}_at = {' + '.join(terms)};")
    return for_each("copy", copy.sizes, places, given, [*found, "y[to_at] = x[from_at];"])


def unit_of(value: Value | None) -> int:
    """Bytes of an element; 0 for what is no number."""
    assert value is not None
    is_number = isinstance(value.type, TensorType) and value.dtype.numpy.kind != "O"
    return value.dtype.numpy.itemsize if is_number else 0


def _kernel(node: Node, launches: Sequence[Launch | None]) -> CardKernel | None:
    """Of several copies; None where the elements cannot be moved."""
    if any(unit_of(v) not in UNITS for v in (node.inputs[0], node.outputs[0])):
        return None
    return CardKernel(tuple(launch for launch in launches if launch is not None))


def _view(node: Node, context: KernelContext) -> CardKernel | None:
    view = VIEWS[node.op.name](node)
    if view is None:
        return None
    source, target = End(view.strides, view.offset), End(tuple(row_major(view.sizes)))
    return _kernel(node, [copied(view.sizes, source, target, unit_of(node.inputs[0]), Input(0), Output(0))])


for _name in VIEWS:
    register_launched("cuda", "", _name)(_view)


def _parts(whole: Sequence[int], axis: int, sizes: Sequence[int]) -> list[tuple[tuple[int, int], End, End]]:
    """Of parts along an axis: outer and inner sizes, how they lie in themselves, and how in the whole."""
    outer, length, inner = around(whole, axis)
    found, done = [], 0
    for size in sizes:
        found.append(((outer, size * inner), End((size * inner, 1)), End((length * inner, 1), done * inner)))
        done += size
    return found


@register_launched("cuda", "", "Concat")
def _concat(node: Node, context: KernelContext) -> CardKernel | None:
    axis, whole = operator(node, Concat).axis, shape(node.output)
    parts = _parts(whole, axis, [shape(x)[axis] for x in node.inputs])
    unit = unit_of(node.output)
    return _kernel(
        node, [copied(sizes, own, place, unit, Input(i), Output(0)) for i, (sizes, own, place) in enumerate(parts)]
    )


@register_launched("cuda", "", "Split")
def _split(node: Node, context: KernelContext) -> CardKernel | None:
    axis, whole = operator(node, Split).axis, shape(node.inputs[0])
    parts = _parts(whole, axis, [shape(y)[axis] for y in node.outputs])
    used = [*context.used_outputs, *[True] * len(parts)]
    unit = unit_of(node.inputs[0])
    return _kernel(
        node,
        [
            copied(sizes, place, own, unit, Input(0), Output(i)) if used[i] else None
            for i, (sizes, own, place) in enumerate(parts)
        ],
    )
