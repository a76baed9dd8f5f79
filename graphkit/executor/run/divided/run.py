"""One run of a divided graph: it runs the parts in order and passes values between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.executor.memory.resident import DeviceValue, Resident
from graphkit.executor.run.compile import refuse_fallbacks
from graphkit.executor.run.divided.division import Division, Part
from graphkit.executor.run.program_run import Run
from graphkit.ir import limits
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType


class DividedRun:
    """One run. Call `compute`, then `write`, and always `end`.

    Args:
        division: The parts.
        fed: The stored inputs that the caller feeds.
        given: Arrays of the inputs of the whole graph; None for those that programs read themselves.

    Attributes:
        outputs: The outputs in host memory, after `compute`.
    """

    def __init__(self, division: Division, fed: Collection[Value], given: Mapping[Value, Any]):
        self._division, self._fed, self._given = division, fed, given
        self._runs: list[Run] = []
        # Copies in host memory: of results of parts, and of states on devices.
        self._from_parts: dict[Value, Any] = {}
        self._states: dict[Value, Any] = {}
        self.outputs: list[Any] = []

    def compute(self, memory: Mapping[Value, np.ndarray]) -> None:
        """Run all parts that write no states. memory: host memory for the new values of states."""
        try:
            for part in self._division.parts:
                limits.check_time()
                self._begin(part, memory)
        except GraphkitError:
            # An earlier failure on a device may have caused this error in a later part.
            for run in self._runs:
                run.raise_fault()
            raise
        for run, part in zip(self._runs, self._division.parts, strict=True):
            if not part.runs_last:
                run.wait()
        returned: set[Value] = set()
        for value in self._division.graph.outputs:
            # Outputs must not share memory.
            self.outputs.append(deepcopy(self._on_host(value)) if value in returned else self._on_host(value))
            returned.add(value)

    def _begin(self, part: Part, memory: Mapping[Value, np.ndarray]) -> None:
        """Allocate the memory of a part. Launch it, unless it writes states."""
        arrays = [self._input(part, position) for position in range(len(part.inputs))]
        arrays += [None] * (len(part.selection.inputs) - len(arrays))
        shapes = [getattr(arrays[position], "shape", None) for position in part.selection.open]
        program = self._division.program(part, shapes, self._fed)
        refuse_fallbacks(program)
        buffers = {position: memory[state] for position, state in enumerate(part.states) if state in memory}
        run = program.start()
        self._runs.append(run)
        # A part that writes states must complete, so it has no time limit.
        with limits.untimed(part.runs_last):
            run.begin(arrays, buffers)
        if not part.runs_last:
            run.launch()

    def _input(self, part: Part, position: int) -> Any:
        """Return the array that a part gets for an input."""
        if position in part.received:
            index, at = part.received[position]
            return self._runs[index].device_input(at)
        value = part.inputs[position]
        if value.node is not None:
            index, at = self._division.producers[value]
            source = self._division.parts[index].target
            # Values that are not arrays, or go to another kind of device, are copied through host memory.
            is_same_kind = isinstance(value.type, TensorType) and source.kind == part.target.kind
            is_direct = source is part.target or is_same_kind
            return self._runs[index].device_result(at) if is_direct else self._on_host(value)
        given = self._given[value]
        if not isinstance(given, Resident) or value in part.states:
            return given
        if not part.target.is_host:
            return DeviceValue(given.device, given.array, None)
        if value not in self._states:
            self._states[value] = given.fetch()
        return self._states[value]

    def _on_host(self, value: Value) -> Any:
        """Return an output of a part, in host memory."""
        if value not in self._from_parts:
            index, position = self._division.producers[value]
            self._from_parts[value] = self._runs[index].fetch(position)
        return self._from_parts[value]

    def write(self) -> list[Any]:
        """Run the parts that write states. Return the new values, in the order of the updates."""
        last = [(run, p) for run, p in zip(self._runs, self._division.parts, strict=True) if p.runs_last]
        with limits.untimed():
            for run, _ in last:
                run.launch()
            for run, _ in last:
                run.wait()
            new = {state: value for run, p in last for state, value in zip(p.states, run.new_states(), strict=True)}
        return [new[state] for state, _ in self._division.graph.updates]

    def end(self, succeeded: bool) -> None:
        """Release the memory of all parts."""
        for run in self._runs:
            run.end(succeeded)
