"""Data parallelism: every rank has the whole model, and programs all-reduce losses and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.collectives.buckets import TimedCollective
from graphkit.dist.kvstore import KVStore
from graphkit.errors import NotFinite, UsageError
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ops.internal.moments import AllReduce as AllReduceOp
from graphkit.ops.internal.moments import AllReduceMoments
from graphkit.train.exchange import residuals
from graphkit.train.exchange.exchange import Gathered, StepSpec
from graphkit.train.exchange.gather import gather
from graphkit.train.exchange.local import LocalExchange, loss_clause, samples_of
from graphkit.train.programs import all_reduce, finite, sharded
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import TOTAL_WEIGHT, mean_of


class AllReduce(LocalExchange):
    """All-reduces in buckets. shard: whether each rank stores only the optimizer states of its slice of a bucket."""

    def __init__(self, spec: StepSpec, kvstore: KVStore, shard: bool):
        self._kvstore, self.ranks = kvstore, kvstore.num_workers
        if shard:
            _check_sharded(spec, kvstore.transport.compresses)
        ordered, device = spec.options["deterministic"], spec.options["device"]
        # With more than two ranks, the bits of a sum may depend on its bucket: deterministic runs use buckets of a
        # fixed size.
        limit = kvstore.transport.bucket_bytes(fixed=ordered)
        dense = {i: t.value for i, t in enumerate(spec.trained) if not t.lazy}
        place = (kvstore.rank, kvstore.num_workers) if shard else None
        self.buckets = all_reduce.make_buckets(spec.graph, dense, limit, kvstore.transport.compresses, place)
        self.collectives = kvstore.transport.collectives(ordered, device, _host_reason(spec, kvstore, ordered))
        self.collectives.fingerprinted = all_reduce.LOSS
        self.idle_program: Graph | None = None
        self._idle_executor: Executor | None = None
        super().__init__(spec)

    def _create_programs(self) -> list[Graph]:
        spec = self.spec
        self._options["collectives"] = self.collectives
        if spec.accumulate > 1:
            programs = steps.split_step(spec.graph, spec.trained, spec.rule, self.buckets)
            # On a device, only programs run collectives: a rank without samples needs a program, even if only the loss
            # is reduced.
            on_device = self.collectives.on_device is not None
            self.idle_program = steps.split_idle_step(spec.graph, programs[0], spec.rule, on_device)
            return list(programs)
        program, self.idle_program = steps.shared_step(spec.graph, spec.trained, spec.rule, self.buckets)
        return [program]

    # --- one batch -------------------------------------------------------------------------------

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        if samples_of(feeds, size):
            return super().run(feeds, size, rate, accumulated)
        # This rank has no samples, but takes part in all all-reduces. Its random state advances: a checkpoint stores
        # one random state for all ranks.
        results = self._run_idle(rate) if self.spec.accumulate == 1 else self._accumulate_idle()
        self.executors[0].advance()
        return results

    def _run_idle(self, rate: float | None) -> dict[str, Any]:
        """Run the program of a rank without samples. rate: the learning rate, or None if the program accumulates."""
        assert self.idle_program is not None, "created with the programs"
        if self._idle_executor is None:
            self._idle_executor = Executor(self.idle_program, self.store, **self._options)
        types = {self.idle_program.name_of(v): v.tensor for v in self.idle_program.inputs if v.role == "data"}
        feeds: dict[str, Any] = {name: np.zeros(t.static_shape, t.dtype.numpy) for name, t in types.items()}
        if rate is not None:
            feeds[steps.LEARNING_RATE] = np.float32(rate)
        return self._idle_executor.run(feeds)

    def _accumulate_idle(self) -> dict[str, Any]:
        """Take part in the all-reduces of loss and statistics. Raises NotFinite if the ranks with samples do."""
        if self.idle_program is not None:
            results = self._run_idle(None)
        else:
            pair = np.zeros(2)
            self.collectives.start(all_reduce.LOSS, [pair], 0)
            self.collectives.wait([all_reduce.LOSS])
            results = {self._loss: np.asarray(np.float32(mean_of(*pair))), TOTAL_WEIGHT: pair[1]}
        loss = results[self._loss]
        if self.spec.rule.on_nonfinite != "ignore" and not np.isfinite(loss):
            raise NotFinite(str(loss))
        return results

    def describe(self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int]) -> tuple[str, str]:
        return loss_clause(error), finite.origin(self.programs[0], self.store, feeds, rng, others=True)

    # --- states ----------------------------------------------------------------------------------

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.buckets.place is None:
            return dict(arrays)
        values = {t.name: t.value for t in self.spec.trained}
        return sharded.own_slots(values, self._optimizer_types(), self.buckets, arrays)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Gathered | None]:
        is_first, gather_arrays = self._kvstore.rank == 0, partial(gather, self._kvstore)
        by_rank = residuals.NONE
        if self.compressing:
            by_rank = residuals.gather_residuals(self.trained, self.residuals(), gather_arrays, is_first)
        states: Mapping[str, np.ndarray] = self.slots
        if self.buckets.place is not None:
            states = {**self.slots, **sharded.whole_slots(self._optimizer_types(), self.slots, gather_arrays, is_first)}
        yield Gathered(states, by_rank) if is_first else None

    @property
    def compressing(self) -> Sequence[int]:
        return self._kvstore.transport.compressing if self._kvstore.transport.compresses else ()

    def residuals(self) -> dict[str, np.ndarray]:
        found = self.collectives.residuals()
        keys = {all_reduce.bucket_key(number): group for number, group in enumerate(self.buckets.groups)}
        return {
            self.trained[i]: residual
            for key, group in keys.items()
            for i, residual in zip(group, found.get(key, ()), strict=key in found)
        }

    def restore_residuals(self, residuals: Mapping[str, np.ndarray]) -> None:
        if self._kvstore.rank not in self.compressing:
            return
        names = [[self.trained[i] for i in group] for group in self.buckets.groups]
        self.collectives.restore(
            {
                all_reduce.bucket_key(number): [residuals[name] for name in group]
                for number, group in enumerate(names)
                if all(name in residuals for name in group)
            }
        )

    # --- facts -----------------------------------------------------------------------------------

    @property
    def timed_collectives(self) -> Sequence[TimedCollective]:
        return tuple(self.collectives.timed_collectives)

    @property
    def waited_seconds(self) -> float:
        return self.collectives.waited_seconds


def _host_reason(spec: StepSpec, kvstore: KVStore, ordered: bool) -> str:
    """Return why the CPU must all-reduce gradients, or "". All ranks get the same result."""
    if kvstore.transport.compresses:
        return "gradients are compressed on the CPU (compression)"
    if any(t.lazy for t in spec.trained):
        return "rows of tables are summed on the CPU (lazy)"
    if any(isinstance(node.op, (AllReduceMoments, AllReduceOp)) for node in spec.graph.nodes):
        return "statistics of all samples are merged on the CPU (sync_batch_norm)"
    # A sum of two numbers does not depend on their order.
    if ordered and kvstore.num_workers > 2:
        return "with more than two ranks, GPUs cannot sum in the order of the ranks (deterministic)"
    return ""


def _check_sharded(spec: StepSpec, compresses: bool) -> None:
    sharded.check_elementwise(spec.rule.optimizer)
    if lazy := [t.name for t in spec.trained if t.lazy]:
        raise UsageError(
            "shard_optimizer (--shard-optimizer) cannot be combined with row-sparse updates (lazy=, "
            f"--sparse-update) of {', '.join(lazy)}"
        )
    if compresses:
        raise UsageError(
            "shard_optimizer (--shard-optimizer) cannot be combined with gradient compression (--compression)"
        )
