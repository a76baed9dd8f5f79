"""Folders of images with one folder per class, optionally in training and test parts; or a list of files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphkit.data.dataset import Dataset, Splits
from graphkit.data.images.augment import Augment
from graphkit.data.images.dataset import Files, ImageDataset, Store, looked_at
from graphkit.data.images.options import Numbers, Size, augment_of, preprocess_of
from graphkit.data.preprocessing.decode import SUFFIXES
from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from graphkit.errors import GraphkitWarning, InputError
from graphkit.named_tuples import NamedTuple
from graphkit.text import quantity

# Folders of the training part, and of the other part. The first existing one is used, so "test" is the last choice.
_TRAIN, _HELD_OUT = "train", ("val", "valid", "validation", "test")

# Default image size. Exception: if all images have the same size, with no side above _SMALL, they keep it.
_USUAL, _SMALL = 224, 96


class Found(NamedTuple):
    """Images that were found, with the class number of each, and the names of the classes."""

    store: Files
    targets: np.ndarray
    classes: tuple[str, ...] | None


def is_pictures(folder: Path) -> bool:
    """Return whether the folders in a folder, or in its folder `train`, contain images."""
    top = folder / _TRAIN if _in_parts(folder) else folder
    with contextlib.suppress(OSError), os.scandir(top) as entries:
        return any(_has_pictures(e.path) for e in entries if not e.name.startswith(".") and e.is_dir())
    return False


def _in_parts(folder: Path) -> bool:
    """Whether there is a folder `train` that contains no images. With images, it would be a class called "train"."""
    return (folder / _TRAIN).is_dir() and not _has_pictures(str(folder / _TRAIN))


def _has_pictures(folder: str) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(Path(entry.name).suffix.lower() in SUFFIXES for entry in entries)
    return False


def load(
    path: Path, *, like: Dataset | None = None, preprocess: Preprocess | None = None,
    augment: Augment | str | None = None, size: Size | None = None, resize: Size | None = None,
    crop: Size | None = None, filter: str | None = None, colours: str | None = None,
    scale: float | str | None = None, mean: Numbers | None = None, std: Numbers | None = None,
    layout: str | None = None, dtype: str | None = None,
) -> Dataset | Splits:  # fmt: skip
    """Load images from folders or from a list of files.

    Images are in FOLDER/CLASS, or in FOLDER/train/CLASS and FOLDER/val/CLASS (or valid, validation, test). A list has
    lines of a path and a class, separated by a tab. Its paths are relative to its folder; if all classes are whole
    numbers, they are the targets. Classes are sorted by name. Hidden files are skipped. Other files that are not
    images, judging by their names, are skipped with a warning.

    Args:
        path: The folder or the list.
        preprocess: Preprocessing of the images. Other options replace its parts (see Preprocess). The default is that
            of `like`, or else: the size of the images if all sampled images have the same size of at most 96
            pixels, otherwise 224; grey if all are grey; ImageNet's mean and standard deviation for colours, 0.5 for
            grey.
        like: Images that a model was trained on.
        augment: Random changes of the training part, see Augment.parse.

    Raises:
        InputError: An image or folder cannot be used. The message names it.
    """
    if path.is_dir():
        parts = _parts(path)
    elif path.is_file():
        parts = {str(path): listed(path)}
    else:
        raise InputError(f"{path}: no such folder or list of images")
    if preprocess is None and isinstance(like, ImageDataset):
        preprocess = like.preprocess
    base = preprocess or usual(next(iter(parts.values())).store, size, colours)
    chosen = preprocess_of(
        base, size=size, resize=resize, crop=crop, filter=filter, colours=colours, scale=scale, mean=mean, std=std,
        layout=layout, dtype=dtype,
    )  # fmt: skip
    train, *held_out = (
        ImageDataset(found.store, found.targets, chosen, classes=found.classes, name=name)
        for name, found in parts.items()
    )
    train = train.augmented(augment_of(augment))
    return Splits(train, held_out[0].renumbered(train.classes or ())) if held_out else train


def usual(store: Store, size: Size | None = None, colours: str | None = None) -> Preprocess:
    """Return the default preprocessing of images. See `load`."""
    seen = [] if size is not None and colours is not None else looked_at(store)
    grey = (colours or ("L" if seen and {mode for _, mode in seen} <= {"1", "L"} else "RGB")) == "L"
    alike = {wh for wh, _ in seen}
    width, height = next(iter(alike)) if len(alike) == 1 else (_USUAL, _USUAL)
    found = Preprocess.of_size(_USUAL, _USUAL)
    if max(width, height) <= _SMALL:
        # Small images of equal size keep it.
        found = Preprocess(resize=min(height, width), crop=(height, width))
    mean, std = ((0.5,), (0.5,)) if grey else IMAGENET
    if colours in ("BGR", "RGBA"):
        mean, std = (mean[::-1], std[::-1]) if colours == "BGR" else ((0.5,), (0.5,))
    return replace(found, colours=colours or ("L" if grey else "RGB"), mean=mean, std=std)


def find(folder: Path) -> Found:
    """Return the images of a folder with one folder per class. Raises InputError, which names the folder."""
    return _classes(folder, every=True)


def pictures_in(folder: Path) -> list[Path]:
    """Return the images of a folder, sorted by name, without those of its subfolders."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None
    return [folder / name for name in names if Path(name).suffix.lower() in SUFFIXES and (folder / name).is_file()]


