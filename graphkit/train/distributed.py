"""The step of one rank, if ranks depend on each other or share branches and loops: one program for each rank.

Together they compute what one process computes: forward, backward and update (`graphkit.passes.distribution`). Ranks
exchange values while the programs run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.wire.messages import Channels
from graphkit.errors import NotFinite
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.distribute import Part, distribute, place
from graphkit.passes.training.randomness import bind_rng
from graphkit.train import partition, recomputation
from graphkit.train import step as steps
from graphkit.train.placed import Pipeline
from graphkit.train.placed_stepper import PlacedStepper
from graphkit.train.position import Position
from graphkit.train.selection import TrainedParameter
from graphkit.train.weigher import Weigher
from graphkit.train.weights import TOTAL_WEIGHT

_NO_LOSS = np.full((), np.nan, np.float32)


class DistributedStepper(PlacedStepper):
    """A `Stepper` for one rank that computes the nodes of its groups; see PlacedStepper."""

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
        store = pipe.store
        partition.check(graph, pipe.groups, store.num_workers)
        placement = place(graph, pipe.groups)
        owners = {graph.name_of(v): rank for v, rank in placement.owners.items()}
        super().__init__(graph, trained, rule, params, pipe, owners, placement.home(output) or 0)
        self._output_name = output_name
        self._loss_rank = placement.home(graph.outputs[0]) or 0
        self._loss = graph.output_names[0]
        wanted = graph.replace(outputs=[graph.outputs[0], output], output_names=[self._loss, output_name])
        self._placed = part = self._part(steps.whole_gradients(wanted, trained, rule), trained, options["device"])
        self.programs = [steps.placed_step(part.graph, self._own, rule, part.token)]
        self.store = JointStore([params, self.slots])
        self.channels = Channels(store.transport.messages)
        self.executors = [Executor(self.programs[0], self.store, **options, channels=self.channels)]
        self._runs = 0

    def _part(self, whole: Graph, trained: Sequence[TrainedParameter], device: str) -> Part:
        """What this rank has of forward and backward. Gradients come to their parameter's rank, the loss to all."""
        whole = run_passes(recomputation.marked(whole, device), CLEANUP)
        gradients = {f"{t.name}/{steps.GRADIENT}": self.owners[t.name] for t in trained}
        found = dict(zip(whole.output_names, whole.outputs, strict=True))
        pinned = {found[name]: rank for name, rank in gradients.items()}
        everyone = range(self._store.num_workers)
        where = {self._loss: everyone, steps.FINITE: everyone, self._output_name: (self.output_rank,)}
        ranks: list[Sequence[int]] = [where[n] if n in where else (gradients[n],) for n in whole.output_names]
        placement = place(whole, self.pipe.groups, self.owners, pinned)
        return distribute(placement, ranks, self._store.num_workers)[self._store.rank]

    # --- a batch ---------------------------------------------------------------------------------

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Of the program of this rank."""
        return self.executors[0].specialise(shapes)

    def take(
        self, feeds: dict[str, Any], size: int | None, rate: float, position: Position | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Train on a batch; its loss, and the output where it is made."""
        arrays = {n: np.asarray(a) for n, a in feeds.items()}
        # What does not fit, all ranks find here.
        self._check(arrays)
        self._store.transport.meet("step of placed groups", list(arrays.values()))
        with self._failing_together():
            try:
                results = self._run({**arrays, steps.LEARNING_RATE: np.float32(rate)})
            except NotFinite as error:
                if self._rule.on_nonfinite == "raise":
                    raise NotFinite(self._told(error, position)) from None
                self.skipped += 1
                return _NO_LOSS, {}
        self.updates += 1
        weight = self._weigher.weight(arrays)
        return results[self._loss], results if weight is None else {**results, TOTAL_WEIGHT: weight}

    def _run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The step; what it sends has been taken when it ends, also where it ends with NotFinite, which all find."""
        self._runs += 1
        try:
            results = self.executors[0].run({**feeds, self._placed.start: np.int64(self._runs)})
        except NotFinite:
            self.channels.finish()
            raise
        self.channels.finish()
        return results

    def _told(self, error: NotFinite, position: Position | None) -> str:
        where = f"update {self.updates + 1}"
        if position is not None:
            where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        value = str(error).rpartition(": ")[2]
        return (
            f"the loss is {value} at {where}, on rank {self._loss_rank}. The parameters are unchanged. "
            "Lower the learning rate, check the data for NaN, or skip such updates: on_nonfinite='skip' "
            "(--on-nonfinite skip)"
        )

    def compared(
        self, results: Mapping[str, Any], output: str, target: tuple[str, np.ndarray]
    ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        """The output with its target, where it is made."""
        return [(results[output], target[1])] if output in results else []


class DistributedInference:
    """The inference graph over the ranks that train the model."""

    def __init__(
        self, graph: Graph, params: ParamStore, stepper: DistributedStepper, output: str, options: Mapping[str, Any]
    ):
        self._store = stepper.pipe.store
        self._channels = stepper.channels
        value = graph.outputs[graph.output_names.index(output)]
        wanted = bind_rng(graph.replace(outputs=[value], output_names=[output]))
        placement = place(run_passes(wanted, CLEANUP), stepper.pipe.groups, stepper.owners)
        parts = distribute(placement, [(stepper.output_rank,)], self._store.num_workers)
        self._part = parts[self._store.rank]
        self._executor = Executor(self._part.graph, params, **options, channels=self._channels)
        self._batch = 0
        self.outputs = graph.output_names

    @contextlib.contextmanager
    def batches(self) -> Iterator[None]:
        """Around runs that every rank makes alike."""
        self._store.transport.meet("evaluation of placed groups")
        yield
        self._channels.finish()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The output, where it is made."""
        self._batch += 1
        return self._executor.run({**feeds, self._part.start: np.int64(self._batch)})
