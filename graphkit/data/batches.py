"""Batches in a reproducible order that can be resumed, and that ranks can share without communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphkit.errors import UsageError
from graphkit.signatures import check_argument
from graphkit.text import quantity, short_repr


class Samples(Protocol):
    """The methods and attributes of a `Dataset` that Batches uses."""

    name: str

    def __len__(self) -> int: ...

    def order(self, seed: int, epoch: int, width: int) -> np.ndarray: ...

    def take(self, index: Any) -> tuple[Any, Any]: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of a batch. It unpacks to (inputs, targets).

    `inputs` is an array, or a dict of arrays by name. `targets` is the same, or None. `size` is the number of samples
    of this rank, `global_size` the number over all ranks. `replaced` is the number of samples of this rank that replace
    damaged ones.
    """

    inputs: Any
    targets: np.ndarray | None
    size: int
    global_size: int
    replaced: int = 0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.inputs, self.targets))

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self.size} samples" + (f" of {self.global_size}" if self.global_size != self.size else "")
        arrays = self.inputs.items() if isinstance(self.inputs, Mapping) else [("inputs", self.inputs)]
        for name, array in (*arrays, ("targets", self.targets)):
            if array is not None:
                yield f"{name} {getattr(array, 'dtype', type(array).__name__)}{list(np.shape(array))}"


class Batches:
    """Iterates over the batches of one epoch after another; each `for` loop runs to the end of the current epoch.

    A global batch is the next batch_size * ranks samples. Rank r takes the r-th of `ranks` consecutive parts of it, so
    two ranks with batch_size 32 see the same samples as one rank with 64. The last batch of an epoch may be shorter.
    The parts of the ranks then differ by at most one sample, and some are empty if there are fewer samples than ranks.

    `position` is (epoch, index of the next batch); set it to resume there. `len` is the number of batches of an epoch.

    Args:
        dataset: The samples.
        batch_size: Number of samples of one rank.
        seed: Seed of the order. Epoch e has the order `dataset.order(seed, e, ...)`, which depends only on these
            arguments.
        epoch: Number of the first epoch, from 0.
        start: Number of the first batch in that epoch, from 0.
        offset: Number of samples to omit at the beginning of every epoch's order. Batches are counted from there.
        shuffle: False visits the samples in their own order.
        drop_last: Omit the last batch of an epoch if it is shorter.
        rank: Number of this rank, from 0.
        ranks: Number of ranks that share each batch.

    Raises:
        UsageError: An argument is out of range, or no batch is left.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        start: int = 0,
        offset: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ):
        check_argument(dataset.name, "batch_size", "int", batch_size)
        if batch_size < 1:
            raise UsageError(f"batch_size must be positive, not {batch_size}")
        if not 0 <= rank < ranks:
            raise UsageError(f"rank must be from 0 to {ranks - 1}, not {rank}")
        self.dataset = dataset
        self.batch_size, self.seed = batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.rank, self.ranks = rank, ranks
        self.offset = offset
        if not 0 <= offset <= len(dataset):
            raise UsageError(
                f"{dataset.name}: offset must be from 0 to the number of samples, {len(dataset)}, not {offset}"
            )
        if not len(self) and offset < len(dataset):
            raise UsageError(
                f"{dataset.name}: drop_last leaves no batch: the data set has {quantity(len(dataset), 'sample')}, but "
                f"a batch has {batch_size * ranks}"
            )
        self.position = (epoch, start)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset) - self.offset, self.batch_size * self.ranks)
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, index) of the next batch. At the end of an epoch, this is the first batch of the next one."""
        return self._epoch, self._index

    @position.setter
    def position(self, value: tuple[int, int]) -> None:
        epoch, index = value
        if epoch < 0 or not 0 <= index <= len(self):
            raise UsageError(f"{self.dataset.name}: epoch {epoch} has {len(self)} batches; there is no batch {index}")
        self._epoch, self._index = (int(epoch) + 1, 0) if index == len(self) else (int(epoch), int(index))

    def __iter__(self) -> Iterator[Batch]:
        epoch = self._epoch
        indices = self.order(epoch)[self.offset :]
        # The position moves before the batch is handed out, so that a checkpoint made after the step continues with
        # the batch that follows.
        while self._epoch == epoch:
            index = self._index
            self.position = (epoch, index + 1)
            yield self._batch(indices, index, epoch)

    def order(self, epoch: int) -> np.ndarray:
        """Return the order in which an epoch visits the samples, int64 [samples]."""
        if not self.shuffle:
            return np.arange(len(self.dataset))
        return self.dataset.order(self.seed, epoch, self.batch_size * self.ranks)

    def _batch(self, indices: np.ndarray, index: int, epoch: int) -> Batch:
        part, size = self._part(indices, index)
        inputs, targets = self.dataset.take(part)
        return Batch(inputs, targets, len(part), size)

    def _part(self, indices: np.ndarray, index: int) -> tuple[np.ndarray, int]:
        """This rank's samples in a batch, cut from an epoch's order, and the size of the whole batch."""
        width = self.batch_size * self.ranks
        whole = indices[index * width : (index + 1) * width]
        low, high = (len(whole) * r // self.ranks for r in (self.rank, self.rank + 1))
        return whole[low:high], len(whole)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self.dataset.name!r}"
        shard = f", rank {self.rank} of {self.ranks}" if self.ranks > 1 else ""
        yield f"{len(self)} of {self.batch_size}{shard}"
        yield f"at {self.position}"
