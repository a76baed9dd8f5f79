"""Labelled data for a model: read as the model's metadata describe, with the class numbers of the model."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from graphkit.data import Dataset, LazyDataset, Splits, sources
from graphkit.data.dataset import Axes
from graphkit.data.description import encoding_of, options_of_model
from graphkit.data.tables.dataset import TableData
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.inference.labelled_texts import is_labelled_texts, read_texts
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.text import listed

PARTS = ("all", "train", "test")


class Labelled(NamedTuple):
    """Samples of a data set, and which part of it they are: "all", "train" or "test"."""

    data: Dataset
    part: str


def read_labelled(
    model: Model,
    spec: str | os.PathLike[str],
    *,
    part: str | None = None,
    axes: Axes | None = None,
    split: str | None = None,
    **options: Any,
) -> Labelled:
    """Read a data set for a model.

    The model's metadata determine the preprocessing of images, the vocabulary of texts, and the encoding of table
    columns. `options` replace them.

    Args:
        model: The model.
        spec: A data set, as `gk.data.load` takes it. For a model with a vocabulary or tokenizer, or with the option
            `vocabulary`, a .csv, .tsv or .parquet file contains texts and labels; a .jsonl file always does.
        part: "all", "train" or "test". For data without a test part, "train" and "test" are the two parts that
            `graphkit train` makes. Default: the test part if the data have one, otherwise all samples.
        axes: See `gk.data.load`.
        split: See `gk.data.load`.
        options: Options of the source, see `gk.data.load`.

    Raises:
        UsageError: `part` is unknown, or the source does not have an option.
        InputError: A file cannot be read.
    """
    if part not in (None, *PARTS):
        raise UsageError(f"part must be {', '.join(map(repr, PARTS))}, not {part!r}{did_you_mean(part, PARTS)}")
    spec = os.fspath(spec)
    if is_labelled_texts(model, spec, options):
        return _labelled_texts(model, spec, part, axes, split, options)
    options = options_of_model(model, spec) | options
    encoding = encoding_of(model.meta)
    like = None if encoding is None else TableData(np.zeros((1, 1), np.float32), None, encoding)
    of_split = {name: options.pop(name) for name in ("test_fraction", "seed") if name in options}
    found = sources.read_parts(spec, axes=axes, like=like, **options)
    if isinstance(found, Splits):
        part = part or "test"
        return Labelled(found.train.joined(found.test, spec) if part == "all" else getattr(found, part), part)
    if part in (None, "all"):
        return Labelled(found, "all")
    parts = sources.load(spec, axes=axes, split=split or "name", like=like, **of_split, **options)
    return Labelled(getattr(parts, part), part)


def _labelled_texts(
    model: Model, spec: str, part: str | None, axes: Axes | None, split: str | None, options: dict[str, Any]
) -> Labelled:
    """Read labelled texts, see `read_labelled`. They have no parts of their own."""
    if axes or split not in (None, "position"):
        raise UsageError(f"{spec}: axes= (--batch-axis) and split= are not for texts")
    of_split = {name: options.pop(name) for name in ("test_fraction", "seed") if name in options}
    found = read_texts(model, spec, **options)
    if part in (None, "all"):
        return Labelled(found, "all")
    return Labelled(getattr(found.split(**of_split), part), part)


def with_classes_of(model: Model, data: Dataset) -> tuple[Dataset, str]:
    """Return the data with the class numbers of the model, and a sentence if numbers have changed.

    Classes are matched by name if both the data and the model's metadata have names. The sentence is empty if nothing
    has changed.

    Raises:
        InputError: The data have a class that the model does not have, or two classes of the model have one name.
    """
    named, own = model.classes, data.classes
    if named is None or own is None or named == own:
        return data, ""
    if repeated := next((name for name in named if named.count(name) > 1), None):
        raise InputError(
            f"{data.name}: classes cannot be matched by name, because the metadata of the model {model.name!r} contain "
            f"the class {repeated!r} twice"
        )
    if missing := [name for name in own if name not in named]:
        raise InputError(
            f"{data.name}: the model {model.name!r} has no class {missing[0]!r}. The {len(own)} classes of the data "
            f"are {listed(own, len(own), 8)}; the {len(named)} classes of the model's metadata are "
            f"{listed(named, len(named), 8)}"
        )
    if not isinstance(data.targets, np.ndarray) or data.targets.dtype.kind not in "iu":
        raise InputError(
            f"{data.name}: the classes of the data ({listed(own, len(own), 8)}) are in another order than those of the "
            f"model {model.name!r} ({listed(named, len(named), 8)}), and cannot be renumbered because the targets are "
            "not one array of class numbers"
        )
    found = data.renumbered(named)
    if named[: len(own)] == own:
        return found, ""
    return found, (
        f"classes are matched by name: the data have them in the order {listed(own, len(own), 8)}, the model in the "
        f"order {listed(named, len(named), 8)}"
    )


def check_targets(data: Dataset) -> None:
    """Raise InputError if a data set has no targets. Lazy data sets may make them with each sample."""
    if data.targets is None and not isinstance(data, LazyDataset):
        raise no_targets(data.name)


def no_targets(name: str) -> InputError:
    """Return the error for data without targets."""
    return InputError(
        f"{name} has no targets, so the outputs of the model cannot be compared with anything. Give labelled data: an "
        "array y in the .npz file, a target column in the table, or one folder of images for each class"
    )
