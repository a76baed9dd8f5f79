"""All-reduces of compressed arrays, and the residuals of compression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.communicator import Communicator
from graphkit.dist.hosts.group import Levels
from graphkit.dist.rounds.posted import Action, in_rank_order, placed
from graphkit.dist.sums.compression import Compression
from graphkit.errors import InputError


class Residuals:
    """The residuals of gradient compression (error feedback), float32 vectors by key."""

    def __init__(self) -> None:
        self._sizes: dict[Any, int] = {}
        self._arrays: dict[Any, np.ndarray] = {}

    def check(self, key: Any, size: int) -> None:
        """Raise InputError if the key had another number of elements before."""
        known = self._sizes.setdefault(key, size)
        if known != size:
            raise InputError(f"key {key!r} had {known} elements in an earlier push, but has {size} now")

    def of(self, key: Any, size: int) -> np.ndarray:
        """Return the residual of a key, to be changed in place; it begins as zeros."""
        self.check(key, size)
        if key not in self._arrays:
            self._arrays[key] = np.zeros(size, np.float32)
        return self._arrays[key]

    def copies(self) -> dict[Any, np.ndarray]:
        return {key: array.copy() for key, array in self._arrays.items()}

    def restore(self, given: Mapping[Any, np.ndarray]) -> None:
        """Set residuals that `copies` returned. Raises InputError unless they are float32."""
        found = {key: np.array(array).reshape(-1) for key, array in given.items()}
        for key, array in found.items():
            if array.dtype != np.float32:
                raise InputError(f"key {key!r}: residuals must be float32, not {array.dtype}")
            self.check(key, array.size)
        self._arrays |= found


class CompressedSums:
    """All-reduces of compressed float32 arrays.

    Each rank compresses its array, and all ranks sum the compressed arrays in the order of the ranks. With several
    hosts that have several ranks each, the arrays of a host are summed first. Its first rank then compresses the sum
    and keeps the residual, and the arrays of all hosts are summed in order.
    """

    def __init__(self, compression: Compression, communicator: Communicator):
        self.compression, self._communicator = compression, communicator
        self.residuals = Residuals()

    def action(
        self,
        key: Any,
        array: np.ndarray,
        out: np.ndarray | None,
        then: Callable[[np.ndarray], Any],
        *,
        ordered: bool,
        later: bool,
    ) -> tuple[Action, int]:
        """Return the action that sums an array once all ranks have posted it, and the number of compressed bytes.

        ordered: sum the arrays of a host in the order of the ranks. later: the array may change before the action runs.
        Raises InputError if the key had another size before.
        """
        size = self.compression.packed_bytes(array.size)
        self.residuals.check(key, array.size)
        levels = self._communicator.levels
        if levels is None:
            packed = self._packed(key, array)
            return lambda: then(placed(self._sum_of(packed, array.shape), out)), size
        given = array.copy() if later else array
        total = partial(self._over_hosts, levels, key, given, ordered)
        return lambda: then(placed(total(), out)), size

    def _packed(self, key: Any, array: np.ndarray) -> np.ndarray:
        residual = self.residuals.of(key, array.size)
        return self.compression.pack(np.ascontiguousarray(array).reshape(-1), residual)

    def _sum_of(self, packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the sum in the order of the ranks, which is the same on all of them."""
        return self._added(self._communicator.allgather(packed), shape)

    def _added(self, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        total = np.zeros(shape, np.float32)
        for part in parts:
            self.compression.add(part, total.reshape(-1))
        return total

    def _over_hosts(self, levels: Levels, key: Any, array: np.ndarray, ordered: bool) -> np.ndarray:
        inside = levels.inside
        own = in_rank_order(inside.allgather(array)) if ordered else inside.sum_in_first(array)
        total = array
        if levels.leaders is not None:
            assert own is not None, "a leader is the first rank of its host"
            total = self._added(levels.leaders.allgather(self._packed(key, own)), array.shape)
        return inside.broadcast(total)
