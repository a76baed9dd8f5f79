"""Windows that slide over spatial axes: a thread for each result, or for each element that windows contain.

Loops over the elements of a window, or over the windows that contain an element, are in row-major order. Their bounds
exclude padding. Sizes, strides and paddings are arguments. The number of axes, and whether windows are dilated, are
part of the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Argument, Launch
from graphkit.executor.devices.cuda.text.indexing import Coordinates, Divisor, for_each
from graphkit.executor.devices.operands import row_major
from graphkit.ops.nn.sliding_window import Window

# The largest number of spatial axes.
MOST_AXES = 3


@dataclass(frozen=True)
class Windows:
    """Windows in x: [lead, channels, *spatial], with results in y: [lead, channels, *positions].

    Attributes:
        lead, channels: Sizes of the axes of planes.
        spatial, positions: Sizes of a plane of x and of y.
        window: Sizes, strides, dilations and padding of windows.
        last: In memory, channels are the last axis.
        each: Number of elements of y for each position.
        beside: Adjacent channels that a thread computes, if `last`. It divides `channels`.
    """

    lead: int
    channels: int
    spatial: tuple[int, ...]
    positions: tuple[int, ...]
    window: Window
    last: bool = False
    each: int = 1
    beside: int = 1

    @property
    def axes(self) -> range:
        return range(len(self.spatial))

    @property
    def dilated(self) -> bool:
        return any(d > 1 for d in self.window.dilations)

    @property
    def elements(self) -> int:
        """Number of elements of a window."""
        return math.prod(self.window.kernel)

    @property
    def short(self) -> bool:
        """Whether 32 bits are enough for all indices, and for all positions of windows, also in padding."""
        planes, w = self.lead * self.channels, self.window
        axes = zip(self.spatial, self.positions, w.kernel, w.strides, w.dilations, w.begin, w.end, strict=True)
        reach = [size + p * s + k * d + abs(b) + abs(e) for size, p, k, s, d, b, e in axes]
        counts = planes * math.prod(self.spatial), planes * math.prod(self.positions) * self.each, self.elements
        return bool(max(*counts, *reach) + THREADS < 1 << 31)

    @property
    def places(self) -> Coordinates:
        return Coordinates("i", len(self.spatial) + (2 if self.last else 1), self.short)

    @property
    def signed(self) -> str:
        """The C type of positions along axes. They may be negative."""
        return "gk_i32" if self.short else "gk_i64"

    def number(self, value: int) -> np.generic:
        """Return a number as an argument of the type `signed`."""
        return np.int32(value) if self.short else np.int64(value)

    @property
    def all_filled(self) -> bool:
        """Whether every window has an element that is not padding."""
        w = self.window
        for size, count, kernel, stride, dilation, begin in zip(
            self.spatial, self.positions, w.kernel, w.strides, w.dilations, w.begin, strict=True
        ):
            start = np.arange(count) * stride - begin
            # The first element of the window that is not before the axis.
            first = np.maximum(-(start // dilation), 0)
            if not np.all((first < kernel) & (start + first * dilation < size)):
                return False
        return True

    # --- launches -------------------------------------------------------------------------------------

    def over_y(self, name: str, given: Sequence[tuple[str, Argument]], lines: Sequence[str]) -> Launch:
        """Return the launch with a thread for each element of y, with index `at`. Lines may include `elements_of`."""
        return self._launch(name, self.positions, given, lines)

    def over_x(self, name: str, given: Sequence[tuple[str, Argument]], lines: Sequence[str]) -> Launch:
        """Return the launch with a thread for each element of x, with index `at`. Lines may include `around`."""
        divisors = [pair for a in self.axes for pair in self._every(a).given(self.window.strides[a])]
        return self._launch(name, self.spatial, [*given, *divisors], lines)

    def _every(self, axis: int) -> Divisor:
        """Return the stride along an axis as a divisor."""
        return Divisor(f"every{axis}", self.short)

    def _launch(
        self, name: str, axes: tuple[int, ...], given: Sequence[tuple[str, Argument]], lines: Sequence[str]
    ) -> Launch:
        sizes = (self.lead * self.channels, *axes)
        if self.last:
            sizes = (self.lead, *axes, self.channels // self.beside)
        found, coordinates = self.places.lines("at")
        index = self.places.index
        outer, inner = coordinates[0], coordinates[-1] if self.last else "0"
        if self.beside > 1:
            inner = f"{inner} * {self.beside}u"
        begin = [
            *found,
            f"const {index} plane = {outer}, within = {inner};",
            *(f"const {self.signed} p{axis} = ({self.signed}){coordinates[1 + axis]};" for axis in self.axes),
        ]
        return for_each(name, sizes, self.places, [*given, *self.given()], [*begin, *lines])

    def given(self) -> list[tuple[str, Argument]]:
        """Return the parameters for the axes, with arguments."""
        w, far = self.window, self.channels if self.last else 1
        columns: dict[str, Sequence[int]] = {
            "size": self.spatial, "positions": self.positions, "kernel": w.kernel, "stride": w.strides,
            "begin": w.begin, "end": w.end,
            "xstep": [far * step for step in row_major(self.spatial)],
            "ystep": [far * step for step in row_major(self.positions)],
        }  # fmt: skip
        if self.dilated:
            columns["dilation"] = w.dilations
        found: list[tuple[str, Argument]] = [
            (f"{self.signed} {name}{axis}", self.number(of[axis])) for name, of in columns.items() for axis in self.axes
        ]
        for name, sizes in (("xplane", self.spatial), ("yplane", self.positions)):
            found.append((f"{self.places.index} {name}", self.places.number(far * math.prod(sizes))))
        return found

    # --- loops ----------------------------------------------------------------------------------------

    def elements_of(self, lines: Sequence[str]) -> list[str]:
        """Return loops that run `lines` for each element of the window of an element of y.

        In `lines`, k0, k1, ... is the position in the window, and `from` the index in x.
        """
        signed, index = self.signed, self.places.index
        before = [line for a in self.axes for line in self.begun(a)]
        offset = f"plane * xplane + within{''.join(f' + ({index})({self.place(a)}) * xstep{a}' for a in self.axes)}"
        loops: list[tuple[str, list[str]]] = [
            (f"{signed} k{a} = first{a}; k{a} < last{a}; ++k{a}", []) for a in self.axes
        ]
        return [*before, *nested(loops, [f"const {index} from = {offset};", *lines])]

    def begun(self, a: int) -> list[str]:
        """Return lines that declare where the window starts along an axis, `start`, and which of its elements are in x.

        The elements are those from `first` to `last` (excluded).
        """
        start = f"const {self.signed} start{a} = p{a} * stride{a} - begin{a};"
        return [start, *self._span(a, "first", "last", "0", f"size{a}")]

    def place(self, axis: int) -> str:
        """Return the expression of the position of element k of a window along an axis."""
        return f"start{axis} + k{axis}" + (f" * dilation{axis}" if self.dilated else "")

    def _span(self, a: int, first: str, last: str, low: str, high: str) -> list[str]:
        """Return lines that declare which elements of the window at `start` are at positions from `low` to `high`.

        The elements are those from `first` to `last`. Both `high` and `last` are excluded.
        """
        up, rounded = (f" / dilation{a}", f" + dilation{a} - 1") if self.dilated else ("", "")
        return [
            f"const {self.signed} {first}{a} = start{a} < {low} ? ({low} - start{a}{rounded}){up} : 0;",
            f"const {self.signed} reach_{last}{a} = ({high} - start{a}{rounded}){up};",
            f"const {self.signed} {last}{a} = reach_{last}{a} < kernel{a} ? reach_{last}{a} : kernel{a};",
        ]

    def counted(self, a: int, *, padded: bool) -> list[str]:
        """Return lines that declare `count`: the elements of the window at `start` along an axis.

        padded: Count elements in padding, too.
        """
        low, high = (f"-begin{a}", f"size{a} + end{a}") if padded else ("0", f"size{a}")
        signed = self.signed
        return [
            *self._span(a, "counted_from", "counted_to", low, high),
            f"const {signed} count{a} = counted_to{a} > counted_from{a} ? counted_to{a} - counted_from{a} : 0;",
        ]

    def around(self, lines: Sequence[str], inside: dict[int, list[str]] | None = None) -> list[str]:
        """Return loops that run `lines` for each window that contains an element of x.

        In `lines`, `from` is the index of the window in y, and k0, k1, ... is the position of the element in it.

        inside: Lines at the beginning of the loop over an axis. They can use `start`, the position of the window.
        """
        signed, index = self.signed, self.places.index
        before: list[str] = []
        loops: list[tuple[str, list[str]]] = []
        for a in self.axes:
            span = f"(kernel{a} - 1)" + (f" * dilation{a}" if self.dilated else "")
            # From the first window that does not end before the element to the last one that does not begin after it.
            behind, up_to = (
                self._every(a).quotient(f"({index})({dividend})")
                for dividend in (f"far{a} - {span} + stride{a} - 1", f"far{a} < 0 ? 0 : far{a}")
            )
            before += [
                f"const {signed} far{a} = p{a} + begin{a};",
                f"const {signed} first{a} = far{a} > {span} ? ({signed})({behind}) : 0;",
                f"const {signed} reach{a} = far{a} < 0 ? 0 : ({signed})({up_to}) + 1;",
                f"const {signed} last{a} = reach{a} < positions{a} ? reach{a} : positions{a};",
            ]
            within = [f"const {signed} start{a} = w{a} * stride{a} - begin{a};"]
            if self.dilated:
                within += [
                    f"if ((p{a} - start{a}) % dilation{a} != 0) {{", "    continue;", "}",
                    f"const {signed} k{a} = (p{a} - start{a}) / dilation{a};",
                ]  # fmt: skip
            else:
                within.append(f"const {signed} k{a} = p{a} - start{a};")
            loops.append((f"{signed} w{a} = first{a}; w{a} < last{a}; ++w{a}", [*within, *(inside or {}).get(a, [])]))
        offset = "plane * yplane + within" + "".join(f" + ({index})w{a} * ystep{a}" for a in self.axes)
        return [*before, *nested(loops, [f"const {index} from = {offset};", *lines])]

    def number_in_window(self) -> str:
        """Return the number of element k0, k1, ... of a window, in row-major order."""
        return self.number_along(self.axes)

    @staticmethod
    def number_along(axes: Sequence[int]) -> str:
        """Return the row-major number of an element among those along some axes of a window."""
        number = ""
        for a in axes:
            number = f"({number}) * kernel{a} + k{a}" if number else f"k{a}"
        return number or "0"


def nested(loops: Sequence[tuple[str, list[str]]], lines: Sequence[str]) -> list[str]:
    """Return nested loops around lines. loops: head and first lines of the body of each loop, the outermost first.

    They are not unrolled, because windows are usually smaller than the factor by which a compiler unrolls.
    """
    for head, first in reversed(loops):
        lines = ["#pragma unroll 1", f"for ({head}) {{", *("    " + line for line in (*first, *lines)), "}"]
    return list(lines)
