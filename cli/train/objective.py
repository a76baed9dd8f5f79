"""Loss, optimizer, learning rate schedule and callbacks from the options of `graphkit train`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._options import key_values, read_model
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
    """Return the name of the loss, or names by output. Raises UsageError for several names without outputs."""
    if not specs:
        return defaults.LOSS
    if len(specs) == 1 and "=" not in specs[0]:
        return specs[0]
    if odd := [spec for spec in specs if "=" not in spec]:
        raise UsageError(f"--loss {odd[0]}: with several losses, each needs its output: --loss OUTPUT={odd[0]}")
    return key_values(tuple(specs), "--loss")


def first_loss(net: Model, specs: Sequence[str], output: str | None) -> str:
    """Return the name of the loss for the output that metrics use. specs: of --loss. output: of --output-name."""
    from graphkit.train.losses import of_mxnet

    if not specs and (heads := of_mxnet(net, output)):
        return next(iter(heads.values())).name
    names = loss_names(specs)
    return names if isinstance(names, str) else next(iter(names.values()))


def target_names(net: Model, specs: Sequence[str], output: str | None) -> list[str] | None:
    """Return the names of the targets in the data; [] if there is one, which needs no name; None if there are none.

    specs: of --loss. output: of --output-name.
    """
    if specs:
        names = loss_names(specs)
        return [] if isinstance(names, str) else list(names)
    from graphkit.train.losses import of_mxnet

    heads = of_mxnet(net, output)
    labels = {each.target for each in heads.values() if each.has_target}
    if heads and not labels:
        return None
    return sorted(labels) if len(labels) > 1 else []


def loss(net: Model, train: Dataset | None, o: Mapping[str, Any]) -> Loss | dict[str, Loss]:
    """Return the loss, or losses by output. Balanced class weights depend on the targets of `train`, and need it."""
    from graphkit.train import losses

    if not o["loss_specs"] and (heads := losses.of_mxnet(net, o["output_name"])):
        _check_no_options(next(iter(heads.values())), o)
        return heads
    names = loss_names(o["loss_specs"])
    if isinstance(names, str):
        if len(net.outputs) > 1 and o["output_name"] is None:
            raise UsageError(
                f"--loss {names}: the model has several outputs ({', '.join(net.outputs)}). Choose one with "
                "--output-name, or give each its loss: --loss OUTPUT=NAME"
            )
        if o["loss_weights"]:
            raise UsageError("--loss-weight needs --loss OUTPUT=NAME for each output")
    by_output = {o["output_name"] or net.outputs[0]: names} if isinstance(names, str) else names
    made = {output: losses.get(name) for output, name in by_output.items()}
    options: dict[str, dict[str, Any]] = {output: {} for output in made}
    given = {option: o[option] for option in ("label_smoothing", "ignore_index", "class_weights")}
    given |= _numbers(o["loss_options"], "--loss-option")
    for option, value in given.items():
        if value is None:
            continue
        taking = [output for output, each in made.items() if option in each.takes]
        if option == "class_weights" and len(taking) > 1:
            raise UsageError(
                f"--class-weights only works for one output, but the losses of {' and '.join(taking)} all have class "
                "weights. In Python, give each loss its own: gk.losses.get(name, class_weights=...)"
            )
        for output in taking or list(made):  # if no loss has the option, the loss raises an error
            if option == "class_weights":
                targets = None if train is None else train.targets
                target = targets[output] if isinstance(targets, dict) else targets
                if (ignored := options[output].get("ignore_index")) is not None:
                    target = np.asarray(target)[np.asarray(target) != ignored]
                value = class_weights(value, made[output], net.output_types.get(output), target)
            options[output][option] = value
    found = {output: each.with_options(**options[output]) for output, each in made.items()}
    if isinstance(names, str):
        return _with_teacher(next(iter(found.values())), o)
    if o["teacher"] is not None:
        raise UsageError("--teacher works with one loss; leave out --loss OUTPUT=NAME")
    return found


def _check_no_options(head: Loss, o: Mapping[str, Any]) -> None:
    """Raise UsageError if an option of a loss is given, because the losses of MXNet's output operators have none."""
    given = {
        "--label-smoothing": o["label_smoothing"], "--ignore-index": o["ignore_index"],
        "--class-weights": o["class_weights"], "--loss-option": o["loss_options"] or None, "--teacher": o["teacher"],
        "--distill": o["distill_options"] or None,
    }  # fmt: skip
    if wrong := [option for option, value in given.items() if value is not None]:
        raise UsageError(
            f"{wrong[0]} does not work with the loss of MXNet's output operator, {head}: choose a loss with --loss"
        )


def _with_teacher(loss: Loss, o: Mapping[str, Any]) -> Loss:
    """Return the loss with the teacher of --teacher, if there is one."""
    from graphkit.train.losses import distillation

    options: dict[str, Any] = _numbers(o["distill_options"], "--distill")
    if o["teacher"] is None:
        if options:
            raise UsageError("--distill is an option of --teacher: also give --teacher FILE")
        return loss
    for name in options:
        if name not in ("weight", "temperature"):
            raise UsageError(f"--distill {name}: there is no such option; expected weight or temperature")
    teacher = read_model(o["teacher"], o["external_root"])
    if len(teacher.outputs) > 1:
        raise UsageError(
            f"--teacher {o['teacher']}: a teacher must have one output, and this model has "
            f"{', '.join(teacher.outputs)}. Choose one: graphkit extract {o['teacher']} --output NAME -o teacher.onnx"
        )
    return distillation(teacher, loss, **options)


