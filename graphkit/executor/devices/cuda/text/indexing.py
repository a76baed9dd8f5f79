"""Conversion of linear indices to coordinates. With 32-bit indices, divisions are replaced by multiplications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Argument, Launch, source_of


def magic(divisor: int) -> tuple[int, int]:
    """Return multiplier and shift of `gk_quotient`: n // divisor == (umulhi(n, multiplier) + n) >> shift for n < 2^31.

    Granlund and Montgomery 1994, figure 4.1.
    """
    shift = max(divisor - 1, 0).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


@dataclass(frozen=True)
class Divisor:
    """A divisor that is an argument of a kernel, with the name `name`.

    short: dividends have 32 bits and are below 2^31.
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
        """Return the parameters with their arguments."""
        return tuple(zip(self.parameters(), self.arguments(value), strict=True))

    def quotient(self, dividend: str) -> str:
        """Return the expression of dividend / divisor."""
        if not self.short:
            return f"{dividend} / {self.name}"
        return f"gk_quotient({dividend}, {self.name}_mul, {self.name}_shift)"


@dataclass(frozen=True)
class Coordinates:
    """The axes of a linear index, the outermost first. `name` is a prefix of their variables in the kernel.

    short: indices have 32 bits and are below 2^31.
    """

    name: str
    rank: int
    short: bool

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    def number(self, value: int) -> np.generic:
        """Return a number with the type of indices. A negative one wraps around, so that sums with it are right."""
        return np.uint32(value & 0xFFFFFFFF) if self.short else np.uint64(value & 0xFFFFFFFFFFFFFFFF)

    def parameters(self) -> list[str]:
        """Return the parameters for the sizes of all axes but the outermost."""
        return [text for axis in range(1, self.rank) for text in self._size(axis).parameters()]

    def arguments(self, sizes: Sequence[int]) -> list[np.generic]:
        """Return the arguments for `parameters`. sizes: those of all axes."""
        return [number for axis in range(1, self.rank) for number in self._size(axis).arguments(sizes[axis])]

    def given(self, sizes: Sequence[int]) -> tuple[tuple[str, Argument], ...]:
        """Return the parameters with their arguments. sizes: those of all axes."""
        return tuple(zip(self.parameters(), self.arguments(sizes), strict=True))

    def _size(self, axis: int) -> Divisor:
        return Divisor(f"{self.name}size{axis}", self.short)

    @property
    def line(self) -> str:
        """The variable with the linear index over all axes but the innermost. Needs two axes; declared by `lines`."""
        return self.line_along(self.rank - 1)

    def line_along(self, axis: int) -> str:
        """Return the variable with the linear index over the axes before `axis`, which is not the outermost."""
        return f"{self.name}q{axis}"

    def lines(self, linear: str) -> tuple[list[str], list[str]]:
        """Return lines that split the expression `linear` into coordinates, and the expressions of the coordinates."""
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
    """Return the launch with a thread for each element of `sizes`. In `lines`, `at` is the number of the element.

    given: parameters, as C declares them, with their arguments. The number of elements and the parameters of `places`
    follow them.
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
    """Return the launch in which each thread processes up to `width` adjacent elements of `count`.

    In `lines`, `first` is the index of the thread's first element, and `left` is the number of its elements.
    """
    places = Coordinates("i", 1, count + width * THREADS < 1 << 31)
    place = [
        f"const {places.index} first = at * {width}u;",
        f"const int left = elements - first < {width}u ? (int)(elements - first) : {width};",
    ]
    numbered = [*given, (f"{places.index} elements", places.number(count))]
    return for_each(name, (-(-count // width),), places, numbered, [*place, *lines])
