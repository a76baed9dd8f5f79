"""ParamStore: named arrays with versions, which callers cannot write to in place.

The store owns an array if a run created it, or if it is a copy of an array that a caller assigned. Callers receive an
owned array as a read-only view. As long as such a view, or a view of it, exists, the memory is not overwritten.

Large arrays of an imported file stay in the file until they are written. Reading one returns a new array. Values that
were written on a device stay there, and are copied to host memory when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import InputError, did_you_mean
from graphkit.ir import limits
from graphkit.ir.arrays import array_of
from graphkit.ir.stored import Scratch, StoredArray
from graphkit.ir.types import TensorType, dtype_of
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device
    from graphkit.executor.memory.resident import Resident
    from graphkit.executor.memory.shared import SharedMemory
    from graphkit.ir.graph import Value

# A JointStore caches how lists of names are divided among its stores. This is the largest number of cached lists.
_MAX_GROUPINGS = 16


class ParamStore(MutableMapping[str, np.ndarray]):
    """Arrays by name. Reading returns a read-only array; `store[name] = array` checks it and increases its version.

    Raises InputError for an unknown name, or an array of another type.

    Args:
        types: Names and types of the arrays.
        arrays: Initial values.
    """

    def __init__(self, types: Mapping[str, TensorType], arrays: Mapping[str, Any] | None = None):
        self._types = dict(types)
        self._arrays: dict[str, np.ndarray] = {}
        self._stored: dict[str, StoredArray] = {}
        self._resident: dict[str, Resident] = {}
        self._own: set[str] = set()
        # The new holder of each array that was released (see `release`).
        self._elsewhere: dict[str, str] = {}
        # The owned arrays that callers have read. Each of them knows whether a view of it still exists.
        self._views: dict[str, SharedMemory] = {}
        self._versions = dict.fromkeys(self._types, 0)
        self._stamp = 0
        # How often callers assigned arrays, by name and in total. Runs do not count.
        self.assigned: dict[str, int] = {}
        self.assignments = 0
        for name, array in (arrays or {}).items():
            self[name] = array

    def type_of(self, name: str) -> TensorType:
        """Return the type of an array. Raises InputError for an unknown name."""
        if not isinstance(name, str) or name not in self._types:
            raise InputError(f"no parameter {name!r}{did_you_mean(name, self._types)}")
        return self._types[name]

    def version(self, name: str) -> int:
        """Return the version of an array, which increases at every write. Packed copies of other versions are stale."""
        return self._versions[name]

    @property
    def stamp(self) -> int:
        """A number that increases at every write to any array."""
        return self._stamp

    def __getitem__(self, name: str) -> np.ndarray:
        self.type_of(name)
        if (stored := self._stored.get(name)) is not None:
            return stored.array
        if name not in self._arrays and (resident := self._resident.get(name)) is not None:
            self._arrays[name] = resident.fetch()
            self._own.add(name)
        if name not in self._arrays:
            where = self._elsewhere.get(name)
            raise InputError(f"parameter {name!r} " + (f"is held by {where}" if where else "has no value yet"))
        array = self._arrays[name]
        if name not in self._own:
            return array
        memory = self._views.get(name)
        if memory is None:
            from graphkit.executor.memory.shared import SharedMemory

            memory = self._views[name] = SharedMemory(array)
        return memory.array(array.shape, array.dtype, writable=False)

    def borrowed(self, name: str, scratch: Scratch) -> np.ndarray:
        """Return an array that is valid until `scratch` is cleared. If it is in a file, it is read into `scratch`."""
        self.type_of(name)
        stored = self._stored.get(name)
        return self[name] if stored is None else stored.borrowed(scratch)

    def entry(self, name: str) -> np.ndarray | StoredArray:
        """Return the array, or where it is stored, to share it with another store."""
        return self._stored.get(name) or self[name]

    def entries(self) -> dict[str, np.ndarray | StoredArray]:
        """Return every `entry` by name."""
        return {name: self.entry(name) for name in self}

    def read_stored(self) -> None:
        """Read the arrays that are still in files. Afterwards, the files may be overwritten.

        Raises FileChanged, RuntimeFailure, OutOfMemory.
        """
        for name, stored in list(self._stored.items()):
            limits.require_memory(stored.nbytes, f"parameter {name!r}: ")
            self.commit(name, stored.array)

    def __setitem__(self, name: str, array: Any) -> None:
        if isinstance(array, StoredArray):
            self._check(name, array)
            self._forget(name)
            self._resident.pop(name, None)
            self._stored[name] = array
            self._written(name)
        else:
            self.commit(name, self.fitting(name, array))
        self.assigned[name] = self.assigned.get(name, 0) + 1
        self.assignments += 1

    def fitting(self, name: str, array: Any) -> np.ndarray:
        """Return a contiguous array for `commit`, which is a copy if others may write to `array`.

        Raises InputError if its dtype or shape is wrong.
        """
        self.type_of(name)
        given = array_of(f"parameter {name!r}", array)
        self._check(name, given)
        return given.copy() if given.flags.writeable or not given.flags.c_contiguous else given

    def _check(self, name: str, given: np.ndarray | StoredArray) -> None:
        """Raise InputError if the dtype or shape of an array is wrong."""
        wanted = self.type_of(name)
        if dtype_of(given.dtype) is not wanted.dtype:
            raise InputError(f"parameter {name!r} is {wanted}; the array given is {given.dtype}")
        if wanted.shape is not None and wanted.is_static and given.shape != wanted.shape:
            raise InputError(f"parameter {name!r} is {wanted}; the array given has shape {list(given.shape)}")

    def commit(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """Make an array of the right type the value of `name`, without a check.

        A writable array that is not a view is owned by the store afterwards: the caller must not keep it. Returns the
        memory of the old value for reuse, or None if the store does not own it, or a view of it exists.
        """
        free = self.donate(name) if name in self._arrays else None
        if not (array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned):
            array = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
        if array.flags.writeable and array.base is None and array.dtype.kind not in "OT":
            self._own.add(name)
        else:
            self._own.discard(name)
            array.flags.writeable = False
        # Set the new value before the other entries are removed: other threads must always find a value.
        self._arrays[name] = array
        self._stored.pop(name, None)
        self._resident.pop(name, None)
        self._written(name)
        return free

    def lend(self, names: Sequence[str], device: Device) -> list[Resident | np.ndarray]:
        """Return the values of states for a run on a device.

        The run may overwrite values that are already on the device. The caller must call `place` after the run.
        """
        held = [self._resident.get(name) for name in names]
        found = [one for one in held if one is not None and one.device is device]
        if len(found) == len(names):
            self._forget_host_copies(names)
            return [*found]
        residents = [self.resident(name, device) for name in names]
        self._forget_host_copies([name for name, one in zip(names, residents, strict=True) if one is not None])
        return [self[name] if one is None else one for name, one in zip(names, residents, strict=True)]

    def place(self, names: Sequence[str], residents: Sequence[Resident]) -> None:
        """Make arrays on a device the values of `names`. The store owns them afterwards."""
        self._resident.update(zip(names, residents, strict=True))
        self._forget_host_copies(names)

    def resident(self, name: str, device: Device) -> Resident | None:
        """Return the value of `name` if it is on this device, else None."""
        found = self._resident.get(name)
        return found if found is not None and found.device is device else None

    def _forget(self, name: str) -> None:
        """Remove the array of `name` in host memory and in a file."""
        self._arrays.pop(name, None)
        self._stored.pop(name, None)
        self._own.discard(name)

    def _forget_host_copies(self, names: Sequence[str]) -> None:
        """Remove arrays in host memory, because the values on a device change, and increase the versions."""
        if any(held and not held.keys().isdisjoint(names) for held in (self._arrays, self._stored, self._views)):
            for name in names:
                self._forget(name)
                self._views.pop(name, None)
        for name in names:
            self._versions[name] += 1
        self._stamp += len(names)

    def _written(self, name: str) -> None:
        """Increase the version of `name`."""
        self._views.pop(name, None)
        self._versions[name] += 1
        self._stamp += 1

    def release(self, name: str, holder: str) -> None:
        """Drop the array of `name`. Until it is written again, reading it raises InputError.

        holder: The new holder of the array for the error, such as "rank 1".
        """
        self.type_of(name)
        self._forget(name)
        self._resident.pop(name, None)
        self._elsewhere[name] = holder
        self._written(name)

    def holds(self, name: str) -> bool:
        """Whether the store has an array for a name of a parameter."""
        return name in self._arrays or name in self._stored or name in self._resident

    def donate(self, name: str) -> np.ndarray | None:
        """Return the array to overwrite it, or None if the store does not own it, or a view of it exists."""
        is_visible = name in self._views and self._views[name].is_referenced
        return None if is_visible or name not in self._own else self._arrays[name]

    def __copy__(self) -> ParamStore:
        """Return a store that shares the arrays. Afterwards neither store owns them, so neither overwrites them."""
        for name in self._resident:
            _ = self[name]  # copies the value to host memory
        for name in self._own:
            self._arrays[name].flags.writeable = False
        self._own.clear()
        other: ParamStore = object.__new__(type(self))
        other.__dict__ |= self.__dict__
        other._arrays, other._stored, other._versions = self._arrays.copy(), self._stored.copy(), self._versions.copy()
        other._own, other._views, other._resident = set(), {}, {}
        other.assigned = self.assigned.copy()
        return other

    def __getstate__(self) -> dict[str, Any]:
        read = {name: self[name] for name in (*self._stored, *self._resident)}
        return self.__dict__ | {"_views": {}, "_stored": {}, "_resident": {}, "_arrays": self._arrays | read}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled store, or a deep copy. It owns its arrays."""
        self.__dict__ |= state
        self._own = set()
        for name, array in self._arrays.items():
            if array.base is None and array.dtype.kind not in "OT":
                array.flags.writeable = True
                self._own.add(name)
            else:
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
        return short_repr(self, self._facts)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, in memory, in files or on a device."""
        return sum(kind.nbytes for kind in (self._arrays | self._stored | self._resident).values())

    def _facts(self) -> Iterator[str]:
        yield ""
        yield quantity(len(self), "array")
        yield human(self.nbytes)


class ParameterArray:
    """The current array of a parameter and its version. Kernels read parameters through it."""

    __slots__ = ("_name", "_store")

    def __init__(self, store: ParamStore, name: str):
        self._store = store
        self._name = name

    @property
    def array(self) -> np.ndarray:
        return self._store[self._name]

    @property
    def version(self) -> int:
        return self._store.version(self._name)

    def borrowed(self, scratch: Scratch) -> np.ndarray:
        return self._store.borrowed(self._name, scratch)

    def resident(self, device: Device) -> Resident | None:
        """See `ParamStore.resident`."""
        return self._store.resident(self._name, device)

    def __repr__(self) -> str:
        return short_repr(self, lambda: [repr(self._name)])


class JointStore(ParamStore):
    """Several stores combined: each name is read from and written to the store that has it.

    A training program stores the model's parameters and the optimizer's slots in two stores, and runs on both combined.
    So `model.params` is current after every step.
    """

    def __init__(self, stores: Sequence[ParamStore]):
        self._owner = {name: store for store in stores for name in store}
        if len(self._owner) != sum(len(s) for s in stores):
            raise InputError("stores that are combined must not share a name")
        self._stores = tuple(stores)
        self._groupings: dict[tuple[str, ...], list[tuple[ParamStore, list[str]]]] = {}
        super().__init__({name: store.type_of(name) for name, store in self._owner.items()})

    def version(self, name: str) -> int:
        return self._owner[name].version(name)

    @property
    def stamp(self) -> int:
        return sum(store.stamp for store in self._stores)

    def __getitem__(self, name: str) -> np.ndarray:
        self.type_of(name)
        return self._owner[name][name]

    def borrowed(self, name: str, scratch: Scratch) -> np.ndarray:
        self.type_of(name)
        return self._owner[name].borrowed(name, scratch)

    def entry(self, name: str) -> np.ndarray | StoredArray:
        return self._owner[name].entry(name)

    def __setitem__(self, name: str, array: Any) -> None:
        self.type_of(name)
        self._owner[name][name] = array

    def donate(self, name: str) -> np.ndarray | None:
        return self._owner[name].donate(name)

    def commit(self, name: str, array: np.ndarray) -> np.ndarray | None:
        return self._owner[name].commit(name, array)

    def lend(self, names: Sequence[str], device: Device) -> list[Resident | np.ndarray]:
        found: dict[str, Resident | np.ndarray] = {}
        for store, owned in self._by_owner(tuple(names)):
            found.update(zip(owned, store.lend(owned, device), strict=True))
        return [found[name] for name in names]

    def place(self, names: Sequence[str], residents: Sequence[Resident]) -> None:
        given = dict(zip(names, residents, strict=True))
        for store, owned in self._by_owner(tuple(names)):
            store.place(owned, [given[name] for name in owned])

    def _by_owner(self, names: tuple[str, ...]) -> list[tuple[ParamStore, list[str]]]:
        """Return each store with those of the names that it has. Results are cached, because executors repeat them."""
        if names not in self._groupings:
            if len(self._groupings) >= _MAX_GROUPINGS:
                self._groupings.clear()
            self._groupings[names] = [(s, [n for n in names if self._owner[n] is s]) for s in self._stores]
        return self._groupings[names]

    def resident(self, name: str, device: Device) -> Resident | None:
        return self._owner[name].resident(name, device)


def check_stored(names: Sequence[str], inputs: Sequence[Value], params: ParamStore) -> None:
    """Raise InputError if a parameter or state of a graph has no array."""
    for name, value in zip(names, inputs, strict=True):
        if is_stored(value) and name not in params:
            raise InputError(f"no array for the graph's {value.role} {name!r}{did_you_mean(name, params)}")


def is_stored(value: Value) -> bool:
    """Whether a graph's input is a parameter or a state, which has an array if it is not fed."""
    return value.role in ("parameter", "state")
