"""The step of one rank of a pipeline: forward and backward passes of micro-batches through its stage, then one update.

The result is that of one process that accumulates the gradients of the same micro-batches.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist import pipeline
from graphkit.errors import NotFinite
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.train import stage_programs
from graphkit.train import step as steps
from graphkit.train.partition import Partition
from graphkit.train.placed import Pipeline
from graphkit.train.placed_stepper import PlacedStepper, kind_of
from graphkit.train.position import Position
from graphkit.train.selection import TrainedParameter
from graphkit.train.stage_runner import StageRunner
from graphkit.train.states import precise
from graphkit.train.weigher import Weigher
from graphkit.train.weights import TOTAL_WEIGHT

# Lanes of messages; those of passes have 0 and 1, a gather 2.
_COPIES, _SUMS = 3, 4
_NO_LOSS = np.full((), np.nan, np.float32)


class PipelineStepper(PlacedStepper):
    """A `Stepper` for one rank of a pipeline. It stores only the parameters and slots of its own stage.

    graph: as for a Stepper. params: all parameters of the model; those of other ranks are released. results: the
    outputs, besides the loss, that `take` returns where they are computed.
    """

    def __init__(
        self,
        graph: Graph,
        trained: Sequence[TrainedParameter],
        rule: steps.UpdateRule,
        params: ParamStore,
        pipe: Pipeline,
        output: Value,
        output_name: str,
        options: Mapping[str, Any],
    ):
        self._weigher = Weigher(graph)
        graph = self._weigher.graph
        self.part = part = pipe.parted(graph)
        self.index = part.ranks.index(pipe.store.rank)
        owners = {graph.name_of(v): part.ranks[stage] for v, stage in part.owner_of.items()}
        super().__init__(graph, trained, rule, params, pipe, owners, part.ranks[part.home(output) or 0])
        self._loss, self._output_name = graph.output_names[0], output_name
        self.stage = stage_programs.training_stage(
            part, self.index, {self._loss: graph.outputs[0], output_name: output}, trained
        )
        self._loss_rank = part.ranks[part.home(graph.outputs[0]) or 0]
        self._draws = any(v.role == "rng" for v in graph.inputs)
        flowing = stage_programs.differentiated(part, trained)
        # By parameter that several stages read: the others that have gradients of it.
        self._learners = {t.name: found for t in trained if (found := stage_programs.learners(part, t, flowing))}
        updates = steps.staged_update(f"{graph.name}_{self.index}", self._own, rule) if self._own else ()
        self.programs = [g for g in (self.stage.forward, self.stage.backward, *updates) if g is not None]
        summed = [t for t in trained if t in self._own or self.index in self._learners.get(t.name, ())]
        kinds = {f"{t.name}/{steps.GRADIENT_SUM}": precise(t.value.tensor) for t in summed}
        self._sums = ParamStore(kinds, {name: _zeros(kind) for name, kind in kinds.items()})
        self.store = JointStore([params, self.slots, self._sums])
        self.executors = [Executor(program, self.store, **options) for program in self.programs]
        backward = None if self.stage.backward is None else self.executors[1]
        self._runner = StageRunner(self.stage, part, pipe.store, self.executors[0], backward)

    # --- a batch ---------------------------------------------------------------------------------

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Of the forward program of this stage, once a batch has told what it receives."""
        return self.executors[0].plan

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Train on a batch; its mean loss, and the outputs of each micro-batch where they are made."""
        arrays = {n: np.asarray(a) for n, a in feeds.items()}
        parts = pipeline.bounds(pipeline.sizes(self.pipe.samples(arrays, size), self.pipe.micro_batches))
        batches = self.pipe.sliced(arrays, parts)
        # What does not fit, all ranks find here.
        for batch in (batches[0], batches[-1]):
            self._check(batch)
        self._store.transport.meet("step of a pipeline", list(arrays.values()))
        statistics = {self.stage.forward.name_of(v): v for v, _ in self.stage.forward.updates}
        before = {name: self.store[name] for name in statistics}
        sizes = [part.stop - part.start for part in parts]
        found = map(self._weigher.weight, batches)
        weights = [float(size) if weight is None else weight for weight, size in zip(found, sizes, strict=True)]
        with self._failing_together():
            losses, outputs = self._run(batches, weights)
            try:
                loss = self._flush(losses, weights, rate, position)
            except NotFinite:
                self._undo(before)
                if self._rule.on_nonfinite == "raise":
                    raise
                self.skipped += 1
                return _NO_LOSS, {}
        self.updates += 1
        return loss, {TOTAL_WEIGHT: sum(weights), **({self._output_name: outputs} if outputs else {})}

    def _forget(self) -> None:
        self._runner.forget()

    def _run(self, batches: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> tuple[list[Any], list[Any]]:
        """All passes; the losses and the outputs that are made here."""
        runner, (seed, step) = self._runner, self.executors[0].rng
        order = pipeline.one_forward_one_backward(len(self.part.ranks), self.index, len(batches))
        losses, outputs = [], []
        self.lend(self.part)
        for current, following in zip(order, [*order[1:], None], strict=True):
            runner.expect(*current)
            if following is not None:
                runner.expect(*following)
            batch, rng = current.batch, (seed, step + current.batch)
            if current.direction == "backward":
                runner.backward(batch, batches[batch], rng, weights[batch])
                continue
            results = runner.forward(batch, batches[batch], rng)
            losses += [results[self._loss]] if self._loss in results else []
            outputs += [results[self._output_name]] if self._output_name in results else []
        self.executors[0].rng = (seed, step + len(batches) if self._draws else step)
        self._add_up()
        self._store.transport.messages.settle()
        self.take_back(self.part)
        return losses, outputs

    def lend(self, part: Partition) -> None:
        """Give the parameters and states that several stages read to all of them, until they are taken back."""
        messages, graph = self._store.transport.messages, part.graph
        for value, stages in part.copies.items():
            name, owner = graph.name_of(value), part.owner_of[value]
            if self.index == owner:
                for stage in stages:
                    messages.send(part.ranks[stage], [self._params[name]], _COPIES)
            elif self.index in stages:
                arrival = messages.expect(part.ranks[owner], [kind_of(self._params, name)], _COPIES)
                self._params.commit(name, messages.receive(arrival, f"the values of {name!r}")[0])

    def take_back(self, part: Partition) -> None:
        """Keep what other stages own no longer: it may change."""
        for value, stages in part.copies.items():
            if self.index in stages:
                name = part.graph.name_of(value)
                self._params.release(name, self._holder(name))

    def _add_up(self) -> None:
        """The gradients of a parameter of all stages that read it, in its owner, in the order of the stages."""
        messages = self._store.transport.messages
        for name, stages in self._learners.items():
            key, owner = f"{name}/{steps.GRADIENT_SUM}", self.owners[name]
            if self.index in stages:
                messages.send(owner, [self._sums[key]], _SUMS)
                messages.settle()
                self._sums[key] = np.zeros_like(self._sums[key])
            elif self._store.rank == owner:
                for stage in stages:
                    arrival = messages.expect(self.part.ranks[stage], [kind_of(self._sums, key)], _SUMS)
                    (part,) = messages.receive(arrival, f"the gradient of {name!r}")
                    self._sums.commit(key, np.asarray(self._sums[key] + part))

    def _flush(
        self, losses: Sequence[np.ndarray], weights: Sequence[float], rate: float, position: Position | None
    ) -> np.ndarray:
        """The update, on which all ranks decide alike; the mean loss. Raises NotFinite when there is none."""
        how, total = self._rule.on_nonfinite, np.float32(sum(weights))
        squares, finite = 0.0, 0.0
        measures = self._rule.clip_norm is not None or how == "skip"
        if measures and self._own:
            told = self.executors[-2].run({TOTAL_WEIGHT: total})
            squares, finite = float(told["squares"]), float(told["finite"])
        weighted = [float(loss) * weight for loss, weight in zip(losses, weights, strict=False)]
        bad = next((number for number, loss in enumerate(weighted, 1) if not math.isfinite(loss)), 0)
        mine = np.array([math.nan if bad else math.fsum(weighted), squares, finite, bad])
        loss_sum, squares, finite, bad = self._store.pushpull("step of a pipeline", mine)
        loss = np.asarray(loss_sum / total, np.float32)
        if how != "ignore" and not np.isfinite(loss):
            where = f"update {self.updates + 1}"
            if position is not None:
                where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
            raise NotFinite(
                f"the loss of micro-batch {int(bad)} of {len(weights)} is not finite at {where}, on rank "
                f"{self._loss_rank}. The parameters are unchanged. Lower the learning rate, check the data "
                "for NaN, or skip such updates: on_nonfinite='skip' (--on-nonfinite skip)"
            )
        if how == "skip" and not np.isfinite(finite):
            raise NotFinite("a gradient is not finite")
        if self._own:
            given = {TOTAL_WEIGHT: total, steps.LEARNING_RATE: np.float32(rate)}
            if self._rule.clip_norm is not None:
                limit = np.float32(self._rule.clip_norm)
                with np.errstate(all="ignore"):
                    given[steps.SCALE] = limit / np.maximum(np.sqrt(np.float32(squares)), limit)
            self.executors[-1].run(given)
        else:
            self.slots[steps.STEP] = self.slots[steps.STEP] + 1
        return loss

    def _undo(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Statistics as they were before the batch, and no gradients that wait."""
        for name, array in statistics.items():
            self.store.commit(name, array.copy())
        for name in self._sums:
            self._sums[name] = np.zeros_like(self._sums[name])
        self._runner.forget()

    # --- what is measured ------------------------------------------------------------------------

    def compared(
        self, results: Mapping[str, Any], output: str, target: tuple[str, np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The output of each micro-batch, where it is made, with its part of the target."""
        if outputs := results.get(output, ()):
            name, array = target
            axis = self.pipe.axes.get(name, 0)
            count = len(array) if axis is None else array.shape[axis]
            for found, part in zip(outputs, pipeline.bounds(pipeline.sizes(count, len(outputs))), strict=True):
                yield found, self.pipe.slice(name, array, part)

    @property
    def peak_in_flight(self) -> int:
        """The most micro-batches that this stage has kept values of at a time."""
        return self._runner.peak_in_flight

    @property
    def peak_saved_bytes(self) -> int:
        """The most bytes that it has kept of them."""
        return self._runner.peak_saved_bytes


def _zeros(kind: TensorType) -> np.ndarray:
    return np.zeros(kind.static_shape, kind.dtype.numpy)


class PipelineInference:
    """The inference graph over the ranks of a pipeline: batches follow each other through the stages."""

    def __init__(
        self, graph: Graph, params: ParamStore, stepper: PipelineStepper, output: str, options: Mapping[str, Any]
    ):
        pipe = stepper.pipe
        self._stepper, self._part = stepper, pipe.parted(graph, stepper.part)
        part = self._part
        self._store, self._output = pipe.store, output
        stage = stage_programs.inference_stage(
            part, part.ranks.index(pipe.store.rank), {output: graph.outputs[graph.output_names.index(output)]}
        )
        self._executor = Executor(stage.forward, params, **options)
        self._runner = StageRunner(stage, part, pipe.store, self._executor, None)
        self._batch = 0
        self.outputs = graph.output_names

    @contextlib.contextmanager
    def batches(self) -> Iterator[None]:
        """Around runs that every rank makes alike."""
        self._store.transport.meet("evaluation in a pipeline")
        self._stepper.lend(self._part)
        self._store.transport.messages.settle()
        try:
            yield
        finally:
            self._stepper.take_back(self._part)
        self._store.transport.messages.settle()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The output, where it is made."""
        self._store.transport.messages.settle()
        self._runner.expect("forward", self._batch)
        results = self._runner.forward(self._batch, feeds, self._executor.rng)
        self._batch += 1
        return results
