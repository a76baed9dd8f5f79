"""Training and validation data of `graphkit train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._options import key_values
from graphkit.cli._output import log
from graphkit.cores import loading_workers
from graphkit.errors import InputError, UsageError
from graphkit.model import Model
from graphkit.text import listed

if TYPE_CHECKING:
    from graphkit.data import Dataset, Splits


def read_data(
    net: Model | None, spec: str, valid_spec: str | None, options: dict[str, Any], axes: dict[str, int | None],
    split: str | None = None, share: float | None = None, seed: int = 0, weight: str | None = None,
) -> Splits:  # fmt: skip
    """Read the training data and the validation data.

    Args:
        net: Its metadata say how text and images become inputs. None: there is no model yet.
        spec: Of --data.
        valid_spec: Of --valid. None: a part of the training data is held out.
        options: Of --data-option.
        axes: Of --batch-axis.
        split: How to split data that have no test part, see `graphkit.data.load`.
        share: Of --validation-split.
        weight: Of --weight-column.
        seed: Of --seed; it chooses the samples of --validation-split.
    """
    from graphkit import data
    from graphkit.data.description import options_of_model
    from graphkit.data.sources import split_training, takes
    from graphkit.data.tables.dataset import TableData

    if "axes" in options:
        raise UsageError(
            "--data-option axes does not exist: to choose the axis that counts samples, use --batch-axis INPUT=AXIS"
        )
    if share is not None:
        for given, what in (
            (valid_spec is not None, "--valid"), ("test_fraction" in options, "--data-option test_fraction"),
        ):  # fmt: skip
            if given:
                raise UsageError(
                    f"--validation-split and {what} both choose the validation data: leave out one of them"
                )
    options = ({} if net is None else options_of_model(net, spec, is_new=not is_imported(net))) | options
    if weight is not None and takes(spec, "weight"):
        options |= {"weight": weight}
    if share is not None:
        return split_training(spec, share, seed, axes=axes, **{"split": split} | options)
    if valid_spec is None:
        return data.load(spec, axes=axes, **{"split": split} | options)
    train = data.read(spec, axes=axes, held_out=False, **options)
    if train.vocabulary is not None:
        return data.Splits(train, data.read(valid_spec, **options | {"vocabulary": train.vocabulary}))
    of_table = options if isinstance(train, TableData) else {}
    return data.Splits(train, data.read(valid_spec, axes=axes, like=train, **of_table))


def is_imported(net: Model) -> bool:
    """Return whether a model was read from a file of ONNX or MXNet, so that it may be trained already."""
    return any(key.startswith(("onnx.", "mxnet.")) for key in net.meta)


def counted(train: Dataset, held_out: Dataset, divided: str | None) -> str:
    """Describe the data of a run in a line: number of samples for training and validation, and of each class.

    divided: how one data set was split, "name", "position" or "last". None: validation has its own data.
    """
    from graphkit.data import ImageDataset, TokenStream

    what = "images" if isinstance(train, ImageDataset) else "samples"
    line = (
        f"{train.name.removesuffix(' (train)')}: {len(train):,} {what} for training, {len(held_out):,} for validation"
    )
    if divided is not None and train.name.endswith(" (train)"):
        if isinstance(train, TokenStream):
            line += ": the end of the text"
        elif divided == "last":
            line += ": the last rating of each user"
        else:
            by_name = divided == "name" and train.sample_names() is not None
            line += ", split by file name" if by_name else ", split at random"
    if train.classes is None:
        return line
    line += f"; {len(train.classes)} classes"
    targets = train.targets
    are_numbers = isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.size == len(train) > 0
    if not (are_numbers and targets.min() >= 0 and targets.max() < len(train.classes)):
        return line
    counts = np.bincount(targets.reshape(-1), minlength=len(train.classes))
    each = (f"{name}: {count:,}" for name, count in zip(train.classes, counts, strict=True))
    return f"{line} (training samples of each class: {listed(each, len(train.classes), 8)})"


def skipping(parts: Splits, on_damaged: str | None) -> Splits:
    """Apply --on-damaged to the data."""
    from graphkit.data import LazyDataset, Splits

    if on_damaged is None:
        return parts
    if not any(isinstance(part, LazyDataset) for part in parts):
        raise UsageError(
            f"--on-damaged {on_damaged}: these data are loaded into memory at once, so the option has no effect; "
            "leave it out"
        )
    return Splits(*(p.configured(on_damaged=on_damaged) if isinstance(p, LazyDataset) else p for p in parts))


def workers(given: int | None, *parts: Dataset) -> int:
    """Return the number of processes that load samples. Default: none for arrays in memory."""
    from graphkit.data import LazyDataset

    if given is None:
        return loading_workers() if any(isinstance(part, LazyDataset) for part in parts) else 0
    return given


def fitted(net: Model, parts: Splits, outputs: Sequence[str] | None) -> Splits:
    """Adapt the data to the model: number classes like the model, name targets after the outputs that have a loss.

    outputs: names of the targets; [] for one target, None if the loss needs none.
    """
    from graphkit import data

    if outputs is None:
        train, valid = (_without_targets(net, part) for part in parts)
    else:
        train, valid = (with_targets(part, outputs) for part in parts) if outputs else parts
    train = _numbered(net, train)
    return data.Splits(train, valid if train.classes is None else valid.renumbered(train.classes))


def _without_targets(net: Model, part: Dataset) -> Dataset:
    """Return the data with their targets as the input that they lack, if there is one such input."""
    from graphkit.data import Dataset, LazyDataset

    missing = [name for name in net.inputs if name not in part.arrays]
    if isinstance(part, LazyDataset) or len(missing) != 1 or part.targets is None or isinstance(part.targets, dict):
        return part
    return Dataset({**part.arrays, missing[0]: part.targets}, name=part.name, axes=part.axes)


def with_targets(part: Dataset, outputs: Sequence[str]) -> Dataset:
    """Return the data set with the arrays named after `outputs` as targets. Raises InputError if one is missing."""
    from graphkit.data import Dataset, LazyDataset

    if isinstance(part, LazyDataset):
        return part  # its samples have named targets
    alone = {outputs[0]: part.targets} if len(outputs) == 1 and part.targets is not None else {}
    known = {**part.arrays, **(part.targets if isinstance(part.targets, dict) else alone)}
    missing = [name for name in outputs if name not in known]
    if missing:
        found = ", ".join(known) or "none"
        raise InputError(
            f"{part.name}: there is no array {missing[0]!r}, a target of the loss (--loss); the arrays are {found}"
        )
    inputs = {name: array for name, array in part.arrays.items() if name not in outputs}
    targets = {name: known[name] for name in outputs}
    axes = {name: axis for name, axis in part.axes.items() if name in inputs}
    given: Any = inputs["x"] if list(inputs) == ["x"] else inputs
    return Dataset(given, targets, classes=part.classes, name=part.name, axes=axes)


def _numbered(net: Model, train: Dataset) -> Dataset:
    """Return the data with the class numbers of the model, if the model has all of the classes."""
    if net.classes is None or train.classes is None or net.classes == train.classes:
        return train
    if set(train.classes) <= set(net.classes):
        return train.renumbered(net.classes)
    log(f"the model gets the class names of the data ({_few(train.classes)}) instead of its own ({_few(net.classes)})")
    return train


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def axis_options(texts: tuple[str, ...]) -> dict[str, int | None]:
    """Return the axes of `INPUT=AXIS` texts by input; `none` becomes None."""
    axes: dict[str, int | None] = {}
    for name, text in key_values(texts, "--batch-axis", "INPUT=AXIS").items():
        if text != "none" and not text.isdecimal():
            raise UsageError(f"--batch-axis {name}={text}: expected the number of an axis, from 0, or none")
        axes[name] = None if text == "none" else int(text)
    return axes
