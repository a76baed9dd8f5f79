"""Run a training step of your own: feeds, learning rates, states, and checkpoints."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit import config
from graphkit.errors import InputError, InvalidModel, NotFinite, UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.ops import F
from graphkit.passes.training.randomness import bind_rng
from graphkit.signatures import typed
from graphkit.text import listed, quantity, short_repr
from graphkit.train import checkpoint as checkpoints
from graphkit.train.position import Position
from graphkit.train.programs import finite
from graphkit.train.run_folder import RunFolder, check_links
from graphkit.train.schedules import Schedule
from graphkit.train.step_builder import TrainingStep

# The state that counts the steps. A failed step does not change it.
COUNT = "step_count"

_LOSS = "custom"
_ADVICE = "To resume it, create the trainer as that run did. Otherwise, save to another folder"


class CustomTrainer:
    """Runs a training step of your own. It trains the models of the step in place.

    Args:
        step: The step: a result of `gk.StepBuilder.build`, or a `gk.TrainingStep` with a graph of your own.
        device: "cpu" or "cuda".
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        seed: Seed of the random operators (default: GRAPHKIT_SEED).

    Attributes:
        step_graph: The graph of a step, with the count of steps.
        states: The states of the step besides the parameters: those of optimizers, and `step_count`.
        notes: JSON values of yours, which checkpoints contain.

    Raises:
        UsageError: The models share a parameter name, or a state of the graph has no initial value.
    """

    @typed("gk.CustomTrainer")
    def __init__(
        self,
        step: TrainingStep,
        *,
        device: AnyDevice = "cpu",
        threads: int | None = None,
        seed: int | None = None,
    ):
        self.models, self._rates = step.models, dict(step.rates)
        self._has_schedules = any(isinstance(optimizer.lr, Schedule) for optimizer in self._rates.values())
        self.step_graph = _counted(step.graph)
        arrays = {**step.states, COUNT: np.zeros((), np.int64)}
        _check_stored(self.step_graph, step.models, arrays)
        kinds = {n: TensorType(dtype_of(a.dtype), a.shape) for n, a in arrays.items()}
        self.states = ParamStore(kinds, arrays)
        self.seed = config.SEED.get() if seed is None else seed
        self.notes: dict[str, Any] = {}
        self._run = secrets.token_hex(8)
        self._folder: RunFolder | None = None
        self._store = JointStore([*(model.params for model in self.models), self.states])
        self._executor = Executor(self.step_graph, self._store, device=device, threads=threads, seed=self.seed)

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return int(self.states[COUNT])

    @typed("CustomTrainer.step")
    def step(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run one step. Return its outputs by name.

        If the step fails, no parameter or state changes. If a guarded loss is NaN or infinite, `step` raises NotFinite,
        whose message names the node.

        Args:
            feeds: Arrays by input name. If `feeds` contains no value for a learning rate, the schedule of its optimizer
                computes it from the number of steps so far.
        """
        # Reading the count may wait for a device: only a schedule needs it.
        done = self.steps if self._has_schedules else 0
        rates = {name: np.float32(optimizer.rate(done)) for name, optimizer in self._rates.items()}
        given, rng = rates | dict(feeds), self._executor.rng
        try:
            return self._executor.run(given)
        except NotFinite:
            origin = finite.origin(bind_rng(self.step_graph), self._store, given, rng, outputs=None)
            raise NotFinite(f"a loss of step {self.steps + 1} is not finite, {origin}; nothing has changed") from None

    def model(self) -> Model:
        """Return a model of the step, with copies of all current parameters and states.

        `model.to_onnx(with_updates=True)` and `model.save(path, with_updates=True)` write it as standard ONNX, with an
        output for the new value of each parameter and state.
        """
        return Model.from_graph(self.step_graph, {name: np.array(array) for name, array in self._store.items()})

    # --- checkpoints ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def folder(self, path: str | Path, *, overwrite: bool = False) -> Iterator[None]:
        """Context in which this trainer holds the lock on a folder, so that no other run writes to it.

        If the folder contains another run, `overwrite` removes it.

        Raises:
            UsageError: The folder contains another run and `overwrite` is false, or another process trains into it.
            RuntimeFailure: The folder cannot be written.
        """
        with RunFolder(path) as held:
            held.claim(self._run, overwrite=overwrite)
            self._folder = held
            try:
                yield
            finally:
                self._folder = None

    @typed("CustomTrainer.save")
    def save(self, folder: str | Path) -> None:
        """Write a checkpoint. When it is complete, it replaces any checkpoint in the folder, even one of another run.

        Raises RuntimeFailure if it cannot be written; the folder then contains the previous checkpoint.
        """
        own = self._folder is not None and self._folder.path.resolve() == Path(folder).resolve()
        with self._folder if self._folder is not None and own else RunFolder(folder) as held:
            checkpoints.save(
                held.path,
                checkpoints.Checkpoint(
                    arrays=dict(self._store),
                    optimizer={name: optimizer.describe() for name, optimizer in self._rates.items()},
                    loss=_LOSS,
                    rng=self._executor.rng,
                    position=Position().describe(),
                    run=self._run,
                    updates=self.steps,
                    data_seed=self.seed,
                    notes=self.notes,
                ),
            )

    @typed("CustomTrainer.resume")
    def resume(self, folder: str | Path, *, trusted: bool = False) -> None:
        """Restore parameters, states, random numbers, seed and notes from the checkpoint in a folder.

        Further steps then give the same results, bit for bit, as without an interruption. If `resume` fails, nothing
        changes.

        Args:
            trusted: Whether a file of the folder may be a symbolic link to a place outside of it.

        Raises:
            UsageError: There is no checkpoint.
            InvalidModel: The checkpoint is damaged, or does not fit the step.
            UnsafeModel: A file is a link to a place outside, and the folder is not trusted.
        """
        if not trusted:
            check_links(folder)
        saved, store = checkpoints.load(folder), self._store
        odd = sorted(set(saved.arrays) ^ set(store))
        if saved.loss != _LOSS or odd:
            what = f"missing or unexpected arrays {listed(odd, len(odd), 5)}" if odd else f"its loss is {saved.loss}"
            raise InvalidModel(f"the checkpoint in {folder} does not fit this training step: {what}. {_ADVICE}")
        try:
            arrays = {name: store.fitting(name, array) for name, array in saved.arrays.items()}
        except InputError as error:
            raise InvalidModel(
                f"the checkpoint in {folder} does not fit this training step: {error}. {_ADVICE}"
            ) from None
        with uninterrupted:
            for name, array in arrays.items():
                store.commit(name, array)
            self._run, self.seed, self.notes, self._executor.rng = saved.run, saved.data_seed, saved.notes, saved.rng

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ", ".join(repr(model.name) for model in self.models)
        yield quantity(self.steps, "step")


def _counted(graph: Graph) -> Graph:
    if COUNT in graph.input_names:
        raise UsageError(f"the step has an input {COUNT!r}, a name that CustomTrainer uses itself: rename it")
    count = Value(TensorType("int64", ()), COUNT, role="state")
    return graph.replace(inputs=[*graph.inputs, count], updates=[*graph.updates, (count, F.add(count, np.int64(1)))])


def _check_stored(graph: Graph, models: Sequence[Model], states: Mapping[str, np.ndarray]) -> None:
    owners: dict[str, str] = {}
    for owner, names in [*((f"model {m.name!r}", m.params) for m in models), ("the states of the step", states)]:
        for name in names:
            if name in owners:
                raise UsageError(
                    f"both {owners[name]} and {owner} have {name!r}: build each model in its own gk.name_scope"
                )
            owners[name] = owner
    for value in graph.inputs:
        name = graph.name_of(value)
        if value.role in ("parameter", "state") and name not in owners:
            raise UsageError(f"the step has no initial value for {value}: add it to the states of gk.TrainingStep")
