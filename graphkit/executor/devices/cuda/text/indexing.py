"""Where an element lies: from a linear index to coordinates, by multiplication where indices have 32 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Argument, Launch, source_of


def magic(divisor: int) -> tuple[int, int]:
    """Multiplier and shift of `gk_quotient`: n // divisor == (umulhi(n, multiplier) + n) >> shift for n < 2^31.

    Granlund and Montgomery 1994, figure 4.1.
    """
    shift = max(divisor - 1, 0).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


@dataclass(frozen=True)
class Divisor:
    """A number that a kernel divides by, an argument of it: `name` is its name there.

    short: what is divided has 32 bits and stays below 2^31.
    """

    name: str
    short: bool

    def parameters(self) -> list[str]:
        if not self.short:
            return [f"gk_u64 {self.name}"]
        return [f"gk_u32 {self.name}", f"gk_u32 {self.name}_mul", f"gk_u32 {self.name}_shift"]

    def arguments(self, value: int) -> list[np.generic]:
        return [*map(np.uint32, (value, *magic(value)))] if self.short else [np.uint64(value)]

    def given(self, value: int) -> tuple[tuple[str, Argument], ...]:
        """The parameters with what they are given."""
        return tuple(zip(self.parameters(), self.arguments(value), strict=True))

    def quotient(self, dividend: str) -> str:
        """The expression of dividend / divisor."""
        if not self.short:
            return f"{dividend} / {self.name}"
        return f"gk_quotient({dividend}, {self.name}_mul, {self.name}_shift)"


@dataclass(frozen=True)
class Coordinates:
    """The axes that a linear index goes through, the outermost first; `name` tells several in one kernel apart.

    short: indices have 32 bits and stay below 2^31.
    """

    name: str
    rank: int
    short: bool

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    def number(self, value: int) -> np.generic:
        """A number as a kernel has it among indices; a negative one stands for what sums with it wrap around to."""
        return np.uint32(value & 0xFFFFFFFF) if self.short else np.uint64(value & 0xFFFFFFFFFFFFFFFF)

    def parameters(self) -> list[str]:
        """The sizes of all axes but the outermost."""
        return [text for axis in range(1, self.rank) for text in self._size(axis).parameters()]

    def arguments(self, sizes: Sequence[int]) -> list[np.generic]:
        """sizes: of all axes."""
        return [number for axis in range(1, self.rank) for number in self._size(axis).arguments(sizes[axis])]

    def given(self, sizes: Sequence[int]) -> tuple[tuple[str, Argument], ...]:
        """The parameters with what they are given; sizes: of all axes."""
        return tuple(zip(self.parameters(), self.arguments(sizes), strict=True))

    def _size(self, axis: int) -> Divisor:
        return Divisor(f"{self.name}size{axis}", self.short)

    @property
    def line(self) -> str:
        """The number of the line along the innermost axis, of two at least, behind `lines`."""
        return self.line_along(self.rank - 1)

    def line_along(self, axis: int) -> str:
        """The same of another axis than the outermost, where further ones are inside of it."""
        return f"{self.name}q{axis}"

    def lines(self, linear: str) -> tuple[list[str], list[str]]:
        """What takes the expression `linear` apart, and the coordinates' expressions."""
        lines, places, rest = [], [], linear
        for axis in reversed(range(1, self.rank)):
            size, name = self._size(axis), f"{self.name}{axis}"
            lines.append(f"const {self.index} {self.name}q{axis} = {size.quotient(rest)};")
            lines.append(f"const {self.index} {name} = {rest} - {self.name}q{axis} * {size.name};")
            places.append(name)
            rest = f"{self.name}q{axis}"
        return lines, [rest, *reversed(places)]


def for_each(
    name: str, sizes: Sequence[int], places: Coordinates, given: Sequence[tuple[str, Argument]], lines: Sequence[str]
) -> Launch:
    """The launch with a thread for each element of `sizes`, whose number is `at`.

    given: the parameters, as C declares them, with what they are given, before the count and those of `places`.
    """
    count = math.prod(sizes)
    parameters = [*(text for text, _ in given), f"{places.index} count", *places.parameters()]
    arguments = (*(argument for _, argument in given), places.number(count), *places.arguments(sizes))
    place = [
        f"const {places.index} at = ({places.index})gk_block * {THREADS}u + threadIdx.x;",
        "if (at >= count) {",
        "    return;",
        "}",
    ]
    return Launch(source_of(name, parameters, [*place, *lines]), -(-count // THREADS), arguments)


def for_each_run(
    name: str, count: int, width: int, given: Sequence[tuple[str, Argument]], lines: Sequence[str]
) -> Launch:
    """The launch with a thread for each `width` neighbours of `count` elements: `left` of them, from `first` on."""
    places = Coordinates("i", 1, count + width * THREADS < 1 << 31)
    place = [
        f"const {places.index} first = at * {width}u;",
        f"const int left = elements - first < {width}u ? (int)(elements - first) : {width};",
    ]
    numbered = [*given, (f"{places.index} elements", places.number(count))]
    return for_each(name, (-(-count // width),), places, numbered, [*place, *lines])
