"""The program of a graph whose parts run on several devices.

Parts are launched in order. A GPU computes while later parts are launched; a part on the host waits for the results
of a GPU that it reads. Parts that write states run last, after all others were checked for errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.device import Device
from graphkit.executor.memory.placement import Result
from graphkit.executor.report.divided_plan import PartPlan, join_plans
from graphkit.executor.run import base_program as programs
from graphkit.executor.run.base_program import Key
from graphkit.executor.run.divided.division import Division, Part
from graphkit.executor.run.divided.run import DividedRun
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.origin import signature
from graphkit.ir.types import TensorType
from graphkit.text import quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan


# Approximate size of a DividedProgram in bytes, without the programs of its parts.
_BYTES = 4 << 10


class DividedProgram:
    """Runs a divided graph for inputs of certain shapes. It implements CachedProgram.

    Args:
        division: The parts of the graph.
        bound: `Division.probe`, bound to these shapes.
        fed: The stored inputs that callers feed.
    """

    needs_recompiling = False
    part_keys: tuple[Key, ...] = ()
    is_as_declared = False
    has_fixed_results = False

    def __init__(self, division: Division, bound: Graph, fed: frozenset[Value]):
        self.graph = division.graph
        self._division = division
        self._fed = fed
        # See `Executable.interruptible`.
        self.interruptible: Callable[[], bool] | None = None
        output_count = len(self.graph.outputs)
        self._types = dict(zip(self.graph.inputs, (v.type for v in bound.inputs), strict=True))
        self._types |= dict(zip(division.crossing, (v.type for v in bound.outputs[output_count:]), strict=True))
        # The programs of parts; None for a part whose input shapes are data-dependent.
        self._known = [None if (s := self._shapes(p)) is None else division.program(p, s, fed) for p in division.parts]
        self.kept_bytes = _BYTES + sum(p.kept_bytes for p in self._known if p is not None)
        positions = {v: i for i, v in enumerate(self.graph.inputs)}
        states = [state for state, _ in self.graph.updates]
        self.state_inputs = [positions[state] for state in states]
        homes = [division.home(state) for state in states]
        self.on_devices: dict[Device, list[int]] = {}
        for position, device in enumerate(homes):
            if device is not None:
                self.on_devices.setdefault(device, []).append(position)
        writers = [(self._known[index], at) for index, at in map(division.writers.__getitem__, states)]
        self.donated = [program is not None and program.donated[at] for program, at in writers]
        owned = [
            device is None and program is not None and program.finals[at].owned
            for device, (program, at) in zip(homes, writers, strict=True)
        ]
        new_values = [new for _, new in self.graph.updates]
        outputs = [Result(value, owned=False) for value in bound.outputs[:output_count]]
        self.finals = (*map(Result, new_values, owned), *outputs)

    def _shapes(self, part: Part) -> list[tuple[int, ...] | None] | None:
        """Return the shapes that the program of a part depends on, or None if they are data-dependent."""
        kinds = [self._types[part.inputs[position]] for position in part.selection.open]
        if any(isinstance(kind, TensorType) and not kind.is_static for kind in kinds):
            return None
        return [kind.static_shape if isinstance(kind, TensorType) else None for kind in kinds]

    def prepare(self) -> None:
        """Do nothing: the first run copies the parameters to the devices."""

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        """Run once; see `Executable.run`. New values of states on devices are Resident. All results are computed.

        Until all parts that write no states are complete, an error or an interrupt leaves all states unchanged. The
        parts that write states then run in memory that is already allocated, and are not interrupted.
        """
        if programs.recorder is not None:
            raise UnsupportedError("profiling needs the native engine: device 'cpu', not several devices")
        updates = self.graph.updates
        memory = {updates[position][0]: array for position, array in buffers.items() if position < len(updates)}
        run = DividedRun(self._division, self._fed, dict(zip(self.graph.inputs, inputs, strict=True)))
        succeeded = False
        try:
            if updates:
                self.interruptible = _always
            run.compute(memory)
            self.interruptible = None
            results = [*run.write(), *run.outputs]
            succeeded = True
            return results
        finally:
            self.interruptible = None
            run.end(succeeded)

    def clear_needs_recompiling(self) -> None:
        """Do nothing: the cache of each device decides which programs of parts are recompiled."""

    def contents(self) -> str:
        return quantity(len(self._division.parts), "part")

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return nothing: the logs of the parts' programs name such steps."""
        return ()

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The `fallbacks` of the parts' programs. Parts whose sizes are known only in a run are left out."""
        return tuple(name for program in self._known if program is not None for name in program.fallbacks)

    @cached_property
    def plan(self) -> Plan:
        plans = []
        for part, program in zip(self._division.parts, self._known, strict=True):
            if program is None:
                raise UnsupportedError(f"no plan: {part.target.name} receives values with data-dependent shapes")
            plans.append(PartPlan(part.target.name, program.plan, self._division.copies(part, self._types)))
        return join_plans(plans)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.graph.name)
        yield quantity(len(self._division.parts), "part")
        yield signature(self.graph)


def _always() -> bool:
    return True
