"""The order of an instance's steps, in runs of those that can be recorded and of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from graphkit.executor.devices.bound_steps import ArrayKernel
from graphkit.executor.lower.arrays.body import launches_of, repeats
from graphkit.executor.lower.arrays.launched_sum import Progress, Start
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.ir.graph import Value

# Steps below which a recording saves no calls.
LEAST_RECORDED = 3


class Segment:
    """Steps by their position in the order; `replay` runs all of them, once it was made. repeats: it has steps that
    values repeat, while which nobody looks at the time.
    """

    def __init__(self, positions: Sequence[int], is_recorded: bool, repeats: bool):
        self.positions = positions
        self.is_recorded = is_recorded
        self.repeats = repeats
        self.replay: Callable[[], None] | None = None
        # How far a run has come in its sums behind the replay.
        self.progress = Progress(0, {})


def is_one_recording(segments: Sequence[Segment], commit: int) -> bool:
    """Whether all can be recorded, and what begins at `commit` too, with nothing that the host has to look at between
    them but faults.
    """
    begins = [segment.positions[0] for segment in segments]
    return len(begins) == 2 and begins[1] == commit and all(s.is_recorded and not s.repeats for s in segments)


def committed(lowered: LoweredGraph) -> int:
    """The first position whose step writes over a state; behind all where none does."""
    order = {lowered.placement.steps[index]: position for position, index in enumerate(lowered.memory.order)}
    writers = (order[target.node] for target in lowered.memory.donated.values() if target.node is not None)
    return min(writers, default=len(order))


def divided(
    lowered: LoweredGraph,
    kernels: Sequence[ArrayKernel | None],
    stays: Collection[Value],
    commit: int,
    *,
    records: bool,
) -> Iterator[Segment]:
    """A segment begins at `commit`. stays: storages that are the same memory in every run; kernels: of the steps, None
    for a step whose results are arrays that it makes; records: whether the device records.
    """
    order, placement = lowered.memory.order, lowered.placement

    def can_be_recorded(position: int) -> bool:
        kernel, node = kernels[order[position]], placement.steps[order[position]]
        used = (*node.operands, *(v for v in node.outputs if v in placement.used))
        return kernel is not None and kernel.can_be_recorded and all(placement.root[v] in stays for v in used)

    for first, last in ((0, commit), (commit, len(order))):
        for recorded, positions in groupby(range(first, last), can_be_recorded):
            steps = list(positions)
            inside = [kernels[order[position]] for position in steps]
            recorded = recorded and records and sum(map(launches_of, inside)) >= LEAST_RECORDED
            yield Segment(steps, recorded, recorded and any(map(repeats, inside)))


def sums_of(segment: Segment, lowered: LoweredGraph, commit: int) -> list[str]:
    """The keys of sums that it launches when it is recorded, and whether it comes behind what may fail."""
    order, steps = lowered.memory.order, lowered.placement.steps
    nodes = (steps[order[position]] for position in segment.positions) if segment.is_recorded else ()
    begun = [node.op.key for node in nodes if isinstance(node.op, Start)]
    return [f"from {segment.positions[0] >= commit}", *begun] if begun else []
