"""What sums over processes are carried by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.dist.arguments import Key
from graphkit.dist.rounds.posted import Pending
from graphkit.dist.sums.fingerprint import Fingerprint
from graphkit.dist.sums.rows import RowSparse
from graphkit.dist.sums.slices import Slices


class Transport(Protocol):
    """Carries arrays between the processes that share a store. All processes call the same methods in the same order.

    Methods that start an operation return what is waited for. Arrays must not change until then.
    """

    fingerprint: Fingerprint

    @property
    def rank(self) -> int:
        """Number of this process among the workers, from 0."""

    @property
    def num_workers(self) -> int:
        """Number of processes that share the store, without servers."""

    def start_sum(
        self,
        key: str,
        array: np.ndarray,
        out: np.ndarray,
        ordered: bool = False,
        then: Callable[[np.ndarray], Any] | None = None,
    ) -> Pending:
        """Start the all-reduce of an array into `out`. ordered: sum in the order of the ranks."""

    def start_scattered_sum(
        self, key: str, array: np.ndarray, slices: Slices, ordered: bool, then: Callable[[np.ndarray], Any]
    ) -> Pending:
        """Start the reduce-scatter of a vector; the sum overwrites this process's slice of it."""

    def start_gather(
        self, key: str, mine: np.ndarray, slices: Slices, then: Callable[[Sequence[np.ndarray]], Any]
    ) -> Pending:
        """Start the all-gather of every process's slice of a vector; `then` is called with the slices, by rank."""

    def start_row_sum(self, key: str, rows: RowSparse, ordered: bool = False) -> Pending:
        """Start the sum of rows; `wait` of the result returns it."""

    def gather(self, key: Key, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all processes, which have one type, by rank along a new first axis."""

    def residuals(self) -> dict[Key, np.ndarray]:
        """Return this process's residuals of gradient compression, by key."""

    def restore_residuals(self, residuals: Mapping[Key, np.ndarray]) -> None:
        """Set the residuals of these keys, which are added to their next sums."""
