"""Samples that are made when their batch is: read, decoded, and in training changed at random."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.data.batches import Batches
from graphkit.data.dataset import Dataset
from graphkit.data.stacking import leaves, stacked, without_samples
from graphkit.errors import InputError


class LazyDataset(Dataset):
    """`count` samples of which `sample` makes each when it is asked for. A subclass says how.

    targets: int64 [count] or any array of that length, where they are known beforehand (`split` then divides by class);
    None where samples tell them. classes, name: see Dataset. `augments` says whether batches in training have samples
    that are changed at random; `take` never has. Raises InputError where there is no sample.
    """

    augments = False

    def __init__(self, count: int, targets: Any = None, *, classes: Sequence[str] | None = None, name: str = "data"):
        if not count:
            raise InputError(f"{name}: there is no sample")
        self.name = name
        self.arrays, self.axes = {}, {}
        self.targets = None if targets is None else np.asarray(targets)
        self.classes = None if classes is None else tuple(str(c) for c in classes)
        # Which samples these are, of those that `sample` numbers.
        self._numbers = np.arange(count)
        if self.targets is not None and len(self.targets) != count:
            raise InputError(f"{name}: {count} samples, and {len(self.targets)} targets")

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[Any, Any]:
        """(inputs, target) of a sample: arrays, or dicts of them by name; a target of None is that of `targets`.

        draw: random numbers that belong to the seed, the epoch and this sample, for changes at random; None: no change.
        Called in worker processes too: it depends on nothing but its arguments and what pickling keeps.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input of the first sample."""
        return np.shape(leaves(self.sample(int(self._numbers[0]), None)[0])[0])

    def take(self, index: Any) -> tuple[Any, Any]:
        return self.made(np.arange(len(self))[index], None)

    def made(self, places: np.ndarray, key: tuple[int, int] | None) -> tuple[Any, Any]:
        """(inputs, targets) of the samples at `places`. key: the seed and epoch of changes at random; None: none."""
        if not len(places):
            inputs, targets = self.made(np.arange(1), None)
            return without_samples(inputs), without_samples(targets)
        found = []
        for place in places:
            number = int(self._numbers[place])
            draw = None if key is None or not self.augments else _generator(*key, number)
            inputs, target = self.sample(number, draw)
            found.append((inputs, self.targets[place] if target is None and self.targets is not None else target))
        return stacked(found, self.name)

    def subset(self, index: Any, name: str | None = None) -> Dataset:
        part = copy.copy(self)
        part._numbers = self._numbers[index]
        part.targets = None if self.targets is None else self.targets[index]
        part.name = name or self.name
        return part

    def batches(self, batch_size: int, **options: Any) -> Batches:
        return _LazyBatches(self, batch_size, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {len(self)} samples>"


class _LazyBatches(Batches):
    """Batches whose samples are changed at random where they are shuffled, which is in training."""

    dataset: LazyDataset

    def _made(self, places: np.ndarray, epoch: int) -> tuple[Any, Any]:
        return self.dataset.made(places, (self.seed, epoch) if self.shuffle else None)


def _generator(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Philox4x64-10 with the key (seed, epoch), at a place of its own for each sample: 2^128 draws apart."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=[0, 0, number, 0]))
