"""Sources of data: each kind of data is read by a module of its own, which is selected by the spec."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphkit.data.dataset import Axes, Dataset, Splits
from graphkit.data.lazy import LazyDataset
from graphkit.data.workers.pool import Workers
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed


class Source(NamedTuple):
    """One kind of data: KIND:PATH, a file with one of `suffixes`, or a folder that `recognises` accepts.

    loader and recognises: MODULE:FUNCTION in graphkit.data, imported when needed. A loader takes the path, and its
    options as keywords. It returns a Dataset, or Splits if there are two parts. A loader with the keywords
    `test_fraction` (None: one Dataset with all samples) and `seed` divides the data itself.
    """

    kind: str
    loader: str
    suffixes: tuple[str, ...] = ()
    recognises: str | None = None


SOURCES = (
    Source("npz", "files.arrays:load", (".npz",)),
    Source("table", "tables.dataset:load", (".csv", ".tsv", ".parquet")),
    Source("mnist", "files.mnist:load", recognises="files.mnist:is_mnist"),
    Source("cifar", "images.cifar:load", recognises="images.cifar:is_cifar"),
    Source("images", "images.folders:load", recognises="images.folders:is_pictures"),
    Source("records", "records.dataset:load", (".rec",)),
    Source("ratings", "tables.ratings:load", recognises="tables.ratings:is_ratings"),
    Source("sentences", "text.sentences:load"),
    Source("text", "text.stream:load"),
)

# FILE.py:FUNCTION, the result of a user's function.
_OF_PYTHON = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*)")

# Names of the data sets of the package -> their loaders; the optional prefix of the names.
_BUILT_IN = {"digits": "files.digits:load"}
_PREFIX = "built-in:"

# Prefixes of specs for text.
TEXT_SOURCES = ("sentences:", "text:")

# Keywords that `load` and `read` pass to a loader. All others are options of the source.
_GIVEN = ("path", "test_fraction", "seed", "axes", "like")

# Options of LazyDataset.configured, which all lazy data have.
_OF_LAZY = ("workers", "on_damaged", "shuffle_window")


@typed("gk.data.load")
def load(
    spec: str | os.PathLike[str],
    *,
    test_fraction: float | None = None,
    seed: int = 0,
    axes: Axes | None = None,
    split: str | None = None,
    like: Dataset | None = None,
    **options: Any,
) -> Splits:
    """Load a data set and return its training part and its test part.

    If the data set already has a training part and a test part, they are kept. Otherwise `seed` decides which samples
    belong to the test part. Each class is divided in the same proportion, and both parts keep the original order (see
    Dataset.split).

    `spec` is one of:

    - "digits": 1,797 images of handwritten digits, float32 [1, 8, 8] in [0, 1]; by default 1,438 to train and 359 to
      test.
    - "mnist:FOLDER", or the folder: MNIST's files (train-images-idx3-ubyte, ...), also as .gz; float32 [1, H, W] in [0,
      1]. Options: augment (random changes of the training part).
    - A folder with train.EXT and test.EXT, where EXT is npz, csv, tsv, parquet or rec.
    - file.npz: `x` and `y` (or `targets`, `labels`). Every other array is an input of that name, except `classes`, the
      list of class names. x_train, y_train, x_test and y_test define the two parts. float64 becomes float32; everything
      else stays as it is.
    - file.csv, file.tsv, file.parquet, or "table:FILE": one sample per row. In .csv and .tsv files, the first line is a
      header if it is not numeric. The target is the column called y, target, targets, label, labels or class, else the
      last. Targets that are whole numbers become int64; texts become class numbers, with the classes in sorted order.
      The other columns are the input `x`, float32 [N, columns]. By default, text columns are one-hot encoded: each
      different text becomes a column of 0 and 1. Options: target, columns, drop, categorical, categories, missing,
      indicator, scale, header, delimiter, encoding, decimal, weight; see docs/tables.md.
    - "ratings:FOLDER", or the folder: u.data, ratings.dat or ratings.csv of MovieLens; "ratings:FILE": such a file with
      any name; see Ratings. Option: held_out, "random" (default) or "last". With "last", the test part consists of the
      latest rating of each user.
    - "images:FOLDER", or the folder: images FOLDER/CLASS/a.png, or FOLDER/train/CLASS/a.png with FOLDER/val, valid,
      validation or test; "images:FILE": a text file that lists images. float32 [3, H, W]; see docs/images.md. Options:
      size, augment, preprocess, resize, crop, filter, colours, scale, mean, std, layout, dtype.
    - file.rec, or "records:FILE": the images of an MXNet record file, with the same options. See docs/records.md.
    - "cifar:FOLDER", or the folder: CIFAR-10 or CIFAR-100 in binary files, with the same options.
    - "FILE.py:FUNCTION": the result of your function, whose parameters are the options: a dict of arrays as in an .npz
      file, a Dataset, Splits, or (inputs, targets).
    - "sentences:FOLDER": one sentence per line, in NAME.pos and NAME.neg, or in CLASS.txt for each class: see
      Sentences. Options: level, min_count, size, vocabulary, length, bucket.
    - "text:FILE": tokens, and the next token of each as its target: see TokenStream. The end of the file is the test
      part. Options: level, min_count, size, vocabulary, length.

    Lazy data, whose samples are made on request, also have the options of LazyDataset.configured: workers, on_damaged,
    shuffle_window. Both parts share the workers.

    A vocabulary is built from the training part only.

    Args:
        spec: See above.
        test_fraction: Share of the test part (default: 0.2, and 0.1 for text).
        seed: Chooses the samples of the test part.
        axes: A dict from input names to the axis that counts the samples, where it is not the first (see Dataset).
        split: How data without a test part are divided. "name": by a hash of the file name of each sample, so that a
            sample stays in its part if others are added or removed. "position": at random, by the number of each
            sample and `seed`; the test part then has exactly round(test_fraction * N) samples. The default is "name" if
            samples are files, else "position".
        like: Data of the same kind, whose encoding is used (see `read`).
        options: Options of the source, listed above.

    Returns:
        The named tuple (train, test), both of them Datasets.

    Raises:
        InputError: A file cannot be read, or contains numbers that are not finite. The message names the file.
        UsageError: This kind of data does not have one of the options.
    """
    options, choices = _divided(options)
    loader = _loader(os.fspath(spec), axes, options)
    given: dict[str, Any] = {} if test_fraction is None else {"test_fraction": test_fraction}
    parts = loader(seed=seed, like=like, **given)
    if not isinstance(parts, Splits):
        by = None if split == "name" and parts.sample_names() is None else split
        parts = parts.split(seed=seed, by=by, **given)
    return Splits(*(_configured(part, choices) for part in parts))


def split_training(
    spec: str | os.PathLike[str], share: float, seed: int, *, axes: Axes | None = None, split: str | None = None,
    **options: Any,
) -> Splits:  # fmt: skip
    """Divide the training samples of a data set: (train, validation). A test part of its own is left out.

    Args:
        spec: As for `load`.
        share: Share of the samples in the second part.
        seed: Chooses the samples.
        axes: As for `load`.
        split: As for `load`.
        options: Options of the source.

    Raises:
        InputError: A part would be empty.
    """
    found, _ = _function(os.fspath(spec))
    options, choices = _divided(options)
    parts = _loader(os.fspath(spec), axes, options)(seed=seed, test_fraction=share, like=None)
    divides = "test_fraction" in inspect.signature(found).parameters and not getattr(found, "has_parts", False)
    if isinstance(parts, Splits) and not divides:
        parts = parts.train
    if not isinstance(parts, Splits):
        by = None if split == "name" and parts.sample_names() is None else split
        parts = parts.split(share, seed, by=by)
    return Splits(*(_configured(part, choices) for part in parts))


@typed("gk.data.read")
def read(
    spec: str | os.PathLike[str],
    *,
    held_out: bool = True,
    axes: Axes | None = None,
    like: Dataset | None = None,
    **options: Any,
) -> Dataset:
    """Return all samples of a data set as one Dataset; if it has two parts, the training part comes first.

    The arguments `spec`, `axes` and `options` are those of `load`.

    Args:
        held_out: False leaves out the test part of a data set that has two parts.
        like: Data of the same kind, whose encoding (vocabulary, classes, preprocessing) is used. Pass the data that a
            model was trained on to read data for its validation.
    """
    parts = read_parts(spec, axes=axes, like=like, **options)
    if isinstance(parts, Dataset):
        return parts
    return parts.train.joined(parts.test, str(spec)) if held_out else parts.train


def read_parts(
    spec: str | os.PathLike[str], *, axes: Axes | None = None, like: Dataset | None = None, **options: Any
) -> Dataset | Splits:
    """Return all samples of a data set: Splits if it has a training part and a test part of its own, else a Dataset.

    The arguments are those of `read`.
    """
    options, choices = _divided(options)
    parts = _loader(os.fspath(spec), axes, options)(test_fraction=None, like=like)
    if isinstance(parts, Dataset):
        return _configured(parts, choices)
    return Splits(*(_configured(part, choices) for part in parts))


def takes(spec: str | os.PathLike[str], option: str) -> bool:
    """Return whether the source of a spec has this option."""
    found, _ = _function(os.fspath(spec))
    return option in inspect.signature(found).parameters


def runs_code(spec: str | os.PathLike[str]) -> bool:
    """Return whether reading this data runs a function of a Python file (FILE.py:FUNCTION)."""
    return _OF_PYTHON.fullmatch(os.fspath(spec)) is not None


def comes_with_package(spec: str | os.PathLike[str]) -> bool:
    """Return whether this is a data set of the package: `digits`, or `built-in:digits` if a folder has that name."""
    return os.fspath(spec).removeprefix(_PREFIX) in _BUILT_IN


def names() -> list[str]:
    """Return the names of the data sets that come with the package."""
    return list(_BUILT_IN)


def _divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the options of the source from those of LazyDataset.configured, with one Workers for all parts."""
    choices = {name: value for name, value in options.items() if name in _OF_LAZY and value is not None}
    if isinstance(choices.get("workers"), int):
        choices["workers"] = Workers(choices["workers"])
    return {name: value for name, value in options.items() if name not in _OF_LAZY}, choices


