"""Where data come from: the digits in the package, idx folders, .npz, .csv, text."""

from __future__ import annotations

import csv
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from graphkit.data.dataset import Dataset, Splits
from graphkit.data.idx import read_idx
from graphkit.data.npz import read_arrays
from graphkit.data.sentences import load_sentences
from graphkit.data.stream import load_text
from graphkit.errors import InputError, UsageError, did_you_mean

_TARGETS = ("y", "targets", "target", "labels", "label", "class")
_MNIST = {"train": "train", "test": "t10k"}

# Which axis of an input counts the samples, where it is not the first; None: none does.
Axes: TypeAlias = Mapping[str, int | None]


def load(
    spec: str | os.PathLike[str],
    *,
    test_fraction: float | None = None,
    seed: int = 0,
    axes: Axes | None = None,
    **options: Any,
) -> Splits:
    """(train, test) of a data set. A set that comes in two parts keeps them; any other is split by `seed`.

    `spec`:
    - "digits": 1,797 images of handwritten digits, float32 [1, 8, 8] in [0, 1] (1,438 train, 359 test by default);
    - "mnist:FOLDER", or the folder: train-images-idx3-ubyte and so on, also .gz; float32 [1, H, W] in [0, 1];
    - a folder with train and test as .npz or .csv;
    - file.npz: `x` and `y` (or `targets`, `labels`); other names are inputs of those names, but for `classes`, a list
      of texts: the names of the classes; x_train, y_train, x_test, y_test are the two parts. float64 becomes float32,
      everything else stays as it is;
    - file.csv: one sample per line, a header if the first line is not numeric. The target is the column called y,
      target, label or class, else the last; whole numbers become int64, text becomes classes in sorted order;
    - "sentences:FOLDER": a sentence per line, NAME.pos and NAME.neg or a CLASS.txt for each class: see Sentences.
      options: level, min_count, size, vocabulary, length, bucket;
    - "text:FILE": tokens and the token that follows each: see TokenStream. The end of the file is the test part.
      options: level, min_count, size, vocabulary, length.

    test_fraction is 0.2, and 0.1 for text. `axes` are those of Dataset: which axis counts the samples, for inputs
    where it is not the first. Splits are stratified by class and keep the original order: see Dataset.split. A
    vocabulary is made of the training part. Raises InputError, naming the file, for whatever cannot be read or is not
    finite, UsageError for an option that the source does not have.
    """
    load_text_parts = _text_source(spec, options, axes)
    if load_text_parts is not None:
        fraction = 0.1 if test_fraction is None else test_fraction
        found: Splits = load_text_parts(test_fraction=fraction, seed=seed, **options)
        return found
    parts = _parts(spec, axes or {})
    return parts if isinstance(parts, Splits) else parts.split(0.2 if test_fraction is None else test_fraction, seed)


def read(spec: str | os.PathLike[str], *, held_out: bool = True, axes: Axes | None = None, **options: Any) -> Dataset:
    """All samples of a data set, unsplit; the train part first where there are two. Other arguments: as for `load`.

    held_out=False leaves out the test part of a set that comes in two.
    """
    load_text_whole = _text_source(spec, options, axes)
    if load_text_whole is not None:
        whole: Dataset = load_text_whole(test_fraction=None, **options)
        return whole
    parts = _parts(spec, axes or {})
    if isinstance(parts, Dataset):
        return parts
    train, test = parts
    if not held_out:
        return train
    if train.names != test.names or train.classes != test.classes or (train.targets is None) != (test.targets is None):
        raise InputError(f"{spec}: train and test do not hold the same arrays")
    try:
        joined = {
            n: train.arrays[n] if (axis := train.axes.get(n, 0)) is None
            else np.concatenate([train.arrays[n], test.arrays[n]], axis)
            for n in train.names
        }  # fmt: skip
        targets = (
            None if train.targets is None or test.targets is None else np.concatenate([train.targets, test.targets])
        )
    except ValueError as error:
        raise InputError(f"{spec}: train and test do not fit each other: {error}") from None
    single = len(joined) == 1
    inputs = joined[train.names[0]] if single else joined
    return Dataset(
        inputs, targets, train.names if single else None, classes=train.classes, name=str(spec), axes=train.axes
    )


def names() -> list[str]:
    """The data sets that come with the package."""
    return ["digits"]