def class_weights(text: str, loss: Loss, output: Any, targets: Any) -> tuple[float, ...]:
    """Return the weights of the classes. Raises UsageError, or InputError if a file cannot be read."""
    from graphkit.train import losses

    if text == "balanced":
        largest = loss.largest_target(output)
        if largest is None:
            raise UsageError(
                f"--class-weights balanced: the loss {loss.name!r} has no classes for an output of type {output}; "
                "leave out --class-weights"
            )
        return losses.balanced(targets, largest + 1)
    parts = text.split(",")
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        if len(parts) > 1 and not Path(text).exists():
            raise UsageError(
                f"--class-weights {text}: expected balanced, a .json or .npy file, or numbers separated by commas"
            ) from None
    return _weights_of_file(Path(text))


def _weights_of_file(path: Path) -> tuple[float, ...]:
    from graphkit.data.files.npz import read_arrays

    if not path.exists():
        raise InputError(
            f"--class-weights {path}: there is no such file; expected balanced, a file, or numbers separated by commas"
        )
    try:
        if path.suffix == ".json":
            found = np.asarray(json.loads(path.read_text(encoding="utf-8")), np.float64)
        else:
            found = np.asarray(next(iter(read_arrays(path).values())), np.float64)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"--class-weights {path}: expected a list of numbers: {error}") from None
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(
            f"--class-weights {path}: expected one finite number per class, not an array of shape {list(found.shape)}"
            f"{'' if np.isfinite(found).all() else ' with NaN or infinity'}"
        )
    return tuple(found.tolist())


# --- the optimizer ----------------------------------------------------------------------------------


def optimizer(o: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer with its learning rate schedule."""
    from graphkit.train import optim

    further = key_values(o["optimizer_options"], "--optimizer-option")
    found = make_optimizer(o["optimizer_name"], o["lr"], o["momentum"], further)
    options = _numbers(o["schedule_options"], "--schedule-option")
    kind, rate = o["lr_schedule"], found.lr
    if "rate" in options:
        raise UsageError("--schedule-option rate: give the learning rate with --lr")
    if kind == "constant" and options:
        raise UsageError(
            f"--schedule-option {next(iter(options))}: a constant learning rate has no options; choose another "
            "--lr-schedule"
        )
    if kind == _PLATEAU:
        kind, options = "constant", {}
    schedule = optim.schedule({"type": kind, "rate": rate, **options})
    if o["warmup"] is not None:
        schedule = optim.Warmup(schedule, o["warmup"])
    elif kind == "constant":
        return found
    return dataclasses.replace(found, lr=schedule)


def _numbers(texts: tuple[str, ...], option: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in key_values(texts, option).items():
        try:
            found[name] = int(text) if text.isdecimal() else float(text)
        except ValueError:
            raise UsageError(f"{option} {name}={text}: expected a number") from None
    return found


def multipliers(texts: tuple[str, ...], option: str, form: str = "PATTERN=X, such as fc*=0.1") -> dict[str, float]:
    """Return the factors of `NAME=X` texts by name. form: of these texts, for the error."""
    found: dict[str, float] = {}
    for pattern, text in key_values(texts, option, form).items():
        try:
            found[pattern] = float(text)
        except ValueError:
            raise UsageError(f"{option} {pattern}={text}: {text!r} is not a number; expected {form}") from None
    return found


# --- callbacks --------------------------------------------------------------------------------------


def callbacks(o: Mapping[str, Any]) -> list[Callback]:
    """Return the callbacks for --early-stop, --keep-best and --lr-schedule plateau.

    A --fast-dev-run without an output folder keeps no best model.
    """
    from graphkit.errors import did_you_mean
    from graphkit.train.callbacks import EarlyStopping, KeepBest, ReduceOnPlateau

    found: list[Callback] = []
    plateau = o["lr_schedule"] == _PLATEAU
    if o["monitor"] != defaults.MONITOR and not (o["early_stop"] or o["keep_best"] or plateau):
        raise UsageError(
            f"--monitor {o['monitor']} has no effect without --early-stop, --keep-best or --lr-schedule plateau; add "
            "one of them"
        )
    if o["min_delta"] and not o["early_stop"]:
        raise UsageError(
            "--min-delta only works with --early-stop; for --lr-schedule plateau: --schedule-option min_delta=X"
        )
    if o["keep_best_count"] > 1 and not o["keep_best"]:
        raise UsageError("--keep-best-count only works with --keep-best")
    if o["early_stop"] is not None:
        found.append(EarlyStopping(o["early_stop"], o["monitor"], min_delta=o["min_delta"]))
    if o["keep_best"] and (o["fast_dev_run"] is None or o["folder"] is not None):
        found.append(KeepBest(o["monitor"], keep=o["keep_best_count"]))
    if plateau:
        options: dict[str, Any] = _numbers(o["schedule_options"], "--schedule-option")
        for name in options:
            if name not in _OF_PLATEAU:
                raise UsageError(
                    f"--schedule-option {name}: --lr-schedule {_PLATEAU} has no such option"
                    f"{did_you_mean(name, _OF_PLATEAU)}"
                )
        found.append(ReduceOnPlateau(monitor=o["monitor"], **options))
    return found
