"""Folders of idx files under the names of MNIST: train-images-idx3-ubyte and so on, also .gz."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphkit.data.dataset import Dataset, Splits
from graphkit.data.files.idx import read_idx
from graphkit.data.images.augment import Augment
from graphkit.data.images.dataset import ImageDataset, Pixels
from graphkit.data.images.options import augment_of
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import InputError
from graphkit.named_tuples import NamedTuple
from graphkit.text import quantity

_PREFIXES = {"train": "train", "test": "t10k"}


def scaled(images: np.ndarray, top: float) -> np.ndarray:
    """Convert uint8 [N, H, W] to float32 [N, 1, H, W] in [0, 1]."""
    return (images[:, None].astype(np.float32) / np.float32(top)).astype(np.float32)


def is_mnist(folder: Path) -> bool:
    """Return whether a folder contains idx files with MNIST's names."""
    return any(_idx_file(folder, prefix, "images-idx3") for prefix in _PREFIXES.values())


def load(path: Path, *, augment: Augment | str | None = None) -> Dataset | Splits:
    """Load images as float32 [N, 1, H, W] in [0, 1], and targets int64 [N], in the parts that the folder contains.

    augment: random changes of the training part (see Augment.parse). With it, the parts are of the class ImageDataset,
    which makes samples on request; the numbers are the same. Without it, the parts are arrays in memory.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    files = {part: _idx_file(path, prefix, "images-idx3") for part, prefix in _PREFIXES.items()}
    parts = {part: _read(path, _PREFIXES[part], file) for part, file in files.items() if file is not None}
    if not parts:
        raise InputError(f"{path}: the folder contains no train-images-idx3-ubyte or t10k-images-idx3-ubyte (or .gz)")
    changes = augment_of(augment)
    made: list[Dataset] = [_arrays(images) for images in parts.values()]
    if changes is not None:
        first, *held_out = map(_pictures, parts.values())
        made = [first.augmented(changes), *held_out]
    return Splits(*made) if len(made) == 2 else made[0]


class _Images(NamedTuple):
    """One part: uint8 [N, H, W], int64 [N], and its name in errors."""

    pixels: np.ndarray
    labels: np.ndarray
    classes: list[str]
    name: str


def _read(path: Path, prefix: str, image_file: Path) -> _Images:
    label_file = _idx_file(path, prefix, "labels-idx1")
    if label_file is None:
        raise InputError(f"{path}: {prefix}-labels-idx1-ubyte is missing, but {prefix}-images-idx3-ubyte exists")
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise InputError(f"{image_file}: uint8 images of rank 3 are expected, not {images.dtype}{list(images.shape)}")
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise InputError(f"{label_file}: uint8 labels of rank 1 are expected, not {labels.dtype}{list(labels.shape)}")
    if len(images) != len(labels):
        raise InputError(
            f"{image_file} contains {quantity(len(images), 'image')}, but {label_file.name} contains "
            f"{quantity(len(labels), 'label')}"
        )
    count = max(int(labels.max(initial=0)) + 1, 10)
    return _Images(images, labels.astype(np.int64), [str(d) for d in range(count)], str(image_file))


def _arrays(images: _Images) -> Dataset:
    return Dataset(scaled(images.pixels, 255.0), images.labels, classes=images.classes, name=images.name)


def _pictures(images: _Images) -> ImageDataset:
    _, height, width = images.pixels.shape
    preprocess = Preprocess(resize=(height, width), colours="L")
    return ImageDataset(Pixels(images.pixels), images.labels, preprocess, classes=images.classes, name=images.name)


def _idx_file(path: Path, prefix: str, kind: str) -> Path | None:
    """The file under any of its usual names: with '.' instead of '-' before idx, with or without .gz."""
    for stem in (f"{prefix}-{kind}-ubyte", f"{prefix}-{kind.replace('-idx', '.idx')}-ubyte"):
        for candidate in (path / stem, path / f"{stem}.gz"):
            if candidate.exists():
                return candidate
    return None
