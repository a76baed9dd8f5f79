"""ParamStore: named, read-only arrays with a version each; every write goes through item assignment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import InputError, did_you_mean
from graphkit.executor.run.ownership import LOCAL_REFERENCES
from graphkit.ir.types import TensorType, dtype_of


class ParamStore(MutableMapping[str, np.ndarray]):
    """Arrays by name. Reading gives a read-only array; `store[name] = array` checks it and bumps its version.

    `types` fixes the names and what each array must look like; raises InputError for an unknown name or a misfit.
    """

    def __init__(self, types: Mapping[str, TensorType], arrays: Mapping[str, Any] | None = None):
        self._types = dict(types)
        self._arrays: dict[str, np.ndarray] = {}
        self._versions = dict.fromkeys(self._types, 0)
        self._stamp = 0
        for name, array in (arrays or {}).items():
            self[name] = array

    def type_of(self, name: str) -> TensorType:
        if name not in self._types:
            raise InputError(f"no parameter {name!r}{did_you_mean(name, self._types)}")
        return self._types[name]

    def version(self, name: str) -> int:
        """Grows by one at every write; a packed copy of another version is stale."""
        return self._versions[name]

    @property
    def stamp(self) -> int:
        """Grows at every write to any array: while it stays, no version has changed."""
        return self._stamp

    def __getitem__(self, name: str) -> np.ndarray:
        self.type_of(name)
        if name not in self._arrays:
            raise InputError(f"parameter {name!r} has no value yet")
        return self._arrays[name]

    def __setitem__(self, name: str, array: Any) -> None:
        self._adopt(name, self.fitting(name, array))

    def fitting(self, name: str, array: Any) -> np.ndarray:
        """The array as `adopt` takes it, a copy if others may write to it; raises InputError when it does not fit."""
        wanted = self.type_of(name)
        given = np.asarray(array)
        if dtype_of(given.dtype) is not wanted.dtype:
            raise InputError(f"parameter {name!r} is {wanted}; the array given is {given.dtype}")
        if wanted.shape is not None and wanted.is_static and given.shape != wanted.shape:
            raise InputError(f"parameter {name!r} is {wanted}; the array given has shape {list(given.shape)}")
        return given.copy() if given.flags.writeable or not given.flags.c_contiguous else given

    def adopt(self, name: str, array: np.ndarray) -> None:
        """Take ownership of a fresh array that already has the right type, without a copy or a check."""
        self._adopt(name, array)

    def lend(self, name: str) -> np.ndarray | None:
        """The array, writable, when nobody but the store holds it or a view of it; it goes back by `adopt`."""
        array = self._arrays[name]
        # One reference is the store's. Only who owns memory knows who shares it.
        if array.base is not None or sys.getrefcount(array) > 1 + LOCAL_REFERENCES:
            return None
        array.flags.writeable = True
        return array

    def _adopt(self, name: str, array: np.ndarray) -> None:
        if not (array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned):
            array = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
        array.flags.writeable = False
        self._arrays[name] = array
        self._versions[name] += 1
        self._stamp += 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy: what it writes is its own, and its arrays, which numpy copies writable, are read-only."""
        self.__dict__ |= state
        self._arrays, self._versions = self._arrays.copy(), self._versions.copy()
        for array in self._arrays.values():
            array.flags.writeable = False

    def __delitem__(self, name: str) -> None:
        raise InputError(f"parameter {name!r} belongs to the graph and cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __repr__(self) -> str:
        return f"<ParamStore: {len(self)} arrays, {sum(a.nbytes for a in self._arrays.values())} bytes>"


class JointStore(ParamStore):
    """Several stores seen as one: each name is read from and written to the store that holds it.

    A training program keeps the model's parameters and the optimizer's slots in two stores and runs on their join,
    so that `model.params` is current after every step.
    """

    def __init__(self, stores: Sequence[ParamStore]):
        self._owner = {name: store for store in stores for name in store}
        if len(self._owner) != sum(len(s) for s in stores):
            raise InputError("stores that are joined share a name")
        self._stores = tuple(stores)
        super().__init__({name: store.type_of(name) for name, store in self._owner.items()})

    def version(self, name: str) -> int:
        return self._owner[name].version(name)

    @property
    def stamp(self) -> int:
        return sum(store.stamp for store in self._stores)

    def __getitem__(self, name: str) -> np.ndarray:
        self.type_of(name)
        return self._owner[name][name]

    def __setitem__(self, name: str, array: Any) -> None:
        self.type_of(name)
        self._owner[name][name] = array

    def lend(self, name: str) -> np.ndarray | None:
        return self._owner[name].lend(name)

    def adopt(self, name: str, array: np.ndarray) -> None:
        self._owner[name].adopt(name, array)
