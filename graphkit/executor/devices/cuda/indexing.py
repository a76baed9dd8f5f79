"""Where an element lies: from a linear index to coordinates, by multiplication where indices have 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def magic(divisor: int) -> tuple[int, int]:
    """Multiplier and shift of `gk_quotient`: n // divisor == (umulhi(n, multiplier) + n) >> shift for n < 2^31.

    Granlund and Montgomery 1994, figure 4.1.
    """
    shift = max(divisor - 1, 0).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


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

    def parameters(self) -> list[str]:
        """The sizes of all axes but the outermost."""
        found = []
        for axis in range(1, self.rank):
            found.append(f"{self.index} {self.name}size{axis}")
            found += [f"gk_u32 {self.name}mul{axis}", f"gk_u32 {self.name}shift{axis}"] if self.short else []
        return found

    def arguments(self, sizes: Sequence[int]) -> list[np.generic]:
        """sizes: of all axes."""
        found: list[np.generic] = []
        for size in sizes[1:]:
            found.append(np.uint32(size) if self.short else np.uint64(size))
            found += [*map(np.uint32, magic(size))] if self.short else []
        return found

    def lines(self, linear: str) -> tuple[list[str], list[str]]:
        """What takes the expression `linear` apart, and the coordinates' expressions."""
        lines, places, rest = [], [], linear
        for axis in reversed(range(1, self.rank)):
            size, name = f"{self.name}size{axis}", f"{self.name}{axis}"
            quotient = (
                f"gk_quotient({rest}, {self.name}mul{axis}, {self.name}shift{axis})"
                if self.short
                else f"{rest} / {size}"
            )
            lines.append(f"const {self.index} {self.name}q{axis} = {quotient};")
            lines.append(f"const {self.index} {name} = {rest} - {self.name}q{axis} * {size};")
            places.append(name)
            rest = f"{self.name}q{axis}"
        return lines, [rest, *reversed(places)]
