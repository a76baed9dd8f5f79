"""Images as samples that are read and decoded when their batch is made."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.data.images.augment import Augment
from graphkit.data.lazy import LazyDataset
from graphkit.data.preprocessing.decode import Picture, of_pixels, opened
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import DamagedSample, InputError
from graphkit.signatures import typed_constructor
from graphkit.text import short_repr


class Store(Protocol):
    """A collection of images by number. It is pickled for worker processes, so it must not hold open files."""

    def __len__(self) -> int: ...

    def open(self, number: int) -> contextlib.AbstractContextManager[Picture]:
        """Open an image, to be decoded within the block. Raises InputError, which names the image."""


class Files:
    """One file for each image, named by its path below a folder."""

    def __init__(self, folder: Path, names: Sequence[str]):
        self.folder, self.names = folder, tuple(names)

    def __len__(self) -> int:
        return len(self.names)

    def path(self, number: int) -> Path:
        return self.folder / self.names[number]

    def open(self, number: int) -> contextlib.AbstractContextManager[Picture]:
        return opened(self.path(number))

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{len(self)} files of {self.folder}"])


class Pixels:
    """Images in memory: uint8 [N, H, W] or [N, H, W, 3]."""

    def __init__(self, pixels: np.ndarray):
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def open(self, number: int) -> contextlib.AbstractContextManager[Picture]:
        return contextlib.nullcontext(of_pixels(self.pixels[number]))

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{self.pixels.dtype}{list(self.pixels.shape)}"])


class Joined:
    """The images of several stores, one store after another."""

    def __init__(self, stores: Sequence[Store]):
        self.stores = tuple(stores)
        self._ends = np.cumsum([len(store) for store in self.stores])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def open(self, number: int) -> contextlib.AbstractContextManager[Picture]:
        place = int(np.searchsorted(self._ends, number, side="right"))
        return self.stores[place].open(number - int(self._ends[place - 1] if place else 0))

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{len(self)} images of {len(self.stores)} stores"])


@typed_constructor("gk.data")
class ImageDataset(LazyDataset):
    """A lazy data set of images: one input, and targets int64 [N], the numbers of `classes`.

    The input has the shape and dtype that `preprocess` gives it, by default float32 [C, H, W]. If an image cannot be
    read, DamagedSample is raised, with the name of the file. `gk.data.load` creates image data sets from folders.

    Args:
        store: Images by number: an object with `len`, and with `open(number)`, which returns a context manager that
            gives the opened image.
        targets: int64 [N].
        preprocess: How images become arrays.
        classes: Names of the classes.
        name: Name of the data in error messages.
    """

    preprocess: Preprocess
    augment: Augment | None = None

    def __init__(
        self, store: Store, targets: Any, preprocess: Preprocess, *, classes: Sequence[Any] | None = None,
        name: str = "images",
    ):  # fmt: skip
        super().__init__(len(store), targets, classes=classes, name=name)
        self.store, self.preprocess = store, preprocess

    def augmented(self, augment: Augment | None) -> ImageDataset:
        """Return the same images with these random changes in training. None: no changes."""
        found = copy.copy(self)
        found.augment, found.augments = augment, augment is not None
        return found

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[np.ndarray, None]:
        try:
            with self.store.open(number) as picture:
                if draw is None or self.augment is None:
                    return self.preprocess.array(picture), None
                return self.augment.array(picture, self.preprocess, draw), None
        except InputError as error:
            raise DamagedSample(str(error)) from None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.preprocess.shape or super().shape

    def sample_names(self) -> Sequence[str] | None:
        """Paths of the files below the folder; None for images that are not files."""
        store = self.store
        return [store.names[number] for number in self._numbers] if isinstance(store, Files) else None

    def joined(self, other: Dataset, name: str) -> ImageDataset:
        if not isinstance(other, ImageDataset):
            raise InputError(f"{name}: train and test cannot be joined: only one of them contains images")
        if self.classes != other.classes:
            raise InputError(f"{name}: train and test cannot be joined: they have different classes")
        if self.preprocess != other.preprocess:
            raise InputError(f"{name}: train and test cannot be joined: their images are preprocessed differently")
        found = copy.copy(self)
        found.name, found.store = name, Joined((self.store, other.store))
        found._numbers = np.concatenate([self._numbers, other._numbers + len(self.store)])
        found.targets = np.concatenate([self.targets, other.targets])
        found.damaged = {}
        return found


def looked_at(store: Store, most: int = 32) -> list[tuple[tuple[int, int], str]]:
    """Return ((width, height), mode) of some images, spread evenly; those that cannot be read are left out."""
    return list(_headers(store, np.unique(np.linspace(0, len(store) - 1, min(most, len(store))).astype(int))))


def _headers(store: Store, numbers: np.ndarray) -> Iterator[tuple[tuple[int, int], str]]:
    for number in numbers:
        with contextlib.suppress(InputError), store.open(int(number)) as picture:
            yield picture.size, picture.mode
