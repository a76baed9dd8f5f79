"""The interface of Exchanges, which run training steps, alone or together with other ranks."""

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
        graph: The training graph. Its outputs are the loss, then those of the model.
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
    """The states that a checkpoint stores besides the parameters."""

    states: Mapping[str, np.ndarray]
    residuals: ByRank


class Inference(Protocol):
    @property
    def outputs(self) -> Sequence[str]: ...

    def session(self) -> AbstractContextManager[None]:
        """Context around the runs of an evaluation. Collective if the model is divided among ranks."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name; if ranks divide the model, only those that this rank computes."""
        ...


class Exchange(Protocol):
    """Builds the programs of a training step, and runs them together with the other ranks.

    "Collective" means that every rank must make the call.
    """

    trained: tuple[str, ...]
    # The programs of a step. The first one runs on each batch.
    programs: list[Graph]
    executors: list[Executor]
    slots: ParamStore
    store: JointStore

    @property
    def sets_rates(self) -> bool:
        """Whether updates use the learning rate that `run` and `update` get."""

    @property
    def counts_every_step(self) -> bool:
        """Whether skipped updates and batches without samples count as updates. Ranks then have equal counts."""

    @property
    def divides_model(self) -> bool: ...

    # --- one batch -------------------------------------------------------------------------------

    def return_outputs(self, wanted: bool) -> None:
        """Set whether `run` returns the outputs of the model. If not, they may stay on the device."""

    def send_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Begin to copy a later batch to the device. Any thread may call it."""

    def run(self, feeds: dict[str, Any], size: int | None, rate: float, accumulated: int) -> dict[str, Any]:
        """Run the forward and backward pass on a batch, and the update unless gradients are accumulated.

        Return the outputs by name. For a rank without samples, they contain the loss only if ranks all-reduce it.

        Args:
            feeds: Inputs and targets by name; entries may be added.
            size: Number of samples, or None for the length of the first array.
            accumulated: Number of earlier batches of the same update.

        Raises:
            NotFinite: The loss (or a gradient, if the rule checks gradients) is not finite. No state has changed.
        """

    def update(self, total: float, rate: float) -> None:
        """Update the parameters with the accumulated gradients, and set the accumulators to 0.

        total: sum of the weights of the accumulated batches. rate: learning rate of the update.
        """

    def after_step(self, updates: int) -> None: ...

    def describe(self, error: NotFinite, feeds: Mapping[str, Any], rng: tuple[int, int]) -> tuple[str, str]:
        """Return two clauses for the message of a NotFinite: which value is not finite, and its origin.

        feeds: the batch. rng: (seed, step) before the batch.
        """

    # --- many steps ------------------------------------------------------------------------------

    def synchronise(self) -> None:
        """Collective: give all ranks the same parameters at the end of an epoch."""

    def publish(self) -> None:
        """Collective: send parameters and restored optimizer states to the parameter servers, if any."""

    def values(self, measured: Sequence[Metric]) -> dict[str, float]:
        """Return the values of metrics by name. Collective if the model is divided among ranks."""

    def metric_pairs(
        self, results: Mapping[str, Any], target: tuple[str, np.ndarray]
    ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        """Return pairs (output, target) for metrics, from the results of a step. target: its name and array."""

    def epoch_states(self, mine: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the states of an incomplete epoch for a checkpoint, by rank. mine: of this rank."""

    def inference(self, graph: Graph) -> Inference: ...

    # --- states ----------------------------------------------------------------------------------

    @property
    def held(self) -> Sequence[str]: ...

    def keeps(self, name: str) -> bool:
        """Whether this rank stores the parameter or slot `name` between steps."""

    def own_states(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint, with this rank's slices instead of sharded arrays.

        The result may contain arrays of other ranks.
        """

    def gathered(self) -> AbstractContextManager[Gathered | None]:
        """Collective: context in which rank 0 stores all parameters.

        It yields all states on rank 0, and None on other ranks.
        """

    @property
    def compressing(self) -> Sequence[int]: ...

    def residuals(self) -> dict[str, np.ndarray]: ...

    def restore_residuals(self, residuals: Mapping[str, np.ndarray]) -> None:
        """Set the residuals that are added to this rank's next gradients, one for each float32 parameter."""

    # --- facts -----------------------------------------------------------------------------------

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan: ...

    def optimizer_state_bytes(self, processes: int) -> int:
        """Return the bytes of optimizer state in one rank.

        If `processes` ranks share the state, this is the rank that stores most.
        """

    @property
    def timed_collectives(self) -> Sequence[TimedCollective]: ...

    @property
    def waited_seconds(self) -> float: ...
