"""One arena and one stream of a program on a device, and how its steps are run there.

Runs of steps that do nothing but launch kernels on memory that stays are recorded: once two runs have met the same
arrays, all of them are one call to the device.
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
from graphkit.executor.lower.arrays.body import ArrayMaker, InstanceContext, flattened, looks_at_values, prepare
from graphkit.executor.lower.arrays.launched_sum import LaunchedSum, Start, SumQueue
from graphkit.executor.lower.arrays.staged import Landing, StagedStep
from graphkit.executor.lower.arrays.swapped import SwapQueue, SwapStep
from graphkit.executor.lower.loop import Loop
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.memory.pools import Pools
from graphkit.executor.memory.resident import Handed, Resident
from graphkit.executor.run.arrays.faults import Faults
from graphkit.executor.run.arrays.segments import Segment, committed, divided, is_one_recording, sums_of
from graphkit.executor.run.arrays.storages import Storages
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType


class ArrayInstance:
    """For one run at a time.

    handed: inputs that are read where another instance of the device has them.
    """

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools, handed: Collection[Value] = ()):
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
            self._storages = Storages(lowered, device, self._stream, pools, handed)
            self._streams.synchronize(self._stream)
        # What was handed on, by the result's position, with the array that it is a view of.
        self._views: dict[int, tuple[Any, Any]] = {}
        self._ready: Any = None  # behind the steps
        # Whether a run has come to the steps that write over states: what is interrupted there leaves neither old ones
        # nor new ones.
        self.is_writing = False
        # Faults are looked at before a step writes over a state; and behind all, if they must be.
        self._commit = committed(lowered)
        has_commit = self._commit < len(self._placement.steps)
        self._fails_last = not has_commit or self._faults.begin_from(self._commit)
        self._looks_last = not has_commit or self._faults.come_from(self._commit)
        # Whether the latest run has left the look before the commit to the device.
        self._left_the_look = False
        stays, records = self._storages.staying, self._recorder is not None
        self._segments = [*divided(lowered, self._kernels, stays, self._commit, records=records)]
        self._whole = self._as_one_recording()
        if self._queue is not None:
            self._queue.describe(sums_of(segment, lowered, self._commit) for segment in self._segments)

    def _prepared(self, node: Node, lowering: Lowering, context: InstanceContext) -> ArrayKernel | None:
        """None for a step whose results are arrays that it makes."""
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
                self._run_steps_of_all()
                self._settle()
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
                # What came of the first fault may be what a later step has failed of.
                if self._queue is None or not self._queue.is_broken:
                    self._check_faults()
                raise
            finally:
                self._end()

    def _settle(self) -> None:
        """The stream's work is done, as far as there are sums among it, in which other processes take part."""
        if self._queue is not None:
            self._queue.settle()

    def _check_faults(self) -> None:
        self._faults.check(self._settle)

    def _check_last_faults(self) -> None:
        """The steps behind the last look at faults are done."""
        if self._looks_last or self._left_the_look:
            self._check_faults()

    def _end(self) -> None:
        # Whatever becomes of the run: nobody reads or frees what is still being written.
        if self._swaps is not None:
            self._swaps.forget()
        if self._queue is None or self._queue.settled():
            self._streams.synchronize(self._stream)
            if self._swaps is not None:
                self._swaps.settle()
        self._storages.end()

    # --- segments -----------------------------------------------------------------------------------------------

    def _as_one_recording(self) -> Segment | None:
        """All steps, where the device can look by itself whether states may be written over."""
        alone = self._queue is None and self._swaps is None and not self._fails_last
        if self._recorder is None or not (alone and is_one_recording(self._segments, self._commit)):
            return None
        if self._faults.come_from(0) and not self._recorder.supports_conditions():
            return None
        return Segment([p for segment in self._segments for p in segment.positions], is_recorded=True, repeats=False)

    def _run_steps_of_all(self) -> None:
        """All segments: by one replay, where they are one recording."""
        whole, self._left_the_look = self._whole, False
        if whole is None or self._storages.moved:
            self._run_segments()
            return
        if whole.is_recorded and whole.replay is None:
            self._try_to_record(whole)
        if whole.replay is None:
            self._run_segments()
            return
        self.is_writing = self._left_the_look = True
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
        """Steps that can be recorded, with their memory, all of which stays."""
        for position in segment.positions:
            index = self._lowered.memory.order[position]
            if (copies := self._lowered.memory.copies.get(position)) is not None:
                assert self._swaps is not None, "the program has copies"
                yield self._swaps.awaits(copies)
            kernel = self._kernels[index]
            assert kernel is not None, "results of others are arrays that they make"
            node = self._placement.steps[index]
            yield from flattened(BoundStep(kernel, *self._storages.operands(node), self._storages.scratch(index)))
        if self._copies_states(segment):
            yield from self._storages.state_copies()

    def _bound_steps_of_all(self) -> Iterator[Recorded]:
        """Where a word of faults is set, states stay what they were."""
        before, behind = self._segments
        yield from self._bound_steps(before)
        if self._faults.come_from(0):
            yield Choice(self._faults.words, (), [*self._bound_steps(behind)])
        else:
            yield from self._bound_steps(behind)

    def _copies_states(self, segment: Segment) -> bool:
        """Whether states are written behind its steps, at the latest: it is the last, and nothing fails any more."""
        return segment is self._segments[-1] and segment.positions[0] >= self._commit and not self._fails_last

    def _run_steps(self, segment: Segment) -> None:
        memory, steps = self._lowered.memory, self._placement.steps
        if not segment.is_recorded:
            self._settle()  # what is interpreted, or copied, may wait for the device
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
        if kernel is None or looks_at_values(kernel):
            # How large results are, or how often a loop runs: what no kernel could compute must not tell.
            self._check_faults()
        if isinstance(kernel, ArrayMaker):
            for position, array in kernel.made(operands, outputs, self._storages.scratch(index)).items():
                self._storages.put(node.outputs[position], array)
        elif kernel is not None:
            kernel(operands, outputs, self._storages.scratch(index))
        else:
            self._place(node, self._device.compute(node, operands))

    def _place(self, node: Node, results: Sequence[Any]) -> None:
        """Have arrays that a step has made be its outputs."""
        for position, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
            if value not in self._placement.used:
                continue
            if value in self._storages.kept:
                # Recorded steps read it where it was planned.
                planned = self._storages[value]
                check_result(node, position, result, planned.shape, planned.dtype)
                self._device.copy_across(result, planned)
            else:
                self._storages.put(value, result)

    # --- a run beside others, of which it hands values on -------------------------------------------------------

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the inputs of a run, as `run` does, or Handed ones; `end` has to follow, whatever happens."""
        with self._streams.on(self._stream):
            self._storages.begin(inputs)

    def launch(self) -> None:
        """Have the steps done, without a wait for those that are kernels."""
        self.is_writing = False
        with self._streams.on(self._stream):
            self._run_segments()
            self._ready = self._streams.event()

    def handed(self, position: int) -> Handed:
        """A result, for programs of this kind of device; it is there, as long as no run follows, and may be a list."""
        value = self._placement.results[position].value
        root = self._placement.root[value]
        source = self._storages[root]
        held = self._views.get(position)
        if held is None or held[0] is not source:
            array = self._storages.read(value)
            # What others have may be written over behind them, and be something else in the next run.
            if isinstance(value.type, TensorType) and (root in self._storages.handed or not array.flags.c_contiguous):
                source = None
                with self._streams.on(self._stream):
                    array = self._storages.copied(array)
                    self._ready = self._streams.event()
            held = self._views[position] = source, array
        return Handed(self._device, held[1], self._ready)

    def received(self, position: int) -> Handed:
        """An input that was copied here, as `handed` hands on a result."""
        return Handed(self._device, self._storages[self._lowered.graph.inputs[position]], self._ready)

    def fetched(self, position: int, out: np.ndarray | None = None) -> Any:
        """A result on the host, once it is there."""
        with self._streams.on(self._stream):
            return self._storages.output(position, out)

    def check(self) -> None:
        """Wait for all steps; raises RuntimeFailure as `run` does."""
        with self._streams.on(self._stream):
            self._check_last_faults()
            self._streams.synchronize(self._stream)

    def first_fault(self) -> None:
        """Raise RuntimeFailure where a step that was begun has met what no kernel can compute."""
        with self._streams.on(self._stream):
            self._check_faults()

    def new_states(self) -> list[Resident | None]:
        """The new values of states, in the memory of the old ones."""
        with self._streams.on(self._stream):
            return self._storages.new_states()

    def end(self) -> None:
        """The run is over, or given up."""
        with self._streams.on(self._stream):
            self._end()


def _sum_queue(lowered: LoweredGraph, device: Device, stream: Any) -> SumQueue | None:
    """Of the sums that the device launches itself; None where it launches none."""
    launched = {node: lowering for node, lowering in lowered.steps if isinstance(lowering, LaunchedSum)}
    if not launched:
        return None
    nodes = [node for node in lowered.graph.nodes if node in launched and isinstance(node.op, Start)]
    order = [node for index in lowered.memory.order if (node := lowered.placement.steps[index]) in launched]
    steps = [(node.op.key, None) if isinstance(node.op, Start) else (None, launched[node].keys) for node in order]
    return SumQueue(device, stream, next(iter(launched.values())).sums, nodes, steps)
