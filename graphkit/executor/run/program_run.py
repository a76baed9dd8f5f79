"""The interface of one run of a program, on any kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Run(Protocol):
    """One run of a program; `DeviceProgram.start` creates it.

    Call `begin`, `launch`, the methods that read results, and `end`, in this order. Positions of results count the new
    values of states first, then the outputs.
    """

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        """Set the inputs and allocate all memory, so that `launch` does not run out of it.

        Args:
            inputs: One array per graph input; None for those that the program reads itself.
            buffers: Host memory for results, by position.

        Raises:
            OutOfMemory: Memory cannot be allocated.
        """

    def launch(self) -> None:
        """Start the steps. On the CPU, all steps are complete when it returns. On other devices they may still run."""

    def device_result(self, position: int) -> Any:
        """Return a result in the device's memory, for another program on this kind of device."""

    def device_input(self, position: int) -> Any:
        """Return an input in the device's memory, for another program on this device."""

    def fetch(self, position: int, out: np.ndarray | None = None) -> Any:
        """Wait for a result and return it in host memory, in `out` if that is given."""

    def wait(self) -> None:
        """Wait for all steps. Raises RuntimeFailure if one has failed."""

    def raise_fault(self) -> None:
        """Raise RuntimeFailure if a launched step has failed. On a device, it may wait for the launched steps."""

    def new_states(self) -> list[Any]:
        """Return the new values of states."""

    def end(self, succeeded: bool) -> None:
        """Release the memory of the run. succeeded: False if the run raised an error."""
