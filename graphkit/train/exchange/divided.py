"""Model parallelism: each rank stores only the parameters and slots of its own groups of nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.collectives.buckets import TimedCollective
from graphkit.dist.wire.messages import Kind
from graphkit.errors import InputError, NotFinite, UsageError, did_you_mean
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.passes.core.bind import match_shapes
from graphkit.train.average import AVERAGE
from graphkit.train.exchange.division import Division
from graphkit.train.exchange.exchange import Gathered, StepSpec
from graphkit.train.exchange.gather import gather
from graphkit.train.exchange.slots import initial_slots
from graphkit.train.metrics import Metric, value_of
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import BATCH_WEIGHT
from graphkit.train.states import kinds, state_type

# Lanes of messages: within a lane, messages between two ranks arrive in order. GATHER is for parameters and states that
# rank 0 gathers, COPIES for parameters that several stages read.
FORWARD, BACKWARD, GATHER, COPIES, COPY_GRADIENTS = range(5)


class DividedModel:
    """Base of the Exchanges that divide a model among ranks. Subclasses set `programs`, `executors` and `store`.

    Args:
        spec: The step of the whole model. Parameters of other ranks are released.
        output_rank: The rank of the output that metrics use.

    Raises:
        UsageError: There are row-sparse updates.
    """

    programs: list[Graph]
    executors: list[Executor]
    store: JointStore

    sets_rates = True
    counts_every_step = False
    divides_model = True
    compressing: Sequence[int] = ()
    # The waiting time is not measured, because ranks wait for each other within every step.
    waited_seconds = 0.0
    timed_collectives: Sequence[TimedCollective] = ()

    def __init__(self, spec: StepSpec, division: Division, owners: Mapping[str, int], output_rank: int):
        steps.refuse_lazy(
            spec.trained,
            "cannot be combined with groups= (--place): build these parameters without the attribute lazy",
        )
        self.spec, self.division = spec, division
        self.trained = tuple(t.name for t in spec.trained)
        self.owners, self.output_rank = dict(owners), output_rank
        self._kvstore, self._params, self._rule = division.store, spec.params, spec.rule
        self._own = [t for t in spec.trained if self.owners[t.name] == self._kvstore.rank]
        self._loss = spec.graph.output_names[0]
        self._data_types = {spec.graph.name_of(v): v.tensor for v in spec.graph.inputs if v.role == "data"}
        self._receive_initial_values()
        types = self._slot_types()
        self.slots = initial_slots(spec, types, {name: kind for name, kind in types.items() if self.keeps(name)})

    def _receive_initial_values(self) -> None:
        """Receive initial values from rank 0, one array after the other. Release the arrays of other ranks."""
        for name in list(self._params):
            array = self._kvstore.broadcast(name, self._params[name])
            if self.keeps(name):
                self._params[name] = array
            else:
                self._params.release(name, self._owner_clause(name))

    def _slot_types(self) -> dict[str, TensorType]:
        types = {steps.STEP: TensorType(DType.INT64, ())}
        for parameter in self.spec.trained:
            kind = parameter.value.tensor
            types |= {f"{parameter.name}/{slot}": found for slot, found in kinds(self._rule.optimizer, kind).items()}
            if self._rule.ema is not None:
                types[f"{parameter.name}/{AVERAGE}"] = state_type(kind)
        return types

    # --- which rank stores which arrays ----------------------------------------------------------

    def _rank_of(self, name: str) -> int | None:
        if name in self.owners:
            return self.owners[name]
        return self.owners.get(name.rpartition("/")[0], None if name == steps.STEP else 0)

    def _owner_clause(self, name: str) -> str:
        rank = self._rank_of(name)
        assert rank is not None, "only arrays of other ranks are released"
        return f"rank {rank}, which computes with it"

    @property
    def held(self) -> Sequence[str]:
        return tuple(name for name in self.trained if self._params.holds(name))

    def keeps(self, name: str) -> bool:
        return self._rank_of(name) in (None, self._kvstore.rank)

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(arrays)

    def _store_of(self, name: str) -> ParamStore:
        return self._params if name in self._params else self.slots

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Gathered | None]:
        names = [n for n in (*self._params, *self.slots) if self._rank_of(n) is not None]
        self._kvstore.transport.meet("gather of placed parameters")
        is_first, messages = self._kvstore.rank == 0, self._kvstore.transport.messages
        received = []
        for name in names:
            owner, store = self._rank_of(name), self._store_of(name)
            assert owner is not None, "all of `names` have one"
            if is_first and owner != 0:
                arrival = messages.expect(owner, [kind_of(store, name)], GATHER)
                store.commit(name, messages.receive(arrival, f"the values of parameter {name!r}")[0])
                received.append(name)
            elif owner == self._kvstore.rank and not is_first:
                messages.send(0, [store[name]], GATHER)
        messages.settle()
        try:
            yield Gathered(self.slots, ()) if is_first else None
        finally:
            for name in received:
                self._store_of(name).release(name, self._owner_clause(name))

    def epoch_states(self, mine: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        return [gather(self._kvstore, mine)[self.output_rank]]

    # --- one batch -------------------------------------------------------------------------------

    def return_outputs(self, wanted: bool) -> None:
        """Do nothing: outputs stay on their rank."""

    def send_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Do nothing: the step copies the micro-batches to the device."""

    def update(self, total: float, rate: float) -> None:
        raise AssertionError("with groups, every step contains its update")

    def after_step(self, updates: int) -> None:
        """Do nothing: ranks exchange values within a step."""

    def _check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raise InputError on all ranks if a micro-batch does not fit the graph."""
        types = self._data_types
        for name in batch:
            if name not in types:
                raise InputError(f"no input {name!r}{did_you_mean(name, types)}")
        if missing := [f"{name!r} ({kind})" for name, kind in types.items() if name not in batch]:
            raise InputError(f"input not given: {', '.join(missing)}")
        match_shapes([(name, kind, kind.with_shape(batch[name].shape)) for name, kind in types.items()])

    @contextlib.contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Context of a step: if this rank fails, notify the other ranks.

        NotFinite needs no notification, because all ranks raise it.
        """
        try:
            yield
        except NotFinite:
            raise
        except BaseException as error:
            self._discard_step()
            self._kvstore.transport.messages.fail(error, f"in the step of update {int(self.slots[steps.STEP]) + 1}")
            raise

    def _discard_step(self) -> None: ...

    # --- many steps ------------------------------------------------------------------------------

    def synchronise(self) -> None:
        """Do nothing: each parameter is on one rank."""

    def publish(self) -> None:
        """Do nothing: there are no servers."""

    def residuals(self) -> dict[str, np.ndarray]:
        return {}

    def restore_residuals(self, residuals: Mapping[str, np.ndarray]) -> None:
        """Do nothing: gradients are not compressed."""

    @property
    def _computes_output(self) -> bool:
        return self._kvstore.rank == self.output_rank

    def values(self, measured: Sequence[Metric]) -> dict[str, float]:
        names = [metric.name for metric in measured]
        known = [value_of(metric) if self._computes_output else 0.0 for metric in measured]
        found = self._kvstore.broadcast(f"metrics {', '.join(names)}", np.array(known, np.float64), self.output_rank)
        return dict(zip(names, found.tolist(), strict=True))

    # --- facts -----------------------------------------------------------------------------------

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        return self.executors[0].specialise(shapes)

    def optimizer_state_bytes(self, processes: int) -> int:
        if processes > 1:
            raise UsageError(
                "optimizer_state_bytes: ranks with groups= have their own optimizer states and do not share them"
            )
        optimizer = self._rule.optimizer
        return sum(kind.nbytes for t in self._own for kind in kinds(optimizer, t.value.tensor).values())


