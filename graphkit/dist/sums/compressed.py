"""Sums over processes of arrays in fewer bytes, with what they have left out."""

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
    """By key, vectors of float32 with what compression has left out of all that was sent."""

    def __init__(self) -> None:
        self._sizes: dict[Any, int] = {}
        self._arrays: dict[Any, np.ndarray] = {}

    def check(self, key: Any, size: int) -> None:
        """Raise InputError where the key had another number of elements before."""
        known = self._sizes.setdefault(key, size)
        if known != size:
            raise InputError(f"key {key!r} had {known} elements in an earlier push, but has {size} now")

    def of(self, key: Any, size: int) -> np.ndarray:
        """What is left of a key, zeros at first, to be changed in place."""
        self.check(key, size)
        if key not in self._arrays:
            self._arrays[key] = np.zeros(size, np.float32)
        return self._arrays[key]

    def copies(self) -> dict[Any, np.ndarray]:
        return {key: array.copy() for key, array in self._arrays.items()}

    def restore(self, given: Mapping[Any, np.ndarray]) -> None:
        """Take over what `copies` gave of some keys. Raises InputError for other than float32."""
        found = {key: np.array(array).reshape(-1) for key, array in given.items()}
        for key, array in found.items():
            if array.dtype != np.float32:
                raise InputError(f"key {key!r}: residuals must be float32, not {array.dtype}")
            self.check(key, array.size)
        self._arrays |= found


class CompressedSums:
    """How float32 arrays are summed over the processes of a communicator, by key.

    Each process packs its own, and all add up the parts in the order of the ranks. Where there are several hosts with
    several processes, those of a host are added up first; its leader packs the sum and keeps what is left out, and the
    parts of hosts are added up in their order.
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
        """What is to be done once all processes are there, and the bytes that the array takes between them.

        later: the array may be changed before. Raises InputError where the key had another size before.
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
        """The same in all processes: in the order of the ranks."""
        return self._added(self._communicator.allgather(packed), shape)

    def _added(self, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        total = np.zeros(shape, np.float32)
        for part in parts:
            self.compression.add(part, total.reshape(-1))
        return total

    def _over_hosts(self, levels: Levels, key: Any, array: np.ndarray, ordered: bool) -> np.ndarray:
        """ordered: those of a host are added up in the order of the ranks, too."""
        inside = levels.inside
        own = in_rank_order(inside.allgather(array)) if ordered else inside.sum_in_first(array)
        total = array
        if levels.leaders is not None:
            assert own is not None, "leaders are the first of their hosts"
            total = self._added(levels.leaders.allgather(self._packed(key, own)), array.shape)
        return inside.broadcast(total)
