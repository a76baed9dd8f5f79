"""What `graphkit train` minimises, and how: the loss, the optimizer with its schedule, callbacks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._options import key_values
from graphkit.cli._training import make_optimizer
from graphkit.errors import InputError, UsageError
from graphkit.train import defaults

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.model import Model
    from graphkit.train.callbacks import Callback
    from graphkit.train.losses import Loss
    from graphkit.train.optim import Optimizer

_PLATEAU = "plateau"
_OF_PLATEAU = ("patience", "factor", "cooldown", "lowest", "min_delta")


# --- the loss ---------------------------------------------------------------------------------------


def loss_names(specs: Sequence[str]) -> str | dict[str, str]:
    """`NAME`, or `OUTPUT=NAME` texts by output; raises UsageError where both, or several names, are given."""
    if not specs:
        return defaults.LOSS
    if len(specs) == 1 and "=" not in specs[0]:
        return specs[0]
    if odd := [spec for spec in specs if "=" not in spec]:
        raise UsageError(f"--loss {odd[0]}: of several losses each says its output, as --loss OUTPUT={odd[0]}")
    return key_values(tuple(specs), "--loss")


def first_loss(specs: Sequence[str]) -> str:
    """The loss of the output that metrics look at."""
    names = loss_names(specs)
    return names if isinstance(names, str) else next(iter(names.values()))


def loss(net: Model, train: Dataset, o: Mapping[str, Any]) -> Loss | dict[str, Loss]:
    """The loss by the options; balanced class weights count the samples of `train`."""
    from graphkit.train import losses

    names = loss_names(o["loss_specs"])
    by_output = {o["output_name"] or net.outputs[0]: names} if isinstance(names, str) else names
    made = {output: losses.get(name) for output, name in by_output.items()}
    options: dict[str, dict[str, Any]] = {output: {} for output in made}
    for option in ("label_smoothing", "class_weights"):
        if o[option] is None:
            continue
        taking = [output for output, each in made.items() if option in each.takes]
        if option == "class_weights" and len(taking) > 1:
            raise UsageError(f"--class-weights are of one output, and the losses of {' and '.join(taking)} take them")
        for output in taking or list(made):  # none takes it: the loss says so
            value = o[option]
            if option == "class_weights":
                target = train.targets[output] if isinstance(train.targets, dict) else train.targets
                value = class_weights(value, made[output], net.output_types.get(output), target)
            options[output][option] = value
    found = {output: each.having(**options[output]) for output, each in made.items()}
    return next(iter(found.values())) if isinstance(names, str) else found


def class_weights(text: str, loss: Loss, output: Any, targets: Any) -> tuple[float, ...]:
    """`balanced`, a file with a weight for each class, or weights; raises UsageError, InputError for a file."""
    from graphkit.train import losses

    if text == "balanced":
        largest = loss.largest(output)
        if largest is None:
            raise UsageError(f"--class-weights balanced: loss {loss.name!r} of {output} has no classes to count")
        return losses.balanced(targets, largest + 1)
    parts = text.split(",")
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        if len(parts) > 1 and not Path(text).exists():
            raise UsageError(f"--class-weights {text}: expected balanced, a file, or numbers with commas") from None
    return _weights_of_file(Path(text))


def _weights_of_file(path: Path) -> tuple[float, ...]:
    from graphkit.data.files.npz import read_arrays

    if not path.exists():
        raise InputError(f"--class-weights {path}: there is no such file; or give balanced, or numbers with commas")
    try:
        if path.suffix == ".json":
            found = np.asarray(json.loads(path.read_text(encoding="utf-8")), np.float64)
        else:
            found = np.asarray(next(iter(read_arrays(path).values())), np.float64)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: no list of numbers: {error}") from None
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(f"{path}: one finite number for each class is expected, not {found.shape}")
    return tuple(found.tolist())


# --- the optimizer ----------------------------------------------------------------------------------


def optimizer(o: Mapping[str, Any]) -> Optimizer:
    """The optimizer with its schedule."""
    from graphkit.train import optim

    further = key_values(o["optimizer_options"], "--optimizer-option")
    found = make_optimizer(o["optimizer_name"], o["lr"], o["momentum"], further)
    options = _numbers(o["schedule_options"])
    kind, rate = o["lr_schedule"], found.lr
    if "rate" in options:
        raise UsageError("--schedule-option rate: the rate that a schedule begins with is that of --lr")
    if kind == "constant" and options:
        raise UsageError(f"--schedule-option {next(iter(options))}: --lr-schedule constant has no options")
    if kind == _PLATEAU:
        kind, options = "constant", {}
    schedule = optim.schedule({"type": kind, "rate": rate, **options})
    if o["warmup"] is not None:
        schedule = optim.Warmup(schedule, o["warmup"])
    elif kind == "constant":
        return found
    return dataclasses.replace(found, lr=schedule)


def _numbers(texts: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in key_values(texts, "--schedule-option").items():
        try:
            found[name] = int(text) if text.isdecimal() else float(text)
        except ValueError:
            raise UsageError(f"--schedule-option {name}={text}: expected a number") from None
    return found


def multipliers(texts: tuple[str, ...], option: str) -> dict[str, float]:
    """`NAME=X` texts as factors by name."""
    try:
        return {pattern: float(text) for pattern, text in key_values(texts, option).items()}
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


# --- callbacks --------------------------------------------------------------------------------------


def callbacks(o: Mapping[str, Any]) -> list[Callback]:
    """Those that the options ask for."""
    from graphkit.errors import did_you_mean
    from graphkit.train.callbacks import EarlyStopping, KeepBest, ReduceOnPlateau

    found: list[Callback] = []
    plateau = o["lr_schedule"] == _PLATEAU
    if o["monitor"] != defaults.MONITOR and not (o["early_stop"] or o["keep_best"] or plateau):
        raise UsageError("--monitor: nothing looks at it without --early-stop, --keep-best or --lr-schedule plateau")
    if o["min_delta"] and not o["early_stop"]:
        raise UsageError("--min-delta is of --early-stop; that of a plateau is --schedule-option min_delta=X")
    if o["early_stop"] is not None:
        found.append(EarlyStopping(o["early_stop"], o["monitor"], min_delta=o["min_delta"]))
    if o["keep_best"]:
        found.append(KeepBest(o["monitor"]))
    if plateau:
        options: dict[str, Any] = _numbers(o["schedule_options"])
        for name in options:
            if name not in _OF_PLATEAU:
                raise UsageError(f"schedule {_PLATEAU} has no option {name!r}{did_you_mean(name, _OF_PLATEAU)}")
        found.append(ReduceOnPlateau(monitor=o["monitor"], **options))
    return found