def _text_source(
    spec: str | os.PathLike[str], options: Mapping[str, Any], axes: Axes | None
) -> Callable[..., Any] | None:
    """The loader of a source of text, with its path; None for any other. UsageError for what it has no choice of."""
    kind, _, path = os.fspath(spec).partition(":")
    loader = _TEXTS.get(kind)
    known = [] if loader is None else [k for k in inspect.signature(loader).parameters if k not in _COMMON]
    for key in options:
        if key not in known:
            raise UsageError(f"{spec}: there is no option {key!r}{did_you_mean(key, known)}")
    if loader is None:
        return None
    if axes:
        raise UsageError(f"{spec}: only inputs of an .npz file have a choice of axes")
    if not path:
        raise InputError(f"{kind} needs a path: {kind}:PATH")
    return functools.partial(loader, Path(path))


def _parts(spec: str | os.PathLike[str], axes: Axes) -> Dataset | Splits:
    text = os.fspath(spec)
    parts = _found(text, axes)
    if axes and any(dict(axes) != part.axes for part in (parts if isinstance(parts, Splits) else (parts,))):
        raise InputError(f"{text}: only inputs of an .npz file have a choice of axes")
    return parts


def _found(text: str, axes: Axes) -> Dataset | Splits:
    if text == "digits":
        return _digits()
    if text == "mnist":
        raise InputError("mnist does not come with the package: give the folder of its idx files, mnist:FOLDER")
    if text.startswith("mnist:"):
        return _mnist(Path(text.removeprefix("mnist:")))
    path = Path(text)
    if path.is_dir():
        return _folder(path, axes)
    if not path.exists():
        raise InputError(f"{text}: no such file or folder, and no data set of that name{did_you_mean(text, names())}")
    if path.suffix not in _READERS:
        raise InputError(f"{text}: the suffix is {path.suffix!r}; known: {', '.join(_READERS)}, or a folder")
    return _READERS[path.suffix](path, axes)


def _digits() -> Dataset:
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        images, labels = stored["images"], stored["labels"]
    return Dataset(_scaled(images, 16.0), labels.astype(np.int64), classes=[str(d) for d in range(10)], name="digits")


def _scaled(images: np.ndarray, top: float) -> np.ndarray:
    """uint8 [N, H, W] to float32 [N, 1, H, W] in [0, 1]."""
    return (images[:, None].astype(np.float32) / np.float32(top)).astype(np.float32)


# --- folders ----------------------------------------------------------------------------------------


def _folder(path: Path, axes: Axes) -> Dataset | Splits:
    if any(_idx_file(path, prefix, "images-idx3") for prefix in _MNIST.values()):
        return _mnist(path)
    for suffix, reader in _READERS.items():
        train, test = path / f"train{suffix}", path / f"test{suffix}"
        if train.exists():
            first = reader(train, axes)
            if not test.exists():
                return first
            whole = _whole(first, train)
            held_out = _whole(reader(test, axes), test)
            # Each file is numbered by its own classes.
            return Splits(whole, held_out if whole.classes is None else held_out.renumbered(whole.classes))
    held = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{path}: neither idx files (train-images-idx3-ubyte) nor train{'/'.join(_READERS)} in it; it holds {held}"
    )


def _whole(parts: Dataset | Splits, path: Path) -> Dataset:
    if isinstance(parts, Splits):
        raise InputError(f"{path}: holds a train and a test part itself, in a folder that has one file for each")
    return parts


def _mnist(path: Path) -> Dataset | Splits:
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    parts = {
        part: _mnist_part(path, prefix) for part, prefix in _MNIST.items() if _idx_file(path, prefix, "images-idx3")
    }
    if len(parts) == 2:
        return Splits(parts["train"], parts["test"])
    if not parts:
        raise InputError(f"{path}: there is no train-images-idx3-ubyte or t10k-images-idx3-ubyte (or .gz) in it")
    return next(iter(parts.values()))


def _mnist_part(path: Path, prefix: str) -> Dataset:
    image_file, label_file = _idx_file(path, prefix, "images-idx3"), _idx_file(path, prefix, "labels-idx1")
    if image_file is None or label_file is None:
        raise InputError(f"{path}: {prefix}-images-idx3-ubyte is there, and {prefix}-labels-idx1-ubyte is missing")
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise InputError(f"{image_file}: uint8 images of rank 3 are expected, not {images.dtype}{list(images.shape)}")
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise InputError(f"{label_file}: uint8 labels of rank 1 are expected, not {labels.dtype}{list(labels.shape)}")
    if len(images) != len(labels):
        raise InputError(f"{image_file} holds {len(images)} images, and {label_file.name} {len(labels)} labels")
    count = max(int(labels.max(initial=0)) + 1, 10)
    return Dataset(
        _scaled(images, 255.0), labels.astype(np.int64), classes=[str(d) for d in range(count)], name=str(image_file)
    )


