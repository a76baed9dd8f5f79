"""Arrays one behind the other in one piece of memory, as many as have to be copied together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from graphkit.executor.devices.capabilities import pinned_memory_of
from graphkit.executor.devices.device import Device
from graphkit.executor.memory.planner import ALIGNMENT
from graphkit.ir.graph import Value


def side_by_side(values: Sequence[Value]) -> list[int]:
    """Where each value of static type begins, and where the last one ends.

    They begin where those of a program of the processor would: another process of the job may be one.
    """
    return list(accumulate((-(-v.tensor.nbytes // ALIGNMENT) * ALIGNMENT for v in values), initial=0))


def arrays_in(memory: np.ndarray, values: Sequence[Value]) -> list[np.ndarray]:
    """The arrays of values that lie there `side_by_side`, in bytes of the host's."""
    found = []
    for value, begin in zip(values, side_by_side(values), strict=False):
        kind = value.tensor
        found.append(memory[begin : begin + kind.nbytes].view(kind.dtype.numpy).reshape(kind.static_shape))
    return found


def host_arrays(device: Device, values: Sequence[Value]) -> list[np.ndarray]:
    """Such arrays in memory of the host from which the device copies at its best."""
    return arrays_in(pinned_memory_of(device).host_memory(side_by_side(values)[-1]), values)
