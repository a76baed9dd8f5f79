"""Strided copies: regular views (Transpose, Slice and others), Concat, Split.

Only the size of elements matters. If elements are adjacent in source and target, up to 16 bytes are copied at a time.
If source and target are contiguous along different axes, tiles are transposed in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Input,
    Launch,
    Output,
    launched,
    source_of,
)
from graphkit.executor.devices.cuda.text.axes import merged
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, row_major, shape
from graphkit.executor.devices.views import VIEWS
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import operator
from graphkit.ops.tensor.concat import Concat, Split

# C types by the number of bytes that are copied at a time.
UNITS = {1: "gk_u8", 2: "gk_u16", 4: "gk_u32", 8: "gk_u64", 16: "gk_pair"}


class End(NamedTuple):
    """The layout of the source or the target of a copy: strides along the axes and an offset, both in elements."""

    strides: tuple[int, ...]
    offset: int = 0


class _Copy(NamedTuple):
    sizes: tuple[int, ...]
    source: End
    target: End
    unit: int  # bytes


def _widened(copy: _Copy) -> _Copy:
    """Return the same copy with the largest unit, up to 16 bytes, that both layouts allow."""
    ends = copy.source, copy.target
    if any(end.strides[-1] != 1 for end in ends):
        return copy
    times = 16 // copy.unit
    for number in (copy.sizes[-1], *(n for end in ends for n in (*end.strides[:-1], end.offset))):
        times = math.gcd(times, number)
    source, target = (End((*(s // times for s in end.strides[:-1]), 1), end.offset // times) for end in ends)
    return _Copy((*copy.sizes[:-1], copy.sizes[-1] // times), source, target, copy.unit * times)


def copied(sizes: Sequence[int], source: End, target: End, unit: int, x: Argument, y: Argument) -> Launch | None:
    """Return the launch that copies elements of `unit` bytes; None if there are none, or the size is not supported."""
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
    short = max(count + THREADS, *reach) < 1 << 31
    across = _across(copy)
    if across is not None:
        return _in_tiles(copy, across, short, x, y)
    places = Coordinates("i", len(copy.sizes), short)
    found, coordinates = places.lines("at")
    given, lines = _ends(copy, places, x, y)
    found += lines("from", coordinates) + lines("to", coordinates)
    return for_each("copy", copy.sizes, places, given, [*found, "y[to_at] = x[from_at];"])


def _ends(
    copy: _Copy, places: Coordinates, x: Argument, y: Argument
) -> tuple[list[tuple[str, Argument]], Callable[[str, Sequence[str]], list[str]]]:
    """Return parameters with arguments, and a function that returns the line for an element's index in one layout."""
    kind, signed = UNITS[copy.unit], "gk_i32" if places.short else "gk_i64"
    given: list[tuple[str, Argument]] = [(f"const {kind}* x", x), (f"{kind}* y", y)]
    for name, end in (("from", copy.source), ("to", copy.target)):
        given += [(f"{places.index} {name}{axis}", places.number(s)) for axis, s in enumerate(end.strides)]
        given.append((f"{places.index} {name}", places.number(end.offset)))

    def lines(name: str, coordinates: Sequence[str]) -> list[str]:
        terms = [name, *(f"{place} * {name}{axis}" for axis, place in enumerate(coordinates))]
        # Strides may be negative. Unsigned sums wrap around to the right index.
        return [f"const {signed} {name}_at = {' + '.join(terms)};"]

    return given, lines


# --- transposition ----------------------------------------------------------------------------------

# Size of a block's tile along both axes, and the least size of an axis for which tiles are faster.
_TILE, _LEAST_ACROSS = 32, 16


def _across(copy: _Copy) -> int | None:
    """Return the axis along which the source is contiguous, if the target is contiguous along the last axis instead.

    None if tiles cannot be used, or an axis is too short for them.
    """
    last = len(copy.sizes) - 1
    if copy.target.strides[-1] != 1 or copy.source.strides[-1] == 1 or copy.sizes[-1] < _LEAST_ACROSS:
        return None
    found = (a for a in range(last) if copy.source.strides[a] == 1 and copy.sizes[a] >= _LEAST_ACROSS)
    return next(found, None)


def _in_tiles(copy: _Copy, across: int, short: bool, x: Argument, y: Argument) -> Launch:
    """Return a launch that copies tiles through shared memory, so that reads and writes are both contiguous."""
    last = len(copy.sizes) - 1
    others = [axis for axis in range(last) if axis != across]
    tiles = (*(copy.sizes[axis] for axis in others), *(-(-copy.sizes[axis] // _TILE) for axis in (across, last)))
    places = Coordinates("i", len(tiles), short)
    found, numbers = places.lines("gk_block")
    given, lines = _ends(copy, places, x, y)
    given += [(f"{places.index} across", places.number(copy.sizes[across]))]
    given += [(f"{places.index} along", places.number(copy.sizes[last])), *places.given(tiles)]
    coordinates = dict(zip(others, numbers, strict=False)) | {across: "a", last: "b"}
    where = [coordinates[axis] for axis in range(last + 1)]

    def each(a: str, b: str, body: Sequence[str]) -> list[str]:
        return [
            f"for (unsigned i = threadIdx.x / {_TILE}u; i < {_TILE}u; i += {THREADS // _TILE}u) {{",
            f"    const {places.index} a = {numbers[-2]} * {_TILE}u + {a}, b = {numbers[-1]} * {_TILE}u + {b};",
            "    if (a < across && b < along) {",
            *("        " + line for line in body),
            "    }",
            "}",
        ]

    side = f"threadIdx.x % {_TILE}u"
    return Launch(
        source_of(
            "transpose",
            [text for text, _ in given],
            [
                f"__shared__ {UNITS[copy.unit]} tile[{_TILE}][{_TILE + 1}];",
                *found,
                *each(side, "i", [*lines("from", where), f"tile[i][{side}] = x[from_at];"]),
                "__syncthreads();",
                *each("i", side, [*lines("to", where), f"y[to_at] = tile[{side}][i];"]),
            ],
        ),
        math.prod(tiles),
        tuple(argument for _, argument in given),
    )


def unit_of(value: Value | None) -> int:
    """Return the bytes of an element; 0 if elements are not numbers."""
    assert value is not None
    is_number = isinstance(value.type, TensorType) and value.dtype.numpy.kind != "O"
    return value.dtype.numpy.itemsize if is_number else 0


def _kernel(node: Node, launches: Sequence[Launch | None]) -> CardKernel | None:
    """Return the kernel of several copies; None if elements of this type cannot be copied."""
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
    launched(_name)(_view)


def _parts(whole: Sequence[int], axis: int, sizes: Sequence[int]) -> list[tuple[tuple[int, int], End, End]]:
    """Return, for each part along an axis: outer and inner size, its own layout, and its layout in the whole array."""
    outer, length, inner = around(whole, axis)
    found, done = [], 0
    for size in sizes:
        found.append(((outer, size * inner), End((size * inner, 1)), End((length * inner, 1), done * inner)))
        done += size
    return found


@launched("Concat")
def _concat(node: Node, context: KernelContext) -> CardKernel | None:
    axis, whole = operator(node, Concat).axis, shape(node.output)
    parts = _parts(whole, axis, [shape(x)[axis] for x in node.inputs])
    unit = unit_of(node.output)
    return _kernel(
        node, [copied(sizes, own, place, unit, Input(i), Output(0)) for i, (sizes, own, place) in enumerate(parts)]
    )


@launched("Split")
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