class BatchWeights:
    """Computes the weight of a batch on every rank, from inputs and targets alone.

    Attributes:
        graph: The training graph without its output BATCH_WEIGHT.
    """

    def __init__(self, graph: Graph):
        self._executor: Executor | None = None
        self.graph = graph
        if BATCH_WEIGHT not in graph.output_names:
            return
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        weight = outputs.pop(BATCH_WEIGHT)
        read = {v for node in topological([weight]) for v in node.operands} | {weight}
        inputs = [v for v in graph.inputs if v in read]
        if others := [graph.name_of(v) for v in inputs if v.role != "data"]:
            raise UsageError(
                f"groups= (--place): the weight of the loss depends on {others[0]!r}, but with groups it must depend "
                "only on inputs and targets"
            )
        self.graph = graph.replace(outputs=outputs.values(), output_names=outputs)
        self._inputs = [graph.name_of(v) for v in inputs]
        self._executor = Executor(
            Graph(inputs, [weight], (), "weight", output_names=[BATCH_WEIGHT]), ParamStore({}), threads=1
        )

    def weight(self, feeds: Mapping[str, Any]) -> float | None:
        if self._executor is None:
            return None
        return float(self._executor.run({name: feeds[name] for name in self._inputs})[BATCH_WEIGHT])


def kind_of(store: ParamStore, name: str) -> Kind:
    """Return the dtype and number of axes of a stored array, which the receiver of a message must know."""
    kind = store.type_of(name)
    return Kind(kind.dtype.numpy, len(kind.static_shape))


def output_of(graph: Graph, name: str) -> Value:
    return graph.outputs[graph.output_names.index(name)]
