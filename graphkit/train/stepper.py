"""Steppers run the programs of `step` on batches, and keep accumulated gradients and counts of updates.

With several processes, the programs themselves all-reduce losses and gradients, through the store.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn

import numpy as np

from graphkit.dist.collectives.buckets import Flight
from graphkit.dist.kvstore import KVStore
from graphkit.dist.transport import FIXED_BUCKET
from graphkit.errors import NotFinite, UsageError
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType
from graphkit.ops.internal.moments import AllReduce, AllReduceMoments
from graphkit.passes.training.swap import mark_forward
from graphkit.train import finite, loss_scale, recomputation, residuals, sharded, shares
from graphkit.train import step as steps
from graphkit.train.average import AVERAGE
from graphkit.train.gather import gather
from graphkit.train.metrics import Metric, value_of
from graphkit.train.position import Position
from graphkit.train.selection import TrainedParameter
from graphkit.train.states import kinds
from graphkit.train.weights import BATCH_WEIGHT, TOTAL_WEIGHT, weight_in

# The loss of a step that was not taken.
_NO_LOSS = np.full((), np.nan, np.float32)


class Stepper:
    """Takes batches and updates `params`: with one fused program, or with one that accumulates and one that updates.

    graph: its first output is the loss. options: of the executors. slots: the states that the model does not contain.
    `waiting` is the number of batches with accumulated gradients, `waiting_weight` their number of samples. `updates`
    counts the updates, `skipped` the steps that were skipped because something was not finite.
    """

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
        self.updates = self.skipped = self.waiting = 0
        self.waiting_weight = 0.0
        self.trained = tuple(t.name for t in trained)
        # Those of the network.
        self._outputs = tuple(name for name in graph.output_names[1:] if name != BATCH_WEIGHT)
        self._is_fed_weights = BATCH_WEIGHT not in graph.output_names
        self._unread: tuple[str, ...] = ()
        self._rule = rule
        # In the first process, after `settle`: what compression has left out, by rank.
        self.left_out: residuals.ByRank = ()
        self._values = {t.name: t.value for t in trained}
        # Slots of which this process has parts, put together.
        self._whole: Mapping[str, np.ndarray] | None = None
        self._kvstore = kvstore
        self._group = accumulate
        self._loss = graph.output_names[0]
        # Waits for the shapes of the first batch; a number of bytes, for those of larger ones too.
        self._recompute = recompute
        self._fitted: Mapping[str, Sequence[int]] = {}
        self._options = dict(options)
        self.buckets: shares.Buckets | None = None
        # What a process without samples runs, and its executor.
        self._idle: Graph | None = None
        self._resting: Executor | None = None
        if kvstore is not None and kvstore.num_workers > 1:
            if shard:
                _check_sharded(trained, rule, kvstore.transport.compresses)
            self.buckets = self._in_buckets(graph, trained, kvstore, shard)
            ordered = options["deterministic"]
            self.collectives = kvstore.transport.collectives(
                ordered, options["device"], _staged(graph, trained, kvstore, ordered)
            )
            self.collectives.stamped = shares.LOSS
            self._options["collectives"] = self.collectives
        self.programs = self._made(graph, trained, rule)
        if swap_memory:
            self.programs[0] = mark_forward(self.programs[0])
        self.programs[0] = self._unfitted = recomputation.marked(self.programs[0], options["device"])
        self.slots = self._starts(params)
        self.store = JointStore([params, self.slots])
        self.executors = [Executor(program, self.store, **self._options) for program in self.programs]

    def _made(self, graph: Graph, trained: Sequence[TrainedParameter], rule: steps.UpdateRule) -> list[Graph]:
        """The programs of a step."""
        if self._group > 1:
            programs = steps.split_step(graph, trained, rule, self.buckets)
            if self.buckets is not None:
                alone = self.collectives.on_device is not None
                self._idle = steps.split_idle(graph, programs[0], rule, alone)
            return list(programs)
        if self.buckets is None:
            return [steps.fused_step(graph, trained, rule)]
        step, self._idle = steps.shared_step(graph, trained, rule, self.buckets)
        return [step]

    def _in_buckets(
        self, graph: Graph, trained: Sequence[TrainedParameter], kvstore: KVStore, shard: bool
    ) -> shares.Buckets:
        # The bits of a sum over more than two processes may depend on what it is summed with.
        limit = kvstore.transport.bucket_bytes(fixed=self._options["deterministic"])
        dense = {i: t.value for i, t in enumerate(trained) if not t.lazy}
        place = (kvstore.rank, kvstore.num_workers) if shard else None
        return shares.make_buckets(graph, dense, limit, kvstore.transport.compresses, place)

    @property
    def sets_rates(self) -> bool:
        """Whether updates go by the learning rate that `take` and `flush` are given."""
        return True

    @property
    def compressing(self) -> tuple[int, ...]:
        """The ranks that send gradients in fewer bytes."""
        compresses = self.buckets is not None and self._kvstore is not None and self._kvstore.transport.compresses
        return self._kvstore.transport.compressing if compresses and self._kvstore is not None else ()

    def _residuals(self) -> dict[str, np.ndarray]:
        """What compression has left out of this process's gradients, by parameter."""
        assert self.buckets is not None, "there are several processes"
        found = self.collectives.residuals()
        keys = {shares.bucket_key(number): group for number, group in enumerate(self.buckets.groups)}
        return {
            self.trained[i]: left
            for key, group in keys.items()
            for i, left in zip(group, found.get(key, ()), strict=key in found)
        }

    def put_residuals(self, mine: Mapping[str, np.ndarray]) -> None:
        """What compression has left out before, to be added to this process's next gradients; for all parameters."""
        if self.buckets is None or self._kvstore is None or self._kvstore.rank not in self.compressing:
            return
        names = [[self.trained[i] for i in group] for group in self.buckets.groups]
        self.collectives.restore(
            {
                shares.bucket_key(number): [mine[name] for name in group]
                for number, group in enumerate(names)
                if all(name in mine for name in group)
            }
        )

    def states(self) -> Mapping[str, np.ndarray]:
        """What a checkpoint has beside the parameters, whole; in the first process, after `settle`."""
        return self.slots if self._whole is None else self._whole

    def optimizer_state_bytes(self, processes: int = 1) -> int:
        """Return the largest number of bytes of optimizer state in one rank, if `processes` ranks shard it."""
        values = list(self._values.values())
        each = [[kind.dtype.itemsize for kind in slots.values()] for slots in self._slot_kinds().values()]
        if processes == 1:
            return sum(sum(sizes) * math.prod(v.tensor.static_shape) for sizes, v in zip(each, values, strict=True))
        _check_elementwise(self._rule)
        place = (0, processes)
        buckets = shares.make_buckets(self.programs[0], dict(enumerate(values)), FIXED_BUCKET, False, place)
        return max(
            sum((end - begin) * sum(each[i]) for i, begin, end in sharded.parts_of(values, buckets, rank))
            for rank in range(processes)
        )

    def _slot_kinds(self) -> dict[str, dict[str, TensorType]]:
        """The types of the slots of each parameter, whole."""
        return {name: kinds(self._rule.optimizer, value.tensor) for name, value in self._values.items()}

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What this process has of a checkpoint's arrays."""
        if self.buckets is None or self.buckets.place is None:
            return dict(arrays)
        return sharded.own_slots(self._values, self._slot_kinds(), self.buckets, arrays)

    @property
    def flights(self) -> Sequence[Flight]:
        """What was exchanged with other processes of late."""
        return tuple(self.collectives.flights) if self.buckets is not None else ()

    @property
    def waited_seconds(self) -> float:
        """Seconds that programs spent waiting for other ranks."""
        return self.collectives.waited_seconds if self.buckets is not None else 0.0

    def spread(self) -> None:
        """Parameters and states were set from outside: update all copies of them."""

    def settle(self) -> None:
        """Gather parameters and states that other ranks hold. Collective: every rank must call it."""
        if self._kvstore is None or self.buckets is None:
            return
        first = self._kvstore.rank == 0
        if self.compressing:
            self.left_out = residuals.of_ranks(
                self.trained, self._residuals(), partial(gather, self._kvstore), keep=first
            )
        if self.buckets.place is None:
            return
        found = sharded.whole_slots(self._slot_kinds(), self.slots, partial(gather, self._kvstore), keep=first)
        self._whole = {**self.slots, **found} if first else {}

    def _state_types(self, params: ParamStore) -> dict[str, TensorType]:
        """The states that a checkpoint has beside the model's."""
        return {
            program.name_of(v): v.tensor
            for program in self.programs
            for v in program.inputs
            if v.role == "state" and program.name_of(v) not in params
        }

    def _starts(self, params: ParamStore) -> ParamStore:
        """A store with these states, as they are before the first step."""
        types = self._state_types(params)
        optimizer = self._rule.optimizer
        starts = {f"{name}/{slot}": optimizer.start(slot) for name in self.trained for slot in optimizer.slots}
        arrays = {n: np.full(t.static_shape, starts.get(n, 0), t.dtype.numpy) for n, t in types.items()}
        if self._rule.scale is not None:
            arrays[loss_scale.NAME] = loss_scale.start()
        if self._rule.ema is not None:
            averages = [f"{name}/{AVERAGE}" for name in self.trained]
            pairs = zip(averages, self.trained, strict=True)
            arrays |= {average: np.asarray(params[name], types[average].dtype.numpy) for average, name in pairs}
        return ParamStore(types, arrays)

    @property
    def held(self) -> tuple[str, ...]:
        """What is trained and has its values in this process."""
        return self.trained

    def keeps(self, name: str) -> bool:
        """Whether this process has a parameter, state or slot from step to step."""
        return True

    def gathered(self) -> AbstractContextManager[None]:
        """Around what needs all parameters and slots in rank 0."""
        return nullcontext()

    def compared(
        self, results: Mapping[str, Any], output: str, target: tuple[str, np.ndarray]
    ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        """What metrics compare after a step: pairs of an output and a target. target: by name, of the batch."""
        return [(results[output], target[1])]

    def values(self, measured: Sequence[Metric]) -> dict[str, float]:
        """The values of metrics, as this process knows them."""
        return {m.name: value_of(m) for m in measured}

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        self._fit_memory(shapes)
        return self.executors[0].specialise(shapes)

    def _fit_memory(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Choose what is recomputed: for a number of bytes anew, where a batch is larger and takes more than those."""
        budget, fitted = self._recompute, self._fitted
        if budget is None or (fitted and _are_within(shapes, fitted)):
            return
        if fitted and isinstance(budget, int) and self.executors[0].specialise(shapes).arena_bytes <= budget:
            self._fitted = shapes
            return

        def arena_bytes(program: Graph) -> int:
            return Executor(program, self.store, **self._options).specialise(shapes).arena_bytes

        program = recomputation.within(self._unfitted, budget, shapes, arena_bytes, self._options["device"])
        executor = Executor(program, self.store, **self._options)
        executor.rng = self.executors[0].rng
        self.programs[0], self.executors[0], self._fitted = program, executor, shapes
        if budget == "sqrt":
            self._recompute = None

    # --- one batch -------------------------------------------------------------------------------

    def send_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Begin to copy what a batch to come is fed with to the device; any thread may. See Executor.send_ahead."""
        self.executors[0].send_ahead(feeds)

    def read(self, outputs: bool) -> None:
        """Set whether `take` returns the network's outputs, or may return None for them. On a device with its own
        memory, they then stay there.
        """
        self._unread = () if outputs else self._outputs

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Train on a batch; its loss, and all outputs (none of a step that is skipped).

        size: its samples, where the first array does not say so. rate: the learning rate of the update, if it comes to
        one. position: of the `fit` that it is a step of, for the message of NotFinite. `weight_in` finds the weight of
        the loss among the outputs.
        """
        if self._recompute is not None:
            self._fit_memory({name: np.shape(array) for name, array in feeds.items()})
        if len(self.programs) == 1 and self.buckets is None:
            feeds[steps.LEARNING_RATE] = np.float32(rate)
            return self._update(feeds, position)
        weight = float(len(next(iter(feeds.values()))) if size is None else size)
        if self._is_fed_weights:
            feeds[BATCH_WEIGHT] = np.float32(weight)
        if len(self.programs) == 1:
            feeds[steps.LEARNING_RATE] = np.float32(rate)
            return self._update(feeds, position, idle=not weight)
        found = self._accumulate(feeds, weight, position)
        if self.waiting >= self._group:  # more, where a checkpoint of a larger one was resumed
            self._use_waiting(rate)
        return found

    def _update(
        self, feeds: dict[str, Any], position: Position | None, idle: bool = False
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Forward, backward and the update in one program. idle: there are fewer samples than processes."""
        executor = self.executors[0]
        generator = executor.rng
        try:
            results = self._without_samples(feeds) if idle else executor.run(feeds, discard=self._unread)
        except NotFinite as error:
            if not self._lowers_scale() and self._rule.on_nonfinite == "raise":
                self._raise(error, feeds, generator, position)
            self.skipped += 1
            return _NO_LOSS, {}
        if idle:
            self._draw()
        self.updates += 1
        return results[self._loss], results

    def _accumulate(
        self, feeds: dict[str, Any], weight: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Forward and backward; the gradients of `weight` samples wait."""
        executor, how = self.executors[0], self._rule.on_nonfinite
        generator = executor.rng
        try:
            # Fewer samples than processes leave some without any.
            results = executor.run(feeds, discard=self._unread) if weight else self._nothing_to_add()
        except NotFinite as error:
            if how == "raise":
                self._raise(error, feeds, generator, position)
            # The gradients of the other batches of the group are dropped with these.
            weight, results = math.nan, {self._loss: _NO_LOSS}
        else:
            if not weight:
                self._draw()
            weight = weight_in(results, weight)
        self.waiting += 1
        self.waiting_weight += weight
        return results[self._loss], {} if math.isnan(weight) else results

    def _without_samples(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Take part in the sums and the update."""
        assert self._idle is not None, "one of several processes"
        if self._resting is None:
            self._resting = Executor(self._idle, self.store, **self._options)
        nothing = {v: v.tensor for v in self._idle.inputs if v.role == "data"}
        zeros = {self._idle.name_of(v): np.zeros(t.static_shape, t.dtype.numpy) for v, t in nothing.items()}
        return self._resting.run(zeros | {n: a for n, a in feeds.items() if n == steps.LEARNING_RATE})

    def _draw(self) -> None:
        """The generator goes on as in processes with samples, so that all stand where a checkpoint says."""
        self.executors[0].advance()

    def _nothing_to_add(self) -> dict[str, Any]:
        """Take part in the sums of losses and statistics alone; raises NotFinite as those with samples do."""
        if self._idle is not None:
            results = self._without_samples({})
        else:
            pair = np.zeros(2)
            self.collectives.start(shares.LOSS, [pair], 0)
            self.collectives.wait([shares.LOSS])
            results = {self._loss: np.asarray(np.float32(pair[0] / pair[1])), TOTAL_WEIGHT: pair[1]}
        loss = results[self._loss]
        if self._rule.on_nonfinite != "ignore" and not np.isfinite(loss):
            raise NotFinite(str(loss))
        return results

    # --- gradients that wait ---------------------------------------------------------------------

    def flush(self, rate: float) -> None:
        """Update with the gradients that wait, if there are any."""
        self._use_waiting(rate)

    def _use_waiting(self, rate: float) -> None:
        if not self.waiting:
            return
        if self._rule.on_nonfinite == "skip" and math.isnan(self.waiting_weight):
            self._drop()
            return
        try:
            self._update_by_sums(np.float32(self.waiting_weight), rate)
        except NotFinite:
            may_go_on = self._lowers_scale() or self._rule.on_nonfinite != "raise"
            self._drop()
            if not may_go_on:
                raise NotFinite(
                    f"gradients are not finite at update {self.updates + 1}, although the loss is not scaled any more; "
                    "the parameters are unchanged. Use precision='bf16' (--precision bf16), or skip such updates: "
                    "on_nonfinite='skip' (--on-nonfinite skip)"
                ) from None
            return
        self.updates += 1
        self.waiting, self.waiting_weight = 0, 0.0

    def _update_by_sums(self, total: np.float32, rate: float) -> None:
        """One update by the gradients that wait, of so many samples; the sums are 0 then."""
        self.executors[1].run({TOTAL_WEIGHT: total, steps.LEARNING_RATE: np.float32(rate)})

    def _lowers_scale(self) -> bool:
        """Whether losses are multiplied by less from now on, since gradients may have been too large."""
        if self._rule.scale is None or (lower := loss_scale.lower(self.slots[loss_scale.NAME])) is None:
            return False
        self.slots[loss_scale.NAME] = lower
        return True

    def _drop(self) -> None:
        """Forget the gradients that wait."""
        for key in self._sums:
            self.slots[key] = np.zeros_like(self.slots[key])
        self.skipped += 1
        self.waiting, self.waiting_weight = 0, 0.0

    @property
    def _sums(self) -> list[str]:
        return [f"{name}/{steps.GRADIENT_SUM}" for name in self.trained]

    # --- a loss that is not finite ---------------------------------------------------------------

    def _raise(
        self, error: NotFinite, feeds: Mapping[str, Any], generator: tuple[int, int], position: Position | None
    ) -> NoReturn:
        """Raise what says where the loss comes from."""
        where = f"update {self.updates + 1}"
        if position is not None:
            where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        value = str(error).rpartition(": ")[2]
        origin = finite.origin(self.programs[0], self.store, feeds, generator, others=self.buckets is not None)
        raise NotFinite(
            f"the loss is {value} at {where}, {origin}. The parameters are unchanged. Lower the learning "
            "rate, check the data for NaN, or skip such updates: on_nonfinite='skip' (--on-nonfinite skip)"
        ) from None


def _staged(graph: Graph, trained: Sequence[TrainedParameter], kvstore: KVStore, ordered: bool) -> str:
    """Why cards do not sum among themselves what processes have chosen, all alike; "" where they may."""
    if kvstore.transport.compresses:
        return "gradients are compressed on the CPU (compression)"
    if any(t.lazy for t in trained):
        return "rows of tables are summed on the CPU (lazy)"
    if any(isinstance(node.op, (AllReduceMoments, AllReduce)) for node in graph.nodes):
        return "statistics of all samples are merged on the CPU (sync_batch_norm)"
    # Of two summands each order has the same sum.
    if ordered and kvstore.num_workers > 2:
        return "GPUs cannot sum in the order of more than two ranks (deterministic)"
    return ""


def _are_within(shapes: Mapping[str, Sequence[int]], bounds: Mapping[str, Sequence[int]]) -> bool:
    """Whether no array of a batch is longer, along any axis, than that of another batch."""
    return all(
        name in bounds and len(bounds[name]) == len(shape) and all(map(operator.le, shape, bounds[name]))
        for name, shape in shapes.items()
    )


def _check_elementwise(rule: steps.UpdateRule) -> None:
    if not rule.optimizer.elementwise:
        raise UsageError(
            f"shard_optimizer: {rule.optimizer.kind} needs norms of whole parameters, but each process updates only "
            "parts of them"
        )


def _check_sharded(trained: Sequence[TrainedParameter], rule: steps.UpdateRule, compresses: bool) -> None:
    """Raise UsageError for what cannot be divided among processes."""
    _check_elementwise(rule)
    if lazy := [t.name for t in trained if t.lazy]:
        raise UsageError(
            "shard_optimizer (--shard-optimizer) cannot be combined with row-sparse updates (lazy=, "
            f"--sparse-update) of {', '.join(lazy)}"
        )
    if compresses:
        raise UsageError("shard_optimizer cannot be combined with gradient compression")
