"""The collectives of one program, which run while the program computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.agreement import powers
from graphkit.dist.collectives.layout import Bucket, Slices, bucket_of
from graphkit.dist.collectives.operations import Collectives
from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.progress.pending import Pending

if TYPE_CHECKING:
    from graphkit.dist.collectives.gpu import GpuCollectives

_MOST_TIMED = 4096


@dataclass(slots=True)
class TimedCollective:
    """One collective, with its begin and end in nanoseconds; `ended` is 0 until the end."""

    key: str
    size: int
    begun: int
    ended: int = 0

    def end(self, _: object = None) -> None:
        self.ended = time.monotonic_ns()


class ProgramCollectives:
    """Starts the collectives of a program, and waits for them. One program at a time can use it.

    Args:
        ordered: Sum in the order of the ranks, so that the bits do not depend on MPI library and hosts.

    Attributes:
        fingerprinted: Key of the float64 all-reduce that also sums the fingerprint.
    """

    def __init__(
        self, transport: Collectives, ordered: bool = False, on_device: GpuCollectives | None = None, staged: str = ""
    ):
        self._transport = transport
        self.on_device, self.staged = on_device, staged
        self._ordered = ordered
        self._buckets: dict[str, Bucket] = {}
        self._started: dict[str, Pending] = {}
        self._restored: dict[str, Sequence[np.ndarray]] = {}
        self.fingerprinted: str | None = None
        self.copied_bytes = 0
        self._waited_seconds = 0.0
        self.timed_collectives: deque[TimedCollective] = deque(maxlen=_MOST_TIMED)

    @property
    def waited_seconds(self) -> float:
        return self._waited_seconds + (0.0 if self.on_device is None else self.on_device.waited_seconds)

    def start(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Start the all-reduce of arrays, in place. copied: bytes that the caller copied for it."""
        if key == self.fingerprinted:
            self._start_fingerprinted(key, *arrays)
            return
        bucket = self._bucket(key, arrays)
        self.copied_bytes += copied
        if key in self._restored:
            self._pass_residuals(key, bucket)
        if bucket.whole is not None:
            for gap in bucket.gaps:
                gap.fill(0)
            whole, timed = bucket.whole, self._timed(key, bucket.whole.nbytes)
            self._started[key] = self._transport.start_sum(key, whole, whole, self._ordered, timed.end)
            return
        joined = np.concatenate([a.reshape(-1) for a in arrays])
        self.copied_bytes += 2 * joined.nbytes

        timed = self._timed(key, joined.nbytes)

        def copy_back(total: np.ndarray) -> None:
            timed.end()
            for array, part in zip(arrays, np.split(total, np.cumsum([a.size for a in arrays[:-1]])), strict=True):
                np.copyto(array, part.reshape(array.shape))

        self._started[key] = self._transport.start_sum(key, joined, joined, self._ordered, copy_back)

    def _start_fingerprinted(self, key: str, array: np.ndarray) -> None:
        """Sum an array and the fingerprint together. Waiting for the sum raises RanksDiffer if fingerprints differ."""
        size = array.size
        fingerprint = self._transport.fingerprint
        joined = np.empty(size + 3, array.dtype)
        joined[:size] = array.reshape(-1)
        joined[size:] = (*powers(fingerprint.number), fingerprint.leaving)
        timed = self._timed(key, joined.nbytes)

        def check(total: np.ndarray) -> None:
            timed.end()
            fingerprint.check(total[size : size + 2], self._transport.size)
            fingerprint.leaving_ranks = int(total[size + 2])
            array[...] = total[:size].reshape(array.shape)

        self._started[key] = self._transport.start_sum(key, joined, joined, self._ordered, check)

    def residuals(self) -> dict[str, Sequence[np.ndarray]]:
        """Return the residuals by key: a vector for each array. No sum may be pending."""
        found = dict(self._restored)
        for key, residual in self._transport.residuals().items():
            if isinstance(key, str) and key in self._buckets and key not in found:
                bucket = self._buckets[key]
                places = zip(bucket.begins, bucket.arrays, strict=True)
                found[key] = [residual[begin : begin + array.size] for begin, array in places]
        return found

    def restore(self, residuals: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Restore the result of `residuals`, which is added to the next sums."""
        self._restored = dict(residuals)

    def _pass_residuals(self, key: str, bucket: Bucket) -> None:
        residual = np.zeros(bucket.size, np.float32)
        for begin, part in zip(bucket.begins, self._restored.pop(key), strict=True):
            residual[begin : begin + part.size] = part
        self._transport.restore_residuals({key: residual})

    def gather(self, key: str, array: np.ndarray) -> np.ndarray:
        start = time.monotonic()
        found: np.ndarray = self._transport.gather(key, array)
        self._waited_seconds += time.monotonic() - start
        return found

    def start_scattered(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Start the reduce-scatter of arrays: each rank gets its own slice of the sum."""
        self.copied_bytes += copied
        whole, slices, copy_back = self._in_slices(key, arrays)
        timed = self._timed(key, whole.nbytes)

        def then(total: np.ndarray) -> None:
            timed.end()
            copy_back(total)

        self._started[key] = self._transport.start_scattered_sum(key, whole, slices, self._ordered, then)

    def start_gather(
        self, key: str, wholes: Sequence[np.ndarray], pieces: Sequence[tuple[int, int, np.ndarray]]
    ) -> None:
        """Start an all-gather. pieces: this rank's (index of the array, position in the array, elements)."""
        rank, ranks = self._transport.rank, self._transport.size
        slices = Slices.of([a.size for a in wholes], wholes[0].dtype.itemsize, ranks)
        mine = np.zeros(slices.bounds[rank + 1] - slices.bounds[rank], wholes[0].dtype)
        for of, begin, piece in pieces:
            at = slices.begins[of] + begin - slices.bounds[rank]
            mine[at : at + piece.size] = piece

        timed = self._timed(key, slices.bounds[-1] * mine.itemsize)

        def copy_slices(parts: Sequence[np.ndarray]) -> None:
            timed.end()
            for other, part in enumerate(parts):
                for index, begin, end in slices.parts(other):
                    at = slices.begins[index] - slices.bounds[other]
                    wholes[index][begin:end] = part[at + begin : at + end]

        self._started[key] = self._transport.start_gather(key, mine, slices, copy_slices)

    def _in_slices(
        self, key: str, arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, Slices, Callable[[np.ndarray], Any]]:
        """Return one vector of all arrays, its slices, and a function that copies the result back."""
        slices = Slices.of([a.size for a in arrays], arrays[0].dtype.itemsize, self._transport.size)
        bucket = self._bucket(key, arrays)
        if bucket.whole is not None and bucket.whole.size == slices.bounds[-1]:
            for gap in bucket.gaps:
                gap.fill(0)
            return bucket.whole, slices, _do_nothing
        joined = np.zeros(slices.bounds[-1], arrays[0].dtype)
        places = [joined[begin : begin + a.size] for begin, a in zip(slices.begins, arrays, strict=True)]
        for place, array in zip(places, arrays, strict=True):
            place[:] = array.reshape(-1)
        self.copied_bytes += 2 * joined.nbytes

        def copy_back(_: np.ndarray) -> None:
            for place, array in zip(places, arrays, strict=True):
                np.copyto(array, place.reshape(array.shape))

        return joined, slices, copy_back

    def _timed(self, key: str, size: int) -> TimedCollective:
        timed = TimedCollective(key, size, time.monotonic_ns())
        self.timed_collectives.append(timed)
        return timed

    def _bucket(self, key: str, arrays: Sequence[np.ndarray]) -> Bucket:
        bucket = self._buckets.get(key)
        if bucket is None or any(a is not b for a, b in zip(bucket.arrays, arrays, strict=True)):
            bucket = self._buckets[key] = bucket_of(arrays)
        return bucket

    def start_rows(self, key: str, indices: np.ndarray, rows: np.ndarray) -> None:
        self._started[key] = self._transport.start_row_sum(key, RowSparse(indices, rows), self._ordered)

    def wait_rows(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        start = time.monotonic()
        total = self._started.pop(key).wait()
        self._waited_seconds += time.monotonic() - start
        return total.indices, total.values

    def wait(self, keys: Sequence[str]) -> None:
        start = time.monotonic()
        for key in keys:
            self._started.pop(key).wait()
        self._waited_seconds += time.monotonic() - start


def _do_nothing(_: np.ndarray) -> None: ...
