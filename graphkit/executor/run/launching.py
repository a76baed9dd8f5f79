"""One run of a program: it is begun, launched, read and ended, on any kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Run(Protocol):
    """One run of a program, which `Executable.start` makes. Call `begin`, `launch`, what reads results, then `end`.

    Positions of results: the new values of states, then the outputs.
    """

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        """Take inputs and allocate memory: `launch` then fails for no lack of memory.

        Args:
            inputs: One array per graph input; None for those that the program finds itself.
            buffers: Host memory for results, by position.

        Raises:
            OutOfMemory: Memory cannot be allocated.
        """

    def launch(self) -> None:
        """Start the steps. On the CPU they are done when it returns; on other devices they may still run."""

    def device_result(self, position: int) -> Any:
        """Return a result for a program of the same kind of device, where it is."""

    def device_input(self, position: int) -> Any:
        """Return an input for other programs of the same device, where it is."""

    def fetch(self, position: int, out: np.ndarray | None = None) -> Any:
        """Return a result in host memory, in `out` if it is given. Waits for it."""

    def check(self) -> None:
        """Wait for all steps. Raises RuntimeFailure if one has failed."""

    def first_fault(self) -> None:
        """Raise RuntimeFailure if a step that was launched has failed."""

    def new_states(self) -> list[Any]:
        """Return the new values of states."""

    def end(self, well: bool) -> None:
        """Give back what the run has taken. well: whether it has succeeded."""
