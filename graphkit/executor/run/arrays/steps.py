"""The steps of one instance of a program on a device: their kernels, their memory, and how one step runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep
from graphkit.executor.devices.capabilities import streams_of
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.interpreted import check_result
from graphkit.executor.lower.arrays.body import ArrayMaker, InstanceContext, flattened, host_reads_values, prepare
from graphkit.executor.lower.arrays.launched_sum import LaunchedSum, Start, SumQueue
from graphkit.executor.lower.arrays.staged import PendingSums, StagedStep
from graphkit.executor.lower.arrays.swapped import SwapQueue, SwapStep
from graphkit.executor.lower.loop import Loop
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.arrays.faults import Faults
from graphkit.executor.run.arrays.storages import Storages
from graphkit.ir.graph import Node, Value


class Steps:
    """The steps of an instance, by their positions in the order of the program.

    Attributes:
        kernels: The kernels by index of the step; None for a step that allocates its results.
        storages: The memory.
        faults: The errors of kernels.
        sums: The all-reduces that the device launches itself; None if there are none.
    """

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools, borrowed: Collection[Value]):
        self.lowered, self.device = lowered, device
        self.streams = streams_of(device)
        self.stream = self.streams.stream()
        self._pending: PendingSums = {}
        self.sums = _sum_queue(lowered, device, self.stream)
        swaps = "host" in lowered.placement.place.values()
        self.swaps = SwapQueue(device) if swaps else None
        with self.streams.on(self.stream):
            self.faults = Faults(lowered, device, self.stream)
            context = self.faults.context(without_collectives=self.sums is None)
            self.kernels = [self._prepared(*step, context) for step in lowered.steps]
            self.storages = Storages(lowered, device, self.stream, pools, borrowed)
            self.streams.synchronize(self.stream)

    def _prepared(self, node: Node, lowering: Lowering, context: InstanceContext) -> ArrayKernel | None:
        """Return the kernel of a step; None if the step allocates its results."""
        if isinstance(lowering, StagedStep):
            return lowering.prepared(self.device, self._pending)
        if isinstance(lowering, LaunchedSum):
            assert self.sums is not None, "the program has sums"
            return lowering.prepared(self.device, self.sums)
        if isinstance(lowering, SwapStep):
            assert self.swaps is not None, "the program has copies"
            return lowering.prepared(self.device, self.swaps)
        if isinstance(lowering, Loop) and lowering.layout.hosted:
            return lowering.prepared(self.device, context, self.swaps)
        return prepare(self.device, node, lowering, context)

    def wait_for_sums(self) -> None:
        """Wait for the stream's work if it contains all-reduces, in which other processes take part."""
        if self.sums is not None:
            self.sums.wait()

    def check_faults(self) -> None:
        """Raise RuntimeFailure for the first step that has failed. Waits for all queued steps."""
        self.faults.check(self.wait_for_sums)

    def run(self, positions: Sequence[int]) -> None:
        """Run steps one by one."""
        memory, steps = self.lowered.memory, self.lowered.placement.steps
        for position in positions:
            index = memory.order[position]
            if self.swaps is not None:
                self.swaps.stream_wait(memory.copies.get(position, ()))
            self._run(steps[index], index)
            self.storages.release(memory.releases.get(position, ()))
        if self.swaps is not None:
            self.swaps.join()
        if self.sums is not None:
            self.sums.join()

    def bound(self, positions: Sequence[int]) -> Iterator[BoundStep]:
        """Yield steps that can be recorded, with their memory, which is kept."""
        memory = self.lowered.memory
        for position in positions:
            index = memory.order[position]
            if (copies := memory.copies.get(position)) is not None:
                assert self.swaps is not None, "the program has copies"
                yield self.swaps.wait_step(copies)
            kernel = self.kernels[index]
            assert kernel is not None, "steps that allocate their results are not recorded"
            node = self.lowered.placement.steps[index]
            yield from flattened(BoundStep(kernel, *self.storages.operands(node), self.storages.scratch(index)))

    def end(self) -> None:
        """End a run, also after an error: memory that is still being written is neither read nor freed."""
        if self.swaps is not None:
            self.swaps.clear()
        if self.sums is None or self.sums.has_ended():
            self.streams.synchronize(self.stream)
            if self.swaps is not None:
                self.swaps.wait()
        self.storages.end()

    def _run(self, node: Node, index: int) -> None:
        kernel, (operands, outputs) = self.kernels[index], self.storages.operands(node)
        if kernel is None or host_reads_values(kernel):
            # The sizes of results and numbers of iterations must not come from a failed kernel.
            self.check_faults()
        if isinstance(kernel, ArrayMaker):
            for position, array in kernel.made(operands, outputs, self.storages.scratch(index)).items():
                self.storages.put(node.outputs[position], array)
        elif kernel is not None:
            kernel(operands, outputs, self.storages.scratch(index))
        else:
            self._place(node, self.device.compute(node, operands))

    def _place(self, node: Node, results: Sequence[Any]) -> None:
        """Use the arrays that a step has allocated as the memory of its results."""
        for position, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
            if value not in self.lowered.placement.used:
                continue
            if value in self.storages.kept:
                # Recorded steps read the planned memory.
                planned = self.storages[value]
                check_result(node, position, result, planned.shape, planned.dtype)
                self.device.copy_across(result, planned)
            else:
                self.storages.put(value, result)


def _sum_queue(lowered: LoweredGraph, device: Device, stream: Any) -> SumQueue | None:
    """Return the queue of the all-reduces that the device launches itself; None if there are none."""
    launched = {node: lowering for node, lowering in lowered.steps if isinstance(lowering, LaunchedSum)}
    if not launched:
        return None
    nodes = [node for node in lowered.graph.nodes if node in launched and isinstance(node.op, Start)]
    order = [node for index in lowered.memory.order if (node := lowered.placement.steps[index]) in launched]
    steps = [(node.op.key, None) if isinstance(node.op, Start) else (None, launched[node].keys) for node in order]
    return SumQueue(device, stream, next(iter(launched.values())).sums, nodes, steps)
