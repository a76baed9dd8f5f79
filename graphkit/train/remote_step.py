"""Steps of workers whose parameters live on servers, and of workers that are drawn towards a centre there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.dist.servers.remote import RemoteStore
from graphkit.errors import UsageError
from graphkit.executor.run.params import ParamStore
from graphkit.ir.graph import Graph
from graphkit.ir.types import DType, TensorType
from graphkit.train import recomputation, residuals
from graphkit.train import step as steps
from graphkit.train.gather import gather
from graphkit.train.position import Position
from graphkit.train.stepper import Stepper

# Updates between two exchanges with the centre, and how far workers and centre move together in one, over all workers:
# tau and beta of Zhang, Choromanska and LeCun, NIPS 2015 (section 5.1).
ELASTIC_PERIOD, ELASTIC_MOVE = 10, 0.9

_NO_LOSS = np.full((), np.nan, np.float32)


def stepper_for(kvstore: KVStore | None) -> type[Stepper]:
    """What takes the steps of a trainer with such a store."""
    if kvstore is None or not kvstore.is_remote:
        return Stepper
    return ElasticStepper if kvstore.type == "elastic" else RemoteStepper


class _Apart(Stepper):
    """A worker's: it takes its steps by itself."""

    def __init__(
        self,
        graph: Graph,
        trained: Sequence[steps.TrainedParameter],
        rule: steps.UpdateRule,
        params: ParamStore,
        *,
        kvstore: KVStore | None,
        accumulate: int,
        recompute: recomputation.Recompute | None,
        options: dict[str, Any],
        shard: bool = False,
    ):
        if shard:
            raise UsageError("shard_optimizer: states of an optimizer live on servers here; dist_sync divides them")
        assert isinstance(kvstore, RemoteStore), "stepper_for has looked"
        self._remote = kvstore
        self._check(trained, rule, accumulate)
        super().__init__(
            graph, trained, rule, params, kvstore=None, accumulate=accumulate, recompute=recompute, options=options
        )
        self._params = params
        self._placed = False

    def _check(self, trained: Sequence[steps.TrainedParameter], rule: steps.UpdateRule, accumulate: int) -> None:
        """Raise UsageError for what the servers do not do."""

    @property
    def saves_together(self) -> bool:
        return True

    @property
    def waited_seconds(self) -> float:
        return self._remote.waited_seconds

    def spread(self) -> None:
        values = {name: self._params[name] for name in self.trained}
        if not self._placed:
            self._remote.init(list(values), list(values.values()))
            self._placed = True
        else:
            self._remote.put(values)

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        before = self.updates
        # There may be fewer samples than workers.
        found = (_NO_LOSS, {}) if size == 0 else super().take(feeds, size, rate, position)
        if self._group == 1:
            self.updates = before + 1  # of all workers alike, whose checkpoints go by it
        return found

    def flush(self, rate: float) -> None:
        super().flush(rate)
        self._meet()

    def _meet(self) -> None:
        """All workers go on from the servers' values."""
        self._remote.barrier()
        self._fetch()
        self._remote.barrier()

    def _fetch(self) -> None:
        for name, array in zip(self.trained, self._remote.pull(self.trained), strict=True):
            self._params.commit(name, array)


