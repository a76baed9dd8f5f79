"""The part that one rank has of a model whose parameters are divided among ranks, and how to gather the whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphkit.dist.wire.messages import Kind
from graphkit.errors import InputError, NotFinite, UsageError, did_you_mean
from graphkit.executor.run.params import ParamStore
from graphkit.ir.graph import Graph
from graphkit.ir.types import DType, TensorType
from graphkit.passes.core.bind import match_shapes
from graphkit.train import residuals
from graphkit.train import step as steps
from graphkit.train.average import AVERAGE
from graphkit.train.metrics import Metric, value_of
from graphkit.train.placed import Pipeline
from graphkit.train.selection import TrainedParameter
from graphkit.train.states import kinds, precise, start

# The lane of messages that gather parameters.
GATHER = 2


class PlacedStepper:
    """A `Stepper` for one of several ranks, each of which stores only the parameters and slots of its own groups.

    graph: as for a Stepper. params: all parameters of the model; those of other ranks are released. owners: the rank of
    each parameter and state, by name. output_rank: the rank with the output that metrics use. A subclass creates
    `programs` and `executors`, and takes batches.
    """

    # Ranks wait for each other by design, which is not counted; nor is what they send.
    waited_seconds = 0.0
    flights = ()

    def __init__(
        self,
        graph: Graph,
        trained: Sequence[TrainedParameter],
        rule: steps.UpdateRule,
        params: ParamStore,
        pipe: Pipeline,
        owners: Mapping[str, int],
        output_rank: int,
    ):
        self.updates = self.skipped = self.waiting = 0
        self.waiting_weight = 0.0
        self.buckets = None
        self.trained = tuple(t.name for t in trained)
        self.pipe, self._rule, self._params, self._graph = pipe, rule, params, graph
        self._store, self.owners, self.output_rank = pipe.store, dict(owners), output_rank
        self._own = [t for t in trained if self.owners[t.name] == self._store.rank]
        self._begin_alike()
        self.slots = self._starts(trained, params)

    def read(self, outputs: bool) -> None:
        """Outputs stay where they are made, whether somebody reads them or not."""

    def optimizer_state_bytes(self, processes: int = 1) -> int:
        """Of the optimizer's slots of this rank; raises UsageError where processes are to divide them."""
        if processes > 1:
            raise UsageError(
                "optimizer_state_bytes: ranks with groups= have their own optimizer states and do not share them"
            )
        optimizer = self._rule.optimizer
        return sum(kind.nbytes for t in self._own for kind in kinds(optimizer, t.value.tensor).values())

    def _begin_alike(self) -> None:
        """Rank 0's values, one by one; those of other stages are released at once."""
        for name in list(self._params):
            array = self._store.broadcast(name, self._params[name])
            if self._is_own(name):
                self._params[name] = array
            else:
                self._params.release(name, self._holder(name))

    def _starts(self, trained: Sequence[TrainedParameter], params: ParamStore) -> ParamStore:
        """The slots of all parameters by name, with arrays for those of this stage."""
        types: dict[str, TensorType] = {steps.STEP: TensorType(DType.INT64, ())}
        arrays: dict[str, np.ndarray] = {steps.STEP: np.zeros((), np.int64)}
        optimizer = self._rule.optimizer
        for parameter in trained:
            kind = parameter.value.tensor
            types |= {f"{parameter.name}/{slot}": found for slot, found in kinds(optimizer, kind).items()}
            if self._rule.ema is not None:
                types[f"{parameter.name}/{AVERAGE}"] = precise(kind)
        for parameter in self._own:
            kind = parameter.value.tensor
            for slot, found in kinds(optimizer, kind).items():
                filled = np.full(found.static_shape, start(optimizer, slot), found.dtype.numpy)
                arrays[f"{parameter.name}/{slot}"] = filled
            if self._rule.ema is not None:
                average = np.asarray(params[parameter.name], precise(kind).dtype.numpy)
                arrays[f"{parameter.name}/{AVERAGE}"] = average
        return ParamStore(types, arrays)

    # --- who has what ----------------------------------------------------------------------------

    def _rank_of(self, name: str) -> int | None:
        """The rank that has a parameter, a state, or a slot of one; None: all have it."""
        if name in self.owners:
            return self.owners[name]
        return self.owners.get(name.rpartition("/")[0], None if name == steps.STEP else 0)

    def _is_own(self, name: str) -> bool:
        return self._rank_of(name) in (None, self._store.rank)

    def _holder(self, name: str) -> str:
        rank = self._rank_of(name)
        assert rank is not None, "nobody else"
        return f"rank {rank}, which computes with it"

    @property
    def sets_rates(self) -> bool:
        """As for `Stepper`."""
        return True

    @property
    def measures(self) -> bool:
        """Whether this rank has the output that metrics look at."""
        return self._store.rank == self.output_rank

    @property
    def held(self) -> tuple[str, ...]:
        """What is trained and has its values in this process, but for what others own."""
        return tuple(name for name in self.trained if self._params.holds(name))

    def keeps(self, name: str) -> bool:
        """Whether this process has a parameter, state or slot from step to step."""
        return self._is_own(name)

    def store_of(self, name: str) -> ParamStore:
        return self._params if name in self._params else self.slots

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """All parameters and slots on rank 0 meanwhile, as a process alone has them. Every rank has to come here."""
        names = [n for n in (*self._params, *self.slots) if self._rank_of(n) is not None]
        self._store.transport.meet("gather of placed parameters")
        here, messages = self._store.rank == 0, self._store.transport.messages
        taken = []
        for name in names:
            holder, store = self._rank_of(name), self.store_of(name)
            assert holder is not None, "all of `names` have one"
            if here and holder != 0:
                arrival = messages.expect(holder, [kind_of(store, name)], GATHER)
                store.commit(name, messages.receive(arrival, f"the values of parameter {name!r}")[0])
                taken.append(name)
            elif holder == self._store.rank and not here:
                messages.send(0, [store[name]], GATHER)
        messages.settle()
        try:
            yield
        finally:
            for name in taken:
                self.store_of(name).release(name, self._holder(name))

    # --- what other steppers do ------------------------------------------------------------------

    compressing: tuple[int, ...] = ()
    left_out: residuals.ByRank = ()

    def states(self) -> Mapping[str, np.ndarray]:
        """What a checkpoint has beside the parameters, whole; in the first process, within `gathered`."""
        return dict(self.slots)

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint."""
        return dict(arrays)

    def send_ahead(self, feeds: Mapping[str, object]) -> None:
        """A stage is fed with parts of a batch, which are sent when it is."""

    def spread(self) -> None:
        """Nothing else has copies of what was resumed."""

    def put_residuals(self, mine: Mapping[str, np.ndarray]) -> None:
        """Nothing is sent in fewer bytes."""

    def settle(self) -> None:
        """All is in place after each step."""

    def flush(self, rate: float) -> None:
        """Nothing waits: each batch has its update."""

    # --- a batch ---------------------------------------------------------------------------------

    def _check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raise InputError for a micro-batch that the graph does not take."""
        types = {self._graph.name_of(v): v.tensor for v in self._graph.inputs if v.role == "data"}
        for name in batch:
            if name not in types:
                raise InputError(f"no input {name!r}{did_you_mean(name, types)}")
        if missing := [f"{name!r} ({kind})" for name, kind in types.items() if name not in batch]:
            raise InputError(f"input not given: {', '.join(missing)}")
        match_shapes([(name, kind, kind.with_shape(batch[name].shape)) for name, kind in types.items()])

    @contextlib.contextmanager
    def _failing_together(self) -> Iterator[None]:
        """What one rank fails of, but for what all of them find, the others are told: they may wait for it."""
        try:
            yield
        except NotFinite:
            raise
        except BaseException as error:
            self._forget()
            self._store.transport.messages.fail(error, f"in the step of update {self.updates + 1}")
            raise

    def _forget(self) -> None:
        """Let go of what a step that failed has left."""

    # --- what is measured ------------------------------------------------------------------------

    def values(self, measured: Sequence[Metric]) -> dict[str, float]:
        """The values of metrics, as the rank knows them that has the output. Every rank has to come here."""
        names = [metric.name for metric in measured]
        known = [value_of(metric) if self.measures else 0.0 for metric in measured]
        found = self._store.broadcast(f"metrics {', '.join(names)}", np.array(known, np.float64), self.output_rank)
        return dict(zip(names, found.tolist(), strict=True))


def kind_of(store: ParamStore, name: str) -> Kind:
    """What a message with an array of the store has."""
    kind = store.type_of(name)
    return Kind(kind.dtype.numpy, len(kind.static_shape))
