"""The memory of states: where a run writes their new values, and what happens to the old ones."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from graphkit.executor.run.executable import Executable
from graphkit.executor.run.params import ParamStore


class States:
    """The states of `params` that an executor writes; one run at a time.

    On the host, a new value goes over the old one where program and owner permit it, else into the buffer of an older
    value that nobody reads any more, or into a fresh one.
    """

    def __init__(self, params: ParamStore):
        self._params = params
        self._spares: dict[str, np.ndarray] = {}

    def take(
        self, names: Sequence[str], program: Executable, arrays: list[Any], fed: Container[str]
    ) -> dict[int, np.ndarray]:
        """Put the states that are not fed into `arrays`; return the memory that is there for new values."""
        params = self._params
        for device, positions in program.on_devices.items():
            wanted = [position for position in positions if names[position] not in fed]
            for position, value in zip(wanted, params.lend([names[i] for i in wanted], device), strict=True):
                arrays[program.state_inputs[position]] = value
        buffers: dict[int, np.ndarray] = {}
        for position in self._on_host(names, program):
            name = names[position]
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
            if program.finals[position].owned and name in self._spares:
                buffers[position] = self._spares.pop(name)
        return buffers

    def restore(self, names: Sequence[str], program: Executable, buffers: dict[int, np.ndarray]) -> None:
        """After a run that failed: what its steps have written over old values is there to stay."""
        for position, array in buffers.items():
            if position < len(names) and program.donated[position]:
                self._params.commit(names[position], array)

    def commit(self, names: Sequence[str], program: Executable, new: list[Any]) -> None:
        """Write the new values: arrays, which leave `new`, or what is on a device."""
        params = self._params
        for positions in program.on_devices.values():
            params.place([names[i] for i in positions], [new[i] for i in positions])
        for position in self._on_host(names, program):
            # Nobody but the store holds it.
            name, array, new[position] = names[position], new[position], None
            previous = params.commit(name, array)
            if previous is not None and not program.donated[position]:
                self._spares[name] = previous

    def _on_host(self, names: Sequence[str], program: Executable) -> Sequence[int]:
        """The positions of the states that stay on the host."""
        away = [*program.on_devices.values()]
        if not away:
            return range(len(names))
        if sum(map(len, away)) == len(names):
            return ()
        return sorted({*range(len(names))}.difference(*away))
