"""One arena and one stream of a program on a device, and how its steps are run there.

Runs of steps that do nothing but launch kernels on memory that stays are recorded: once two runs have met the same
arrays, all of them are one call to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.executor.devices.device import ArrayKernel, BoundStep, Device
from graphkit.executor.devices.interpreted import check_result
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.lower.arrays.body import (
    as_stored,
    faulty,
    flattened,
    laid,
    launches_of,
    looks_at_values,
    prepare,
    stored,
)
from graphkit.executor.lower.arrays.launched_sum import LaunchedSum, Progress, Start, SumQueue
from graphkit.executor.lower.arrays.loop import PreparedLoop
from graphkit.executor.lower.arrays.staged import Landing, StagedStep
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.lower.python_step import kept
from graphkit.executor.memory.pools import Pools
from graphkit.executor.memory.resident import Handed, Resident
from graphkit.executor.run.params import ParameterArray
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops.evaluate import run_node

# Steps below which a recording saves no calls.
LEAST_RECORDED = 3


class ArrayInstance:
    """For one run at a time. `_arrays` maps storages to what they hold at present.

    handed: inputs that are read where another instance of the device has them.
    """

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools, handed: Collection[Value] = ()):
        self._lowered, self._device, self._pools = lowered, device, pools
        self._placement = lowered.placement
        self._stream = device.stream()
        self._arrays: dict[Value, Any] = {}
        self._stamp = -1
        graph, memory = lowered.graph, lowered.memory
        # In the order of the updates; None before the first run.
        self._residents: dict[Value, Resident | None] = {state: None for state, _ in graph.updates}
        self._handed = dict.fromkeys(handed)
        self._landing: Landing = {}
        self._queue = _sum_queue(lowered, device, self._stream)
        # By the number of its word: the step, and the kernel that may set it.
        self._faulty = [(index, one) for index, step in enumerate(lowered.steps) for one in faulty(*step)]
        with device.on(self._stream):
            self._faults = device.xp.zeros((len(self._faulty),), np.uint32)
            words = (self._faults[number : number + 1] for number in range(len(self._faulty)))
            self._kernels = [self._prepared(*step, words) for step in lowered.steps]
            arena = device.alloc(memory.layout.arena_bytes)
            self._scratch = {
                index: device.view(arena, offset, (lowering.scratch_bytes,), np.dtype(np.uint8))
                for index, (_, lowering) in enumerate(lowered.steps)
                if (offset := memory.scratch_offset(index)) is not None
            }
            for storage in memory.request_of:
                self._arrays[storage] = self._view(arena, memory.offset(storage) or 0, storage)
            self._own_memory()
            device.synchronize(self._stream)
        self._kept = frozenset(self._arrays)  # what lies in memory that stays
        self._moved = True  # whether other memory stands for what lies elsewhere than in the latest run
        self._passing: list[Value] = []  # what lies in other memory during a run
        # What was handed on, by the result's position, with the array that it is a view of.
        self._views: dict[int, tuple[Any, Any]] = {}
        self._ready: Any = None  # behind the steps
        order = {self._placement.steps[index]: position for position, index in enumerate(memory.order)}
        # The first position whose step writes over a state: faults are looked at before. And behind all, if they must.
        writers = (order[target.node] for target in memory.donated.values() if target.node is not None)
        self._commit = min(writers, default=len(order))
        self._fails_late = any(order[self._placement.steps[index]] >= self._commit for index, _ in self._faulty)
        self._segments = list(self._divided())
        if self._queue is not None:
            self._queue.describe(self._sums_of(segment) for segment in self._segments)

    def _prepared(self, node: Node, lowering: Lowering, words: Iterator[Any]) -> ArrayKernel | None:
        """None for a step whose results are arrays that it makes."""
        if isinstance(lowering, StagedStep):
            return lowering.prepared(self._device, self._landing)
        if isinstance(lowering, LaunchedSum):
            assert self._queue is not None, "the program has sums"
            return lowering.prepared(self._device, self._queue)
        return prepare(self._device, node, lowering, words)

    def _own_memory(self) -> None:
        """Memory of fed arrays and of results; a new value that is written over a state has none."""
        over_states = {*self._lowered.memory.donated.values()}
        results = (self._placement.root[r.value] for r in self._placement.results if r.owned)
        fed = (
            value
            for value in self._lowered.graph.inputs
            if not (value in self._lowered.fixed or value in self._residents or value in self._handed)
            and _is_array(value)
        )
        for storage in (*fed, *results):
            if storage not in over_states and storage not in self._arrays:
                self._arrays[storage] = self._view(self._device.alloc(storage.tensor.nbytes), 0, storage)

    def _view(self, memory: Any, offset: int, storage: Value) -> Any:
        return laid(self._device, memory, offset, storage.tensor)

    # --- segments -----------------------------------------------------------------------------------------------

    def _divided(self) -> Iterator[_Segment]:
        """The steps in their order, in runs of those that can be recorded and of others."""
        order = self._lowered.memory.order
        over_states = self._lowered.memory.donated.values()
        stays = {*self._kept, *self._lowered.fixed, *self._residents, *self._handed, *over_states}

        def can_be_recorded(position: int) -> bool:
            index = order[position]
            kernel, node = self._kernels[index], self._placement.steps[index]
            used = (*node.operands, *(v for v in node.outputs if v in self._placement.used))
            return kernel is not None and kernel.can_be_recorded and all(self._placement.root[v] in stays for v in used)

        for first, last in ((0, self._commit), (self._commit, len(order))):
            for recorded, positions in groupby(range(first, last), can_be_recorded):
                steps = list(positions)
                launches = sum(launches_of(self._kernels[order[position]]) for position in steps)
                yield _Segment(steps, recorded and launches >= LEAST_RECORDED)

    def _sums_of(self, segment: _Segment) -> list[str]:
        """The keys of sums that it launches when it is recorded, and whether it comes behind what may fail."""
        order, steps = self._lowered.memory.order, self._placement.steps
        nodes = (steps[order[position]] for position in segment.positions) if segment.is_recorded else ()
        begun = [node.op.key for node in nodes if isinstance(node.op, Start)]
        return [f"from {segment.positions[0] >= self._commit}", *begun] if begun else []

    def _run_segments(self) -> None:
        is_known, self._moved = not self._moved, False
        anew = False
        if self._queue is not None:
            is_known, anew = self._queue.meet(is_known)
        for segment in self._segments:
            if segment.positions[0] == self._commit:
                self._check_faults()
            if anew or not is_known:
                segment.replay = None
            if is_known and segment.is_recorded and segment.replay is None:
                self._record(segment)
            if segment.replay is None:
                self._run_steps(segment)
            else:
                segment.replay()
                if self._queue is not None:
                    self._queue.resume(segment.progress)

    def _record(self, segment: _Segment) -> None:
        steps = [*self._bound_steps(segment)]
        if self._queue is None:
            segment.replay = self._device.record(self._stream, steps)
            return
        with self._queue.recording():
            segment.replay = self._device.record(self._stream, [*steps, self._queue.joined])
        segment.progress = self._queue.progress

    def _bound_steps(self, segment: _Segment) -> Iterator[BoundStep]:
        """Steps that can be recorded, with their memory, all of which stays."""
        for position in segment.positions:
            index = self._lowered.memory.order[position]
            kernel = self._kernels[index]
            assert kernel is not None, "results of others are arrays that they make"
            node = self._placement.steps[index]
            yield from flattened(BoundStep(kernel, *self._operands(node), self._scratch.get(index)))

    def _operands(self, node: Node) -> tuple[list[Any], list[Any]]:
        """The arrays that a node reads and writes; None for what is absent, or nobody reads."""
        read = [None if v is None else self._read(v) for v in node.inputs]
        return read, [self._read(v) if v in self._placement.used else None for v in node.outputs]

    def _run_steps(self, segment: _Segment) -> None:
        memory, steps = self._lowered.memory, self._placement.steps
        if self._queue is not None and not segment.is_recorded:
            self._queue.settle()  # what is interpreted, or copied, may wait for the device
        for position in segment.positions:
            index = memory.order[position]
            self._step(steps[index], index)
            for storage in memory.releases.get(position, ()):
                if storage not in self._kept:
                    self._arrays.pop(storage, None)
        if self._queue is not None:
            self._queue.join()

    def _step(self, node: Node, index: int) -> None:
        kernel, (operands, outputs) = self._kernels[index], self._operands(node)
        if kernel is None or looks_at_values(kernel):
            # How large results are, or how often a loop runs: what no kernel could compute must not tell.
            self._check_faults()
        if isinstance(kernel, PreparedLoop):
            for position, array in kernel.made(operands, outputs, self._scratch.get(index)).items():
                self._pass(node.outputs[position], array)
            return
        if kernel is not None:
            kernel(operands, outputs, self._scratch.get(index))
            return
        results = kept(node, operands, run_node(node, operands, self._device.xp))
        for position, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
            if value not in self._placement.used:
                continue
            if value in self._kept:
                # Recorded steps read it where it was planned.
                planned = self._arrays[value]
                check_result(node, position, result, planned.shape, planned.dtype)
                self._device.xp.copyto(planned, result)
            else:
                self._pass(value, result)

    def _pass(self, storage: Value, array: Any) -> None:
        """Put an array in the place of a storage until the run ends."""
        self._arrays[storage] = array
        self._passing.append(storage)

    def _read(self, value: Value) -> Any:
        storage = self._placement.root[value]
        array = self._arrays.get(storage)
        if value is storage or array is None:
            return array
        return self._shaped(array, value.tensor)

    def _shaped(self, array: Any, kind: TensorType) -> Any:
        """The memory of an array as one of another type."""
        wanted = stored(self._device, kind)
        if array.dtype != wanted:
            array = array.reshape(-1).view(wanted)
        return array.reshape(kind.static_shape)

    # --- a run --------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """See ArrayProgram.run."""
        taking_part = nullcontext() if self._queue is None else self._queue.taking_part()
        with self._device.on(self._stream), taking_part:
            try:
                self._begin(inputs)
                self._run_segments()
                if self._queue is not None:
                    self._queue.settle()
                self._check_last_faults()
                first = len(self._residents)
                outputs = [self._output(position, buffers.get(position)) for position in range(first, self._count)]
                return [*self._new_states(), *outputs]
            except GraphkitError:
                # What came of the first fault may be what a later step has failed of.
                if self._queue is None or not self._queue.is_broken:
                    self._check_faults()
                raise
            finally:
                self._end()

    @property
    def _count(self) -> int:
        return len(self._placement.results)

    def _begin(self, inputs: Sequence[Any]) -> None:
        self._refresh()
        for value, given in zip(self._lowered.graph.inputs, inputs, strict=True):
            if given is not self._residents.get(value) and value not in self._lowered.fixed and given is not None:
                self._receive(value, given)

    def _check_last_faults(self) -> None:
        """The steps behind the last look at faults are done."""
        if self._fails_late or self._commit == len(self._placement.steps):
            self._check_faults()

    def _end(self) -> None:
        # Whatever becomes of the run: nobody reads or frees what is still being written.
        if self._queue is None or self._queue.settled():
            self._device.synchronize(self._stream)
        for storage in self._passing:
            self._arrays.pop(storage, None)
        self._passing.clear()

    # --- a run beside others, of which it hands values on -------------------------------------------------------

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the inputs of a run, as `run` does, or Handed ones; `end` has to follow, whatever happens."""
        with self._device.on(self._stream):
            self._begin(inputs)

    def launch(self) -> None:
        """Have the steps done, without a wait for those that are kernels."""
        with self._device.on(self._stream):
            self._run_segments()
            self._ready = self._device.event()

    def handed(self, position: int) -> Handed:
        """A result, for programs of this kind of device; it is there, as long as no run follows, and may be a list."""
        value = self._placement.results[position].value
        root = self._placement.root[value]
        source = self._arrays[root]
        held = self._views.get(position)
        if held is None or held[0] is not source:
            array = self._read(value)
            # What others have may be written over behind them, and be something else in the next run.
            if isinstance(value.type, TensorType) and (root in self._handed or not array.flags.c_contiguous):
                source = None
                with self._device.on(self._stream):
                    array = self._copied(array)
                    self._ready = self._device.event()
            held = self._views[position] = source, array
        return Handed(self._device, held[1], self._ready)

    def received(self, position: int) -> Handed:
        """An input that was copied here, as `handed` hands on a result."""
        return Handed(self._device, self._arrays[self._lowered.graph.inputs[position]], self._ready)

    def fetched(self, position: int, out: np.ndarray | None = None) -> Any:
        """A result on the host, once it is there."""
        with self._device.on(self._stream):
            return self._output(position, out)

    def check(self) -> None:
        """Wait for all steps; raises RuntimeFailure as `run` does."""
        with self._device.on(self._stream):
            self._check_last_faults()
            self._device.synchronize(self._stream)

    def first_fault(self) -> None:
        """Raise RuntimeFailure where a step that was begun has met what no kernel can compute."""
        with self._device.on(self._stream):
            self._check_faults()

    def new_states(self) -> list[Resident | None]:
        """The new values of states, in the memory of the old ones."""
        with self._device.on(self._stream):
            return self._new_states()

    def end(self) -> None:
        """The run is over, or given up."""
        with self._device.on(self._stream):
            self._end()

    def _output(self, position: int, out: np.ndarray | None) -> Any:
        value = self._placement.results[position].value
        array, kind = self._read(value), value.type
        if not isinstance(kind, TensorType) or self._device.supports(kind.dtype):
            return _copied_out(self._device, array, out)
        bits = self._device.copy_out(array, None if out is None else as_stored(out, array.dtype))
        return as_stored(bits, kind.dtype.numpy) if out is None else out

    def _receive(self, value: Value, given: Any) -> None:
        if isinstance(given, Handed):
            self._take_over(value, given)
        elif value in self._kept:
            self._sent(value, given, self._arrays[value])
        elif value in self._residents:
            self._bind(value, given if isinstance(given, Resident) else self._resident(value, self._sent(value, given)))
        else:
            self._moved |= value in self._handed
            self._pass(value, self._sent(value, given))

    def _take_over(self, value: Value, given: Handed) -> None:
        """Read what another instance has where it is, or, from another device, in a copy."""
        if given.ready is not None:
            self._device.wait_for(given.ready)
        if given.device is self._device and value in self._handed:
            self._moved |= self._arrays.get(value) is not given.array
            self._arrays[value] = given.array
            return
        array = given.array
        if value not in self._kept:
            memory = self._device.alloc(array.nbytes)
            self._pass(value, self._device.view(memory, 0, array.shape, array.dtype))
        self._device.copy_across(array, self._arrays[value])

    def _resident(self, state: Value, array: Any) -> Resident:
        return Resident(self._device, array, state.dtype.numpy)

    def _bind(self, state: Value, resident: Resident) -> None:
        """Have the run read a state where it is, and write its new value over it if it may."""
        if self._residents[state] is resident:
            return
        self._residents[state] = resident
        self._arrays[state] = resident.array
        self._moved = True
        target = self._lowered.memory.donated.get(state)
        if target is not None:
            self._arrays[target] = self._shaped(resident.array, target.tensor)

    def _sent(self, value: Value, given: Any, target: Any = None) -> Any:
        """A fed array on the device, in `target` or on its own; or a sequence of arrays. Maps stay on the host."""
        if isinstance(value.type, TensorType):
            return self._device.copy_in(as_stored(given, stored(self._device, value.tensor)), target)
        return _copied_in(self._device, given)

    def _new_states(self) -> list[Resident | None]:
        """The states' memory with the new values in it."""
        placement, donated = self._placement, self._lowered.memory.donated
        new: dict[Value, Any] = {}
        for state, result in zip(self._residents, placement.results, strict=False):
            if state not in donated:
                array = self._read(result.value)
                # Another state's old value is about to go.
                new[state] = self._copied(array) if placement.root[result.value] in self._residents else array
        for state, array in new.items():
            held = self._arrays[state]
            if (held.shape, held.dtype) == (array.shape, array.dtype):
                self._device.xp.copyto(held, array)
            else:
                self._bind(state, self._resident(state, self._copied(array)))
        return [*self._residents.values()]

    def _copied(self, array: Any) -> Any:
        made = self._device.view(self._device.alloc(array.nbytes), 0, array.shape, array.dtype)
        self._device.xp.copyto(made, array)
        return made

    def _check_faults(self) -> None:
        """Raise RuntimeFailure for the first step that has met what no kernel can compute. Waits for all steps."""
        if not self._faulty:
            return
        if self._queue is not None:
            self._queue.settle()
        words = self._device.copy_out(self._faults, None)
        if not words.any():
            return
        self._device.copy_in(np.zeros(len(words), np.uint32), self._faults)
        place = {index: position for position, index in enumerate(self._lowered.memory.order)}
        found = [(place[index], one, int(word)) for (index, one), word in zip(self._faulty, words, strict=True) if word]
        _, first, word = min(found, key=lambda one: one[0])
        raise first.kernel.failure(first.node, word)

    def _refresh(self) -> None:
        """Copy parameters and constants that have changed to the device."""
        if (stamp := self._pools.stamp()) == self._stamp:
            return
        for storage, source in self._lowered.fixed.items():
            array = self._pools.packed.made(source, f"on {self._device.name}", self._uploaded)
            self._moved |= self._arrays.get(storage) is not array
            self._arrays[storage] = array
        self._stamp = stamp

    def _uploaded(self, source: VersionedArray) -> Any:
        if isinstance(source, ParameterArray) and (resident := source.resident(self._device)) is not None:
            return resident.array
        array = source.array
        array = self._device.copy_in(as_stored(array, self._device.stored(dtype_of(array.dtype)) or array.dtype))
        self._device.synchronize(self._stream)  # other streams read it as well
        return array


