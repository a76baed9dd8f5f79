"""One run of a divided graph: its parts in their order, and the values that go from one to another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.executor.memory.resident import DeviceValue, Resident
from graphkit.executor.run.compile import refuse_fallbacks
from graphkit.executor.run.divided.division import Division, Part
from graphkit.executor.run.launching import Run
from graphkit.ir import limits
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType


class DividedRun:
    """`compute`, then `write`, and `end` in any case.

    fed: stored inputs that are; given: what the inputs of the whole graph are, None for what programs find themselves.
    outputs: on the host, once they are computed.
    """

    def __init__(self, division: Division, fed: Collection[Value], given: Mapping[Value, Any]):
        self._division, self._fed, self._given = division, fed, given
        self._runs: list[Run] = []
        # On the host: what parts have made, and states of devices.
        self._from_parts: dict[Value, Any] = {}
        self._states: dict[Value, Any] = {}
        self.outputs: list[Any] = []

    def compute(self, memory: Mapping[Value, np.ndarray]) -> None:
        """All parts that write no states. memory: of the host, for new values of states."""
        try:
            for part in self._division.parts:
                limits.check_time()
                self._begin(part, memory)
        except GraphkitError:
            # What came of the first fault may be what a later part has failed of.
            for run in self._runs:
                run.first_fault()
            raise
        for run, part in zip(self._runs, self._division.parts, strict=True):
            if not part.late:
                run.check()
        shown: set[Value] = set()
        for value in self._division.graph.outputs:
            # Outputs share no memory.
            self.outputs.append(deepcopy(self._made(value)) if value in shown else self._made(value))
            shown.add(value)

    def _begin(self, part: Part, memory: Mapping[Value, np.ndarray]) -> None:
        arrays = [self._input(part, position) for position in range(len(part.inputs))]
        arrays += [None] * (len(part.selection.inputs) - len(arrays))
        shapes = [getattr(arrays[position], "shape", None) for position in part.selection.open]
        program = self._division.program(part, shapes, self._fed)
        refuse_fallbacks(program)
        buffers = {position: memory[state] for position, state in enumerate(part.states) if state in memory}
        run = program.start()
        self._runs.append(run)
        # What has begun to write goes on to its end.
        with limits.untimed(part.late):
            run.begin(arrays, buffers)
        if not part.late:
            run.launch()

    def _input(self, part: Part, position: int) -> Any:
        """What a part is given for an input."""
        if position in part.received:
            index, at = part.received[position]
            return self._runs[index].device_input(at)
        value = part.inputs[position]
        if value.node is not None:
            index, at = self._division.makers[value]
            site = self._division.parts[index].site
            # From one kind of device to another, and for what is no array, by way of the host.
            near = site is part.site or (isinstance(value.type, TensorType) and site.kind == part.site.kind)
            return self._runs[index].device_result(at) if near else self._made(value)
        given = self._given[value]
        if not isinstance(given, Resident) or value in part.states:
            return given
        if not part.site.is_host:
            return DeviceValue(given.device, given.array, None)
        if value not in self._states:
            self._states[value] = given.fetch()
        return self._states[value]

    def _made(self, value: Value) -> Any:
        """What a part has made of a value, or of an input that is an output, on the host."""
        if value not in self._from_parts:
            index, position = self._division.makers[value]
            self._from_parts[value] = self._runs[index].fetch(position)
        return self._from_parts[value]

    def write(self) -> list[Any]:
        """The parts that write states, all of which have begun; the new values, in the order of the updates."""
        late = [(run, p) for run, p in zip(self._runs, self._division.parts, strict=True) if p.late]
        with limits.untimed():
            for run, _ in late:
                run.launch()
            for run, _ in late:
                run.check()
            new = {state: value for run, p in late for state, value in zip(p.states, run.new_states(), strict=True)}
        return [new[state] for state, _ in self._division.graph.updates]

    def end(self, well: bool) -> None:
        """Give back what parts have taken, when nothing is under way any more."""
        for run in self._runs:
            run.end(well)
