"""One run of one part of a divided graph: on the host, or on a device, where its work goes on beside that of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.resident import Handed, Resident
from graphkit.executor.run.arrays.instance import ArrayInstance
from graphkit.executor.run.arrays.program import ArrayProgram
from graphkit.executor.run.base_program import BaseProgram, Instance, InstancedProgram
from graphkit.executor.run.compile import SingleProgram


class PartRun(ABC):
    """`begin`, `launch`, what there is to read, `end`; results are the new values of states, then the outputs."""

    @abstractmethod
    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        """Take inputs, and the memory for results; the steps do not fail for want of memory any more."""

    @abstractmethod
    def launch(self) -> None:
        """Have the steps done."""

    @abstractmethod
    def handed(self, position: int) -> Any:
        """A result for other parts of the same kind of device."""

    @abstractmethod
    def received(self, position: int) -> Any:
        """An input that came from elsewhere, for other parts of the same device."""

    @abstractmethod
    def fetched(self, position: int, out: np.ndarray | None = None) -> Any:
        """A result on the host, once it is there."""

    @abstractmethod
    def check(self) -> None:
        """Wait for all steps; raises RuntimeFailure for what they have met."""

    @abstractmethod
    def first_fault(self) -> None:
        """Raise RuntimeFailure for what steps that were begun have met."""

    @abstractmethod
    def new_states(self) -> list[Any]:
        """The new values of states."""

    @abstractmethod
    def end(self, well: bool) -> None:
        """The run is over; or given up, where it did not go well."""


def run_of(program: SingleProgram) -> PartRun:
    """A run of a program."""
    return _HostRun(program) if isinstance(program, BaseProgram) else _DeviceRun(program)


class _HostRun(PartRun):
    def __init__(self, program: BaseProgram):
        self._program = program
        self._taken: tuple[Instance, np.ndarray] | None = None
        self._inputs: Sequence[Any] = ()
        self._buffers: Mapping[int, np.ndarray] = {}
        self._results: list[Any] = []

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        self._inputs, self._buffers = inputs, buffers
        if isinstance(self._program, InstancedProgram):
            self._taken = self._program.take()
            self._taken[0].refresh()
            made = self._program.results(buffers)
            self._buffers = {position: array for position, array in enumerate(made) if array is not None}

    def launch(self) -> None:
        if self._taken is None:
            self._results = self._program.run(self._inputs, self._buffers)
            return
        program = cast(InstancedProgram, self._program)
        self._results = program.run_on(*self._taken, self._inputs, self._buffers)
        program.give(*self._taken)

    def handed(self, position: int) -> Any:
        return self._results[position]

    def received(self, position: int) -> Any:
        return self._inputs[position]

    def fetched(self, position: int, out: np.ndarray | None = None) -> Any:
        return self._results[position]

    def check(self) -> None:
        """All is done."""

    def first_fault(self) -> None:
        """It has been raised."""

    def new_states(self) -> list[Any]:
        return self._results[: len(self._program.state_inputs)]

    def end(self, well: bool) -> None:
        """What was taken is given back."""


class _DeviceRun(PartRun):
    def __init__(self, program: ArrayProgram):
        self._program = program
        self._instance: ArrayInstance | None = None
        self._launched = False

    @property
    def _taken(self) -> ArrayInstance:
        assert self._instance is not None, "it has begun"
        return self._instance

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        self._instance = self._program.take()
        with out_of_memory(self._program.graph, f"a run on device {self._program.device.name!r}"):
            self._instance.begin(inputs)

    def launch(self) -> None:
        self._launched = True
        with out_of_memory(self._program.graph, f"a run on device {self._program.device.name!r}"):
            self._taken.launch()

    def handed(self, position: int) -> Handed:
        return self._taken.handed(position)

    def received(self, position: int) -> Handed:
        return self._taken.received(position)

    def fetched(self, position: int, out: np.ndarray | None = None) -> Any:
        return self._taken.fetched(position, out)

    def check(self) -> None:
        self._taken.check()

    def first_fault(self) -> None:
        if self._launched:
            self._taken.first_fault()

    def new_states(self) -> list[Resident | None]:
        return self._taken.new_states()

    def end(self, well: bool) -> None:
        if self._instance is not None:
            self._instance.end()
            if well:
                self._program.give(self._instance)
