"""The memory of states: choose the buffers for new values before a run, and store the new values after it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.executor.run.params import ParamStore

if TYPE_CHECKING:
    from graphkit.executor.run.executable import Executable


class States:
    """The states of `params` that an executor writes. It serves one run at a time.

    In host memory, a new value overwrites the old one if the program donates the state and no caller holds its array.
    Otherwise it is written to the buffer of an older value that nothing references any more, or to new memory.
    """

    def __init__(self, params: ParamStore):
        self._params = params
        self._free_buffers: dict[str, np.ndarray] = {}

    def take(
        self, names: Sequence[str], program: Executable, arrays: list[Any], fed: Container[str]
    ) -> dict[int, np.ndarray]:
        """Put the states that are not fed into `arrays`, before a run.

        Args:
            names: Names of the states, in the order of the updates.
            program: The program that will run.
            arrays: Its inputs, which are changed.
            fed: Names of the inputs that the caller feeds.

        Returns:
            Existing memory for new values, by position of the update.
        """
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
                arrays[at] = None  # drop a view of the array, else it could not be overwritten
                array = params.donate(name)
                if array is None:
                    arrays[at] = params[name]
                else:
                    arrays[at] = buffers[position] = array
                continue
            if name not in fed:
                arrays[at] = params[name]
            if program.finals[position].owned and name in self._free_buffers:
                buffers[position] = self._free_buffers.pop(name)
        return buffers

    def restore(self, names: Sequence[str], program: Executable, buffers: dict[int, np.ndarray]) -> None:
        """Store the buffers of donated states after a failed run, which may have overwritten the old values."""
        for position, array in buffers.items():
            if position < len(names) and program.donated[position]:
                self._params.commit(names[position], array)

    def commit(self, names: Sequence[str], program: Executable, new: list[Any]) -> None:
        """Store the new values of states after a run.

        new: For each state, an array, or a Resident for a value on a device. Arrays are replaced by None, so that only
            the store refers to them.
        """
        params = self._params
        for positions in program.on_devices.values():
            params.place([names[i] for i in positions], [new[i] for i in positions])
        for position in self._on_host(names, program):
            name, array, new[position] = names[position], new[position], None
            previous = params.commit(name, array)
            if previous is not None and not program.donated[position]:
                self._free_buffers[name] = previous

    def _on_host(self, names: Sequence[str], program: Executable) -> Sequence[int]:
        """Return the positions of the states that are in host memory."""
        on_devices = [*program.on_devices.values()]
        if not on_devices:
            return range(len(names))
        if sum(map(len, on_devices)) == len(names):
            return ()
        return sorted({*range(len(names))}.difference(*on_devices))
