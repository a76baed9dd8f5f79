"""Steps without other ranks: one fused program, or one that accumulates and one that updates."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.collectives.buckets import TimedCollective
from graphkit.dist.transport import FIXED_BUCKET
from graphkit.errors import NotFinite
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType
from graphkit.passes.training.swap import mark_forward
from graphkit.train.exchange.exchange import Gathered, StepSpec
from graphkit.train.exchange.slots import initial_slots
from graphkit.train.metrics import Metric, value_of
from graphkit.train.programs import all_reduce, finite, recomputation, sharded
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import BATCH_WEIGHT, TOTAL_WEIGHT
from graphkit.train.states import kinds


class LocalExchange:
    """The Exchange of a process that trains alone, and the base of Exchanges whose ranks have the whole model."""

    sets_rates = True
    counts_every_step = False
    divides_model = False
    # Number of ranks whose random numbers differ. Subclasses set it before they call this constructor.
    ranks = 1

    def __init__(self, spec: StepSpec):
        self.spec = spec
        self.trained = tuple(t.name for t in spec.trained)
        self._options = {**spec.options, "rng_stride": self.ranks}
        self._loss = spec.graph.output_names[0]
        self._outputs = tuple(name for name in spec.graph.output_names[1:] if name != BATCH_WEIGHT)
        self._unread: tuple[str, ...] = ()
        # The setting `recompute`. "sqrt" becomes None after the choice of activations at the first batch. A limit in
        # bytes stays, because larger batches are checked again.
        self._recompute = spec.recompute
        self._checked_shapes: Mapping[str, Sequence[int]] = {}
        self.programs = self._create_programs()
        first = self.programs[0]
        self._further_inputs = {BATCH_WEIGHT, steps.LEARNING_RATE}.intersection(first.input_names)
        if spec.swap_memory:
            self.programs[0] = mark_forward(self.programs[0])
        # `_original_program` recomputes only nodes built in `gk.attr_scope(recompute=True)`.
        self.programs[0] = self._original_program = recomputation.recompute_marked_nodes(
            self.programs[0], spec.options["device"]
        )
        types = self._slot_types()
        self.slots = initial_slots(spec, types, types)
        self.store = JointStore([spec.params, self.slots])
        self.executors = [Executor(program, self.store, **self._options) for program in self.programs]

    def _create_programs(self) -> list[Graph]:
        spec = self.spec
        if spec.accumulate > 1:
            return list(steps.split_step(spec.graph, spec.trained, spec.rule))
        return [steps.fused_step(spec.graph, spec.trained, spec.rule)]

    def _slot_types(self) -> dict[str, TensorType]:
        return {
            name: v.tensor
            for program in self.programs
            for name, v in zip(program.input_names, program.inputs, strict=True)
            if v.role == "state" and name not in self.spec.params
        }

    # --- one batch -------------------------------------------------------------------------------

    def return_outputs(self, wanted: bool) -> None:
        self._unread = () if wanted else self._outputs

    def send_ahead(self, feeds: Mapping[str, Any]) -> None:
        self.executors[0].send_ahead(feeds)

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        if self._recompute is not None:
            self._fit_memory({name: np.shape(array) for name, array in feeds.items()})
        self._feed(feeds, size, rate)
        return self.executors[0].run(feeds, discard=self._unread)

    def _feed(self, feeds: dict[str, Any], size: int | None, rate: float) -> None:
        if BATCH_WEIGHT in self._further_inputs:
            feeds[BATCH_WEIGHT] = np.float32(samples_of(feeds, size))
        if steps.LEARNING_RATE in self._further_inputs:
            feeds[steps.LEARNING_RATE] = np.float32(rate)

    def update(self, total: float, rate: float) -> None:
        self.executors[1].run({TOTAL_WEIGHT: np.float32(total), steps.LEARNING_RATE: np.float32(rate)})

    def after_step(self, updates: int) -> None:
        """Do nothing: there are no other ranks."""

    def describe(self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int]) -> tuple[str, str]:
        return loss_clause(error), finite.origin(self.programs[0], self.store, feeds, rng)

    # --- many steps ------------------------------------------------------------------------------

    def synchronise(self) -> None:
        """Do nothing: parameters are equal on all ranks."""

    def publish(self) -> None:
        """Do nothing: there are no parameter servers."""

    def values(self, measured: Sequence[Metric]) -> dict[str, float]:
        return {m.name: value_of(m) for m in measured}

    def metric_pairs(
        self, results: Mapping[str, Any], target: tuple[str, np.ndarray]
    ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        return [(results[self.spec.output], target[1])]

    def epoch_states(self, mine: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        return [mine]

    def inference(self, graph: Graph) -> LocalInference:
        return LocalInference(graph, self.spec.params, self.spec.options)

    # --- states ----------------------------------------------------------------------------------

    @property
    def held(self) -> Sequence[str]:
        return self.trained

    def keeps(self, name: str) -> bool:
        return True

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(arrays)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Gathered | None]:
        yield Gathered(self.slots, ())

    @property
    def compressing(self) -> Sequence[int]:
        return ()

    def residuals(self) -> dict[str, np.ndarray]:
        return {}

    def restore_residuals(self, residuals: Mapping[str, np.ndarray]) -> None:
        """Do nothing: gradients are not compressed."""

    # --- facts -----------------------------------------------------------------------------------

    @property
    def timed_collectives(self) -> Sequence[TimedCollective]:
        return ()

    @property
    def waited_seconds(self) -> float:
        return 0.0

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        self._fit_memory(shapes)
        return self.executors[0].specialise(shapes)

    def optimizer_state_bytes(self, processes: int) -> int:
        values = [t.value for t in self.spec.trained]
        each = [[kind.dtype.itemsize for kind in slots.values()] for slots in self._optimizer_types().values()]
        if processes == 1:
            return sum(sum(sizes) * math.prod(v.tensor.static_shape) for sizes, v in zip(each, values, strict=True))
        sharded.check_elementwise(self.spec.rule.optimizer)
        place = (0, processes)
        buckets = all_reduce.make_buckets(self.programs[0], dict(enumerate(values)), FIXED_BUCKET, False, place)
        return max(
            sum((end - begin) * sum(each[i]) for i, begin, end in sharded.slices_of_rank(values, buckets, rank))
            for rank in range(processes)
        )

    def _optimizer_types(self) -> dict[str, dict[str, TensorType]]:
        return {t.name: kinds(self.spec.rule.optimizer, t.value.tensor) for t in self.spec.trained}

    # --- memory ----------------------------------------------------------------------------------

    def _fit_memory(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Choose which activations are recomputed, for inputs of these shapes.

        With a limit in bytes, larger batches are checked, and activations are chosen again only if a batch exceeds the
        limit.
        """
        limit, checked_shapes, device = self._recompute, self._checked_shapes, self._options["device"]
        if limit is None or (checked_shapes and _are_within(shapes, checked_shapes)):
            return
        if checked_shapes and isinstance(limit, int) and self.executors[0].specialise(shapes).arena_bytes <= limit:
            self._checked_shapes = shapes
            return

        def arena_bytes(program: Graph) -> int:
            return Executor(program, self.store, **self._options).specialise(shapes).arena_bytes

        program = recomputation.limit_memory(self._original_program, limit, shapes, arena_bytes, device)
        executor = Executor(program, self.store, **self._options)
        executor.rng = self.executors[0].rng
        self.programs[0], self.executors[0], self._checked_shapes = program, executor, shapes
        if limit == "sqrt":
            self._recompute = None


class LocalInference:
    def __init__(self, graph: Graph, params: ParamStore, options: Mapping[str, Any]):
        self._executor = Executor(graph, params, **options)
        self.outputs = self._executor.outputs

    def session(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self._executor.run(feeds)


def samples_of(feeds: Mapping[str, Any], size: int | None) -> int:
    return len(next(iter(feeds.values()))) if size is None else size


def loss_clause(error: NotFinite) -> str:
    """Return "the loss is nan" or "the loss is inf" from the error of a program."""
    return f"the loss is {str(error).rpartition(': ')[2]}"


def _are_within(shapes: Mapping[str, Sequence[int]], bounds: Mapping[str, Sequence[int]]) -> bool:
    return all(
        name in bounds and len(bounds[name]) == len(shape) and all(map(operator.le, shape, bounds[name]))
        for name, shape in shapes.items()
    )
