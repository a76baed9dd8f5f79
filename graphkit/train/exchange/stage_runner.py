"""Run the passes of one pipeline stage on micro-batches, with the messages before and after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.dist.wire.messages import Arrival, Kind
from graphkit.executor.run.session import Executor
from graphkit.train.programs.partition import Partition
from graphkit.train.programs.stages import LOSS_GRADIENT, Port, Stage
from graphkit.train.programs.weights import BATCH_WEIGHT

# Lanes of messages.
_FORWARD, _BACKWARD = 0, 1


class StageRunner:
    """Runs the passes of one stage on micro-batches, and sends what others need."""

    def __init__(self, stage: Stage, part: Partition, store: KVStore, forward: Executor, backward: Executor | None):
        self.stage, self.part, self.messages = stage, part, store.transport.messages
        self._forward, self._backward = forward, backward
        self._coming: dict[tuple[int, int, int], Arrival] = {}
        self._saved: dict[int, dict[str, Any]] = {}
        self.saved_bytes = self.peak_saved_bytes = self.peak_in_flight = 0

    def expect(self, direction: str, batch: int) -> None:
        """Be ready for what a pass reads of others."""
        lane, ports = (
            (_FORWARD, self.stage.received) if direction == "forward" else (_BACKWARD, self.stage.gradients_in)
        )
        for port in ports:
            if (port.stage, lane, batch) not in self._coming:
                source = self.part.ranks[port.stage]
                self._coming[port.stage, lane, batch] = self.messages.expect(source, _kinds(port), lane)

    def _received(self, ports: Sequence[Port], lane: int, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        what = "the gradients" if lane == _BACKWARD else "the values"
        for port in ports:
            arrival = self._coming.pop((port.stage, lane, batch))
            arrays = self.messages.receive(arrival, f"{what} of micro-batch {batch}")
            found.update(zip(port.names, arrays, strict=True))
        return found

    def _send(self, ports: Sequence[Port], lane: int, results: Mapping[str, Any]) -> None:
        for port in ports:
            self.messages.send(self.part.ranks[port.stage], [results[name] for name in port.names], lane)

    def forward(self, batch: int, feeds: Mapping[str, Any], rng: tuple[int, int]) -> dict[str, Any]:
        """One forward pass; the results that are made here."""
        received = self._received(self.stage.received, _FORWARD, batch)
        self._forward.rng = rng
        results = self._forward.run({**feeds, **received})
        self._send(self.stage.sent, _FORWARD, results)
        if self._backward is not None:
            kept = {name: results[output] for name, output in self.stage.saved.items()}
            kept |= {name: received[name] for name in self.stage.kept}
            self._saved[batch] = kept
            self.saved_bytes += _bytes(kept)
            self.peak_saved_bytes = max(self.peak_saved_bytes, self.saved_bytes)
            self.peak_in_flight = max(self.peak_in_flight, len(self._saved))
        return {name: results[name] for name in self.stage.results}

    def backward(self, batch: int, feeds: Mapping[str, Any], rng: tuple[int, int], weight: float) -> None:
        received = self._received(self.stage.gradients_in, _BACKWARD, batch)
        if self._backward is None:
            return
        kept = self._saved.pop(batch)
        given = {**feeds, **kept, **received, BATCH_WEIGHT: np.float32(weight)}
        if self.stage.makes_loss:
            given[LOSS_GRADIENT] = self._ones
        self._backward.rng = rng
        results = self._backward.run(given)
        self.saved_bytes -= _bytes(kept)
        self._send(self.stage.gradients_out, _BACKWARD, results)

    @property
    def _ones(self) -> np.ndarray:
        kind = self.part.graph.outputs[0].tensor
        return np.ones((), kind.dtype.numpy)

    def forget(self) -> None:
        self._saved.clear()
        self.saved_bytes = 0


def _kinds(port: Port) -> list[Kind]:
    kinds = []
    for value in port.values:
        assert value.rank is not None, "checked by the partition"
        kinds.append(Kind(value.dtype.numpy, value.rank))
    return kinds


def _bytes(arrays: Mapping[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))
