"""Where data come from: what is asked for finds the source that reads it, and each source is a module of its own."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from graphkit.data.dataset import Axes, Dataset, Splits
from graphkit.data.lazy import LazyDataset
from graphkit.data.workers.pool import Workers
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.signatures import typed


class Source(NamedTuple):
    """One kind of data: KIND:PATH, a file with one of `suffixes`, or a folder that `recognises` knows.

    loader and recognises: MODULE:FUNCTION in graphkit.data, imported when they are needed. A loader takes the path, and
    by keyword what it has a choice of; it gives a Dataset, or Splits where there are two parts. One with a
    `test_fraction` (None: one Dataset of everything) and a `seed` divides by itself.
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

# Data that a function of the user's makes.
_OF_PYTHON = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*)")

# What comes with the package, by name, and what may stand before the name.
_BUILT_IN = {"digits": "files.digits:load"}
_PREFIX = "built-in:"

# How the name of a source of text begins.
TEXT_SOURCES = ("sentences:", "text:")

# What `load` and `read` say to a loader; all else are options.
_GIVEN = ("path", "test_fraction", "seed", "axes", "like")

# What lazy data of any source have a choice of.
_OF_LAZY = ("workers", "on_damaged", "shuffle_window")


@typed("gk.data.load")
def load(
    spec: str | os.PathLike[str],
    *,
    test_fraction: float | None = None,
    seed: int = 0,
    axes: Axes | None = None,
    split: str | None = None,
    **options: Any,
) -> Splits:
    """(train, test) of a data set. A set that comes in two parts keeps them; any other is split by `seed`.

    `spec`:

    - "digits": 1,797 images of handwritten digits, float32 [1, 8, 8] in [0, 1] (1,438 train, 359 test by default);
    - "mnist:FOLDER", or the folder: train-images-idx3-ubyte and so on, also .gz; float32 [1, H, W] in [0, 1]. options:
      augment, changes of the training part at random;
    - a folder with train and test as .npz or .csv;
    - file.npz: `x` and `y` (or `targets`, `labels`); other names are inputs of those names, but for `classes`, a list
      of texts: the names of the classes; x_train, y_train, x_test, y_test are the two parts. float64 becomes float32,
      everything else stays as it is;
    - file.csv, file.tsv, file.parquet, or "table:FILE": a sample per row, in text below a header if the first line is
      not numeric. The target is the column called y, target, label or class, else the last; whole numbers become int64,
      text becomes classes in sorted order. Numbers are the input `x`, float32 [N, columns]; text becomes a column for
      each value. options: target, columns, drop, categorical, categories, missing, indicator, scale, header, delimiter;
      see docs/tables.md;
    - "ratings:FOLDER", or the folder: MovieLens' u.data, ratings.dat or ratings.csv; "ratings:FILE": one of them under
      any name; see Ratings. options: held_out;
    - "images:FOLDER", or the folder: pictures, FOLDER/CLASS/a.png or FOLDER/train/CLASS/a.png with FOLDER/val, valid,
      validation or test; "images:FILE": a list of them. float32 [3, H, W]; see docs/images.md. options: size, augment,
      preprocess, resize, crop, filter, colours, scale, mean, std, layout, dtype;
    - file.rec, or "records:FILE": the pictures of a record file of MXNet's; the same options. See docs/records.md;
    - "cifar:FOLDER", or the folder: CIFAR-10 or CIFAR-100 in binary files; the same options;
    - "FILE.py:FUNCTION": what a function of your own makes of options that are its parameters: arrays by name as in an
      .npz file, a Dataset, Splits, or (inputs, targets);
    - "sentences:FOLDER": a sentence per line, NAME.pos and NAME.neg or a CLASS.txt for each class: see Sentences.
      options: level, min_count, size, vocabulary, length, bucket;
    - "text:FILE": tokens and the token that follows each: see TokenStream. The end of the file is the test part.
      options: level, min_count, size, vocabulary, length.

    Of lazy data, whose samples are made when their batch is, options are also those of LazyDataset.configured: workers,
    on_damaged, shuffle_window. Both parts share the workers.

    test_fraction is 0.2, and 0.1 for text. `axes` are those of Dataset: which axis counts the samples, for inputs
    where it is not the first. Splits are stratified by class and keep the original order: see Dataset.split. Pictures
    that are files are split by the names of the files, so that each stays on its side when others are added or
    removed; split="position" divides them by their places in the folder, as data without names. A vocabulary is made
    of the training part. Raises InputError, naming the file, for whatever cannot be read or is not finite, UsageError
    for an option that the source does not have.
    """
    options, choices = _divided(options)
    loader = _loader(os.fspath(spec), axes, options)
    given: dict[str, Any] = {} if test_fraction is None else {"test_fraction": test_fraction}
    parts = loader(seed=seed, **given)
    if not isinstance(parts, Splits):
        by = None if split == "name" and parts.sample_names() is None else split
        parts = parts.split(seed=seed, by=by, **given)
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
    """All samples of a data set, unsplit; the train part first where there are two. Other arguments: as for `load`.

    held_out=False leaves out the test part of a set that comes in two. like: data of the same kind, whose way from
    cells to numbers is taken: those that a model was trained on, for what it is validated on.
    """
    options, choices = _divided(options)
    parts = _loader(os.fspath(spec), axes, options)(test_fraction=None, like=like)
    if isinstance(parts, Dataset):
        return _configured(parts, choices)
    return _configured(parts.train.joined(parts.test, str(spec)) if held_out else parts.train, choices)


