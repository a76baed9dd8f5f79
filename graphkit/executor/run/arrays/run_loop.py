"""The run loop of a program on a device: its steps one by one, or recordings of them if the device records.

Consecutive steps that only launch kernels on kept memory are recorded. Once two runs have used the same arrays, such a
segment is one call to the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby

from graphkit.executor.devices.bound_steps import BoundStep, Choice, NotRecorded, Recorded
from graphkit.executor.devices.capabilities import Recorder
from graphkit.executor.lower.arrays.body import launches_of, repeats
from graphkit.executor.lower.arrays.launched_sum import Progress, Start
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.run.arrays.steps import Steps
from graphkit.ir import limits

# With fewer steps than this, a recording saves no calls.
LEAST_RECORDED = 3


class RunLoop:
    """Runs the steps of a program one by one.

    Faults are checked before the first step that overwrites a state, and, if needed, after the last step. Limits of
    time and iterations do not apply to the first step that overwrites a state and the steps after it.

    Attributes:
        is_writing: Whether a run has reached the steps that overwrite states. An interrupt then leaves them undefined.
    """

    def __init__(self, steps: Steps):
        self.is_writing = False
        self._steps = steps
        self._commit = _first_overwrite(steps.lowered)
        self._count = len(steps.lowered.memory.order)
        has_commit = self._commit < self._count
        self._fails_last = not has_commit or steps.faults.can_fail_first_from(self._commit)
        self._checks_last = not has_commit or steps.faults.can_fail_from(self._commit)

    def run(self) -> None:
        """Run all steps."""
        self.run_segments()

    def run_segments(self) -> None:
        """Run all steps. The host checks faults before states are overwritten, even if the device could."""
        self.is_writing, self._steps.storages.moved = False, False
        self._steps.run(range(self._commit))
        if self._commit < self._count:
            self._steps.check_faults()
            self.is_writing = True
            with limits.completing():
                self._steps.run(range(self._commit, self._count))

    def check_last_faults(self) -> None:
        """Check the faults of the steps after the last check."""
        if self._checks_last:
            self._steps.check_faults()


def _first_overwrite(lowered: LoweredGraph) -> int:
    """Return the first position whose step overwrites a state; the number of steps if none does."""
    order = {lowered.placement.steps[index]: position for position, index in enumerate(lowered.memory.order)}
    writers = (order[target.node] for target in lowered.memory.donated.values() if target.node is not None)
    return min(writers, default=len(order))


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


class RecordingLoop(RunLoop):
    """Runs the steps of a program. It replays recordings of the steps that can be recorded."""

    def __init__(self, steps: Steps, recorder: Recorder):
        super().__init__(steps)
        self._recorder = recorder
        self._segments = [*self._divided()]
        self._whole = self._as_one_recording()
        # Whether the device itself has checked the faults of the latest run before states were overwritten.
        self._device_checks = False
        if steps.sums is not None:
            steps.sums.set_recordings(self._sums_of(segment) for segment in self._segments)

    def run(self) -> None:
        """Run all segments: by one replay if they are one recording."""
        whole, self._device_checks = self._whole, False
        if whole is None or self._steps.storages.moved:
            self.run_segments()
            return
        if whole.is_recorded and whole.replay is None:
            self._try_to_record(whole)
        if whole.replay is None:
            self.run_segments()
            return
        self.is_writing = self._device_checks = True
        whole.replay()
        self._steps.storages.states_are_copied = self._copies_states(self._segments[-1])

    def run_segments(self) -> None:
        self.is_writing = False
        storages, sums = self._steps.storages, self._steps.sums
        can_record, storages.moved = not storages.moved, False
        anew = False
        if self._whole is not None and not can_record:
            self._whole.replay = None
        if sums is not None:
            can_record, anew = sums.agree(can_record)
        for segment in self._segments:
            if segment.positions[0] == self._commit:
                self._steps.check_faults()
                self.is_writing = True
            if anew or not can_record:
                segment.replay = None
            with limits.completing() if self.is_writing else nullcontext():
                if can_record and segment.is_recorded and segment.replay is None:
                    self._try_to_record(segment)
                self._run_segment(segment)

    def _run_segment(self, segment: Segment) -> None:
        """Replay a segment, or run its steps if it was not recorded."""
        steps = self._steps
        if segment.replay is None:
            if not segment.is_recorded:
                steps.wait_for_sums()  # interpreted steps and copies may wait for the device
            steps.run(segment.positions)
            return
        if segment.repeats:
            steps.faults.allow_iterations()
        segment.replay()
        steps.storages.states_are_copied = self._copies_states(segment)
        if segment.repeats and not self.is_writing:
            steps.faults.watch()
        if steps.sums is not None:
            steps.sums.resume(segment.progress)

    def check_last_faults(self) -> None:
        if self._checks_last or self._device_checks:
            self._steps.check_faults()

    # --- segments -----------------------------------------------------------------------------------------------

    def _divided(self) -> Iterator[Segment]:
        """Yield the segments. One begins at the first step that overwrites a state."""
        lowered, kernels = self._steps.lowered, self._steps.kernels
        order, placement, stays = lowered.memory.order, lowered.placement, self._steps.storages.staying

        def can_be_recorded(position: int) -> bool:
            kernel, node = kernels[order[position]], placement.steps[order[position]]
            used = (*node.operands, *(v for v in node.outputs if v in placement.used))
            return kernel is not None and kernel.can_be_recorded and all(placement.root[v] in stays for v in used)

        for first, last in ((0, self._commit), (self._commit, self._count)):
            for recorded, positions in groupby(range(first, last), can_be_recorded):
                steps = list(positions)
                inside = [kernels[order[position]] for position in steps]
                recorded = recorded and sum(map(launches_of, inside)) >= LEAST_RECORDED
                yield Segment(steps, recorded, recorded and any(map(repeats, inside)))

    def _as_one_recording(self) -> Segment | None:
        """Return one segment of all steps, if the device itself can check faults before states are overwritten."""
        begins = [segment.positions[0] for segment in self._segments]
        alone = self._steps.sums is None and self._steps.swaps is None and not self._fails_last
        if not alone or len(begins) != 2 or begins[1] != self._commit:
            return None
        if not all(segment.is_recorded and not segment.repeats for segment in self._segments):
            return None
        if self._steps.faults.can_fail_from(0) and not self._recorder.supports_conditions():
            return None
        return Segment([p for segment in self._segments for p in segment.positions], is_recorded=True, repeats=False)

    def _sums_of(self, segment: Segment) -> list[str]:
        """Return texts that describe the all-reduces of a recorded segment; none if it has no all-reduces.

        The first text says whether the segment comes after the check of faults that precedes overwriting. The others
        are the keys.
        """
        order, steps = self._steps.lowered.memory.order, self._steps.lowered.placement.steps
        nodes = (steps[order[position]] for position in segment.positions) if segment.is_recorded else ()
        begun = [node.op.key for node in nodes if isinstance(node.op, Start)]
        return [f"from {segment.positions[0] >= self._commit}", *begun] if begun else []

    def _copies_states(self, segment: Segment) -> bool:
        """Return whether new states are copied at the end of the segment.

        It must be the last one and come after the check of faults that precedes overwriting. No later step may be the
        first to fail.
        """
        return segment is self._segments[-1] and segment.positions[0] >= self._commit and not self._fails_last

    # --- recordings ---------------------------------------------------------------------------------------------

    def _try_to_record(self, segment: Segment) -> None:
        try:
            self._record(segment)
        except NotRecorded as error:
            if self._steps.sums is not None:
                raise  # the other processes rely on a recording here
            segment.is_recorded = False
            instead = "checks for faults between steps" if segment is self._whole else "runs one step after another"
            warnings.warn(f"{error}; the host {instead}", RuntimeWarning, stacklevel=2)

    def _record(self, segment: Segment) -> None:
        steps = [*(self._bound_steps_of_all() if segment is self._whole else self._bound_steps(segment))]
        sums, stream = self._steps.sums, self._steps.stream
        if self._steps.swaps is not None:
            steps.append(self._steps.swaps.join_step)
        if sums is None:
            segment.replay = self._recorder.record(stream, steps)
            return
        with sums.recording():
            segment.replay = self._recorder.record(stream, [*steps, sums.join_step])
        segment.progress = sums.progress

    def _bound_steps(self, segment: Segment) -> Iterator[BoundStep]:
        """Yield the steps of a segment, and the copies of new states at its end."""
        yield from self._steps.bound(segment.positions)
        if self._copies_states(segment):
            yield from self._steps.storages.state_copies()

    def _bound_steps_of_all(self) -> Iterator[Recorded]:
        """Yield all steps of the program. If a fault is set, those that overwrite states do not run."""
        computing, overwriting = self._segments
        yield from self._bound_steps(computing)
        if self._steps.faults.can_fail_from(0):
            yield Choice(self._steps.faults.words, (), [*self._bound_steps(overwriting)])
        else:
            yield from self._bound_steps(overwriting)
