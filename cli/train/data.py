"""The data of `graphkit train`: what to train and to validate on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._options import key_values
from graphkit.cli._output import log
from graphkit.cores import loading_workers
from graphkit.errors import InputError, UsageError
from graphkit.model import VOCABULARY, Model
from graphkit.text import listed

if TYPE_CHECKING:
    from graphkit.data import Dataset, Splits


def read_data(
    net: Model | None, spec: str, valid_spec: str | None, options: dict[str, Any], axes: dict[str, int | None],
    split: str | None = None,
) -> Splits:  # fmt: skip
    """What to train on, and to validate on: text and pictures as the metadata of the model say, if there is one.

    split: how data that come in one part are divided, see `graphkit.data.load`.
    """
    from graphkit import data
    from graphkit.data.tables.dataset import TableData

    if "axes" in options:
        raise UsageError("--data-option axes: --batch-axis INPUT=AXIS says which axis counts samples")
    options = ({} if net is None else _of_model(net, spec)) | options
    if valid_spec is None:
        return data.load(spec, axes=axes, **{"split": split} | options)
    train = data.read(spec, axes=axes, held_out=False, **options)
    if train.vocabulary is not None:
        return data.Splits(train, data.read(valid_spec, **options | {"vocabulary": train.vocabulary}))
    of_table = options if isinstance(train, TableData) else {}
    return data.Splits(train, data.read(valid_spec, axes=axes, like=train, **of_table))


def _of_model(net: Model, spec: str) -> dict[str, Any]:
    """Options of data that the model gives: its vocabulary, what pictures go through; else the size of its input."""
    from graphkit.data.description import preprocessing_of
    from graphkit.data.images.feeding import options_for
    from graphkit.data.sources import takes
    from graphkit.data.text.vocabulary import Vocabulary

    if VOCABULARY in net.meta and takes(spec, "vocabulary"):
        return {"vocabulary": Vocabulary.from_json(net.meta[VOCABULARY])}
    if not takes(spec, "preprocess"):
        return {}
    known = preprocessing_of(net.meta)
    return options_for(net.input_types) if known is None else {"preprocess": known}


def counted(train: Dataset, held_out: Dataset, divided: str | None) -> str:
    """What a run is trained on and validated on, in a line: how many samples, of which classes, how many held out.

    divided: how one set was divided into the two; None for data that come in two parts.
    """
    from graphkit.data import Pictures

    what = "pictures" if isinstance(train, Pictures) else "samples"
    line = f"{train.name.removesuffix(' (train)')}: {len(train):,} {what} to train on, {len(held_out):,} held out"
    if divided is not None and train.name.endswith(" (train)"):
        line += ", by their names" if divided == "name" and train.sample_names() is not None else ", by position"
    if train.classes is None:
        return line
    line += f"; {len(train.classes)} classes"
    targets = train.targets
    are_numbers = isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.size == len(train) > 0
    if not (are_numbers and targets.min() >= 0 and targets.max() < len(train.classes)):
        return line
    counts = np.bincount(targets.reshape(-1), minlength=len(train.classes))
    each = (f"{name} {count:,}" for name, count in zip(train.classes, counts, strict=True))
    return f"{line} (trained on: {listed(each, len(train.classes), 8)})"


def skipping(parts: Splits, on_damaged: str | None) -> Splits:
    """The data with the choice of what damaged samples do."""
    from graphkit.data import LazyDataset, Splits

    if on_damaged is None:
        return parts
    if not any(isinstance(part, LazyDataset) for part in parts):
        raise UsageError(f"--on-damaged {on_damaged}: the data are in memory, with no sample that could be damaged")
    return Splits(*(p.configured(on_damaged=on_damaged) if isinstance(p, LazyDataset) else p for p in parts))


def workers(given: int | None, *parts: Dataset) -> int:
    """How many processes make samples; by themselves, none for arrays in memory."""
    from graphkit.data import LazyDataset

    if given is None:
        return loading_workers() if any(isinstance(part, LazyDataset) for part in parts) else 0
    return given


def fitted(net: Model, parts: Splits, outputs: Sequence[str]) -> Splits:
    """The data as the model has them: classes by its numbers, targets by the names of outputs that have a loss each."""
    from graphkit import data

    train, valid = (with_targets(part, outputs) for part in parts) if outputs else parts
    train = _numbered(net, train)
    return data.Splits(train, valid if train.classes is None else valid.renumbered(train.classes))


def with_targets(part: Dataset, outputs: Sequence[str]) -> Dataset:
    """The data set whose arrays of the names of outputs are the targets; raises InputError where one is missing."""
    from graphkit.data import Dataset, LazyDataset

    if isinstance(part, LazyDataset):
        return part  # its samples name their targets
    alone = {outputs[0]: part.targets} if len(outputs) == 1 and part.targets is not None else {}
    known = {**part.arrays, **(part.targets if isinstance(part.targets, dict) else alone)}
    missing = [name for name in outputs if name not in known]
    if missing:
        found = ", ".join(known) or "none"
        raise InputError(f"{part.name}: no array {missing[0]!r} is there, the target of that output; there are {found}")
    inputs = {name: array for name, array in part.arrays.items() if name not in outputs}
    targets = {name: known[name] for name in outputs}
    axes = {name: axis for name, axis in part.axes.items() if name in inputs}
    given: Any = inputs["x"] if list(inputs) == ["x"] else inputs
    return Dataset(given, targets, classes=part.classes, name=part.name, axes=axes)


def _numbered(net: Model, train: Dataset) -> Dataset:
    """The data with classes in the order that the model has them, if it knows them all."""
    if net.classes is None or train.classes is None or net.classes == train.classes:
        return train
    if set(train.classes) <= set(net.classes):
        return train.renumbered(net.classes)
    log(f"the classes of the model ({_few(net.classes)}) become those of the data ({_few(train.classes)})")
    return train


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def axis_options(texts: tuple[str, ...]) -> dict[str, int | None]:
    """`INPUT=AXIS` texts as axes by input; `none` is None."""
    axes: dict[str, int | None] = {}
    for name, text in key_values(texts, "--batch-axis").items():
        if text != "none" and not text.isdecimal():
            raise UsageError(f"--batch-axis {name}={text}: expected the number of an axis, or none")
        axes[name] = None if text == "none" else int(text)
    return axes
