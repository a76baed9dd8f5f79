"""The interface of programs: on the CPU, on arrays of a GPU, of a batch in parts, and on several devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from graphkit.executor.memory.placement import Result
from graphkit.executor.run.base_program import InstancedProgram, Key
from graphkit.ir.graph import Graph, Node

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device
    from graphkit.executor.report.plan import Plan
    from graphkit.executor.run.program_run import Run


class Executable(Protocol):
    """A graph that is ready to run for inputs of certain shapes, on one device or on several.

    Attributes:
        state_inputs: Positions of the states among the inputs, in the order of the updates.
        donated: For each update, whether the new value is written over the old one in host memory.
        interruptible: Returns whether the current run may be interrupted. None if there is no run, or if the run must
            not be interrupted.
        is_as_declared: Whether the results were compared with the declared shapes, and cannot change.
    """

    graph: Graph
    state_inputs: list[int]
    donated: list[bool]
    interruptible: Callable[[], bool] | None
    is_as_declared: bool

    @property
    def finals(self) -> tuple[Result, ...]:
        """The new values of states, then the outputs."""

    @property
    def on_devices(self) -> Mapping[Device, Sequence[int]]:
        """The states that stay on a device between runs, by their positions among the updates."""

    @property
    def has_fixed_results(self) -> bool:
        """Whether every result has the same shape in each run."""

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that are interpreted, as "name (Op)" or "name (Op: reason)", as far as they are known before a run."""

    @property
    def needs_recompiling(self) -> bool:
        """Whether the shapes occur so often that compiling a faster program is worth the time."""

    @property
    def plan(self) -> Plan:
        """The plan of a run."""

    def prepare(self) -> None:
        """Do the work of a first run that does not depend on its inputs, such as packing parameters, if there is any.

        Raises OutOfMemory.
        """

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        """Run once. Safe to call from several threads, unless there are states.

        Args:
            inputs: One array per graph input; None for those that are not needed.
            buffers: C-contiguous host memory for results, by position, if the result is `owned`: the memory of the old
                value if `donated` allows it, else memory that no input uses.
            discard: Positions of results that are not needed. A device with its own memory returns None for them.

        Returns:
            The new values of states, then the outputs, each in its own memory.
        """


class CachedProgram(Executable, Protocol):
    """An executable that a ProgramCache keeps.

    Attributes:
        kept_bytes: Approximate size of the program in bytes, without its runs.
    """

    kept_bytes: int

    @property
    def part_keys(self) -> tuple[Key, ...]:
        """The keys of the programs that this one runs for parts of a batch."""

    def clear_needs_recompiling(self) -> None:
        """Set `needs_recompiling` to False, because the cache has no room for a compiled program."""

    def contents(self) -> str:
        """Return a summary, such as `20 steps (18 native, 2 interpreted), arena 1.2 MiB`."""

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return name, node and reason of the steps that are interpreted."""


class DeviceProgram(CachedProgram, Protocol):
    """A program on one device."""

    def start(self) -> Run:
        """Return a run that has not begun."""

    def as_part(self) -> InstancedProgram | None:
        """Return the program itself if it can compute parts of a batch, else None."""
