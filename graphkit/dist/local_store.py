"""The store of one process. The dependency engine pushes and pulls arrays of `gk.nd`."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.arguments import Key, Outs, checked_integer, is_array, is_one, keys_of, pairs_of
from graphkit.dist.arrays import is_half
from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.store import KVStore, check_pushed
from graphkit.dist.transport import Transport
from graphkit.dist.updaters import StatefulUpdater, Updater, runs_in_background, updater_facts

if TYPE_CHECKING:
    from graphkit.dist.nd_values import Memory, NDArray


class LocalKVStore(KVStore):
    """With arrays of `gk.nd`, `push` and `pull` return at once, and the dependency engine does the work in order with
    other operations on these arrays. An updater gets the sum and the stored array as arrays of `gk.nd`, or as numpy
    arrays if it `runs_in_background`. It must not change the sum, which may be the pushed array. If the computation of
    a pushed array fails, pulled arrays get the error, and `wait` raises it, until a push replaces the whole value.

    Other values are pushed and pulled before the call returns.
    """

    def __init__(self, type: str, transport: Transport):
        super().__init__(type, transport)
        # Stored values that were used as arrays of `gk.nd`, by key. They share memory with `_values`: wait for an array
        # before numpy uses it.
        self._arrays: dict[Key, NDArray] = {}
        # Held during changes of values and calls of the updater, except for updates on threads of the engine.
        self._lock = threading.RLock()
        # Makes updates on threads of the engine run one after the other.
        self._order: Memory | None = None
        _stores.add(self)

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        priority = checked_integer("push: priority", priority)
        keys, values = ([key], [value]) if is_one(key) else (key, value)
        if (
            isinstance(values, (list, tuple))
            and all(map(self._can_take, keys, values))
            and len(keys) == len(values) == len(set(keys))
        ):
            self._apply_arrays(keys, values)
            return
        sums = [(k, self._sum(k, v)) for k, v in pairs_of(key, value, "push")]
        for are_arrays, several in itertools.groupby(sums, lambda pair: is_array(pair[1])):
            if are_arrays:
                self._apply_arrays(*zip(*several, strict=True))
                continue
            for k, v in several:
                self._post_sum(k, v, priority)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        if self._updater is None and out is not None:
            outs = Outs(key, out)
            given = [_listed(v) for _, v in pairs_of(key, value, "pushpull")]
            if outs.are_arrays and all(map(_are_summed, given)):
                checked_integer("pushpull: priority", priority)
                return self._sums_written(keys_of(key), given, outs)
        return super().pushpull(key, value, out, priority)

    def _sums_written(self, keys: Sequence[Key], values: Sequence[Sequence[NDArray]], outs: Outs) -> Any:
        """Write the sum of each key's values to its arrays in `outs`. Nothing is stored."""
        from graphkit.dist import nd_values

        for place, (k, given) in enumerate(zip(keys, values, strict=True)):
            check_pushed(k, given, given[0])
            outs.check(place, given[0].dtype, given[0].shape)
        with nd_values.batch("pushpull"):
            # Compute all sums before the first write: an array in `outs` may be a value of another key.
            sums = [nd_values.total(given) if len(given) > 1 else nd_values.copied(given[0]) for given in values]
            for place, found in enumerate(sums):
                for array in outs.of(place):
                    nd_values.copy_to(found, array)
        return outs.given

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        keys, outs = ([key], [out]) if is_one(key) else (key, out)
        if not isinstance(outs, (list, tuple)) or len(keys) != len(outs):
            return super().pull(key, out)
        # In the usual call, all types match. The checks of `super().pull` would take longer than the copy.
        if not all(map(self._has_type_of, keys, outs)):
            return super().pull(key, out)
        from graphkit.dist import nd_values

        # Another thread may have replaced a value by one of the same type.
        nd_values.copy_all([self._array(k) for k in keys], outs)
        return out

    def _has_type_of(self, key: Any, array: Any) -> bool:
        if type(key) is not str and type(key) is not int:
            return False
        held = self._arrays.get(key)
        return held is not None and getattr(array, "_signature", None) is held._signature

    def _can_take(self, key: Any, value: Any) -> bool:
        return self._has_type_of(key, value) and value.dtype.kind in "iuf"

    def _write_pulled(self, keys: Sequence[Key], outs: Outs) -> Any:
        if not outs.are_arrays:
            return super()._write_pulled(keys, outs)
        from graphkit.dist import nd_values

        with nd_values.batch("pull"):
            for place, k in enumerate(keys):
                stored = self._array(k)
                for array in outs.of(place):
                    nd_values.copy_to(stored, array)
        return outs.given

    def wait(self, key: Key | Sequence[Key] | None = None) -> None:
        super().wait(key)
        for k in list(self._arrays) if key is None else keys_of(key):
            if (stored := self._arrays.get(k)) is not None:
                stored.wait_to_read()

    def _sum(self, key: Key, value: Any) -> Any:
        given = _listed(value)
        if not _are_summed(given):
            return self._local_sum(key, value, known=True)
        check_pushed(key, given, self._stored(key))
        if len(given) == 1:
            return given[0]
        from graphkit.dist import nd_values

        return nd_values.total(given)

    def _array(self, key: Key) -> NDArray:
        found = self._arrays.get(key)
        if found is None:
            from graphkit.dist import nd_values

            with self._lock:
                # Another thread may have made it.
                found = self._arrays.get(key)
                if found is None:
                    found = self._arrays[key] = nd_values.own(self._stored(key))
        return found

    def _apply_arrays(self, keys: Sequence[Key], sums: Sequence[NDArray]) -> None:
        """Store the sums, or pass them to the updater, as one operation of the engine."""
        from graphkit.dist import nd_values

        with self._lock, nd_values.batch("push"), nd_values.pause():
            for k, pushed in zip(keys, sums, strict=True):
                stored, updater = self._array(k), self._updater
                if updater is None:
                    nd_values.copy_to(pushed, stored)
                elif runs_in_background(updater):
                    if self._order is None:
                        self._order = nd_values.Memory()
                    name = f"update of key {k!r}"
                    nd_values.update_later(name, partial(updater, k), pushed, stored, self._order)
                else:
                    updater(k, pushed, stored)

    def _apply_sum(self, key: Key, summed: np.ndarray | RowSparse) -> None:
        with self._lock:
            if self._updater is None:
                super()._apply_sum(key, summed)
                self._arrays.pop(key, None)
                return
            self._settle()  # the updater may be running for another key
            if (held := self._arrays.get(key)) is not None:
                held._memory.written()
                held.wait_to_write()
            super()._apply_sum(key, summed)

    def _settle(self) -> None:
        if self._order is not None:
            from graphkit.dist import nd_values

            nd_values.settle(self._order)

    def _set_updater(self, call: str, given: Any, updater: Updater) -> None:
        # Earlier pushes keep the earlier updater. Do not wait for them: a wait would raise the error of a stored value
        # whose computation has failed.
        with self._lock:
            self.transport.compare(call, updater_facts(given))
            self._updater = updater

    def _stateful(self) -> StatefulUpdater:
        self._settle()
        return super()._stateful()


_stores: weakref.WeakSet[LocalKVStore] = weakref.WeakSet()


def _after_fork() -> None:
    """Give stores new locks in a forked child: threads of the parent may hold the old ones."""
    for store in _stores:
        store._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _are_summed(values: Sequence[Any]) -> bool:
    if len(values) == 1:
        return is_array(values[0])
    return bool(values) and all(map(is_array, values)) and _can_add(values[0].dtype)


def _can_add(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" or is_half(dtype)