def _idx_file(path: Path, prefix: str, kind: str) -> Path | None:
    """The file under any of its usual names: with '.' for '-' before idx, with or without .gz."""
    for stem in (f"{prefix}-{kind}-ubyte", f"{prefix}-{kind.replace('-idx', '.idx')}-ubyte"):
        for candidate in (path / stem, path / f"{stem}.gz"):
            if candidate.exists():
                return candidate
    return None


# --- files ------------------------------------------------------------------------------------------


def _npz(path: Path, axes: Axes) -> Dataset | Splits:
    arrays = read_arrays(path)
    if "" in arrays:
        raise InputError(f"{path}: not a readable .npz file: it holds one nameless array, as .npy files do")
    if "x_train" in arrays and "x_test" in arrays:
        halves = [
            _arrays({n.removesuffix(f"_{p}"): a for n, a in arrays.items() if n.endswith(f"_{p}")}, path, axes, p)
            for p in _MNIST
        ]
        return Splits(*halves)
    return _arrays(arrays, path, axes)


def _arrays(arrays: dict[str, np.ndarray], path: Path, axes: Axes, part: str = "") -> Dataset:
    source = f"{path} ({part})" if part else str(path)
    classes = arrays.pop("classes").tolist() if _are_names(arrays.get("classes")) else None
    target = next((name for name in _TARGETS if name in arrays), None)
    inputs = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items() if n != target}
    if not inputs:
        raise InputError(f"{source}: no input array; name one x (it holds {', '.join(arrays) or 'nothing'})")
    targets = None if target is None else arrays[target]
    if targets is not None:
        targets = targets.astype({"u": np.int64, "i": np.int64, "f": np.float32}.get(targets.dtype.kind, targets.dtype))
    if list(inputs) == ["x"]:
        return Dataset(inputs["x"], targets, classes=classes, name=source, axes=axes)
    return Dataset(inputs, targets, classes=classes, name=source, axes=axes)


def _are_names(array: np.ndarray | None) -> bool:
    return array is not None and array.ndim == 1 and array.dtype.kind == "U"


def _csv(path: Path, _axes: Axes) -> Dataset:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            first = next(lines, [])
            second = next(lines, [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    if len(first) < 2:
        raise InputError(f"{path}: a line of comma-separated numbers, inputs and a target, is expected")
    header = [cell.strip().lower() for cell in first] if not any(_is_number(cell) for cell in first) else None
    if header and not second:
        raise InputError(f"{path}: a header, and no sample below it")
    last = len(first) - 1
    target = next((header.index(name) for name in _TARGETS if name in header), last) if header else last
    columns = [i for i in range(len(first)) if i != target]
    sample = second if header else first
    textual = target < len(sample) and not _is_number(sample[target])
    options: dict[str, Any] = {
        "delimiter": ",",
        "skiprows": 1 if header else 0,
        "encoding": "utf-8-sig",
        "quotechar": '"',
        "comments": None,
    }
    try:
        x = np.loadtxt(path, np.float32, usecols=columns, ndmin=2, **options)
        y = np.loadtxt(path, str if textual else np.float64, usecols=target, ndmin=1, **options)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if textual:
        classes, targets = np.unique(np.char.strip(y), return_inverse=True)
        return Dataset(x, targets.astype(np.int64), classes=list(classes), name=str(path))
    whole = bool(np.isfinite(y).all() and (y == np.round(y)).all() and (y >= 0).all())
    return Dataset(x, y.astype(np.int64 if whole else np.float32), name=str(path))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# Arguments that every loader of text has; the others are options.
_COMMON = ("path", "test_fraction", "seed")
_TEXTS: dict[str, Callable[..., Any]] = {"sentences": load_sentences, "text": load_text}
# How the name of a source of text begins.
TEXT_SOURCES = tuple(f"{kind}:" for kind in _TEXTS)
_READERS: dict[str, Callable[[Path, Axes], Dataset | Splits]] = {".npz": _npz, ".csv": _csv}