def _configured(data: Dataset, choices: dict[str, Any]) -> Dataset:
    if not choices:
        return data
    if not isinstance(data, LazyDataset):
        raise UsageError(f"{data.name}: {', '.join(choices)} is only for lazy data sets; these samples are in memory")
    return data.configured(**choices)


# --- from a spec to a loader ----------------------------------------------------------------------------


def _loader(spec: str, axes: Axes | None, options: dict[str, Any]) -> Callable[..., Dataset | Splits]:
    """The function that reads a spec. It accepts the keywords of `_GIVEN`, and ignores those that the loader lacks.

    Raises UsageError for an unknown option.
    """
    found, path = _function(spec)
    known = inspect.signature(found).parameters
    for name in options:
        if name not in known or name in _GIVEN:
            options_of = [n for n in known if n not in _GIVEN and n != "path"]
            if not options_of:
                raise UsageError(f"{spec} has no options (--data-option), so leave out {name}")
            hint = did_you_mean(name, options_of)
            raise UsageError(f"{spec}: there is no option {name!r}{hint}")
    if axes and "axes" not in known:
        raise InputError(f"{spec}: axes= (--batch-axis) is only for .npz files")
    fixed: dict[str, Any] = dict(options) | ({"axes": axes} if axes else {}) | ({} if path is None else {"path": path})
    return lambda **given: found(**fixed, **{name: value for name, value in given.items() if name in known})


