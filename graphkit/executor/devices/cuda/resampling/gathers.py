"""Copies of elements by an index that is computed for each axis: padding, nearest-neighbour resizing.

A thread copies one element; or up to 16 bytes of adjacent elements, if the innermost axes are unchanged. Each element
of the result is written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Input, Output
from graphkit.executor.devices.cuda.movement.copies import UNITS
from graphkit.executor.devices.cuda.resampling.axis import Axis, joined_axes
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.operands import row_major

# A function of the number of an axis, such as 0, and the C type of positions. It returns lines that compute the
# position `place0` in the operand from the coordinate `i0_at` of the result; and their parameters with the arguments.
Places = Callable[[int, str], tuple[list[str], list[tuple[str, Argument]]]]


@dataclass(frozen=True)
class Along(Axis):
    """An axis whose results are copied from `places`.

    outside: whether a position may be before or after the axis. The result is then the fill value.
    """

    places: Places
    outside: bool = False


def gathered(name: str, axes: Sequence[Axis], unit: int, fill: tuple[str, Argument] | None) -> CardKernel | None:
    """Return the kernel that copies elements of `unit` bytes; None for an unsupported size.

    fill: the C expression of the fill value, and the operand or number that it calls `fill`; None for zeros.
    """
    if unit not in UNITS or any(isinstance(axis, Along) and axis.size >= 1 << 31 for axis in axes):
        return None
    if math.prod(axis.results for axis in axes) == 0:
        return CardKernel(())
    axes = joined_axes(axes)
    wide = 1 if isinstance(axes[-1], Along) else math.gcd(16 // unit, axes[-1].size)
    last = replace(axes[-1], size=axes[-1].size // wide, results=axes[-1].results // wide)
    return _launched(name, [*axes[:-1], last], UNITS[unit], wide, fill)


def _launched(name: str, axes: Sequence[Axis], kind: str, wide: int, fill: tuple[str, Argument] | None) -> CardKernel:
    """Return the kernel of `gathered` for units of `wide` elements of the C type `kind`."""
    sizes, results = [axis.size for axis in axes], [axis.results for axis in axes]
    coordinates = Coordinates("i", len(axes), max(math.prod(sizes), math.prod(results)) + THREADS < 1 << 31)
    index, signed = coordinates.index, "gk_i32" if coordinates.short else "gk_i64"
    moved = kind if wide == 1 else f"gk_pack<{kind}, {wide}>"
    given: list[tuple[str, Argument]] = [(f"const {moved}* x", Input(0)), (f"{moved}* y", Output(0))]
    lines, places = coordinates.lines("at")
    terms, inside = [], []
    for a, (axis, place, step) in enumerate(zip(axes, places, row_major(sizes), strict=True)):
        given.append((f"{index} step{a}", coordinates.number(step)))
        if not isinstance(axis, Along):
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
