"""Model parallelism without a pipeline: ranks exchange values while their programs run.

Ranks may depend on each other in both directions, and one branch or loop may be on several ranks. The results are those
of one process (see `graphkit.passes.distribution`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.dist.wire.messages import Channels
from graphkit.errors import NotFinite
from graphkit.executor.run.params import JointStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.distribute import Part, distribute, place
from graphkit.passes.training.randomness import bind_rng
from graphkit.train.exchange.divided import BatchWeights, DividedModel, output_of
from graphkit.train.exchange.division import Division
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exchange.local import loss_clause
from graphkit.train.programs import partition, recomputation
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import TOTAL_WEIGHT


class Placement(DividedModel):
    def __init__(self, spec: StepSpec, division: Division):
        self._weights = BatchWeights(spec.graph)
        spec = replace(spec, graph=self._weights.graph)
        partition.check(spec.graph, division.groups, division.store.num_workers)
        placement = place(spec.graph, division.groups)
        owners = {spec.graph.name_of(v): rank for v, rank in placement.owners.items()}
        output = output_of(spec.graph, spec.output)
        super().__init__(spec, division, owners, placement.home(output) or 0)
        self._loss_rank = placement.home(spec.graph.outputs[0]) or 0
        wanted = spec.graph.replace(outputs=[spec.graph.outputs[0], output], output_names=[self._loss, spec.output])
        self._part = part = self._own_part(steps.whole_gradients(wanted, spec.trained, spec.rule))
        self.programs = [steps.placed_step(part.graph, self._own, spec.rule, part.token)]
        self.store = JointStore([spec.params, self.slots])
        self.channels = Channels(self._kvstore.transport.messages)
        self.executors = [Executor(self.programs[0], self.store, **spec.options, channels=self.channels)]
        self._runs = 0

    def _own_part(self, whole: Graph) -> Part:
        """Return the nodes of the forward and backward pass that this rank computes.

        A gradient is sent to the rank of its parameter, and the loss to all ranks.
        """
        whole = run_passes(recomputation.recompute_marked_nodes(whole, self.spec.options["device"]), CLEANUP)
        gradients = {f"{name}/{steps.GRADIENT}": self.owners[name] for name in self.trained}
        found = dict(zip(whole.output_names, whole.outputs, strict=True))
        pinned = {found[name]: rank for name, rank in gradients.items()}
        all_ranks = range(self._kvstore.num_workers)
        where = {self._loss: all_ranks, steps.FINITE: all_ranks, self.spec.output: (self.output_rank,)}
        ranks: list[Sequence[int]] = [where[n] if n in where else (gradients[n],) for n in whole.output_names]
        placement = place(whole, self.division.groups, self.owners, pinned)
        return distribute(placement, ranks, self._kvstore.num_workers)[self._kvstore.rank]

    # --- one batch -------------------------------------------------------------------------------

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        arrays = {n: np.asarray(a) for n, a in feeds.items()}
        self._check(arrays)
        self._kvstore.transport.meet("step of placed groups", list(arrays.values()))
        with self._failing_together():
            results = self._run_program({**arrays, steps.LEARNING_RATE: np.float32(rate)})
        weight = self._weights.weight(arrays)
        return results if weight is None else {**results, TOTAL_WEIGHT: weight}

    def _run_program(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step. Return or raise NotFinite only after other ranks have received all values."""
        self._runs += 1
        try:
            results = self.executors[0].run({**feeds, self._part.start: np.int64(self._runs)})
        except NotFinite:
            self.channels.finish()
            raise
        self.channels.finish()
        return results

    def describe(self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int]) -> tuple[str, str]:
        return loss_clause(error), f"on rank {self._loss_rank}"

    def metric_pairs(
        self, results: Mapping[str, Any], target: tuple[str, np.ndarray]
    ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        output = self.spec.output
        return [(results[output], target[1])] if output in results else []

    def inference(self, graph: Graph) -> PlacedInference:
        return PlacedInference(graph, self)


class PlacedInference:
    def __init__(self, graph: Graph, placement: Placement):
        spec, self._kvstore = placement.spec, placement.division.store
        self._channels = placement.channels
        wanted = graph.replace(outputs=[output_of(graph, spec.output)], output_names=[spec.output])
        placed = place(run_passes(bind_rng(wanted), CLEANUP), placement.division.groups, placement.owners)
        self._part = distribute(placed, [(placement.output_rank,)], self._kvstore.num_workers)[self._kvstore.rank]
        self._executor = Executor(self._part.graph, spec.params, **spec.options, channels=self._channels)
        self._runs = 0
        self.outputs = graph.output_names

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        self._kvstore.transport.meet("evaluation of placed groups")
        yield
        self._channels.finish()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self._runs += 1
        return self._executor.run({**feeds, self._part.start: np.int64(self._runs)})