def _function(spec: str) -> tuple[Callable[..., Dataset | Splits], Path | None]:
    kind, colon, rest = spec.partition(":")
    by_kind = {source.kind: source.loader for source in SOURCES}
    if kind in by_kind and rest:
        return _imported(by_kind[kind]), Path(rest)
    if (found := _OF_PYTHON.fullmatch(spec)) is not None:
        loader: Callable[..., Dataset | Splits] = _imported("files.python:loader")(found["file"], found["name"])
        return loader, None
    path = Path(spec)
    if comes_with_package(spec):
        if spec in _BUILT_IN and path.exists():
            raise InputError(
                f"{spec} is both a data set of the package and a file or folder here: write {_PREFIX}{spec} or ./{spec}"
            )
        return _imported(_BUILT_IN[spec.removeprefix(_PREFIX)]), None
    if path.is_dir():
        return _of_folder(path), path
    if kind in by_kind and (colon or not path.exists()):
        raise InputError(f"{kind} does not come with the package and needs a path: {kind}:PATH")
    if not path.exists():
        raise InputError(f"{spec}: no such file or folder, and no data set of that name{did_you_mean(spec, names())}")
    if path.suffix == ".py":
        raise InputError(f"{spec} is a Python file: also name the function that returns the data: {spec}:FUNCTION")
    by_suffix = _by_suffix()
    if path.suffix not in by_suffix:
        raise InputError(f"{spec}: the suffix is {path.suffix!r}; known: {', '.join(by_suffix)}, or a folder")
    return _imported(by_suffix[path.suffix]), path


