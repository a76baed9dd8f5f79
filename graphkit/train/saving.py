"""How a Trainer writes the model and a checkpoint to a run folder, and resumes from them."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.errors import GraphkitWarning, InputError, InvalidModel, UsageError
from graphkit.executor.run.interruption import uninterrupted
from graphkit.ir.types import DType
from graphkit.model import Model
from graphkit.text import quantity
from graphkit.train import checkpoint as checkpoints
from graphkit.train import losses
from graphkit.train.adapter_marks import has_adapters
from graphkit.train.base_trainer import BaseTrainer
from graphkit.train.exchange import residuals
from graphkit.train.exchange.exchange import Gathered
from graphkit.train.position import MetricStates, Position
from graphkit.train.programs.step import adapt_gradient_sums
from graphkit.train.run_folder import MODEL, RunFolder, check_links, model_then_checkpoint

_METRIC = "/metric/"

_PATIENCE = 30.0


def save(trainer: BaseTrainer, folder: str | Path) -> None:
    trainer._averages.check_not_swapped("save()")
    accumulated, ranks = trainer._stepper.accumulated, trainer._place[1]
    if accumulated and ranks > 1:
        raise UsageError(
            f"{ranks} processes have accumulated gradients of {accumulated} batches: call flush() in all of them "
            "before save()"
        )
    path, fit = Path(folder), trainer._fit
    within = fit is not None and fit.folder is not None and fit.folder.resolve() == path.resolve()
    parts = epoch_states(trainer)
    with trainer._exchange.gathered() as gathered:
        if gathered is None:
            return
        with contextlib.nullcontext() if within else RunFolder(path, patience=_PATIENCE):
            write(trainer, path, parts, gathered)


def epoch_states(trainer: BaseTrainer) -> list[dict[str, np.ndarray]]:
    """Return the states of an incomplete epoch (recurrent states and metrics) for a checkpoint.

    Collective if the model is divided among ranks.
    """
    position = trainer.position
    if not position.within:
        return [{}]
    states = position.metrics if trainer._fit is None else trainer._fit.metric_states()
    measured = {f"{m}{_METRIC}{key}": array for m, state in states.items() for key, array in state.items()}
    return trainer._exchange.epoch_states({**trainer._recurrent_state.arrays, **measured})


def write(trainer: BaseTrainer, folder: Path, parts: Sequence[Mapping[str, np.ndarray]], gathered: Gathered) -> None:
    """Write model and checkpoint into a folder that this process has locked. parts: `epoch_states` by rank."""
    with model_then_checkpoint(folder) as before:
        with _inference_model(trainer) as net:
            net.save(folder / MODEL, before=before)
            if has_adapters(net.graph):
                from graphkit.train.adapters.files import save_adapter

                save_adapter(net, folder)
        checkpoints.save(folder, _checkpoint(trainer, parts, gathered))


def save_model(trainer: BaseTrainer, path: Path, meta: Mapping[str, str]) -> None:
    with whole_model(trainer) as net:
        if net is not None:
            described = Model.from_graph(net.graph, net.params.entries(), meta={**net.meta, **meta})
            described.save(path)


@contextlib.contextmanager
def whole_model(trainer: BaseTrainer) -> Iterator[Model | None]:
    """Collective: context that yields, on rank 0, the model for inference, with the moving averages if there are any.

    On other ranks, it yields None.
    """
    with trainer._exchange.gathered() as gathered:
        if gathered is None:
            yield None
            return
        with _inference_model(trainer) as net:
            yield net


@contextlib.contextmanager
def _inference_model(trainer: BaseTrainer) -> Iterator[Model]:
    with trainer.averaged() as net:
        if trainer._inference_graph is net.graph:
            yield net
        else:
            yield Model.from_graph(trainer._inference_graph, net.params.entries(), meta=net.meta)


def _checkpoint(
    trainer: BaseTrainer, parts: Sequence[Mapping[str, np.ndarray]], gathered: Gathered
) -> checkpoints.Checkpoint:
    stepper = trainer._stepper
    seed, step = trainer.executor.rng
    return checkpoints.Checkpoint(
        arrays={**trainer.net.params, **gathered.states},
        parts=parts,
        residuals=gathered.residuals,
        optimizer=trainer.optimizer.describe(),
        loss=losses.described(trainer.loss),
        rng=(int(seed), int(step)),
        position=trainer.position.describe(),
        run=trainer.run,
        notes=trainer.notes,
        callbacks=trainer.callback_states,
        updates=stepper.updates,
        data_seed=trainer.seed,
        settings={
            "accumulate": trainer.accumulate,
            "waiting": stepper.accumulated,
            "waiting_weight": stepper.accumulated_weight,
            "skipped": stepper.skipped,
            "processes": trainer._place[1],
            "ema": None if trainer.ema is None else trainer.ema.describe(),
        },
    )


def resume(trainer: BaseTrainer, folder: str | Path, trusted: bool = False) -> None:
    if not trusted:
        check_links(folder)
    saved = checkpoints.load(folder)
    stepper, exchange = trainer._stepper, trainer._exchange
    accumulated = int(saved.settings.get("waiting", 0))
    arrays = exchange.own_states(saved.arrays)
    adapt_gradient_sums(arrays, trainer.trained, stepper.slots, accumulated, trainer._place[0])
    recurrent, metric_states = _epoch_states_of_rank(saved.parts, trainer._place, folder)
    own_residuals = _residuals_of_rank(trainer, saved.residuals, folder)
    unknown = set(recurrent) - {*trainer._recurrent_state.keys}
    checkpoints.check_names({*arrays, *unknown}, {*trainer.net.params, *stepper.slots}, folder)
    arrays = {name: array for name, array in arrays.items() if exchange.keeps(name)}
    try:
        arrays = {name: stepper.store.fitting(name, array) for name, array in arrays.items()}
    except InputError as error:
        raise InvalidModel(
            f"the checkpoint in {folder} does not fit this model: {error}. {checkpoints.ADVICE}"
        ) from None
    if trainer._place[0] == 0 and saved.loss != losses.described(trainer.loss):
        warnings.warn(
            f"the checkpoint in {folder} is of a run with the loss {saved.loss}; from now on, the loss is "
            f"{losses.described(trainer.loss)}",
            GraphkitWarning,
            stacklevel=4,
        )
    with uninterrupted:
        for name, array in arrays.items():
            stepper.store.commit(name, array)
        trainer._recurrent_state.restore(recurrent)
        trainer._set_rng(saved.rng)
        trainer.position = Position.read(saved.position, metric_states)
        trainer.notes = saved.notes
        trainer._callback_states = saved.callbacks
        trainer.run, trainer.seed = saved.run, saved.data_seed
        stepper.updates, stepper.skipped = saved.updates, int(saved.settings.get("skipped", 0))
        exchange.publish()
        at = {"updates": saved.updates, "epoch": trainer.position.epoch, "batch": trainer.position.batch}
        trainer._agreement.set_resumed({"name": saved.run, **at})
        if own_residuals is not None:
            exchange.restore_residuals(own_residuals)
        # Only rank 0 restores accumulated gradients. With all-reduce, every rank restores the weight of these
        # gradients, because each rank divides the summed gradients by it. With parameter servers, the other workers
        # restore the weight 0, because a worker divides only its own gradients.
        has_none = trainer.kvstore is not None and trainer.kvstore.is_remote and trainer._place[0] > 0
        weight = 0.0 if has_none else float(saved.settings.get("waiting_weight", 0.0))
        stepper.accumulated, stepper.accumulated_weight = accumulated, weight
        trainer._resumed = trainer.position.until > trainer.position.start
        trainer.step_incomplete = False


def _epoch_states_of_rank(
    parts: Sequence[Mapping[str, np.ndarray]], place: tuple[int, int], folder: str | Path
) -> tuple[dict[str, np.ndarray], MetricStates]:
    """Return this rank's states of an incomplete epoch: (recurrent states, states of metrics).

    If the number of ranks has changed, states of metrics are dropped, and recurrent states raise UsageError.
    """
    rank, ranks = place
    if len(parts) != ranks:
        if any(_METRIC not in name for part in parts for name in part):
            raise UsageError(
                f"the checkpoint in {folder} was written within an epoch, and contains the recurrent states (carry=, "
                f"--recurrent-state) of {quantity(len(parts), 'rank')}: resume with this number of ranks, not with "
                f"{ranks}"
            )
        return {}, {}
    recurrent: dict[str, np.ndarray] = {}
    states: MetricStates = {}
    for key, array in parts[rank].items():
        name, found, state = key.rpartition(_METRIC)
        if found:
            states.setdefault(name, {})[state] = array
        else:
            recurrent[key] = array
    return recurrent, states


def _residuals_of_rank(
    trainer: BaseTrainer, saved: residuals.ByRank, folder: str | Path
) -> dict[str, np.ndarray] | None:
    compressing = trainer._exchange.compressing
    if not compressing:
        if any(saved):
            warnings.warn(
                f"the checkpoint in {folder} contains residuals of gradient compression, which are dropped, because "
                "gradients are not compressed now",
                stacklevel=4,
            )
        return None
    types = {name: trainer.net.params.type_of(name) for name in trainer.trained}
    sizes = {n: math.prod(t.static_shape) for n, t in types.items() if t.dtype is DType.FLOAT32}
    residuals.check(saved, sizes, f"the checkpoint in {folder}")
    if trainer._place[0] not in compressing:
        return None
    own = residuals.residuals_of_rank(saved, trainer._place[0], compressing)
    return {name: own.get(name, np.zeros(size, np.float32)) for name, size in sizes.items()}
