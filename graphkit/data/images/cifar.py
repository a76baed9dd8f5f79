"""CIFAR-10 and CIFAR-100 in the binary version of A. Krizhevsky's page, https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphkit.data.dataset import Dataset, Splits
from graphkit.data.images.augment import Augment
from graphkit.data.images.dataset import ImageDataset, Joined
from graphkit.data.images.options import Numbers, Size, augment_of, preprocess_of
from graphkit.data.preprocessing.decode import Picture, of_pixels
from graphkit.data.preprocessing.image import CIFAR, Preprocess
from graphkit.errors import InputError
from graphkit.named_tuples import NamedTuple

# An image has a red, a green and a blue plane of 32 x 32 bytes.
_SIDE, _PLANES = 32, 3
_BYTES = _SIDE * _SIDE * _PLANES


class _Version(NamedTuple):
    """One of the two data sets. `train`, `test`: image files; `names`: file of the class names.

    labels: number of bytes before each image. The last one is the class.
    """

    train: tuple[str, ...]
    test: str
    names: str
    labels: int


_VERSIONS = (
    _Version(tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt", 1),
    _Version(("train.bin",), "test.bin", "fine_label_names.txt", 2),
)
# Files of the Python version. They are pickles, which can run code when they are read, so they are rejected.
_PICKLES = (("data_batch_1", "batches.meta"), ("train", "meta"))


class Records:
    """Images stored one after another in a file, each after its labels."""

    def __init__(self, path: Path, labels: int):
        self.path, self.labels = path, labels
        self.record = labels + _BYTES
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        if not size or size % self.record:
            raise InputError(
                f"{path}: truncated file: its {size} bytes are not a multiple of the {self.record} bytes of an image"
            )
        self._count = size // self.record

    def __len__(self) -> int:
        return self._count

    def targets(self, classes: int) -> np.ndarray:
        """Return the class of each record, int64 [N]. Raises InputError for a class without a name."""
        found = np.memmap(self.path, np.uint8, "r", shape=(self._count, self.record))[:, self.labels - 1]
        if (over := np.flatnonzero(found >= classes)).size:
            place = int(over[0])
            raise InputError(
                f"{self.path}: record {place} has class number {found[place]}, but there are only {classes} class names"
            )
        return found.astype(np.int64)

    @contextlib.contextmanager
    def open(self, number: int) -> Iterator[Picture]:
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(number * self.record + self.labels)
                data = file.read(_BYTES)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from None
        if len(data) != _BYTES:
            raise InputError(f"{self.path}: record {number} is truncated")
        planes = np.frombuffer(data, np.uint8).reshape(_PLANES, _SIDE, _SIDE)
        yield of_pixels(np.ascontiguousarray(planes.transpose(1, 2, 0)))


def is_cifar(folder: Path) -> bool:
    """Return whether a folder contains files with CIFAR's names."""
    return any((folder / v.train[0]).is_file() and (folder / v.names).is_file() for v in _VERSIONS) or _pickled(folder)


def load(
    path: Path, *, like: Dataset | None = None, preprocess: Preprocess | None = None,
    augment: Augment | str | None = None, size: Size | None = None, resize: Size | None = None,
    crop: Size | None = None, filter: str | None = None, colours: str | None = None,
    scale: float | str | None = None, mean: Numbers | None = None, std: Numbers | None = None,
    layout: str | None = None, dtype: str | None = None,
) -> Dataset | Splits:  # fmt: skip
    """Load CIFAR-10 or CIFAR-100 from its binary files.

    The files are data_batch_1.bin and so on, test_batch.bin and batches.meta.txt; or train.bin, test.bin and
    fine_label_names.txt. They contain 60,000 images of 32 x 32 pixels, 10,000 of them for testing, of 10 or 100
    classes. Other arguments: see folders.load. By default, images keep their size, and are normalised by CIFAR-10's
    mean and standard deviation. Raises InputError, which names the file.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    version = next((v for v in _VERSIONS if (path / v.train[0]).is_file()), None)
    if version is None and _pickled(path):
        raise InputError(
            f"{path}: the Python version of CIFAR consists of pickles, which can run code when they are read. Use the "
            "binary version"
        )
    if version is None:
        raise InputError(f"{path}: the folder contains no {' or '.join(v.train[0] for v in _VERSIONS)}")
    classes = _names(path / version.names)
    if preprocess is None and isinstance(like, ImageDataset):
        preprocess = like.preprocess
    chosen = preprocess_of(
        preprocess or Preprocess(resize=(_SIDE, _SIDE), mean=CIFAR[0], std=CIFAR[1]), size=size, resize=resize,
        crop=crop, filter=filter, colours=colours, scale=scale, mean=mean, std=std, layout=layout, dtype=dtype,
    )  # fmt: skip
    parts = [[Records(path / name, version.labels) for name in names] for names in (version.train, (version.test,))]
    train, test = (
        ImageDataset(
            Joined(records), np.concatenate([r.targets(len(classes)) for r in records]), chosen, classes=classes,
            name=f"{path} ({part})",
        )
        for part, records in zip(("train", "test"), parts, strict=True)
    )  # fmt: skip
    return Splits(train.augmented(augment_of(augment)), test)


def _pickled(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in _PICKLES)


def _names(path: Path) -> list[str]:
    try:
        found = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the names of the classes cannot be read: {error}") from None
    if not found or len(found) > 256:
        raise InputError(f"{path}: expected 1 to 256 class names, because a label is one byte; found {len(found)}")
    return found