class _Segment:
    """Steps by their position in the order; `replay` runs all of them, once it was made."""

    def __init__(self, positions: Sequence[int], is_recorded: bool):
        self.positions = positions
        self.is_recorded = is_recorded
        self.replay: Callable[[], None] | None = None
        # How far a run has come in its sums behind the replay.
        self.progress = Progress(0, {})


def _sum_queue(lowered: LoweredGraph, device: Device, stream: Any) -> SumQueue | None:
    """Of the sums that the device launches itself; None where it launches none."""
    launched = {node: lowering for node, lowering in lowered.steps if isinstance(lowering, LaunchedSum)}
    if not launched:
        return None
    nodes = [node for node in lowered.graph.nodes if node in launched and isinstance(node.op, Start)]
    order = [node for index in lowered.memory.order if (node := lowered.placement.steps[index]) in launched]
    steps = [(node.op.key, None) if isinstance(node.op, Start) else (None, launched[node].keys) for node in order]
    return SumQueue(device, stream, next(iter(launched.values())).sums, nodes, steps)


def _is_array(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def _copied_in(device: Device, given: Any) -> Any:
    """A fed array, or a sequence of them, on the device; maps stay on the host."""
    if isinstance(given, (list, tuple)):
        return [_copied_in(device, item) for item in given]
    return given if isinstance(given, dict) else device.copy_in(given)


def _copied_out(device: Device, result: Any, out: np.ndarray | None) -> Any:
    if isinstance(result, (list, tuple)):
        return [_copied_out(device, item, None) for item in result]
    return result if result is None or isinstance(result, dict) else device.copy_out(result, out)