class RemoteStepper(_Apart):
    """Each step pulls the parameters, and pushes gradients, by which the servers update them.

    Optimizer and learning rate are the servers', where each push counts as an update of its key. Clipping is by the
    norm of the worker's own gradient; running statistics are each worker's.
    """

    def _check(self, trained: Sequence[steps.TrainedParameter], rule: steps.UpdateRule, accumulate: int) -> None:
        kind = self._remote.type
        refused = {
            "lr_mult and wd_mult": any(t.lr_mult != 1 or t.decay_mult != 1 for t in trained),
            "ema": rule.ema is not None,
            "accumulate": accumulate > 1,
            "lazy": any(t.lazy for t in trained),
        }
        for option, given in refused.items():
            if given:
                raise UsageError(
                    f"{option}: the servers of {kind!r} update dense parameters as they come; use dist_sync"
                )

    def _made(self, graph: Graph, trained: Sequence[steps.TrainedParameter], rule: steps.UpdateRule) -> list[Graph]:
        return [steps.gradient_step(graph, trained, rule)]

    def _starts(self, params: ParamStore) -> ParamStore:
        """The servers' states, as they are when a checkpoint asks for them."""
        optimizer = self._rule.optimizer
        slots = {f"{name}/{slot}": (name, slot) for name in self.trained for slot in optimizer.slots}
        types = {key: params.type_of(name) for key, (name, _) in slots.items()}
        arrays = {
            key: np.full(params[name].shape, optimizer.start(slot), params[name].dtype)
            for key, (name, slot) in slots.items()
        }
        states = super()._starts(params)
        types |= {name: states.type_of(name) for name in states} | {steps.STEP: TensorType(DType.INT64, ())}
        return ParamStore(types, {**arrays, **states, steps.STEP: np.zeros((), np.int64)})

    def spread(self) -> None:
        first = not self._placed
        super().spread()
        if first:
            self._remote.set_optimizer(self._rule.optimizer)
        elif int(self.slots[steps.STEP]):
            self._remote.restore_optimizer_states(self._states())
        else:
            self._remote.set_optimizer(self._rule.optimizer)  # without states

    @property
    def compressing(self) -> tuple[int, ...]:
        return self._remote.compressing if self._remote.compresses else ()

    def _residuals(self) -> dict[str, np.ndarray]:
        return {name: left for name, left in self._remote.residuals().items() if name in self.trained}

    def put_residuals(self, mine: Mapping[str, np.ndarray]) -> None:
        self._remote.restore_residuals(dict(mine.items()))

    def _states(self) -> dict[str, np.ndarray]:
        """The slots as servers name them."""
        found = {f"s:{name}/updates": self.slots[steps.STEP] for name in self.trained}
        slots = self._rule.optimizer.slots
        return found | {f"s:{name}/{slot}": self.slots[f"{name}/{slot}"] for name in self.trained for slot in slots}

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._fetch()
        skipped = self.skipped
        loss, results = super().take(feeds, size, rate, position)
        if results and self.skipped == skipped:
            gradients = [results.pop(f"{name}/{steps.GRADIENT}") for name in self.trained]
            self._remote.push(self.trained, gradients)
        return loss, results

    def _update(
        self, feeds: dict[str, Any], position: Position | None, idle: bool = False
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del feeds[steps.LEARNING_RATE]  # the servers have it
        return super()._update(feeds, position, idle)

    def settle(self) -> None:
        self._meet()
        if self.compressing:
            first = self._remote.rank == 0
            self.left_out = residuals.of_ranks(self.trained, self._residuals(), partial(gather, self._remote), first)
        for name, array in self._remote.optimizer_states().items():
            key = name.partition(":")[2]
            start, _, last = key.rpartition("/")
            if last == "updates":
                self.slots[steps.STEP] = np.maximum(self.slots[steps.STEP], array)
            else:
                self.slots[f"{start}/{last}"] = array


class ElasticStepper(_Apart):
    """Steps of one process, and now and then an exchange with the centre, which is what evaluation and files get.

    At the end of an epoch all workers go on from the centre. Slots are each worker's own; a checkpoint has rank 0's.
    """

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        before = self.updates
        found = super().take(feeds, size, rate, position)
        if self.updates > before and self.updates % ELASTIC_PERIOD == 0:
            self._exchange()
        return found

    def _exchange(self) -> None:
        mine = {name: self._params[name] for name in self.trained}
        for name, array in self._remote.exchange(mine, ELASTIC_MOVE / self._remote.num_workers).items():
            self._params.commit(name, array)

    def _meet(self) -> None:
        self._exchange()
        super()._meet()

    def settle(self) -> None:
        self._meet()