def takes(spec: str | os.PathLike[str], option: str) -> bool:
    """Whether the source of a spec has that option."""
    found, _ = _function(os.fspath(spec))
    return option in inspect.signature(found).parameters


def runs_code(spec: str | os.PathLike[str]) -> bool:
    """Whether reading this data runs a function of a file, FILE.py:FUNCTION."""
    return _OF_PYTHON.fullmatch(os.fspath(spec)) is not None


def comes_with_package(spec: str | os.PathLike[str]) -> bool:
    """Whether this names data of the package: `digits`, or `built-in:digits` where a folder has that name."""
    return os.fspath(spec).removeprefix(_PREFIX) in _BUILT_IN


def names() -> list[str]:
    """The data sets that come with the package."""
    return list(_BUILT_IN)


def _divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the source, and those of LazyDataset.configured, with one Workers for all parts."""
    choices = {name: value for name, value in options.items() if name in _OF_LAZY and value is not None}
    if isinstance(choices.get("workers"), int):
        choices["workers"] = Workers(choices["workers"])
    return {name: value for name, value in options.items() if name not in _OF_LAZY}, choices


def _configured(data: Dataset, choices: dict[str, Any]) -> Dataset:
    if not choices:
        return data
    if not isinstance(data, LazyDataset):
        raise UsageError(f"{data.name}: its samples are in memory; {', '.join(choices)} is for those that are not")
    return data.configured(**choices)


# --- from a spec to a loader ----------------------------------------------------------------------------


def _loader(spec: str, axes: Axes | None, options: dict[str, Any]) -> Callable[..., Dataset | Splits]:
    """What reads a spec, given the keywords of `_GIVEN` that it has. UsageError for an option that it has not."""
    found, path = _function(spec)
    known = inspect.signature(found).parameters
    for name in options:
        if name not in known or name in _GIVEN:
            hint = did_you_mean(name, [n for n in known if n not in _GIVEN])
            raise UsageError(f"{spec}: there is no option {name!r}{hint}")
    if axes and "axes" not in known:
        raise InputError(f"{spec}: only inputs of an .npz file have a choice of axes")
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
                f"{spec} is a data set of the package, and a file or folder here: write {_PREFIX}{spec} or ./{spec}"
            )
        return _imported(_BUILT_IN[spec.removeprefix(_PREFIX)]), None
    if path.is_dir():
        return _of_folder(path), path
    if kind in by_kind and (colon or not path.exists()):
        raise InputError(f"{kind} needs a path: {kind}:PATH; it does not come with the package")
    if not path.exists():
        raise InputError(f"{spec}: no such file or folder, and no data set of that name{did_you_mean(spec, names())}")
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
            return _pair(_imported(loader), suffix)
    held = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{folder}: neither idx files (train-images-idx3-ubyte) nor train{'/'.join(_by_suffix())} in it; it holds "
        f"{held}"
    )


def _pair(loader: Callable[..., Any], suffix: str) -> Callable[..., Dataset | Splits]:
    """What reads a train and a test file of one folder; its signature is the loader's."""

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
        # Each file is numbered by its own classes.
        return Splits(whole, held_out if whole.classes is None else held_out.renumbered(whole.classes))

    return load_pair


def _whole(parts: Dataset | Splits, path: Path) -> Dataset:
    if isinstance(parts, Splits):
        raise InputError(f"{path}: holds a train and a test part itself, in a folder that has one file for each")
    return parts
