"""The memory of states: what a run writes their new values to, and what becomes of the old ones."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.executor.devices.device import Device
from graphkit.executor.memory.placement import Placement
from graphkit.executor.run.params import ParamStore


class _Program(Protocol):
    """What programs say about their states, by their order among the updates."""

    placement: Placement
    state_inputs: list[int]  # positions among the inputs
    donated: list[bool]  # whether the new value may take the memory of the old one

    @property
    def device(self) -> Device | None:
        """Where states stay between runs, if not on the host: such a program writes over them itself."""
        ...


class States:
    """The states of `params` that an executor writes; one run at a time.

    On the host, a new value goes over the old one where program and owner permit it, else into the buffer of an older
    value that nobody reads any more, or into a fresh one.
    """

    def __init__(self, params: ParamStore):
        self._params = params
        self._spares: dict[str, np.ndarray] = {}

    def take(
        self, names: Sequence[str], program: _Program, arrays: list[Any], fed: Container[str]
    ) -> dict[int, np.ndarray]:
        """Put the states that are not fed into `arrays`; return the memory that is there for new values."""
        if program.device is not None:
            wanted = [(n, at) for n, at in zip(names, program.state_inputs, strict=True) if n not in fed]
            for (_, at), value in zip(wanted, self._params.lend([n for n, _ in wanted], program.device), strict=True):
                arrays[at] = value
            return {}
        buffers: dict[int, np.ndarray] = {}
        params = self._params
        for position, name in enumerate(names):
            at = program.state_inputs[position]
            if program.donated[position]:
                if name in fed:
                    continue
                arrays[at] = None  # a view that keeps the array from being written
                array = params.donate(name)
                if array is None:
                    arrays[at] = params[name]
                else:
                    arrays[at] = buffers[position] = array
                continue
            if name not in fed:
                arrays[at] = params[name]
            if program.placement.results[position].owned and name in self._spares:
                buffers[position] = self._spares.pop(name)
        return buffers

    def restore(self, names: Sequence[str], program: _Program, buffers: dict[int, np.ndarray]) -> None:
        """After a run that failed: what its steps have written over old values is there to stay."""
        for position, array in buffers.items():
            if position < len(names) and program.donated[position]:
                self._params.commit(names[position], array)

    def commit(self, names: Sequence[str], program: _Program, new: list[Any]) -> None:
        """Write the new values: arrays, which leave `new`, or what is on a device."""
        params = self._params
        if program.device is not None:
            params.place(names, new)
            return
        for position in reversed(range(len(names))):
            name, array = names[position], new.pop()
            previous = params.commit(name, array)
            if previous is not None and not program.donated[position]:
                self._spares[name] = previous
