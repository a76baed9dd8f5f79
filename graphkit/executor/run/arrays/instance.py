"""One arena and one stream of a program on a device, and how its steps run there.

If the device records, consecutive steps that only launch kernels on kept memory are recorded. Once two runs have used
the same arrays, such a segment is one call to the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep, Choice, NotRecorded, Recorded
from graphkit.executor.devices.capabilities import Recorder, streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.interpreted import check_result
from graphkit.executor.lower.arrays.body import ArrayMaker, InstanceContext, flattened, host_reads_values, prepare
from graphkit.executor.lower.arrays.launched_sum import LaunchedSum, Start, SumQueue
from graphkit.executor.lower.arrays.staged import Landing, StagedStep
from graphkit.executor.lower.arrays.swapped import SwapQueue, SwapStep
from graphkit.executor.lower.loop import Loop
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.memory.pools import Pools
from graphkit.executor.memory.resident import DeviceValue, Resident
from graphkit.executor.run.arrays.faults import Faults
from graphkit.executor.run.arrays.segments import Segment, committed, divided, is_one_recording, sums_of
from graphkit.executor.run.arrays.storages import Storages
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType


class ArrayInstance:
    """Runs a program, one run at a time.

    Args:
        lowered: The program.
        device: The device.
        pools: The memory that programs share.
        borrowed: Inputs that are read in the memory of another instance of the device.
    """

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools, borrowed: Collection[Value] = ()):
        self._lowered, self._device = lowered, device
        self._placement = lowered.placement
        self._recorder = device if isinstance(device, Recorder) else None
        self._streams = streams_of(device)
        self._stream = self._streams.stream()
        self._landing: Landing = {}
        self._queue = _sum_queue(lowered, device, self._stream)
        swaps = "host" in lowered.placement.place.values()
        self._swaps = SwapQueue(device) if swaps else None
        with self._streams.on(self._stream):
            self._faults = Faults(lowered, device, self._stream)
            context = self._faults.context(alone=self._queue is None)
            self._kernels = [self._prepared(*step, context) for step in lowered.steps]
            self._storages = Storages(lowered, device, self._stream, pools, borrowed)
            self._streams.synchronize(self._stream)
        # Results that other programs read, by position: the storage and the array in it.
        self._views: dict[int, tuple[Any, Any]] = {}
        self._ready: Any = None  # an event behind the steps
        # Whether a run has reached the steps that overwrite states. An interrupt then leaves states undefined.
        self.is_writing = False
        # Faults are checked before the first step that overwrites a state, and after the last step if needed.
        self._commit = committed(lowered)
        has_commit = self._commit < len(self._placement.steps)
        self._fails_last = not has_commit or self._faults.can_begin_at(self._commit)
        self._checks_last = not has_commit or self._faults.can_come_from(self._commit)
        # Whether the device itself has checked the faults of the latest run before the commit.
        self._device_checks = False
        stays, records = self._storages.staying, self._recorder is not None
        self._segments = [*divided(lowered, self._kernels, stays, self._commit, records=records)]
        self._whole = self._as_one_recording()
        if self._queue is not None:
            self._queue.describe(sums_of(segment, lowered, self._commit) for segment in self._segments)

    def _prepared(self, node: Node, lowering: Lowering, context: InstanceContext) -> ArrayKernel | None:
        """Return the kernel of a step; None if the step allocates its results."""
        if isinstance(lowering, StagedStep):
            return lowering.prepared(self._device, self._landing)
        if isinstance(lowering, LaunchedSum):
            assert self._queue is not None, "the program has sums"
            return lowering.prepared(self._device, self._queue)
        if isinstance(lowering, SwapStep):
            assert self._swaps is not None, "the program has copies"
            return lowering.prepared(self._device, self._swaps)
        if isinstance(lowering, Loop) and lowering.layout.hosted:
            return lowering.prepared(self._device, context, self._swaps)
        return prepare(self._device, node, lowering, context)

    # --- a run --------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], unread: Collection[int] = ()) -> list[Any]:
        """See ArrayProgram.run."""
        self.is_writing = False
        taking_part = nullcontext() if self._queue is None else self._queue.taking_part()
        with self._streams.on(self._stream), taking_part:
            try:
                self._storages.begin(inputs)
                self._run_all()
                self._wait_for_sums()
                positions = range(len(self._lowered.graph.updates), len(self._placement.results))
                self._storages.send_outputs(position for position in positions if position not in unread)
                self._check_last_faults()
                # Before the new states: outputs may be their old values.
                outputs = [
                    None if position in unread else self._storages.output(position, buffers.get(position))
                    for position in positions
                ]
                return [*self._storages.new_states(), *outputs]
            except GraphkitError:
                # The error of a later step may be a consequence of the first fault.
                if self._queue is None or not self._queue.is_broken:
                    self._check_faults()
                raise
            finally:
                self._end()

    def _wait_for_sums(self) -> None:
        """Wait for the stream's work if it contains all-reduces, in which other processes take part."""
        if self._queue is not None:
            self._queue.wait()

    def _check_faults(self) -> None:
        self._faults.check(self._wait_for_sums)

    def _check_last_faults(self) -> None:
        """Check the faults of the steps after the last check."""
        if self._checks_last or self._device_checks:
            self._check_faults()

    def _end(self) -> None:
        # Also after an error: memory that is still being written is neither read nor freed.
        if self._swaps is not None:
            self._swaps.clear()
        if self._queue is None or self._queue.has_ended():
            self._streams.synchronize(self._stream)
            if self._swaps is not None:
                self._swaps.wait()
        self._storages.end()

    # --- segments -----------------------------------------------------------------------------------------------

    def _as_one_recording(self) -> Segment | None:
        """Return one segment of all steps, if the device itself can check faults before states are overwritten."""
        alone = self._queue is None and self._swaps is None and not self._fails_last
        if self._recorder is None or not (alone and is_one_recording(self._segments, self._commit)):
            return None
        if self._faults.can_come_from(0) and not self._recorder.supports_conditions():
            return None
        return Segment([p for segment in self._segments for p in segment.positions], is_recorded=True, repeats=False)

    def _run_all(self) -> None:
        """Run all segments: by one replay if they are one recording."""
        whole, self._device_checks = self._whole, False
        if whole is None or self._storages.moved:
            self._run_segments()
            return
        if whole.is_recorded and whole.replay is None:
            self._try_to_record(whole)
        if whole.replay is None:
            self._run_segments()
            return
        self.is_writing = self._device_checks = True
        whole.replay()
        self._storages.states_are_copied = self._copies_states(self._segments[-1])

    def _run_segments(self) -> None:
        is_known, self._storages.moved = not self._storages.moved, False
        anew = False
        if self._whole is not None and not is_known:
            self._whole.replay = None
        if self._queue is not None:
            is_known, anew = self._queue.meet(is_known)
        for segment in self._segments:
            if segment.positions[0] == self._commit:
                self._check_faults()
                self.is_writing = True
            if anew or not is_known:
                segment.replay = None
            if is_known and segment.is_recorded and segment.replay is None:
                self._try_to_record(segment)
            if segment.replay is None:
                self._run_steps(segment)
            else:
                if segment.repeats:
                    self._faults.allow_iterations()
                segment.replay()
                self._storages.states_are_copied = self._copies_states(segment)
                if segment.repeats and not self.is_writing:
                    self._faults.watch()
                if self._queue is not None:
                    self._queue.resume(segment.progress)

    def _try_to_record(self, segment: Segment) -> None:
        try:
            self._record(segment)
        except NotRecorded as error:
            if self._queue is not None:
                raise  # the other processes replay theirs
            segment.is_recorded = False
            instead = "checks for faults between steps" if segment is self._whole else "runs one step after another"
            warnings.warn(f"{error}; the host {instead}", RuntimeWarning, stacklevel=2)

    def _record(self, segment: Segment) -> None:
        assert self._recorder is not None, "no other device has segments that are recorded"
        steps = [*(self._bound_steps_of_all() if segment is self._whole else self._bound_steps(segment))]
        if self._swaps is not None:
            steps.append(self._swaps.joined)
        if self._queue is None:
            segment.replay = self._recorder.record(self._stream, steps)
            return
        with self._queue.recording():
            segment.replay = self._recorder.record(self._stream, [*steps, self._queue.joined])
        segment.progress = self._queue.progress

    def _bound_steps(self, segment: Segment) -> Iterator[BoundStep]:
        """Yield the steps of a segment that can be recorded, with their memory, which is kept."""
        for position in segment.positions:
            index = self._lowered.memory.order[position]
            if (copies := self._lowered.memory.copies.get(position)) is not None:
                assert self._swaps is not None, "the program has copies"
                yield self._swaps.awaits(copies)
            kernel = self._kernels[index]
            assert kernel is not None, "steps that allocate their results are not recorded"
            node = self._placement.steps[index]
            yield from flattened(BoundStep(kernel, *self._storages.operands(node), self._storages.scratch(index)))
        if self._copies_states(segment):
            yield from self._storages.state_copies()

    def _bound_steps_of_all(self) -> Iterator[Recorded]:
        """Yield all steps of the program. If a fault is set, those that overwrite states do not run."""
        before, behind = self._segments
        yield from self._bound_steps(before)
        if self._faults.can_come_from(0):
            yield Choice(self._faults.words, (), [*self._bound_steps(behind)])
        else:
            yield from self._bound_steps(behind)

    def _copies_states(self, segment: Segment) -> bool:
        """Return whether new states are copied at the end of the segment: it is the last, and no step can fail."""
        return segment is self._segments[-1] and segment.positions[0] >= self._commit and not self._fails_last

    def _run_steps(self, segment: Segment) -> None:
        memory, steps = self._lowered.memory, self._placement.steps
        if not segment.is_recorded:
            self._wait_for_sums()  # interpreted steps and copies may wait for the device
        for position in segment.positions:
            index = memory.order[position]
            if self._swaps is not None:
                self._swaps.follow(memory.copies.get(position, ()))
            self._step(steps[index], index)
            self._storages.release(memory.releases.get(position, ()))
        if self._swaps is not None:
            self._swaps.join()
        if self._queue is not None:
            self._queue.join()

    def _step(self, node: Node, index: int) -> None:
        kernel, (operands, outputs) = self._kernels[index], self._storages.operands(node)
        if kernel is None or host_reads_values(kernel):
            # The sizes of results and numbers of iterations must not come from a failed kernel.
            self._check_faults()
        if isinstance(kernel, ArrayMaker):
            for position, array in kernel.made(operands, outputs, self._storages.scratch(index)).items():
                self._storages.put(node.outputs[position], array)
        elif kernel is not None:
            kernel(operands, outputs, self._storages.scratch(index))
        else:
            self._place(node, self._device.compute(node, operands))

    def _place(self, node: Node, results: Sequence[Any]) -> None:
        """Make arrays that a step has allocated its outputs."""
        for position, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
            if value not in self._placement.used:
                continue
            if value in self._storages.kept:
                # Recorded steps read the planned memory.
                planned = self._storages[value]
                check_result(node, position, result, planned.shape, planned.dtype)
                self._device.copy_across(result, planned)
            else:
                self._storages.put(value, result)

    # --- a run of several programs, which read each other's values ----------------------------------------------

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the inputs of a run, as `run` does. They may be DeviceValues. Call `end` in any case."""
        with self._streams.on(self._stream):
            self._storages.begin(inputs)

    def launch(self) -> None:
        """Queue the steps, without waiting for kernels."""
        self.is_writing = False
        with self._streams.on(self._stream):
            self._run_segments()
            self._ready = self._streams.event()

    def device_result(self, position: int) -> DeviceValue:
        """Return a result for programs of this kind of device. It is valid until the next run, and may be a list."""
        value = self._placement.results[position].value
        root = self._placement.root[value]
        source = self._storages[root]
        held = self._views.get(position)
        if held is None or held[0] is not source:
            array = self._storages.read(value)
            # A borrowed array may be overwritten by its program, and be another one in the next run.
            if isinstance(value.type, TensorType) and (root in self._storages.borrowed or not array.flags.c_contiguous):
                source = None
                with self._streams.on(self._stream):
                    array = self._storages.copied(array)
                    self._ready = self._streams.event()
            held = self._views[position] = source, array
        return DeviceValue(self._device, held[1], self._ready)

    def device_input(self, position: int) -> DeviceValue:
        """Return an input that was copied to this device, for other programs."""
        return DeviceValue(self._device, self._storages[self._lowered.graph.inputs[position]], self._ready)

    def fetch(self, position: int, out: np.ndarray | None = None) -> Any:
        """Return a result on the host. Waits for it."""
        with self._streams.on(self._stream):
            return self._storages.output(position, out)

    def check(self) -> None:
        """Wait for all steps; raises RuntimeFailure as `run` does."""
        with self._streams.on(self._stream):
            self._check_last_faults()
            self._streams.synchronize(self._stream)

    def first_fault(self) -> None:
        """Raise RuntimeFailure if a queued step has failed."""
        with self._streams.on(self._stream):
            self._check_faults()

    def new_states(self) -> list[Resident | None]:
        """Return the new values of states, in the memory of the old ones."""
        with self._streams.on(self._stream):
            return self._storages.new_states()

    def end(self) -> None:
        """End the run, also after an error."""
        with self._streams.on(self._stream):
            self._end()


def _sum_queue(lowered: LoweredGraph, device: Device, stream: Any) -> SumQueue | None:
    """Return the queue of the all-reduces that the device launches itself; None if there are none."""
    launched = {node: lowering for node, lowering in lowered.steps if isinstance(lowering, LaunchedSum)}
    if not launched:
        return None
    nodes = [node for node in lowered.graph.nodes if node in launched and isinstance(node.op, Start)]
    order = [node for index in lowered.memory.order if (node := lowered.placement.steps[index]) in launched]
    steps = [(node.op.key, None) if isinstance(node.op, Start) else (None, launched[node].keys) for node in order]
    return SumQueue(device, stream, next(iter(launched.values())).sums, nodes, steps)
