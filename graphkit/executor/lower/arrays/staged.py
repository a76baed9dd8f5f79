"""Collectives through host memory, in programs of devices with their own memory.

The step that starts a collective copies its operands to the host. The step that waits copies the results back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.executor.devices.bound_steps import ArrayKernel
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.kernel import Kernel
from graphkit.executor.lower.arrays.body import ArrayMaker, as_stored, stored
from graphkit.executor.lower.python_step import PythonStep
from graphkit.executor.memory.resident import host_arrays
from graphkit.ir.graph import Node, Value

# Pairs (host array, device array for its copy) of pending collectives, by key.
PendingSums: TypeAlias = dict[str, list[tuple[np.ndarray, Any]]]


class StagedStep(PythonStep):
    """`prepared` makes the kernel for an instance of a program, whose steps share the pending collectives."""

    def __init__(self, prepared: Callable[[Device, PendingSums], ArrayKernel]):
        super().__init__("staged")
        self.prepared = prepared


class _Staged:
    can_be_recorded = False  # its collective waits for other processes

    def __init__(self, device: Device, inputs: Iterable[Value | None], outputs: Iterable[Value]):
        self._device = device
        self._given = host_arrays(device, [v for v in inputs if v is not None])
        self._made = host_arrays(device, list(outputs))

    def _copy_out(self, arrays: Sequence[Any], to: Sequence[np.ndarray]) -> None:
        for array, host in zip((a for a in arrays if a is not None), to, strict=True):
            self._device.copy_out(array, host.view(array.dtype))

    def _copy_in(self, host: np.ndarray, array: Any) -> None:
        self._device.copy_in(host.view(array.dtype), array)


class Begins(_Staged):
    """Starts the collective `key`. inplace: whether it overwrites each operand with its result."""

    def __init__(self, device: Device, pending: PendingSums, node: Node, run: Kernel, key: str, *, inplace: bool):
        super().__init__(device, () if inplace else node.inputs, node.outputs)
        self._pending, self._run, self._key = pending, run, key
        if inplace:
            self._given = self._made

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._copy_out(inputs, self._given)
        self._pending[self._key] = [pair for pair in zip(self._made, outputs, strict=True) if pair[1] is not None]
        self._run(self._given, self._made)


class Waits(_Staged):
    def __init__(self, device: Device, pending: PendingSums, node: Node, run: Kernel, keys: Sequence[str]):
        super().__init__(device, (), node.outputs)
        self._pending, self._run, self._keys = pending, run, keys

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._run((), self._made)
        for key in self._keys:
            for host, array in self._pending.pop(key):
                self._copy_in(host, array)
        for host, done in zip(self._made, outputs, strict=True):
            if done is not None:
                self._copy_in(host, done)


class Exchanges(_Staged):
    def __init__(self, device: Device, pending: PendingSums, node: Node, run: Kernel):
        super().__init__(device, node.inputs, node.outputs)
        self._run = run

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._copy_out(inputs, self._given)
        self._run(self._given, self._made)
        for host, array in zip(self._made, outputs, strict=True):
            if array is not None:
                self._copy_in(host, array)


class BeginsRows:
    """Starts an all-reduce of rows by `begin(indices, rows)`, which reads the arrays only during the call."""

    can_be_recorded = False

    def __init__(
        self, device: Device, pending: PendingSums, node: Node, begin: Callable[[np.ndarray, np.ndarray], None]
    ):
        self._device, self._begin = device, begin
        self._kinds = [v.dtype.numpy for v in node.operands]

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        copied = (as_stored(self._device.copy_out(x, None), k) for x, k in zip(inputs, self._kinds, strict=True))
        self._begin(*copied)
        for started in outputs:
            if started is not None:
                self._device.copy_in(np.zeros((), np.int64), started)


class WaitsForRows(ArrayMaker):
    """Waits for an all-reduce of rows. `wait` returns the indices and the summed rows."""

    can_be_recorded = False

    def __init__(
        self, device: Device, pending: PendingSums, node: Node, wait: Callable[[], tuple[np.ndarray, np.ndarray]]
    ):
        self._device, self._wait = device, wait
        self._stored = [stored(device, v.tensor) for v in node.outputs]

    def made(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> dict[int, Any]:
        found = zip(self._wait(), self._stored, strict=True)
        return {i: self._device.copy_in(as_stored(array, kind)) for i, (array, kind) in enumerate(found)}
