"""All-reduces and related collectives of arrays between ranks, optionally compressed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.agreement import Fingerprint
from graphkit.dist.arguments import Key, described
from graphkit.dist.arrays import as_bytes, sum_in_order
from graphkit.dist.collectives.compression import CompressedSums, Compression
from graphkit.dist.collectives.layout import Slices
from graphkit.dist.collectives.row_sparse import RowSparse, RowSum
from graphkit.dist.communicator import Communicator
from graphkit.dist.progress.pending import Action, Pending, Sum, placed, unchanged
from graphkit.errors import InputError, UsageError
from graphkit.ir.types import NUMERIC, DType

_SUMMED = frozenset(dtype.value for dtype in NUMERIC | {DType.COMPLEX64, DType.COMPLEX128})


@functools.lru_cache(maxsize=64)
def _is_summed(dtype: np.dtype[Any]) -> bool:
    return dtype.name in _SUMMED


def check_summed(key: Key, dtype: np.dtype[Any]) -> None:
    """Raise InputError unless arrays of this dtype can be summed.

    A job of one process rejects the same dtypes as a larger one, so a program that runs in it also runs in others.
    """
    if not _is_summed(dtype):
        raise InputError(
            f"key {key!r} is {dtype}: a store cannot sum {dtype}; push integers, "
            "float16, bfloat16, float32, float64 or complex numbers (`broadcast` and `gather` take every dtype)"
        )


class Collectives:
    """Starts collectives between the ranks of a communicator. All ranks must make the same calls.

    Calls of `start_...` and `post_sum` with different keys may come in different orders.

    `start_...` return a pending operation. The arrays must not change until its `wait` has returned.

    Args:
        every_rank_compresses: If False, and with several hosts, the first rank of each host compresses the sum of its
            host.
    """

    def __init__(self, communicator: Communicator, every_rank_compresses: bool = False):
        self.communicator = communicator
        self.fingerprint = Fingerprint()
        self.compressed: CompressedSums | None = None
        self._every_rank_compresses = every_rank_compresses
        self._sent_bytes = 0

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    # --- compression ------------------------------------------------------------------------------

    def compress(self, compression: Compression) -> None:
        """Collective: compress float32 arrays from now on."""
        self.compressed = CompressedSums(compression, self.communicator)

    @property
    def compresses(self) -> bool:
        return self.compressed is not None

    @property
    def compressing(self) -> tuple[int, ...]:
        levels = self.communicator.levels
        return tuple(range(self.size)) if levels is None or self._every_rank_compresses else levels.leading

    def residuals(self) -> dict[Key, np.ndarray]:
        """Return copies of this rank's residuals, vectors by key. All earlier sums must be complete."""
        return {} if self.compressed is None else self.compressed.residuals.copies()

    def restore_residuals(self, residuals: Mapping[Key, np.ndarray]) -> None:
        """Set the residuals that are added to the next sums of these keys.

        Raises UsageError without compression, and on ranks that are not `compressing`. Raises InputError for a wrong
        type or size.
        """
        if not isinstance(residuals, Mapping):
            raise UsageError(f"residuals must be a dict of vectors by key, not {described(residuals)}")
        if self.compressed is None:
            raise UsageError("restore_residuals needs compression: call set_gradient_compression first")
        if residuals and self.rank not in self.compressing:
            raise UsageError(
                f"rank {self.rank} does not compress, so it has no residuals; rank {self.compressing[0]} does"
            )
        self.compressed.residuals.restore(residuals)

    # --- collectives of programs ------------------------------------------------------------------

    def start_sum(
        self,
        key: str,
        array: np.ndarray,
        out: np.ndarray,
        ordered: bool = False,
        then: Callable[[np.ndarray], Any] = unchanged,
    ) -> Pending:
        """Start the all-reduce of an array.

        Args:
            out: The array for the sum; may be `array`.
        """
        action = self._sum(key, array, out, then, ordered=ordered, alone=True)
        return self.communicator.post(f"sum of {key}", [array], action, operation=self._operation(array, ordered))

    def start_scattered_sum(
        self, key: str, array: np.ndarray, slices: Slices, ordered: bool, then: Callable[[np.ndarray], Any]
    ) -> Pending:
        """Start the reduce-scatter of a vector; the sum overwrites this rank's slice of it.

        With `ordered`, it is an all-reduce, and the sum overwrites the whole vector.
        """
        if ordered:
            return self.start_sum(key, array, array, True, then)
        mine = slices.of_rank(self.rank)
        self._sent_bytes += array.nbytes

        def scatter() -> Any:
            array[mine] = self.communicator.reduce_scatter(array, slices.bounds)
            return then(array)

        return self.communicator.post(f"sum of {key}", [array], scatter, operation="by reduce-scatter")

    def start_gather(
        self, key: str, mine: np.ndarray, slices: Slices, then: Callable[[Sequence[np.ndarray]], Any]
    ) -> Pending:
        """Start the all-gather of every rank's slice of a vector; `then` is called with the slices, by rank."""
        self._sent_bytes += mine.nbytes
        sizes = [(end - begin) * mine.itemsize for begin, end in itertools.pairwise(slices.bounds)]

        def gathered() -> Any:
            parts = self.communicator.allgather_parts(as_bytes(mine), sizes)
            return then([part.view(mine.dtype) for part in parts])

        # Ranks compare the types of posted arrays. Slices may differ in length, so post the type of the whole vector.
        whole = np.broadcast_to(np.zeros((), mine.dtype), (slices.bounds[-1],))
        return self.communicator.post(f"gather {key}", [whole], gathered)

    def start_row_sum(self, key: str, rows: RowSparse, ordered: bool = False) -> Pending:
        """Start the sum of rows. The caller may then change `rows`. ordered: sum in the order of the ranks."""
        return self._post_rows(f"sum of {key}", RowSum(rows, ordered), unchanged)

    def gather(self, key: Key, array: np.ndarray) -> np.ndarray:
        self._sent_bytes += array.nbytes
        action = partial(self.communicator.allgather, array)
        found: np.ndarray = self.communicator.perform(f"gathering of {key}", [array], action)
        return found

    # --- collectives of stores --------------------------------------------------------------------

    def post_sum(
        self,
        key: Key,
        value: np.ndarray | RowSparse,
        out: np.ndarray | None = None,
        then: Callable[[Any], Any] = unchanged,
        *,
        priority: int = 0,
        later: bool = False,
    ) -> Pending:
        """Start the sum of a pushed value. Small sums may be sent together.

        Args:
            out: The array for the sum of arrays (default: a new array).
            later: True if no thread waits for the sum soon. The array is then copied.
        """
        call = f"sum {key!r}"
        if isinstance(value, RowSparse):
            return self._post_rows(call, RowSum(value), then, priority, later)
        action = self._sum(key, value, out, then, later=later)
        how = self._operation(value, False)
        return self.communicator.post(call, [value], action, priority=priority, later=later, operation=how)

    def sum(self, key: Key, array: np.ndarray, out: np.ndarray | None, priority: int) -> np.ndarray:
        """Return the sum of an array. This is faster than `post_sum` if nothing else is pending."""
        action, how = self._sum(key, array, out, unchanged), self._operation(array, False)
        found: np.ndarray = self.communicator.perform(f"sum {key!r}", [array], action, priority=priority, operation=how)
        return found

    def broadcast(self, call: str, arrays: Sequence[np.ndarray], root: int = 0) -> list[np.ndarray]:
        """Return the arrays of rank `root`. call: names the operation in errors."""

        def send() -> list[np.ndarray]:
            return [self.communicator.broadcast(array, root) for array in arrays]

        found: list[np.ndarray] = self.communicator.perform(call, arrays, send)
        return found

    # --- how sums are carried out -----------------------------------------------------------------

    def _post_rows(
        self, call: str, rows: RowSum, then: Callable[[RowSparse], Any], priority: int = 0, later: bool = True
    ) -> Pending:
        self._sent_bytes += rows.sent_bytes

        def action() -> Any:
            return then(rows(self.communicator))

        how = "of rows, in the order of ranks" if rows.ordered else "of rows"
        return self.communicator.post(call, rows.types, action, priority=priority, later=later, operation=how)

    def _operation(self, array: np.ndarray, ordered: bool) -> str:
        """Return the name of the algorithm of a sum, which ranks compare; "" for a plain all-reduce."""
        compressed = "compressed" if self.compresses and array.dtype == np.float32 else ""
        return ", ".join(filter(None, (compressed, "in the order of ranks" if ordered else "")))

    def _sum(
        self,
        key: Key,
        array: np.ndarray,
        out: np.ndarray | None,
        then: Callable[[Any], Any],
        *,
        later: bool = False,
        ordered: bool = False,
        alone: bool = False,
    ) -> Action:
        """Return the action that sums an array once all ranks have posted it.

        later: the array is copied, because it may change before the action runs. ordered: sum in the order of the
        ranks. alone: see Sum.
        """
        check_summed(key, array.dtype)
        if self.compressed is not None and array.dtype == np.float32:
            action, size = self.compressed.action(key, array, out, then, ordered=ordered, later=later)
            self._sent_bytes += size
            return action
        self._sent_bytes += array.nbytes
        if ordered:
            return partial(self._in_order, array, out, then)
        return Sum(array.copy() if later and self.size > 1 else array, out, then, alone)

    def _in_order(self, array: np.ndarray, out: np.ndarray | None, then: Callable[[np.ndarray], Any]) -> Any:
        return then(placed(sum_in_order(self.communicator.allgather(array)), out))
