"""Steps of workers whose parameters are on servers, and of workers with elastic averaging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore, RowSparse
from graphkit.dist.servers.remote import RemoteStore
from graphkit.errors import UsageError
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.types import DType, TensorType
from graphkit.train import pushed, recomputation, residuals
from graphkit.train import step as steps
from graphkit.train.average import AVERAGE
from graphkit.train.gather import gather
from graphkit.train.position import Position
from graphkit.train.selection import TrainedParameter
from graphkit.train.states import names, precise
from graphkit.train.stepper import Stepper
from graphkit.train.updater import KeyedOptimizer
from graphkit.train.weights import TOTAL_WEIGHT

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
        trained: Sequence[TrainedParameter],
        rule: steps.UpdateRule,
        params: ParamStore,
        *,
        kvstore: KVStore | None,
        accumulate: int,
        recompute: recomputation.Recompute | None,
        swap_memory: bool = False,
        options: dict[str, Any],
        shard: bool = False,
    ):
        if shard:
            raise UsageError(
                "shard_optimizer (--shard-optimizer) needs the kvstore dist_sync: with servers, these store the states"
            )
        if rule.scale is not None:
            raise UsageError(
                "precision='f16' (--precision f16) cannot be used with servers, because losses are not scaled; use "
                "'bf16'"
            )
        assert isinstance(kvstore, RemoteStore), "stepper_for has looked"
        self._remote = kvstore
        super().__init__(
            graph, trained, rule, params,
            kvstore=None, accumulate=accumulate, recompute=recompute, swap_memory=swap_memory, options=options,
        )  # fmt: skip
        self._params = params
        self._placed = False

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
        if size == 0:  # there are fewer samples than workers
            found: tuple[np.ndarray, dict[str, Any]] = (_NO_LOSS, {})
            if self._group > 1:
                self.waiting += 1
                if self.waiting >= self._group:
                    self._use_waiting(rate)
        else:
            found = super().take(feeds, size, rate, position)
        if self._group == 1:
            self.updates = before + 1  # of all workers alike, whose checkpoints go by it
        return found

    def _use_waiting(self, rate: float) -> None:
        before, waited = self.updates, self.waiting
        if waited and self.waiting_weight == 0:  # all of it without samples
            self.waiting = 0
        super()._use_waiting(rate)
        if waited:
            self.updates = before + 1

    def flush(self, rate: float) -> None:
        super().flush(rate)
        self._meet()

    def settle(self) -> None:
        self._meet()

    def _meet(self) -> None:
        """All workers go on from the servers' values."""
        self._remote.barrier()
        self._bring()
        self._remote.barrier()

    def _bring(self) -> None:
        """What is to be the same in all workers, who wait for each other before and after."""
        self._fetch(self.trained)

    def _fetch(self, names: Sequence[str]) -> None:
        for name, array in zip(names, self._remote.pull(names), strict=True):
            self._params.commit(name, array)


