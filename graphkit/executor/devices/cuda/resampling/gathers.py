"""Elements copied from places that are known along each axis: padding, nearest elements.

A thread copies one element, or as many neighbours as 16 bytes hold along axes that stay as they are. Each element of
the result is written once; what it is copied from is read as often as it is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Input, Output
from graphkit.executor.devices.cuda.movement.copies import UNITS
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.operands import row_major

# Of the number of an axis, such as 0, and the type of places: lines that make `place0` of the coordinate `i0_at`, and
# what they are given.
Places = Callable[[int, str], tuple[list[str], list[tuple[str, Argument]]]]


class Along(NamedTuple):
    """An axis of `size` elements, and of `results`: where these are copied from, None: from where they are.

    outside: whether a place may lie before or behind the axis, which stands for the fill value.
    """

    size: int
    results: int
    places: Places | None = None
    outside: bool = False


def joined_axes(axes: Sequence[Along]) -> list[Along]:
    """Neighbours that stay as they are as one axis."""
    kept: list[Along] = []
    for axis in axes:
        if axis.places is None and kept and kept[-1].places is None:
            size = kept[-1].size * axis.size
            kept[-1] = Along(size, size)
        else:
            kept.append(axis)
    return kept or [Along(1, 1)]


def gathered(name: str, axes: Sequence[Along], unit: int, fill: tuple[str, Argument] | None) -> CardKernel | None:
    """The kernel that copies elements of `unit` bytes; None for a size that there is no move for.

    fill: the C expression of the fill value, and the operand or the number that it names as `fill`; None for zeros.
    """
    if unit not in UNITS or any(axis.size >= 1 << 31 for axis in axes if axis.places is not None):
        return None
    if math.prod(axis.results for axis in axes) == 0:
        return CardKernel(())
    axes = joined_axes(axes)
    wide = math.gcd(16 // unit, axes[-1].size) if axes[-1].places is None else 1
    last = axes[-1]._replace(size=axes[-1].size // wide, results=axes[-1].results // wide)
    return _launched(name, [*axes[:-1], last], UNITS[unit], wide, fill)


def _launched(name: str, axes: Sequence[Along], kind: str, wide: int, fill: tuple[str, Argument] | None) -> CardKernel:
    """Of elements of `wide` times a C type."""
    sizes, results = [axis.size for axis in axes], [axis.results for axis in axes]
    coordinates = Coordinates("i", len(axes), max(math.prod(sizes), math.prod(results)) + THREADS < 1 << 31)
    index, signed = coordinates.index, "gk_i32" if coordinates.short else "gk_i64"
    moved = kind if wide == 1 else f"gk_pack<{kind}, {wide}>"
    given: list[tuple[str, Argument]] = [(f"const {moved}* x", Input(0)), (f"{moved}* y", Output(0))]
    lines, places = coordinates.lines("at")
    terms, inside = [], []
    for a, (axis, place, step) in enumerate(zip(axes, places, row_major(sizes), strict=True)):
        given.append((f"{index} step{a}", coordinates.number(step)))
        if axis.places is None:
            terms.append(f"{place} * step{a}")
            continue
        more, known = axis.places(a, signed)
        given += known
        lines += [f"const {signed} i{a}_at = ({signed}){place};", *more]
        terms.append(f"({index})place{a} * step{a}")
        if axis.outside:
            given.append((f"{index} size{a}", coordinates.number(axis.size)))
            inside.append(f"({index})place{a} < size{a}")
    copy = f"y[at] = x[{' + '.join(terms)}];"
    if not inside:
        lines.append(copy)
    else:
        given += [] if fill is None else [(_declared(fill[1], kind), fill[1])]
        lines += [f"if ({' && '.join(inside)}) {{", f"    {copy}", "    return;", "}"]
        value = f"{kind}()" if fill is None else fill[0]
        if wide == 1:
            lines.append(f"y[at] = {value};")
        else:
            each = [f"for (int k = 0; k < {wide}; ++k) {{", f"    filled.e[k] = {value};", "}"]
            lines += [f"{moved} filled;", *each, "y[at] = filled;"]
    return CardKernel((for_each(name, results, coordinates, given, lines),))


def _declared(fill: Argument, kind: str) -> str:
    return f"const {kind}* fill" if isinstance(fill, Input) else f"{kind} fill"
