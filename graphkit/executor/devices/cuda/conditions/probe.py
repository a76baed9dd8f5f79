"""Tests whether a GPU's recordings can contain conditions: one is recorded, replayed and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.executor.devices.bound_steps import BoundStep, Choice, Recorded, Repetition
from graphkit.executor.devices.capabilities import streams_of
from graphkit.executor.devices.cuda.conditions.nodes import checked, runtime
from graphkit.executor.devices.device import Copied, Device

# CUDA 12.4 has conditional nodes of both kinds, and nodes inside of them.
OLDEST = 12040

_TRIPS = 3


# Records steps for a stream.
Record: TypeAlias = Callable[[Any, Sequence[Recorded]], Callable[[], None]]


def refusal(device: Device, record: Record) -> str:
    """Return why recordings of a device cannot contain conditions; empty if they can."""
    try:
        cuda = runtime()
        for what, name in (("driver", "cudaDriverGetVersion"), ("runtime", "cudaRuntimeGetVersion")):
            (version,) = checked(cuda, name)
            if version < OLDEST:
                return (
                    f"the {what} is of CUDA {version // 1000}.{version % 1000 // 10}, but conditional nodes need 12.4"
                )
        streams = streams_of(device)
        stream = streams.stream()
        with streams.on(stream):
            found = _computed(device, record, stream)
    except (GraphkitError, AttributeError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    wanted = {"then": 1, "otherwise": 2, "iterations": _TRIPS, "last": _TRIPS - 1, "inside": 1}
    return "" if found == [wanted] * 2 else f"a recording computed {found} instead of {wanted} twice"


def _computed(device: Device, record: Record, stream: Any) -> list[dict[str, int]]:
    """Return the results of two replays of a recording with conditions."""

    def number(value: int, dtype: str = "int64") -> Any:
        return device.copy_in(np.full(1, value, dtype))

    one, two, limit, most = number(1), number(2), number(_TRIPS), number(_TRIPS)
    found = {name: number(-1) for name in ("then", "otherwise", "iterations", "last", "inside")}
    true, false, fault = number(1, "bool"), number(0, "bool"), number(0, "uint32")
    copy: Callable[[Any, Any], BoundStep] = Copied(device).step

    def chosen(condition: Any, target: Any) -> Choice:
        return Choice(condition, [copy(one, target)], [copy(two, target)])

    steps: list[Recorded] = [copy(found["iterations"], found["last"]), chosen(true, found["inside"])]
    loop = Repetition(steps, found["iterations"], true, limit, true, most, fault, fault)
    replay = record(stream, [chosen(true, found["then"]), chosen(false, found["otherwise"]), loop])
    results = []
    for _ in range(2):
        for array in found.values():
            device.copy_in(np.full(1, -1), array)
        replay()
        results.append({name: int(device.copy_out(array, None)[0]) for name, array in found.items()})
    return results
