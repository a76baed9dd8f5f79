"""The interface of Exchanges, through which a Stepper runs training steps, alone or together with other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphkit.dist.collectives.buckets import TimedCollective
from graphkit.errors import NotFinite
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.named_tuples import NamedTuple
from graphkit.train.exchange.residuals import ByRank
from graphkit.train.metrics import Metric
from graphkit.train.programs.recomputation import Recompute
from graphkit.train.programs.step import UpdateRule
from graphkit.train.selection import TrainedParameter


@dataclass(frozen=True)
class StepSpec:
    """The description of a training step.

    Attributes:
        graph: The training graph. Its first output is the loss, and the outputs of the model follow.
        trained: The trained parameters.
        rule: How gradients become updates.
        params: All parameters and states of the model.
        output: Name of the model's output that metrics use.
        options: Settings of the executors.
        accumulate: Number of batches whose gradients are averaged for one update.
        recompute, swap_memory: See `gk.settings.Memory`.
    """

    graph: Graph
    trained: Sequence[TrainedParameter]
    rule: UpdateRule
    params: ParamStore
    output: str
    options: Mapping[str, Any]
    accumulate: int = 1
    recompute: Recompute | None = None
    swap_memory: bool = False


class Gathered(NamedTuple):
    """The states that a checkpoint stores besides the parameters.

    residuals: residuals of gradient compression, by rank.
    """

    states: Mapping[str, np.ndarray]
    residuals: ByRank


class Inference(Protocol):
    """Runs the inference graph of a model on the ranks that train it."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs. The first one is the loss if the graph has one."""

    def session(self) -> AbstractContextManager[None]:
        """Context around the runs of an evaluation. If the model is divided among ranks, every rank must enter it."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name. If ranks divide the model, return only the outputs that this rank computes."""


class Exchange(Protocol):
    """Builds the programs of a training step, and runs them together with the other ranks.

    A program here is a graph. Its Executor compiles the graph for the shapes of each batch. "Collective" means that
    every rank must make the call.
    """

    # Names of the trained parameters.
    trained: tuple[str, ...]
    # The programs of a step, and their executors. The first program runs on each batch.
    programs: list[Graph]
    executors: list[Executor]
    # States of the optimizer, of accumulation and of moving averages.
    slots: ParamStore
    # Parameters and slots.
    store: JointStore

    @property
    def sets_rates(self) -> bool:
        """Whether updates use the learning rate that `run` and `update` get."""

    @property
    def counts_every_step(self) -> bool:
        """Whether skipped updates and batches without samples count as updates, so that ranks have equal counts."""

    @property
    def divides_model(self) -> bool:
        """Whether each rank stores only a part of the parameters."""

    # --- one batch -------------------------------------------------------------------------------

    def return_outputs(self, wanted: bool) -> None:
        """Set whether `run` returns the outputs of the model. If not, they may stay in the memory of the device."""

    def send_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Begin to copy the arrays of a later batch to the device. Any thread may call it."""

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        """Run the forward and backward pass on a batch, and the update unless gradients are accumulated.

        Return the outputs by name. For a rank without samples, they contain the loss only if ranks all-reduce it.

        Args:
            feeds: Inputs and targets by name. Entries may be added.
            size: Number of samples, or None for the length of the first array.
            rate: Learning rate of the update.
            accumulated: Number of batches of the same update that were already accumulated.

        Raises:
            NotFinite: The loss is NaN or infinite (or a gradient, if the rule checks gradients). No parameter, slot
                or running statistic has changed.
        """

    def update(self, total: float, rate: float) -> None:
        """Update the parameters with the accumulated gradients, and set the accumulators to 0.

        total: sum of the weights of the accumulated batches. rate: learning rate of the update.
        """

    def after_step(self, updates: int) -> None:
        """Called after each step with an update. updates: number of updates so far."""

    def describe(self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int]) -> tuple[str, str]:
        """Return two clauses for the message of a NotFinite: which value is not finite, and its origin.

        feeds: the batch. rng: (seed, step) of random numbers before the batch.
        """

    # --- many steps ------------------------------------------------------------------------------

    def synchronise(self) -> None:
        """At the end of an epoch, give all ranks the same parameters. Collective."""

    def publish(self) -> None:
        """Send parameters and restored optimizer states to the parameter servers, if there are any. Collective."""

    def values(self, measured: Sequence[Metric]) -> dict[str, float]:
        """Return the values of metrics by name. Collective if the model is divided among ranks."""

    def metric_pairs(
        self, results: Mapping[str, Any], target: tuple[str, np.ndarray]
    ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        """Return pairs (output, target) for metrics, from the results of a step. target: its name and array."""

    def epoch_states(self, mine: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the states of an incomplete epoch for a checkpoint, by rank. mine: the states of this rank."""

    def inference(self, graph: Graph) -> Inference:
        """Return an object that runs the inference graph, or this rank's part of it."""

    # --- states ----------------------------------------------------------------------------------

    @property
    def held(self) -> Sequence[str]:
        """Names of the trained parameters whose values this rank has."""

    def keeps(self, name: str) -> bool:
        """Whether this rank stores the parameter or slot `name` between steps."""

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint. If this rank stores only a slice of an array, return the slice instead.

        The result may contain arrays that this rank does not store (see `keeps`).
        """

    def gathered(self) -> AbstractContextManager[Gathered | None]:
        """Context in which rank 0 stores all parameters. Collective.

        On rank 0, it yields all states. On other ranks, it yields None.
        """

    @property
    def compressing(self) -> Sequence[int]:
        """The ranks that send compressed gradients."""

    def residuals(self) -> dict[str, np.ndarray]:
        """Return this rank's residuals of gradient compression, by parameter."""

    def restore_residuals(self, residuals: Mapping[str, np.ndarray]) -> None:
        """Set the residuals that are added to this rank's next gradients, one for each float32 parameter."""

    # --- facts -----------------------------------------------------------------------------------

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the memory plan of the first program for inputs of these shapes."""

    def optimizer_state_bytes(self, processes: int) -> int:
        """Return the bytes of optimizer state in one rank.

        If `processes` ranks share the state, return the bytes of the rank that stores most.
        """

    @property
    def timed_collectives(self) -> Sequence[TimedCollective]:
        """The latest transfers between ranks, for traces."""

    @property
    def waited_seconds(self) -> float:
        """Seconds that steps spent waiting for other ranks."""
