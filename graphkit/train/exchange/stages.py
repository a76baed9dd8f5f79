"""Pipelines: each rank runs the passes of all micro-batches through its stage, then one update.

The result equals that of one process that accumulates the gradients of the micro-batches.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.dist import pipeline
from graphkit.errors import NotFinite
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.train.exchange.divided import COPIES, COPY_GRADIENTS, BatchWeights, DividedModel, kind_of, output_of
from graphkit.train.exchange.division import Division
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exchange.stage_runner import StageRunner
from graphkit.train.programs import stages as stage_graphs
from graphkit.train.programs import step as steps
from graphkit.train.programs.partition import Partition
from graphkit.train.programs.weights import TOTAL_WEIGHT, mean_of
from graphkit.train.states import state_type


class Pipeline(DividedModel):
    def __init__(self, spec: StepSpec, division: Division):
        self._weights = BatchWeights(spec.graph)
        spec = replace(spec, graph=self._weights.graph)
        graph, trained, rule = spec.graph, spec.trained, spec.rule
        self.partition = partition = division.stages(graph)
        self.index = partition.ranks.index(division.store.rank)
        owners = {graph.name_of(v): partition.ranks[stage] for v, stage in partition.owner_of.items()}
        output = output_of(graph, spec.output)
        super().__init__(spec, division, owners, partition.ranks[partition.stage_of_value(output) or 0])
        self.stage = stage_graphs.training_stage(
            partition, self.index, {self._loss: graph.outputs[0], spec.output: output}, trained
        )
        self._statistics = [self.stage.forward.name_of(v) for v, _ in self.stage.forward.updates]
        self._loss_rank = partition.ranks[partition.stage_of_value(graph.outputs[0]) or 0]
        self._nonfinite = (0, 0)
        self._draws = any(v.role == "rng" for v in graph.inputs)
        differentiated = stage_graphs.differentiated_crossings(partition, trained)
        # For parameters that several stages read: the stages, without the owner, that compute gradients.
        stages = {t.name: stage_graphs.gradient_stages(partition, t, differentiated) for t in trained}
        self._gradient_stages = {name: found for name, found in stages.items() if found}
        updates = steps.stage_update(f"{graph.name}_{self.index}", self._own, rule) if self._own else ()
        self.programs = [g for g in (self.stage.forward, self.stage.backward, *updates) if g is not None]
        summed = [t for t in trained if t in self._own or self.index in self._gradient_stages.get(t.name, ())]
        kinds = {f"{t.name}/{steps.GRADIENT_SUM}": state_type(t.value.tensor) for t in summed}
        self._sums = ParamStore(kinds)
        for name, kind in kinds.items():
            self._sums.commit(name, np.zeros(kind.static_shape, kind.dtype.numpy))
        self.store = JointStore([spec.params, self.slots, self._sums])
        self.executors = [Executor(program, self.store, **spec.options) for program in self.programs]
        backward = None if self.stage.backward is None else self.executors[1]
        self._runner = StageRunner(self.stage, partition, division.store, self.executors[0], backward)

    # --- one batch -------------------------------------------------------------------------------

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan of the forward program for the last batch; `shapes` is ignored.

        Raises UsageError before the first batch: shapes of received values are then unknown.
        """
        return self.executors[0].plan

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        arrays = {n: np.asarray(a) for n, a in feeds.items()}
        division = self.division
        parts = pipeline.bounds(pipeline.sizes(division.samples(arrays, size), division.micro_batches))
        batches = division.sliced(arrays, parts)
        for batch in (batches[0], batches[-1]):
            self._check(batch)
        self._kvstore.transport.meet("step of a pipeline", list(arrays.values()))
        before = {name: self.store[name] for name in self._statistics}
        found = map(self._weights.weight, batches)
        sizes = [part.stop - part.start for part in parts]
        weights = [float(size) if weight is None else weight for weight, size in zip(found, sizes, strict=True)]
        with self._failing_together():
            losses, outputs = self._run_passes(batches, weights)
            try:
                loss = self._update(losses, weights, rate)
            except NotFinite:
                self._restore(before)
                raise
        return {self._loss: loss, TOTAL_WEIGHT: sum(weights), **({self.spec.output: outputs} if outputs else {})}

    def _discard_step(self) -> None:
        self._runner.discard_saved()

    def _run_passes(
        self, batches: Sequence[Mapping[str, Any]], weights: Sequence[float]
    ) -> tuple[list[Any], list[Any]]:
        """Run all passes. Return the losses and outputs of the micro-batches, if this stage computes them."""
        runner, (seed, step) = self._runner, self.executors[0].rng
        order = pipeline.one_forward_one_backward(len(self.partition.ranks), self.index, len(batches))
        losses, outputs = [], []
        self.send_copies(self.partition)
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
            outputs += [results[self.spec.output]] if self.spec.output in results else []
        self.executors[0].rng = (seed, step + len(batches) if self._draws else step)
        self._sum_gradients()
        self._kvstore.transport.messages.settle()
        self.release_copies(self.partition)
        return losses, outputs

    def send_copies(self, partition: Partition) -> None:
        """Send copies of the parameters and states that several stages read, and receive those of other stages."""
        messages, graph = self._kvstore.transport.messages, partition.graph
        for value, stages in partition.copies.items():
            name, owner = graph.name_of(value), partition.owner_of[value]
            if self.index == owner:
                for stage in stages:
                    messages.send(partition.ranks[stage], [self._params[name]], COPIES)
            elif self.index in stages:
                arrival = messages.expect(partition.ranks[owner], [kind_of(self._params, name)], COPIES)
                self._params.commit(name, messages.receive(arrival, f"the values of {name!r}")[0])

    def release_copies(self, partition: Partition) -> None:
        """Release copies of parameters and states, which are invalid after their owners have updated the originals."""
        for value, stages in partition.copies.items():
            if self.index in stages:
                name = partition.graph.name_of(value)
                self._params.release(name, self._owner_clause(name))

    def _sum_gradients(self) -> None:
        """Sum the gradients of each parameter that several stages read, in the order of stages, on the rank of the
        parameter.
        """
        messages = self._kvstore.transport.messages
        for name, stages in self._gradient_stages.items():
            key, owner = f"{name}/{steps.GRADIENT_SUM}", self.owners[name]
            if self.index in stages:
                messages.send(owner, [self._sums[key]], COPY_GRADIENTS)
                messages.settle()
                self._sums[key] = np.zeros_like(self._sums[key])
            elif self._kvstore.rank == owner:
                for stage in stages:
                    arrival = messages.expect(self.partition.ranks[stage], [kind_of(self._sums, key)], COPY_GRADIENTS)
                    (part,) = messages.receive(arrival, f"the gradient of {name!r}")
                    self._sums.commit(key, np.asarray(self._sums[key] + part))

    def _update(self, losses: Sequence[np.ndarray], weights: Sequence[float], rate: float) -> np.ndarray:
        """Update the parameters with the accumulated gradients. Return the mean loss.

        If a loss (or with "skip" a gradient) is not finite, all ranks raise NotFinite, and none updates. With "ignore",
        all ranks update.
        """
        how, total = self._rule.on_nonfinite, np.float32(sum(weights))
        squares, finite = 0.0, 0.0
        if self._own and (self._rule.clip_norm is not None or how == "skip"):
            found = self.executors[-2].run({TOTAL_WEIGHT: total})
            squares, finite = float(found["squares"]), float(found["finite"])
        weighted = [float(loss) * weight for loss, weight in zip(losses, weights, strict=False)]
        bad = next((number for number, loss in enumerate(weighted, 1) if not math.isfinite(loss)), 0)
        mine = np.array([math.nan if bad else math.fsum(weighted), squares, finite, bad])
        loss_sum, squares, finite, bad = self._kvstore.pushpull("step of a pipeline", mine)
        loss = np.asarray(mean_of(loss_sum, float(total)), np.float32)
        if how != "ignore" and not np.isfinite(loss):
            self._nonfinite = int(bad), len(weights)
            raise NotFinite("the loss is not finite")
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

    def describe(self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int]) -> tuple[str, str]:
        number, count = self._nonfinite
        return f"the loss of micro-batch {number} of {count} is not finite", f"on rank {self._loss_rank}"

    def _restore(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Restore the running statistics from before the batch, and discard its gradients."""
        for name, array in statistics.items():
            self.store.commit(name, array.copy())
        for name in self._sums:
            self._sums[name] = np.zeros_like(self._sums[name])
        self._runner.discard_saved()

    # --- metrics and inference -------------------------------------------------------------------

    def metric_pairs(
        self, results: Mapping[str, Any], target: tuple[str, np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if outputs := results.get(self.spec.output, ()):
            name, array = target
            axis = self.division.axes.get(name, 0)
            count = len(array) if axis is None else array.shape[axis]
            for found, part in zip(outputs, pipeline.bounds(pipeline.sizes(count, len(outputs))), strict=True):
                yield found, self.division.slice(name, array, part)

    def inference(self, graph: Graph) -> PipelineInference:
        return PipelineInference(graph, self)

    @property
    def peak_in_flight(self) -> int:
        return self._runner.peak_in_flight

    @property
    def peak_saved_bytes(self) -> int:
        return self._runner.peak_saved_bytes


class PipelineInference:
    """Runs the inference graph in a pipeline, which may contain several batches at a time."""

    def __init__(self, graph: Graph, exchange: Pipeline):
        spec, division = exchange.spec, exchange.division
        self._exchange, self._partition = exchange, division.stages(graph, exchange.partition)
        partition, self._kvstore = self._partition, division.store
        stage = stage_graphs.inference_stage(
            partition, partition.ranks.index(self._kvstore.rank), {spec.output: output_of(graph, spec.output)}
        )
        self._executor = Executor(stage.forward, spec.params, **spec.options)
        self._runner = StageRunner(stage, partition, self._kvstore, self._executor, None)
        self._batch = 0
        self.outputs = graph.output_names

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        self._kvstore.transport.meet("evaluation in a pipeline")
        self._exchange.send_copies(self._partition)
        self._kvstore.transport.messages.settle()
        try:
            yield
        finally:
            self._exchange.release_copies(self._partition)
        self._kvstore.transport.messages.settle()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self._kvstore.transport.messages.settle()
        self._runner.expect("forward", self._batch)
        results = self._runner.forward(self._batch, feeds, self._executor.rng)
        self._batch += 1
        return results
