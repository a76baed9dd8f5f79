"""A card in the places of the emulator and of the stand-in, where GRAPHKIT_TEST_CARD is set: the tests run on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphkit.executor.devices import cuda
from graphkit.executor.devices.bound_steps import Choice, Recorded
from graphkit.executor.devices.cuda.card import _Launched
from graphkit.executor.devices.cuda.conditions.expansion import expanded
from graphkit.executor.devices.cuda.launches import CardKernel, Source
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary
from graphkit.ir.graph import Node

# As it is where no test has another in its place.
_device = cuda.device

WANTED = bool(os.environ.get("GRAPHKIT_TEST_CARD"))

# Of tests that are about the stand-in itself, or about what it alone refuses.
stand_in_alone = pytest.mark.skipif(WANTED, reason="this is of the stand-in")

# Bytes behind each array, that nothing writes.
_GUARD = 512
_MARK = 0x5C


class OnCard:
    """Runs kernels as the Emulator does, on arrays of the host that are copied to a card and back."""

    def __init__(self) -> None:
        self._card = _device()

    def compile(self, sources: Iterable[Source]) -> None:
        self._card.functions(list(sources))

    def run(
        self,
        kernel: CardKernel,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        scratch: Any = None,
        fault: Any = None,
        order: int = 0,
    ) -> bool:
        """Run a kernel, see Emulator.run. The GPU chooses the order of threads. Skip kernels that a library lacks."""
        card = self._card
        if fault is None:
            fault = np.zeros(1, np.uint32)
        if scratch is None:
            scratch = np.full(kernel.scratch_bytes, 0xA5, np.uint8)
        hosts = {a.ctypes.data: a for a in sorted(_arrays((*inputs, *outputs, scratch, fault)), key=lambda a: a.nbytes)}
        stream = card.stream()
        with card.on(stream):
            there = {address: card.copy_in(_guarded(array)) for address, array in hosts.items()}

            def placed(array: Any) -> Any:
                return None if array is None else there[array.ctypes.data][: array.nbytes]

            node: Any = SimpleNamespace(describe=lambda: "a test's kernel")
            try:
                launched = _Launched(card, node, kernel._replace(otherwise=None), placed(fault))
            except NotInLibrary as error:
                pytest.skip(str(error))
            launched([*map(placed, inputs)], [*map(placed, outputs)], placed(scratch))
            card.synchronize(stream)
            for address, array in hosts.items():
                found = card.copy_out(there[address], None)
                assert (found[array.nbytes :] == _MARK).all(), "written behind an array"
                if array.flags.writeable and array.nbytes:
                    array[...] = found[: array.nbytes].view(array.dtype).reshape(array.shape)
        return bool(fault[0])


def _arrays(given: Iterable[Any]) -> list[np.ndarray]:
    return [a for a in given if a is not None]


def _guarded(array: np.ndarray) -> np.ndarray:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return np.concatenate([content, np.full(_GUARD, _MARK, np.uint8)])


# Attributes that only the fake GPU has.
_UNTOLD = ("streams", "early", "emulator", "arrays", "current", "conditions", "iterations", "staging", "crossed")


class RealCard(cuda.CudaDevice):
    """A real GPU with the counters of the fake one. Tests that need other attributes of the fake GPU are skipped."""

    def __init__(self) -> None:
        import cupy

        super().__init__(cupy, 0)
        self._functions = _device()._functions
        self.has_conditions = not _device().conditions_refused
        self.launched: list[str] = []
        self.interpreted: list[str] = []
        self.allocated: list[int] = []
        self.merged: list[tuple[int, int]] = []
        self.uploads = self.recordings = self.replays = self.sent = 0

    def __getattr__(self, name: str) -> Any:
        if name in _UNTOLD:
            pytest.skip(f"a card does not tell {name!r}")
        raise AttributeError(name)

    def supports_conditions(self) -> bool:
        return self.has_conditions

    def prepare(self, node: Node, made: CardKernel | None, fault: Any) -> Any:
        (self.interpreted if made is None else self.launched).append(node.op.name)
        before = self.uploads  # tables are not counted
        prepared = super().prepare(node, made, fault)
        self.uploads = before
        return prepared

    def alloc(self, nbytes: int) -> Any:
        self.allocated.append(nbytes)
        return super().alloc(nbytes)

    def copy_in(self, array: np.ndarray, target: Any = None) -> Any:
        self.uploads += 1
        return super().copy_in(array, target)

    def copy_from_host(self, host: np.ndarray, target: Any) -> None:
        self.uploads += 1
        super().copy_from_host(host, target)

    def send_ahead(self, array: np.ndarray) -> None:
        self.sent += 1
        super().send_ahead(array)

    def record(self, stream: Any, steps: Sequence[Recorded]) -> Callable[[], None]:
        before = self.uploads
        replayed = super().record(stream, steps)
        merged = expanded(steps)
        self.merged.append((len(steps), len(merged)))
        if isinstance(steps[-1], Choice) and isinstance(merged[-1], Choice):  # what a fault leaves out
            self.merged.append((len(steps[-1].otherwise), len(merged[-1].otherwise)))
        self.uploads = before
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            replayed()

        return replay