class RemoteStepper(_Apart):
    """Each step pulls the parameters, and pushes gradients, by which the servers update them.

    Of lazy tables the rows that the batch reads are pulled, and their gradients pushed. With `accumulate` each group of
    batches pulls once, and pushes the mean. Optimizer, learning rate and moving averages are the servers', where each
    push counts as an update of its key. Clipping is by the norm of the worker's own gradient; running statistics are
    each worker's.
    """

    @property
    def sets_rates(self) -> bool:
        return False

    def _made(self, graph: Graph, trained: Sequence[TrainedParameter], rule: steps.UpdateRule) -> list[Graph]:
        self._parameters = tuple(trained)
        self._dense = [t.name for t in trained if not t.lazy]
        self._tables = [t.name for t in trained if t.lazy]
        self._reads = pushed.reads(graph, trained)
        self._looking: Executor | None = None
        self._remote.steps_per_push = self._group
        if self._group > 1:
            return list(pushed.split_gradients(graph, trained, rule))
        return [pushed.gradient_step(graph, trained, rule)]

    def _state_types(self, params: ParamStore) -> dict[str, TensorType]:
        """With what servers keep, which is brought here when a checkpoint asks for it."""
        kept = {f"{name}/{slot}": precise(params.type_of(name)) for name in self.trained for slot in self._kept(name)}
        return super()._state_types(params) | kept | {steps.STEP: TensorType(DType.INT64, ())}

    def _kept(self, name: str) -> list[str]:
        """What servers keep of a parameter."""
        dtype = self._values[name].dtype
        return [*names(self._rule.optimizer, dtype), *([] if self._rule.ema is None else [AVERAGE])]

    def spread(self) -> None:
        first = not self._placed
        super().spread()
        if not first and int(self.slots[steps.STEP]):
            self._remote.restore_optimizer_states(self._states())
            return
        rates: dict[int | str, float] = {t.name: t.lr_mult for t in self._parameters}
        decays: dict[int | str, float] = {t.name: t.decay_mult for t in self._parameters}
        self._remote.set_optimizer(KeyedOptimizer(self._rule.optimizer, rates, decays, self._rule.ema))

    @property
    def compressing(self) -> tuple[int, ...]:
        return self._remote.transport.compressing if self._remote.transport.compresses else ()

    def _residuals(self) -> dict[str, np.ndarray]:
        return {name: left for name, left in self._remote.transport.residuals().items() if name in self.trained}

    def put_residuals(self, mine: Mapping[str, np.ndarray]) -> None:
        self._remote.transport.restore_residuals(dict(mine.items()))

    def _states(self) -> dict[str, np.ndarray]:
        """What servers keep of the parameters, as they name it."""
        found = {f"s:{name}/updates": self.slots[steps.STEP] for name in self.trained}
        return found | {f"s:{name}/{s}": self.slots[f"{name}/{s}"] for name in self.trained for s in self._kept(name)}

    # --- one batch -------------------------------------------------------------------------------

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if size != 0 and not self.waiting:
            self._pull(feeds)
        skipped = self.skipped
        loss, results = super().take(feeds, size, rate, position)
        if self._group == 1 and results and self.skipped == skipped:
            self._push(results)
        return loss, results

    def _pull(self, feeds: Mapping[str, Any]) -> None:
        """Bring what a batch reads. Tables come second: what tells which rows may read other parameters."""
        if self._dense:
            self._fetch(self._dense)
        if self._reads is None:
            return
        if self._looking is None:
            self._looking = Executor(self._reads, self.store, **self._options)
        self._looking.rng = self.executors[0].rng  # what it draws is what the step will draw
        data = [self._reads.name_of(v) for v in self._reads.inputs if v.role == "data"]
        found = self._looking.run({name: feeds[name] for name in data if name in feeds})
        wanted = [found[f"{name}/{steps.ROWS}"] for name in self._tables]
        for name, rows in zip(self._tables, self._remote.row_sparse_pull(self._tables, wanted), strict=True):
            _write(self._params, name, rows)

    def _push(self, results: dict[str, Any]) -> None:
        """Push the gradients among the outputs of a program, and take them away."""
        gradients = {}
        for name in self.trained:
            gradient = results.pop(f"{name}/{steps.GRADIENT}")
            indices = results.pop(f"{name}/{steps.ROWS}", None)
            gradients[name] = gradient if indices is None else RowSparse(indices, gradient)
        self._remote.push(list(gradients), list(gradients.values()))

    def _update(
        self, feeds: dict[str, Any], position: Position | None, idle: bool = False
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del feeds[steps.LEARNING_RATE]  # the servers have it
        return super()._update(feeds, position, idle)

    def _update_by_sums(self, total: np.float32, rate: float) -> None:
        self._push(self.executors[1].run({TOTAL_WEIGHT: total}))

    # --- what servers have -----------------------------------------------------------------------

    def _bring(self) -> None:
        super()._bring()
        if self._rule.ema is not None:
            for name, array in zip(self.trained, self._remote.averages(self.trained), strict=True):
                self.slots.commit(f"{name}/{AVERAGE}", array)

    def settle(self) -> None:
        self._remote.barrier()
        self._bring()
        if self.compressing:
            first = self._remote.rank == 0
            self.left_out = residuals.of_ranks(self.trained, self._residuals(), partial(gather, self._remote), first)
        for name, array in (self._remote.optimizer_states() if self._remote.rank == 0 else {}).items():
            key = name.partition(":")[2]
            start, _, last = key.rpartition("/")
            if last == "updates":
                self.slots[steps.STEP] = np.maximum(self.slots[steps.STEP], array)
            else:
                self.slots[f"{start}/{last}"] = array
        self._remote.barrier()


def _write(params: ParamStore, name: str, rows: RowSparse) -> None:
    """Replace some rows of a parameter, in place where nobody sees it."""
    array = params.donate(name)
    if array is None:
        array = params[name].copy()
    array[rows.indices] = rows.values
    params.commit(name, array)


class ElasticStepper(_Apart):
    """Steps of one process, with occasional exchanges with the centre variable. Evaluation and files use the centre.

    At the end of an epoch all workers continue from the centre, and from the mean of their moving averages. Slots are
    each worker's own; a checkpoint contains those of rank 0.
    """

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        before = self.updates
        found = super().take(feeds, size, rate, position)
        if self.updates > before and self.updates % self._remote.period == 0:
            self._exchange()
        return found

    def _exchange(self) -> None:
        mine = {name: self._params[name] for name in self.trained}
        for name, array in self._remote.exchange(mine, self._remote.strength / self._remote.num_workers).items():
            self._params.commit(name, array)

    def _meet(self) -> None:
        self._exchange()
        super()._meet()

    def _bring(self) -> None:
        super()._bring()
        names = [f"{name}/{AVERAGE}" for name in self.trained if self._rule.ema is not None]
        wide = [self.slots[name].astype(np.float64) for name in names]
        for name, total in zip(names, self._remote.pushpull(names, wide), strict=True):
            self.slots[name] = (total / self._remote.num_workers).astype(self.slots[name].dtype)
