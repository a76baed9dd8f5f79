"""Run the passes of one pipeline stage on micro-batches, and exchange values with other stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.dist.wire.messages import Arrival, Kind
from graphkit.executor.run.session import Executor
from graphkit.train.exchange.divided import BACKWARD, FORWARD
from graphkit.train.programs.partition import Partition
from graphkit.train.programs.stages import LOSS_GRADIENT, Port, Stage
from graphkit.train.programs.weights import BATCH_WEIGHT


class StageRunner:
    """Runs forward and backward passes of one stage on micro-batches.

    Attributes:
        saved_bytes: Bytes of the values stored between forward and backward passes.
        peak_in_flight: The largest number of micro-batches with stored values so far.
    """

    def __init__(
        self, stage: Stage, partition: Partition, store: KVStore, forward: Executor, backward: Executor | None
    ):
        self.stage, self.partition, self.messages = stage, partition, store.transport.messages
        self._forward, self._backward = forward, backward
        self._arrivals: dict[tuple[int, int, int], Arrival] = {}
        self._saved: dict[int, dict[str, Any]] = {}
        self.saved_bytes = self.peak_saved_bytes = self.peak_in_flight = 0

    def expect(self, direction: str, batch: int) -> None:
        lane, ports = (FORWARD, self.stage.received) if direction == "forward" else (BACKWARD, self.stage.gradients_in)
        for port in ports:
            if (port.stage, lane, batch) not in self._arrivals:
                source = self.partition.ranks[port.stage]
                self._arrivals[port.stage, lane, batch] = self.messages.expect(source, _kinds(port), lane)

    def _received(self, ports: Sequence[Port], lane: int, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        what = "the gradients" if lane == BACKWARD else "the values"
        for port in ports:
            arrival = self._arrivals.pop((port.stage, lane, batch))
            arrays = self.messages.receive(arrival, f"{what} of micro-batch {batch}")
            found.update(zip(port.names, arrays, strict=True))
        return found

    def _send(self, ports: Sequence[Port], lane: int, results: Mapping[str, Any]) -> None:
        for port in ports:
            self.messages.send(self.partition.ranks[port.stage], [results[name] for name in port.names], lane)

    def forward(self, batch: int, feeds: Mapping[str, Any], rng: tuple[int, int]) -> dict[str, Any]:
        """Run a forward pass. Return this stage's results."""
        received = self._received(self.stage.received, FORWARD, batch)
        self._forward.rng = rng
        results = self._forward.run({**feeds, **received})
        self._send(self.stage.sent, FORWARD, results)
        if self._backward is not None:
            kept = {name: results[output] for name, output in self.stage.saved.items()}
            kept |= {name: received[name] for name in self.stage.kept}
            self._saved[batch] = kept
            self.saved_bytes += _bytes(kept)
            self.peak_saved_bytes = max(self.peak_saved_bytes, self.saved_bytes)
            self.peak_in_flight = max(self.peak_in_flight, len(self._saved))
        return {name: results[name] for name in self.stage.results}

    def backward(self, batch: int, feeds: Mapping[str, Any], rng: tuple[int, int], weight: float) -> None:
        received = self._received(self.stage.gradients_in, BACKWARD, batch)
        if self._backward is None:
            return
        kept = self._saved.pop(batch)
        given = {**feeds, **kept, **received, BATCH_WEIGHT: np.float32(weight)}
        if self.stage.computes_loss:
            given[LOSS_GRADIENT] = np.ones((), self.partition.graph.outputs[0].dtype.numpy)
        self._backward.rng = rng
        results = self._backward.run(given)
        self.saved_bytes -= _bytes(kept)
        self._send(self.stage.gradients_out, BACKWARD, results)

    def discard_saved(self) -> None:
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
