"""The steps of an instance in order, divided into segments that are recorded and segments that are not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from graphkit.executor.devices.bound_steps import ArrayKernel
from graphkit.executor.lower.arrays.body import launches_of, repeats
from graphkit.executor.lower.arrays.launched_sum import Progress, Start
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.ir.graph import Value

# With fewer steps than this, a recording saves no calls.
LEAST_RECORDED = 3


class Segment:
    """Consecutive steps, by their positions in the order.

    Args:
        positions: The positions.
        is_recorded: Whether the steps are recorded.
        repeats: Whether the recording contains loops whose number of iterations depends on values.

    Attributes:
        replay: Runs all steps; None before they are recorded.
        progress: The state of a run's all-reduces after the replay.
    """

    def __init__(self, positions: Sequence[int], is_recorded: bool, repeats: bool):
        self.positions = positions
        self.is_recorded = is_recorded
        self.repeats = repeats
        self.replay: Callable[[], None] | None = None
        self.progress = Progress(0, {})


def is_one_recording(segments: Sequence[Segment], commit: int) -> bool:
    """Return whether all steps can be recorded together: between the two segments, the host would only check faults."""
    begins = [segment.positions[0] for segment in segments]
    return len(begins) == 2 and begins[1] == commit and all(s.is_recorded and not s.repeats for s in segments)


def committed(lowered: LoweredGraph) -> int:
    """Return the first position whose step overwrites a state; the number of steps if none does."""
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
    """Yield the segments of a program. One begins at `commit`.

    Args:
        lowered: The program.
        kernels: The kernels of the steps; None for a step that allocates its results.
        stays: Storages whose memory is the same in every run.
        commit: The position of the first step that overwrites a state.
        records: Whether the device records.
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
    """Return the keys of all-reduces in a recorded segment, and whether it comes after all steps that can fail."""
    order, steps = lowered.memory.order, lowered.placement.steps
    nodes = (steps[order[position]] for position in segment.positions) if segment.is_recorded else ()
    begun = [node.op.key for node in nodes if isinstance(node.op, Start)]
    return [f"from {segment.positions[0] >= commit}", *begun] if begun else []
