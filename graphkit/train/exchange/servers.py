"""Parameter servers: each worker pulls parameters and pushes gradients, independently of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.kvstore import RowSparse
from graphkit.dist.servers.remote import RemoteStore
from graphkit.errors import UsageError
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.types import DType, TensorType
from graphkit.train.average import AVERAGE
from graphkit.train.exchange import residuals
from graphkit.train.exchange.exchange import Gathered, StepSpec
from graphkit.train.exchange.gather import gather
from graphkit.train.exchange.local import LocalExchange
from graphkit.train.programs import server_gradients
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import TOTAL_WEIGHT
from graphkit.train.states import names, state_type
from graphkit.train.updater import KeyedOptimizer


class WorkerExchange(LocalExchange):
    # Workers save and stop at given numbers of updates: their counts must be equal.
    counts_every_step = True

    def __init__(self, spec: StepSpec, store: RemoteStore, shard: bool):
        if shard:
            raise UsageError(
                "shard_optimizer (--shard-optimizer) only works with the kvstore dist_sync; parameter servers store "
                "the optimizer states already"
            )
        if spec.rule.scale is not None:
            raise UsageError(
                "precision='f16' (--precision f16) cannot be used with parameter servers, because they do not support "
                "loss scaling; use 'bf16'"
            )
        self._remote, self.ranks = store, store.num_workers
        self._published = False
        super().__init__(spec)

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        if size == 0:
            return {}
        return super().run(feeds, size, rate, accumulated)

    def update(self, total: float, rate: float) -> None:
        if total:
            self._update(total, rate)

    def _update(self, total: float, rate: float) -> None:
        super().update(total, rate)

    def publish(self) -> None:
        values = {name: self.spec.params[name] for name in self.trained}
        if not self._published:
            taken = next(filter(self._remote.is_initialised, values), None)
            if taken is not None:
                raise UsageError(
                    f"the servers of this KVStore already have a value for the parameter {taken!r}, from another "
                    "Trainer or from your call of init. Servers store the parameters of one Trainer: train a second "
                    "model in another job"
                )
            self._remote.init(list(values), list(values.values()))
            self._published = True
        else:
            self._remote.put(values)

    def synchronise(self) -> None:
        self._remote.barrier()
        self._pull_all()
        self._remote.barrier()

    def _pull_all(self) -> None:
        """Pull the parameters (and moving averages) from the servers.

        The caller calls `barrier` before and after.
        """
        self._pull_parameters(self.trained)

    def _pull_parameters(self, names: Sequence[str]) -> None:
        for name, array in zip(names, self._remote.pull(names), strict=True):
            self.spec.params.commit(name, array)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Gathered | None]:
        self.synchronise()
        yield Gathered(self.slots, ()) if self._remote.rank == 0 else None

    @property
    def waited_seconds(self) -> float:
        return self._remote.waited_seconds


class Servers(WorkerExchange):
    """Workers push gradients, and servers update the parameters.

    A step pulls parameters, computes gradients and pushes them. Of lazy tables, it pulls and pushes only the rows that
    the batch reads. With `accumulate`, a worker pulls before the first accumulated batch, and pushes the mean gradient
    after the last.

    Servers apply the optimizer, the learning rate and the moving averages. Workers clip their own gradients, and have
    their own running statistics.
    """

    sets_rates = False

    def _create_programs(self) -> list[Graph]:
        graph, trained, rule = self.spec.graph, self.spec.trained, self.spec.rule
        self._dense = [t.name for t in trained if not t.lazy]
        self._tables = [t.name for t in trained if t.lazy]
        self._row_reads = reads = server_gradients.row_reads(graph, trained)
        self._row_inputs = [] if reads is None else [reads.name_of(v) for v in reads.inputs if v.role == "data"]
        self._row_reader: Executor | None = None
        self._remote.steps_per_push = self.spec.accumulate
        if self.spec.accumulate > 1:
            return list(server_gradients.split_gradients(graph, trained, rule))
        return [server_gradients.gradient_step(graph, trained, rule)]

    def _slot_types(self) -> dict[str, TensorType]:
        params = self.spec.params
        on_servers = {
            f"{name}/{slot}": state_type(params.type_of(name))
            for name in self.trained
            for slot in self._slots_on_servers(name)
        }
        return super()._slot_types() | on_servers | {steps.STEP: TensorType(DType.INT64, ())}

    def _slots_on_servers(self, name: str) -> list[str]:
        rule = self.spec.rule
        return [*names(rule.optimizer, self.spec.params.type_of(name).dtype), *([] if rule.ema is None else [AVERAGE])]

    def publish(self) -> None:
        first, rule = not self._published, self.spec.rule
        super().publish()
        if not first and int(self.slots[steps.STEP]):
            self._remote.restore_optimizer_states(self._server_states())
            return
        rates: dict[int | str, float] = {t.name: t.lr_mult for t in self.spec.trained}
        decays: dict[int | str, float] = {t.name: t.decay_mult for t in self.spec.trained}
        self._remote.set_optimizer(KeyedOptimizer(rule.optimizer, rates, decays, rule.ema))

    def _server_states(self) -> dict[str, np.ndarray]:
        """Return the states of the servers, by the names that servers use. `s:` marks keys that are strings."""
        counts = {f"s:{name}/updates": self.slots[steps.STEP] for name in self.trained}
        return counts | {
            f"s:{name}/{slot}": self.slots[f"{name}/{slot}"]
            for name in self.trained
            for slot in self._slots_on_servers(name)
        }

    # --- one batch -------------------------------------------------------------------------------

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        if size != 0 and not accumulated:
            self._pull(feeds)
        results = super().run(feeds, size, rate, accumulated)
        if self.spec.accumulate == 1 and results:
            self._push(results)
        return results

    def _pull(self, feeds: Mapping[str, Any]) -> None:
        """Pull the parameters that a batch reads: first dense ones, because indices of rows may depend on them."""
        if self._dense:
            self._pull_parameters(self._dense)
        if self._row_reads is None:
            return
        if self._row_reader is None:
            self._row_reader = Executor(self._row_reads, self.store, **self._options)
        self._row_reader.rng = self.executors[0].rng
        found = self._row_reader.run({name: feeds[name] for name in self._row_inputs if name in feeds})
        wanted = [found[f"{name}/{steps.ROWS}"] for name in self._tables]
        for name, rows in zip(self._tables, self._remote.row_sparse_pull(self._tables, wanted), strict=True):
            _write(self.spec.params, name, rows)

    def _push(self, results: dict[str, Any]) -> None:
        gradients = {}
        for name in self.trained:
            gradient = results.pop(f"{name}/{steps.GRADIENT}")
            indices = results.pop(f"{name}/{steps.ROWS}", None)
            gradients[name] = gradient if indices is None else RowSparse(indices, gradient)
        self._remote.push(list(gradients), list(gradients.values()))

    def _update(self, total: float, rate: float) -> None:
        self._push(self.executors[1].run({TOTAL_WEIGHT: np.float32(total)}))

    # --- states ----------------------------------------------------------------------------------

    def _pull_all(self) -> None:
        super()._pull_all()
        if self.spec.rule.ema is not None:
            for name, array in zip(self.trained, self._remote.averages(self.trained), strict=True):
                self.slots.commit(f"{name}/{AVERAGE}", array)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Gathered | None]:
        is_first, by_rank = self._remote.rank == 0, residuals.NONE
        self._remote.barrier()
        self._pull_all()
        if self.compressing:
            gather_arrays = partial(gather, self._remote)
            by_rank = residuals.gather_residuals(self.trained, self.residuals(), gather_arrays, is_first)
        for name, array in (self._remote.optimizer_states() if is_first else {}).items():
            key = name.partition(":")[2]
            start, _, last = key.rpartition("/")
            if last == "updates":
                self.slots[steps.STEP] = np.maximum(self.slots[steps.STEP], array)
            else:
                self.slots[f"{start}/{last}"] = array
        self._remote.barrier()
        yield Gathered(self.slots, by_rank) if is_first else None

    @property
    def compressing(self) -> Sequence[int]:
        return self._remote.transport.compressing if self._remote.transport.compresses else ()

    def residuals(self) -> dict[str, np.ndarray]:
        return {name: array for name, array in self._remote.transport.residuals().items() if name in self.trained}

    def restore_residuals(self, residuals: Mapping[str, np.ndarray]) -> None:
        self._remote.transport.restore_residuals(dict(residuals.items()))


class ElasticAveraging(WorkerExchange):
    """Elastic averaging: workers train independently, each with its own slots.

    At intervals, a worker and the centre variable on the servers move towards each other. Evaluation and files use the
    centre variable. At the end of an epoch, all workers continue from the centre variable and the mean of their moving
    averages. A checkpoint contains the slots of rank 0.
    """

    def after_step(self, updates: int) -> None:
        if updates % self._remote.period == 0:
            self._exchange()

    def _exchange(self) -> None:
        mine = {name: self.spec.params[name] for name in self.trained}
        for name, array in self._remote.exchange(mine, self._remote.strength / self._remote.num_workers).items():
            self.spec.params.commit(name, array)

    def synchronise(self) -> None:
        self._exchange()
        super().synchronise()

    def _pull_all(self) -> None:
        super()._pull_all()
        names = [f"{name}/{AVERAGE}" for name in self.trained if self.spec.rule.ema is not None]
        wide = [self.slots[name].astype(np.float64) for name in names]
        for name, total in zip(names, self._remote.pushpull(names, wide), strict=True):
            self.slots[name] = (total / self._remote.num_workers).astype(self.slots[name].dtype)


def _write(params: ParamStore, name: str, rows: RowSparse) -> None:
    """Overwrite some rows of a parameter, in place if nothing else refers to its array."""
    array = params.donate(name)
    if array is None:
        array = params[name].copy()
    array[rows.indices] = rows.values
    params.commit(name, array)