def _imported(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"graphkit.data.{module}"), name)
    return found


def _by_suffix() -> dict[str, str]:
    return {suffix: source.loader for source in SOURCES for suffix in source.suffixes}


def _of_folder(folder: Path) -> Callable[..., Dataset | Splits]:
    for source in SOURCES:
        if source.recognises is not None and _imported(source.recognises)(folder):
            return _imported(source.loader)
    for suffix, loader in _by_suffix().items():
        if (folder / f"train{suffix}").exists():
            return _pair(_imported(loader), suffix, (folder / f"test{suffix}").exists())
    held = ", ".join(sorted(p.name for p in folder.iterdir())[:8])
    raise InputError(
        f"{folder}: {'the folder contains no data set' if held else 'the folder is empty'}; expected one folder of "
        f"images per class, idx files (train-images-idx3-ubyte), or train{'/'.join(_by_suffix())}"
        f"{f'; found {held}' if held else ''}"
    )


def _pair(loader: Callable[..., Any], suffix: str, has_parts: bool) -> Callable[..., Dataset | Splits]:
    """Return a loader for a folder with a train and a test file. It calls `loader` for each, and has its signature.

    has_parts: whether the test file exists. The loader has an attribute of this name.
    """

    @functools.wraps(loader)
    def load_pair(path: Path, **options: Any) -> Dataset | Splits:
        train, test = path / f"train{suffix}", path / f"test{suffix}"
        if not test.exists():
            found: Dataset | Splits = loader(train, **options)
            return found
        known = inspect.signature(loader).parameters
        options |= {"test_fraction": None} if "test_fraction" in known else {}
        whole = _whole(loader(train, **options), train)
        options |= {"like": whole} if "like" in known else {}
        held_out = _whole(loader(test, **options), test)
        # Each file numbers its classes from 0, so the test part is renumbered by the classes of the training part.
        return Splits(whole, held_out if whole.classes is None else held_out.renumbered(whole.classes))

    load_pair.has_parts = has_parts  # type: ignore[attr-defined]
    return load_pair


def _whole(parts: Dataset | Splits, path: Path) -> Dataset:
    if isinstance(parts, Splits):
        raise InputError(f"{path}: contains a train and a test part, but its folder has one file for each part")
    return parts
