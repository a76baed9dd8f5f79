"""Checkpoints of an AdversarialTrainer: both networks, their optimizers and the random state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.errors import InputError, InvalidModel
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.params import JointStore
from graphkit.train import checkpoint as checkpoints
from graphkit.train.position import Position
from graphkit.train.programs.step import STEP

if TYPE_CHECKING:
    from graphkit.train.adversarial import AdversarialTrainer

# In place of the name of a loss.
_LOSS = "adversarial"


def write(trainer: AdversarialTrainer, store: JointStore, rng: tuple[int, int], folder: Path) -> None:
    """Into a folder that this process has; the checkpoint before stays until this one is whole."""
    generator, discriminator = (optimizer.describe() for optimizer in trainer.optimizers)
    checkpoints.save(
        folder,
        checkpoints.Checkpoint(
            arrays=dict(store),
            optimizer={"generator": generator, "discriminator": discriminator},
            loss=_LOSS,
            rng=rng,
            position=Position(epoch=trainer.epochs, until=trainer.epochs).describe(),
            run=trainer.run,
            updates=int(trainer.states[STEP]),
            data_seed=trainer.seed,
        ),
    )


def read(trainer: AdversarialTrainer, store: JointStore, folder: Path) -> tuple[int, int]:
    """Take all of a checkpoint over, or nothing; the state of the random generator."""
    saved = checkpoints.load(folder)
    odd = sorted(set(saved.arrays) ^ set(store))
    if saved.loss != _LOSS or odd:
        what = ", ".join(odd[:5]) or f"its loss is {saved.loss}"
        raise InvalidModel(f"the checkpoint in {folder} does not fit these networks and optimizers: {what}")
    try:
        arrays = {name: store.fitting(name, array) for name, array in saved.arrays.items()}
    except InputError as error:
        raise InvalidModel(f"the checkpoint in {folder} does not fit these networks: {error}") from None
    with uninterrupted:
        for name, array in arrays.items():
            store.commit(name, array)
        trainer.epochs = Position.read(saved.position, {}).epoch
        trainer.run, trainer.seed = saved.run, saved.data_seed
    return saved.rng
