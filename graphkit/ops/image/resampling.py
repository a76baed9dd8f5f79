"""Weighted sums along one axis as sparse matrices: what Resize and Pad do to an axis, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.named_tuples import NamedTuple


class Taps(NamedTuple):
    """A sparse matrix of `size` columns: row i is the sum of weights[k] times element sources[k] of an axis.

    k runs from starts[i] up to starts[i + 1]. starts: int64 [rows + 1]; sources: int64; weights: float64. Memory is
    linear in the number of weights that are not 0.
    """

    starts: np.ndarray
    sources: np.ndarray
    weights: np.ndarray
    size: int

    @property
    def rows(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> np.ndarray:
        """The number of weights of each row."""
        return np.diff(self.starts)

    @staticmethod
    def copies(sources: np.ndarray, size: int) -> Taps:
        """Each row is the element at its source."""
        starts = np.arange(len(sources) + 1, dtype=np.int64)
        return Taps(starts, np.asarray(sources, np.int64), np.ones(len(sources)), size)

    @staticmethod
    def windows(sources: np.ndarray, weights: np.ndarray, size: int) -> Taps:
        """Make a matrix from sources and weights [rows, taps]. Sources of a row are ascending, and may repeat."""
        rows, taps = sources.shape
        row = np.repeat(np.arange(rows), taps)
        source, weight = sources.reshape(-1), weights.reshape(-1)
        fresh = np.ones(len(row), bool)
        fresh[1:] = (row[1:] != row[:-1]) | (source[1:] != source[:-1])
        first = np.flatnonzero(fresh)
        total = np.add.reduceat(weight, first) if len(first) else weight
        row, source = row[first], source[first]
        used = total != 0
        starts = np.concatenate([[0], np.cumsum(np.bincount(row[used], minlength=rows))])
        return Taps(starts.astype(np.int64), source[used].astype(np.int64), total[used], size)

    def row_numbers(self) -> np.ndarray:
        """The row of each weight."""
        return np.repeat(np.arange(self.rows), self.counts)

    def without(self, rows: np.ndarray | None) -> Taps:
        """Return the matrix with the rows marked by the mask `rows` emptied."""
        if rows is None:
            return self
        kept = ~rows[self.row_numbers()]
        counts = np.where(rows, 0, self.counts)
        return Taps(np.concatenate([[0], np.cumsum(counts)]), self.sources[kept], self.weights[kept], self.size)

    def transposed(self) -> Taps:
        order = np.argsort(self.sources, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.sources, minlength=self.size))])
        return Taps(starts, self.row_numbers()[order], self.weights[order], self.rows)

    def dense(self, dtype: np.dtype) -> np.ndarray:
        """The matrix [rows, size]."""
        matrix = np.zeros((self.rows, self.size), dtype)
        matrix[self.row_numbers(), self.sources] = self.weights
        return matrix

    def apply(self, xp: Any, x: Any, axis: int) -> Any:
        """The product of the matrix with x along one axis, in x's element type."""
        x = xp.moveaxis(x, axis, 0)
        y = xp.zeros((self.rows, *x.shape[1:]), dtype=x.dtype)
        counts = self.counts
        # Longest rows first: rows with more than t taps are then the first `number` rows.
        order = np.argsort(-counts, kind="stable")
        having = np.searchsorted(-counts[order], -np.arange(counts.max(initial=0)), side="left")
        for t, number in enumerate(having):
            rows = order[:number]
            at = self.starts[rows] + t
            weights = xp.asarray(self.weights[at].astype(x.dtype)).reshape(-1, *(1,) * (x.ndim - 1))
            term = xp.take(x, xp.asarray(self.sources[at]), axis=0) * weights
            y[xp.asarray(rows)] += term
        return xp.moveaxis(y, 0, axis)
