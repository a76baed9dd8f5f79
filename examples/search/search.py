"""Search for hyper-parameters with Optuna. Bad trials are pruned, and an interrupted search can be resumed.

    pip install '.[search]'
    python examples/search/search.py

Run the same command again to continue the search, even if it was killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import optuna
from optuna.trial import TrialState

import graphkit as gk
from graphkit.train.run_folder import RunFolder

MONITOR = "valid_accuracy"
STUDY = "digits"
DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class Report(gk.Callback):
    """Reports the monitored number of each epoch to the trial, and ends the training if the trial is pruned."""

    def __init__(self, trial: optuna.Trial):
        self.trial = trial
        self.pruned = False

    def on_epoch_end(self, trainer: gk.Trainer, numbers: Mapping[str, Any]) -> None:
        self.trial.report(numbers[MONITOR], int(numbers["epoch"]))
        if self.trial.should_prune():
            self.pruned = True
            trainer.stop(f"{MONITOR} is below that of other trials")


def training(choice: optuna.Trial | optuna.trial.FrozenTrial) -> gk.Trainer:
    """Return a trainer with the network and optimizer that the trial chooses."""
    width = choice.suggest_int("width", 8, 128, log=True)
    layers = choice.suggest_int("layers", 1, 3)
    dropout = choice.suggest_float("dropout", 0.0, 0.5)
    net = gk.models.build("mlp", inputs=(1, 8, 8), hidden=(width,) * layers, classes=10, dropout=dropout)
    name = choice.suggest_categorical("optimizer", ["sgd", "adamw"])
    if name == "sgd":
        rate = choice.suggest_float("sgd_rate", 1e-3, 1.0, log=True)
        optimizer: gk.optim.Optimizer = gk.optim.SGD(gk.optim.Cosine(rate), momentum=0.9)
    else:
        rate = choice.suggest_float("adamw_rate", 1e-4, 1e-1, log=True)
        decay = choice.suggest_float("weight_decay", 1e-4, 1.0, log=True)
        optimizer = gk.optim.AdamW(gk.optim.Cosine(rate), weight_decay=decay)
    return gk.Trainer(net, optimizer=optimizer, seed=0, threads=1)


def opened(folder: Path) -> optuna.Study:
    """Open the study in the folder's SQLite file, or create it.

    If a process was killed during a trial, the trial counts as failed. The folder is locked, so no other process can be
    running a trial.
    """
    study = optuna.create_study(
        study_name=STUDY, storage=f"sqlite:///{folder.absolute() / 'study.db'}", load_if_exists=True,
        direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2),
    )  # fmt: skip
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def search(study: optuna.Study, data: gk.data.Splits, trials: int, epochs: int, seed: int) -> None:
    """Run trials until `trials` are complete, including pruned ones.

    The choices of trial n depend on the seed, n and the earlier trials only. So an interrupted search has the same
    result as one without interruption.
    """

    def objective(trial: optuna.Trial) -> float:
        report = Report(trial)
        history = training(trial).fit(*data, epochs=epochs, metrics=["accuracy"], progress=False, callbacks=report)
        if report.pruned:
            raise optuna.TrialPruned
        return history[-1][MONITOR]

    while (done := len(study.get_trials(deepcopy=False, states=DONE))) < trials:
        study.sampler = optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=6)
        study.optimize(objective, n_trials=1)
        last = study.get_trials(deepcopy=False, states=DONE)[-1]
        chosen = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in last.params.items())
        ended = f"{last.value:.4f}" if last.state is TrialState.COMPLETE else f"pruned after {last.last_step} epochs"
        click.echo(f"{done + 1}/{trials}: {ended} ({chosen})")


@click.command()
@click.option("--trials", default=30, show_default=True, type=click.IntRange(1), help="In all, with those before.")
@click.option("--epochs", default=12, show_default=True, type=click.IntRange(3), help="Of a trial.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("-o", "--output", default="runs/search", show_default=True, type=click.Path(path_type=Path))
def main(trials: int, epochs: int, seed: int, output: Path) -> None:
    """Search, train again like the best trial, measure the result on the test part, export and verify it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    everything, test = gk.data.load("digits")
    data = everything.split(0.25, seed=1)  # the test part is not used for choosing
    with RunFolder(output):
        study = opened(output)
        if before := len(study.get_trials(deepcopy=False, states=DONE)):
            click.echo(f"{output / 'study.db'} has {before} trials")
        search(study, data, trials, epochs, seed)
        best = study.best_trial
        trainer = training(best)
        trainer.fit(*data, epochs=epochs, metrics=["accuracy"], progress=False, folder=output / "best", overwrite=True)
        trainer.save_model(output / "best.onnx")
    accuracy = trainer.evaluate(test)["accuracy"]
    click.echo(f"the best trial: {best.value:.4f} in validation, {accuracy:.4f} on {len(test)} test images")
    passed = gk.verify(gk.load(output / "best.onnx")).passed
    click.echo(f"the file in ONNX Runtime: {'PASSED' if passed else 'FAILED'}")
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
