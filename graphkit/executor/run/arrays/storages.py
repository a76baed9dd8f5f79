"""The arrays of one instance of a program on a device: its arena, inputs, parameters and states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep
from graphkit.executor.devices.capabilities import streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.kernel import KernelContext, VersionedArray
from graphkit.executor.devices.registry import make_launched
from graphkit.executor.lower.arrays.body import array_at, as_stored, stored
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.pools import RECYCLED_BYTES, Pools
from graphkit.executor.memory.resident import DeviceValue, Resident, host_arrays
from graphkit.executor.run.arrays.transfers import SmallInputs, SmallResults
from graphkit.executor.run.params import ParameterArray
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import registry


class Storages:
    """The arrays of an instance, by storage. A storage is identified by its root (see Placement).

    All work is queued on `stream`, which must be the current one.

    Attributes:
        kept: Storages whose memory is allocated once. The memory of others lasts until the run ends, or belongs to a
            parameter, a state or another instance.
        borrowed: Inputs that are read in the memory of another instance.
        moved: Whether the memory of a parameter, state or borrowed input changed since the latest run.
        states_are_copied: Whether this run has copied new states by `state_copies`.
    """

    def __init__(
        self, lowered: LoweredGraph, device: Device, stream: Any, pools: Pools, borrowed: Collection[Value]
    ) -> None:
        self._lowered, self._device, self._pools = lowered, device, pools
        self._streams, self._stream = streams_of(device), stream
        self._root, self._used = lowered.placement.root, lowered.placement.used
        memory = lowered.memory
        # The versions of the fixed operands when they were last read, and the stamp of the store at that time.
        self._versions: dict[Value, int] = {}
        self._stamp = -1
        # The states, in the order of the updates. None before the first run.
        self._residents: dict[Value, Resident | None] = {state: None for state, _ in lowered.graph.updates}
        self._taken = [(i, value) for i, value in enumerate(lowered.graph.inputs) if value not in lowered.fixed]
        self.borrowed = frozenset(borrowed)
        arena = device.alloc(memory.layout.arena_bytes)
        self._scratch = {
            index: device.view(arena, offset, (lowering.scratch_bytes,), np.dtype(np.uint8))
            for index, (_, lowering) in enumerate(lowered.steps)
            if (offset := memory.scratch_offset(index)) is not None
        }
        self._arrays: dict[Value, Any] = {
            storage: array_at(device, arena, memory.offset(storage) or 0, storage.tensor)
            for storage in memory.request_of
        }
        self._arrays |= self._swapped()
        fed = [value for value in lowered.graph.inputs if self._is_fed(value)]
        self._small_inputs = SmallInputs(device, fed)
        self._arrays |= self._small_inputs.arrays
        for storage in self._separate(fed):
            if storage not in self._arrays:
                self._arrays[storage] = array_at(device, device.alloc(storage.tensor.nbytes), 0, storage.tensor)
        self.kept = frozenset(self._arrays)
        outputs = [result.value for result in lowered.placement.results[len(self._residents) :]]
        planned = [value for value in outputs if self._root[value] in self.kept]
        self._small_results = SmallResults(device, stream, planned)
        self.moved = True
        self._passing: list[Value] = []
        # The states that `state_copies` copies to.
        self._copied: set[Value] = set()
        self.states_are_copied = False

    def _swapped(self) -> dict[Value, np.ndarray]:
        """Return the arrays of values that are swapped to host memory. Raises OutOfMemory."""
        lowered = self._lowered
        stored = [value for value, place in lowered.placement.place.items() if place == "host"]
        if not stored:
            return {}
        nbytes = sum(value.tensor.nbytes for value in stored)
        what = f"values that are swapped to pinned host memory, {nbytes} bytes for device {self._device.name!r}"
        with out_of_memory(lowered.graph, what):
            return dict(zip(stored, host_arrays(self._device, stored), strict=True))

    def _is_fed(self, value: Value) -> bool:
        """Return whether an input is copied from the host to kept memory."""
        elsewhere = value in self._lowered.fixed or value in self._residents or value in self.borrowed
        return not elsewhere and isinstance(value.type, TensorType) and value.type.is_static

    def _separate(self, fed: Iterable[Value]) -> Iterable[Value]:
        """Return the storages outside the arena: inputs, and results that do not overwrite a state."""
        placement, over_states = self._lowered.placement, {*self._lowered.memory.donated.values()}
        results = (placement.root[r.value] for r in placement.results if r.owned)
        return (storage for storage in (*fed, *results) if storage not in over_states)

    @property
    def staying(self) -> frozenset[Value]:
        """The storages whose memory is the same in every run, unless `moved`."""
        over_states = self._lowered.memory.donated.values()
        return frozenset({*self.kept, *self._lowered.fixed, *self._residents, *self.borrowed, *over_states})

    # --- reading ------------------------------------------------------------------------------------------------

    def __getitem__(self, storage: Value) -> Any:
        return self._arrays[storage]

    def read(self, value: Value) -> Any:
        """Return the array of a value; None if it has none."""
        storage = self._root[value]
        array = self._arrays.get(storage)
        if value is storage or array is None:
            return array
        return self._shaped(array, value.tensor)

    def operands(self, node: Node) -> tuple[list[Any], list[Any]]:
        """Return the arrays that a node reads and writes; None for absent operands and unused results."""
        read = [None if v is None else self.read(v) for v in node.inputs]
        return read, [self.read(v) if v in self._used else None for v in node.outputs]

    def scratch(self, index: int) -> Any:
        """Return the working memory of a step, by its index; None if it needs none."""
        return self._scratch.get(index)

    def _shaped(self, array: Any, kind: TensorType) -> Any:
        """Return the memory of an array as an array of another type."""
        wanted = stored(self._device, kind)
        if array.dtype != wanted:
            array = array.reshape(-1).view(wanted)
        return array.reshape(kind.static_shape)

    def copied(self, array: Any) -> Any:
        """Return a copy in new memory."""
        made = self._device.view(self._device.alloc(array.nbytes), 0, array.shape, array.dtype)
        self._device.copy_across(array, made)
        return made

    def send_outputs(self, positions: Iterable[int]) -> None:
        """Start copying the small ones of these results."""
        for value in (self._lowered.placement.results[position].value for position in positions):
            if value in self._small_results:
                self._small_results.send(value, self.read(value))

    def output(self, position: int, out: np.ndarray | None) -> Any:
        """Return a result on the host, in `out` or in a new array. Waits for it."""
        value = self._lowered.placement.results[position].value
        if value in self._small_results:
            self._small_results.send(value, self.read(value))
            return self._small_results.array(value, out)
        array, kind = self.read(value), value.type
        if not isinstance(kind, TensorType):
            return _copied_out(self._device, array)
        dtype = kind.dtype.numpy
        if out is None and array.nbytes >= RECYCLED_BYTES:
            out = self._pools.results.array(position, array.shape, dtype, array.nbytes)
        bits = self._device.copy_out(array, None if out is None else as_stored(out, array.dtype))
        return as_stored(bits, dtype).reshape(array.shape) if out is None else out

    # --- a run --------------------------------------------------------------------------------------------------

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the inputs of a run: arrays of the host, Resident states, or DeviceValues of other instances."""
        self.states_are_copied = False
        self._small_results.begin()
        self._refresh()
        received: list[tuple[Value, Any]] = []
        for position, value in self._taken:
            given = inputs[position]
            if given is not None and given is not self._residents.get(value):
                if value in self._small_inputs.arrays and not isinstance(given, DeviceValue):
                    self._small_inputs.put(value, given)
                else:
                    received.append((value, given))
        # Send before `_receive`: all small inputs are copied, also old values of inputs that other instances pass.
        # `_receive` then overwrites these.
        self._small_inputs.send()
        for value, given in received:
            self._receive(value, given)

    def put(self, storage: Value, array: Any) -> None:
        """Use an array for a storage until the run ends."""
        self._arrays[storage] = array
        self._passing.append(storage)

    def release(self, storages: Iterable[Value]) -> None:
        """Release memory that this run does not read any more."""
        for storage in storages:
            if storage not in self.kept:
                self._arrays.pop(storage, None)

    def end(self) -> None:
        """End the run. All its work is done."""
        self.release(self._passing)
        self._passing.clear()

    def _receive(self, value: Value, given: Any) -> None:
        if isinstance(given, DeviceValue):
            self._take_over(value, given)
        elif value in self.kept:
            self._sent(value, given, self._arrays[value])
        elif value in self._residents:
            self._bind(value, given if isinstance(given, Resident) else self._resident(value, self._sent(value, given)))
        else:
            self.moved |= value in self.borrowed
            self.put(value, self._sent(value, given))

    def _take_over(self, value: Value, given: DeviceValue) -> None:
        """Read a value of another instance in its memory, or copy it if it is on another device."""
        if given.ready is not None:
            self._streams.wait_for(given.ready)
        if given.device is self._device and value in self.borrowed:
            self.moved |= self._arrays.get(value) is not given.array
            self._arrays[value] = given.array
            return
        array = given.array
        if value not in self.kept:
            memory = self._device.alloc(array.nbytes)
            self.put(value, self._device.view(memory, 0, array.shape, array.dtype))
        self._device.copy_across(array, self._arrays[value])

    def _sent(self, value: Value, given: Any, target: Any = None) -> Any:
        """Copy an input, or a sequence of arrays, to the device: to `target` or new memory. Maps stay on the host."""
        if isinstance(value.type, TensorType):
            return self._device.copy_in(as_stored(given, stored(self._device, value.tensor)), target)
        return _copied_in(self._device, given)

    # --- states and parameters ----------------------------------------------------------------------------------

    def state_copies(self) -> Iterator[BoundStep]:
        """Yield steps that copy new values in kept memory to their states. Such steps can share a launch.

        States whose old values are outputs are left out. There are no steps if a new value may be the old value of
        another state. A caller that runs the steps must set `states_are_copied`.
        """
        self._copied.clear()
        updated = [*zip(self._residents, self._lowered.placement.results, strict=False)]
        apart = [(state, r.value) for state, r in updated if state not in self._lowered.memory.donated]
        if any(self._root[value] in self._residents for _, value in apart):
            return
        outputs = self._lowered.placement.results[len(self._residents) :]
        shown = {self._root[result.value] for result in outputs}
        for state, value in ((state, value) for state, value in apart if state not in shown):
            array, held = self.read(value), self._arrays[state]
            if self._root[value] in self.kept and (held.shape, held.dtype) == (array.shape, array.dtype):
                kernel = self._copying(value.tensor)
                if kernel is not None:
                    self._copied.add(state)
                    yield BoundStep(kernel, [array], [held], None)

    def _copying(self, kind: TensorType) -> ArrayKernel | None:
        """Return the device's kernel that copies arrays of a type; None if it has none."""
        node = Node(registry.get("", "Identity")(), [Value(kind)])
        made = make_launched(self._lowered.settings.device, node, KernelContext())
        return None if made is None else self._device.prepare(node, made, None)

    def new_states(self) -> list[Resident | None]:
        """Write the new values to the memory of the states, and return it."""
        root, donated = self._root, self._lowered.memory.donated
        new: dict[Value, Any] = {}
        for state, result in zip(self._residents, self._lowered.placement.results, strict=False):
            if state not in donated and not (self.states_are_copied and state in self._copied):
                array = self.read(result.value)
                # The old value of another state is about to be overwritten.
                new[state] = self.copied(array) if root[result.value] in self._residents else array
        for state, array in new.items():
            held = self._arrays[state]
            if (held.shape, held.dtype) == (array.shape, array.dtype):
                self._device.copy_across(array, held)
            else:
                self._bind(state, self._resident(state, self.copied(array)))
        return [*self._residents.values()]

    def _resident(self, state: Value, array: Any) -> Resident:
        return Resident(self._device, array, state.dtype.numpy)

    def _bind(self, state: Value, resident: Resident) -> None:
        """Let the run read a state in its memory, and overwrite it with the new value if that is planned."""
        if self._residents[state] is resident:
            return
        self._residents[state] = resident
        self._arrays[state] = resident.array
        self.moved = True
        target = self._lowered.memory.donated.get(state)
        if target is not None:
            self._arrays[target] = self._shaped(resident.array, target.tensor)

    def _refresh(self) -> None:
        """Copy parameters and constants that have changed to the device."""
        if (stamp := self._pools.stamp()) == self._stamp:
            return
        for storage, source in self._lowered.fixed.items():
            version = source.version  # read before the array: if a write comes in between, the next run finds it
            if version != self._versions.get(storage):
                array = self._pools.packed.cached(source, f"on {self._device.name}", self._uploaded)
                self.moved |= self._arrays.get(storage) is not array
                self._arrays[storage], self._versions[storage] = array, version
        self._stamp = stamp

    def _uploaded(self, source: VersionedArray) -> Any:
        if isinstance(source, ParameterArray) and (resident := source.resident(self._device)) is not None:
            return resident.array
        array = source.array
        array = self._device.copy_in(as_stored(array, self._device.stored(dtype_of(array.dtype)) or array.dtype))
        self._streams.synchronize(self._stream)  # other streams read it as well
        return array


def _copied_in(device: Device, given: Any) -> Any:
    """Copy an array, or a sequence of arrays, to the device. Maps stay on the host."""
    if isinstance(given, (list, tuple)):
        return [_copied_in(device, item) for item in given]
    return given if isinstance(given, dict) else device.copy_in(given)


def _copied_out(device: Device, result: Any) -> Any:
    """Copy an array, or a sequence of arrays, to the host. Maps are there already."""
    if isinstance(result, (list, tuple)):
        return [_copied_out(device, item) for item in result]
    return result if result is None or isinstance(result, dict) else device.copy_out(result, None)
