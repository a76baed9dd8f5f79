"""A number that every rank has alike while ranks take the same step. It travels with a sum that is made anyway."""

from __future__ import annotations

import numpy as np

from graphkit.errors import RanksDiffer

# Fingerprints are integers in [1, LIMIT). Their squares, summed over 8192 ranks, are exact in float64.
LIMIT = 1 << 20


def powers(number: int) -> list[int]:
    """The first and the second power, which are to be summed over all ranks."""
    return [number, number * number]


def are_alike(sums: np.ndarray, ranks: int) -> bool:
    """Whether integers whose `powers` have these sums are one and the same, and not 0 (Cauchy, Schwarz)."""
    first, second = map(int, sums.tolist())
    return first > 0 and first * first == ranks * second


class Fingerprint:
    """The fingerprint of this rank's step; 0 outside of steps, where nothing is compared."""

    def __init__(self) -> None:
        self.number = 0

    def check(self, sums: np.ndarray, ranks: int) -> None:
        """Raise RanksDiffer, on all ranks, where the sums of `powers` show that ranks have different numbers."""
        if not are_alike(sums, ranks) and sums.any():
            raise RanksDiffer("the ranks take steps with different settings or from different states")
