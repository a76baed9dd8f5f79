"""Images in a record file as a data set."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.data.images.augment import Augment
from graphkit.data.images.dataset import ImageDataset
from graphkit.data.images.folders import usual
from graphkit.data.images.options import Numbers, Size, augment_of, preprocess_of
from graphkit.data.preprocessing.decode import Picture, opened
from graphkit.data.preprocessing.image import Preprocess
from graphkit.data.records.header import SIZE, IRHeader, unpack
from graphkit.data.records.reading import RecordFile
from graphkit.errors import InputError
from graphkit.text import quantity, short_repr


class RecordImages:
    """The images of a record file, each after its header. Worker processes open the file again."""

    def __init__(self, records: RecordFile):
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def open(self, number: int) -> contextlib.AbstractContextManager[Picture]:
        name = self.records.named(number)
        try:
            _, data = unpack(self.records[number])
        except InputError as error:
            raise error if str(error).startswith(name) else InputError(f"{name}: {error}") from None
        return opened(bytes(data), name)

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{len(self)} of {self.records.path}"])


def load(
    path: Path, *, like: Dataset | None = None, preprocess: Preprocess | None = None,
    augment: Augment | str | None = None, size: Size | None = None, resize: Size | None = None,
    crop: Size | None = None, filter: str | None = None, colours: str | None = None,
    scale: float | str | None = None, mean: Numbers | None = None, std: Numbers | None = None,
    layout: str | None = None, dtype: str | None = None,
) -> Dataset:  # fmt: skip
    """Load the images of a .rec file, in the order of its .idx. Options are those of folders of images.

    Targets are the labels of the headers: int64 [N] if all are whole numbers from 0, else float32 [N], or [N, labels]
    if records have several. If NAME.classes.txt exists beside NAME.rec, its lines are the class names. Raises
    InputError, which names the file and the record.
    """
    store = RecordImages(RecordFile(path))
    if not len(store):
        raise InputError(f"{path}: the file contains no record")
    targets = labels_of(store.records)
    classes = _classes(path, targets)
    if preprocess is None and isinstance(like, ImageDataset):
        preprocess = like.preprocess
    chosen = preprocess_of(
        preprocess or usual(store, size, colours), size=size, resize=resize, crop=crop, filter=filter,
        colours=colours, scale=scale, mean=mean, std=std, layout=layout, dtype=dtype,
    )  # fmt: skip
    return ImageDataset(store, targets, chosen, classes=classes, name=str(path)).augmented(augment_of(augment))


def labels_of(records: RecordFile) -> np.ndarray:
    """Return the labels of all records, reading only headers. Raises InputError if their numbers of labels differ."""
    found = [_header(records, number).label for number in range(len(records))]
    sizes = np.array([np.size(label) for label in found])
    if (sizes != sizes[0]).any():
        odd = int(np.flatnonzero(sizes != sizes[0])[0])
        raise InputError(
            f"{records.named(odd)}: it has {quantity(int(sizes[odd]), 'label')}, but the first record has {sizes[0]}"
        )
    labels = np.array(found, np.float32)
    # From 2^24 on, float32 cannot represent all whole numbers. Such labels are measured values, and not classes.
    whole = labels.ndim == 1 and bool(
        (labels >= 0).all() and (labels < 2**24).all() and (labels == labels.round()).all()
    )
    return labels.astype(np.int64) if whole else labels


def classes_file(path: Path) -> Path:
    """Return the path for the class names of a record file. The file need not exist."""
    return path.with_suffix(".classes.txt")


def _header(records: RecordFile, number: int) -> IRHeader:
    try:
        head = records.beginning(number, SIZE)
        several = int.from_bytes(head[:4], "little") if len(head) >= SIZE else 0
        return unpack(records.beginning(number, SIZE + 4 * several) if several else head)[0]
    except InputError as error:
        name = records.named(number)
        raise error if str(error).startswith(name) else InputError(f"{name}: {error}") from None


def _classes(path: Path, targets: np.ndarray) -> list[str] | None:
    file = classes_file(path)
    if targets.dtype != np.int64 or not file.exists():
        return None
    try:
        names = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not a list of classes: {error}") from None
    if targets.max() >= len(names):
        raise InputError(f"{file}: it has {len(names)} classes, but {path.name} contains the label {targets.max()}")
    return names