def pictures_below(folder: Path) -> list[Path]:
    """Return the images of a folder and its subfolders, sorted by name in each folder. Hidden files are skipped."""
    return [Path(name) for name in _files(folder, str(folder), (), [])]


# --- folders of classes --------------------------------------------------------------------------------------


def _parts(folder: Path) -> dict[str, Found]:
    """The images by the names of their parts: one part, or a training and a test part."""
    if not _in_parts(folder):
        return {str(folder): _classes(folder, every=True)}
    held_out = next((folder / name for name in _HELD_OUT if (folder / name).is_dir()), None)
    parts = {str(folder / _TRAIN): _classes(folder / _TRAIN, every=True)}
    if held_out is not None:
        parts[str(held_out)] = _classes(held_out, every=False)
    return parts


def _classes(folder: Path, every: bool) -> Found:
    """The images of a folder with one folder per class. every: a class without images is an error."""
    names: list[str] = []
    targets: list[int] = []
    classes: list[str] = []
    strange: list[str] = []
    for entry in _entries(folder):
        if not _is_folder(entry):
            strange.append(entry.name)
            continue
        if not _is_text(entry.name):
            raise InputError(f"{str(folder / entry.name)!r}: the name of a class must be UTF-8 text")
        found = list(_files(Path(entry.path), entry.name, (), strange))
        if not found and every:
            raise InputError(
                f"{entry.path}: the folder of this class contains no image; known: {', '.join(sorted(SUFFIXES))}"
            )
        names += found
        targets += [len(classes)] * len(found)
        classes.append(entry.name)
    if not names:
        held = ", ".join(strange[:8]) or "nothing"
        raise InputError(f"{folder}: found no folder of a class with images; it contains {held}")
    if strange:
        some = ", ".join(map(repr, strange[:5])) + (", ..." if len(strange) > 5 else "")
        warnings.warn(
            f"{folder}: skipped {quantity(len(strange), 'path')} (not the folder of a class, nor an image in one): "
            f"{some}",
            GraphkitWarning,
            stacklevel=4,
        )
    return Found(Files(folder, names), np.array(targets, np.int64), tuple(classes))


def _files(folder: Path, below: str, outer: tuple[tuple[int, int], ...], strange: list[str]) -> Iterator[str]:
    """Yield the images in a folder and its subfolders, as paths that begin with `below`.

    outer: device and inode of the folders that contain this one, to detect links to one of them.
    """
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in outer:
        raise InputError(f"{folder}: this link leads back to a folder that contains it")
    for entry in _entries(folder):
        name = f"{below}/{entry.name}"
        if _is_folder(entry):
            yield from _files(Path(entry.path), name, (*outer, here), strange)
        elif Path(entry.name).suffix.lower() in SUFFIXES and (entry.is_file() or not os.path.exists(entry.path)):
            # A broken link is yielded: reading it raises the error. Opening a pipe would wait, so pipes are skipped.
            yield name
        else:
            strange.append(name)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # such as a link to itself
        raise InputError(f"{entry.path}: {error.strerror}") from None


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8, as metadata must be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- lists --------------------------------------------------------------------------------------------------


def listed(path: Path) -> Found:
    """Return the images of a list: see `load`."""
    names: list[str] = []
    labels: list[str] = []
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a list of images: {error}") from None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != 2 or not all(fields):
            raise InputError(f"{path}, line {number}: expected a path, a tab and a class, not {line[:80]!r}")
        names.append(fields[0])
        labels.append(fields[1])
    if not names:
        raise InputError(f"{path}: the list contains no image")
    if all(label.isdecimal() and len(label) < 10 for label in labels):
        return Found(Files(path.parent, names), np.array(labels, np.int64), None)
    classes = sorted(set(labels))
    numbers = {name: number for number, name in enumerate(classes)}
    return Found(Files(path.parent, names), np.array([numbers[label] for label in labels], np.int64), tuple(classes))
