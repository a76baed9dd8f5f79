"""Lazy data sets: samples that are read, decoded and randomly changed when their batch is created."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data import order
from graphkit.data.batches import Batch, Batches
from graphkit.data.dataset import Dataset
from graphkit.data.making import Making
from graphkit.data.stacking import Rows, leaves, without_samples
from graphkit.errors import DamagedSample, GraphkitWarning, InputError, UsageError
from graphkit.former_names import share_former_names
from graphkit.ir.arrays import array_of
from graphkit.signatures import typed_constructor
from graphkit.text import quantity, short_repr

if TYPE_CHECKING:
    from graphkit.data.workers.pool import Workers

# Maximum number of consecutive damaged samples that are skipped.
_IN_A_ROW = 1000


@typed_constructor("gk.data")
class LazyDataset(Dataset):
    """A data set of `count` samples that are made on request. A subclass implements `sample`.

    Set the class attribute `augments = True` if samples of training batches are changed at random. `take` never changes
    them.

    Args:
        count: Number of samples.
        targets: int64 [count] or another array of that length, if the targets are known in advance (`split` can then
            divide by class). None if samples contain them.
        classes: Names of the classes, if targets are integers.
        name: Name of the data in error messages.

    Raises:
        InputError: There are no samples.

    Further options are set by `configured`. If samples are skipped because they are damaged, the dict `damaged`
    contains the error message of each, by the number of the sample.
    """

    augments = False
    workers: int | Workers = 0
    on_damaged = "raise"
    shuffle_window: int | None = None

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        share_former_names(cls, {"made": "make_batch", "note": "report_damaged"})

    def __init__(self, count: int, targets: Any = None, *, classes: Sequence[Any] | None = None, name: str = "data"):
        if not count:
            raise InputError(f"{name}: the data set has no samples")
        self.name = name
        self.arrays, self.axes = {}, {}
        self.targets = None if targets is None else array_of(f"{name}: the targets", targets)
        self.classes = None if classes is None else tuple(str(c) for c in classes)
        # Numbers of this data set's samples, as `sample` takes them: a subset has only some.
        self._numbers = np.arange(count)
        self.damaged: dict[int, str] = {}
        self._pools = _Pools()
        if self.targets is not None and len(self.targets) != count:
            raise InputError(f"{name}: {quantity(count, 'sample')}, but {quantity(len(self.targets), 'target')}")

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[Any, Any]:
        """Return (inputs, target) of a sample: arrays, or dicts of arrays by name.

        It also runs in worker processes, on a pickled copy of the data set. The result must depend only on the
        arguments and on attributes that are pickled.

        Args:
            number: Number of the sample, from 0.
            draw: Random generator for random changes of the sample (augmentation). It depends on the seed, the epoch
                and the number of the sample. None: do not change the sample.

        Returns:
            The inputs, and the target. If the data set was created with `targets`, the target may be None: then
            `targets[number]` is used.

        Raises:
            DamagedSample: The sample cannot be read. The message must name the file or record.
        """
        raise NotImplementedError

    def configured(
        self, *, workers: int | Workers | None = None, on_damaged: str | None = None, shuffle_window: int | None = None
    ) -> LazyDataset:
        """Return a data set of the same samples with other options. Options that are None stay unchanged.

        Args:
            workers: Number of processes that make samples in advance, or a `Workers` that several data sets share. With
                0, each batch is made when it is requested. Batches are bit-identical for any number of workers.
            on_damaged: Behaviour if a sample raises DamagedSample. "raise" ends the epoch with this error. "skip"
                replaces the sample by the next readable one, so that batches keep their sizes and resuming stays exact.
                Each damaged sample gives one warning. More than 1,000 damaged samples in a row raise InputError.
            shuffle_window: Number of samples that are mixed at a time, for data that are best read from front to back.
                An epoch then visits blocks of neighbouring samples (see `order.windowed`). With None, any sample may
                follow any other.

        Raises:
            UsageError: An option is wrong.
        """
        found = copy.copy(self)
        if workers is not None:
            found.workers = workers
            found._pool(None)
        if on_damaged is not None:
            if on_damaged not in ("raise", "skip"):
                raise UsageError(f"{self.name}: on_damaged must be 'raise' or 'skip', not {on_damaged!r}")
            found.on_damaged = on_damaged
        if shuffle_window is not None:
            if not isinstance(shuffle_window, int) or shuffle_window < 1:
                raise UsageError(f"{self.name}: shuffle_window must be a number of samples, not {shuffle_window!r}")
            found.shuffle_window = shuffle_window
        return found

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first input of the first sample."""
        return np.shape(leaves(self._whole(0, None, Making())[0])[0])

    def take(self, index: Any) -> tuple[Any, Any]:
        making = Making()
        found = self.make_batch(np.arange(len(self))[index], None, making)
        self.report_damaged(making.damaged)
        return found

    def make_batch(self, places: np.ndarray, key: tuple[int, int] | None, making: Making) -> tuple[Any, Any]:
        """Return (inputs, targets) of several samples, stacked.

        Args:
            places: int64 [N], the positions of the samples in this data set.
            key: Seed and epoch of the random changes; None for no changes.
            making: Allocates the arrays, and records which samples are damaged.

        Returns:
            Inputs and targets: arrays with N as their first axis, or dicts of such arrays by name.

        Raises:
            DamagedSample: A sample cannot be read, and `on_damaged` is "raise".
        """
        if not len(places):
            inputs, targets = self.make_batch(np.arange(1), None, Making())
            return without_samples(inputs), without_samples(targets)
        rows = Rows(len(places), self.name, making.empty)
        for place in places:
            rows.add(*self._whole(int(place), key, making))
        return rows.whole()

    def _whole(self, place: int, key: tuple[int, int] | None, making: Making) -> tuple[Any, Any]:
        """Return the sample at position `place`. If it is damaged and skipped, return the next readable one."""
        first = int(self._numbers[place])
        error: DamagedSample | None = None
        for further in range(min(len(self), _IN_A_ROW)):
            at = (place + further) % len(self)
            number = int(self._numbers[at])
            making.begin(number)
            draw = None if key is None or not self.augments else _generator(*key, first)
            try:
                inputs, target = self.sample(number, draw)
            except DamagedSample as damaged:
                if self.on_damaged == "raise":
                    raise
                error = damaged
                making.damaged.append((number, str(damaged)))
                continue
            making.replaced += error is not None
            return inputs, self.targets[at] if target is None and self.targets is not None else target
        raise InputError(
            f"{self.name}: {further + 1} samples in a row are damaged, from sample {first}; the last: {error}"
        )

    def report_damaged(self, damaged: Sequence[tuple[int, str]]) -> None:
        """Store (number, message) of damaged samples in `damaged`. Each new one gives a GraphkitWarning."""
        for number, message in damaged:
            if number not in self.damaged:
                self.damaged[number] = message
                warnings.warn(
                    f"{self.name}: sample {number} is replaced by the next readable one: {message}",
                    GraphkitWarning,
                    stacklevel=2,
                )

    # Former names.
    made, note = make_batch, report_damaged

    def subset(self, index: Any, name: str | None = None) -> Dataset:
        part = copy.copy(self)
        part._numbers = self._numbers[index]
        part.targets = None if self.targets is None else self.targets[index]
        part.name = name or self.name
        return part

    def order(self, seed: int, epoch: int, width: int) -> np.ndarray:
        if self.shuffle_window is None:
            return super().order(seed, epoch, width)
        return order.windowed(len(self), seed, epoch, self.shuffle_window)

    @property
    def orders_samples(self) -> bool:
        return type(self).order is LazyDataset.order and type(self).batches is LazyDataset.batches

    def batches(self, batch_size: int, *, workers: int | Workers | None = None, **options: Any) -> Batches:
        """Return Batches of this data set. workers: see `configured` (None: its value). options: see Dataset.batches.

        If workers made a batch, its arrays are in memory shared with them. You may keep and change these arrays. The
        memory is reused for another batch when no array refers to it.
        """
        return _LazyBatches(self, batch_size, self._pool(workers), **options)

    def _pool(self, workers: int | Workers | None) -> Workers | None:
        from graphkit.data.workers.pool import Workers

        chosen = self.workers if workers is None else workers
        if isinstance(chosen, Workers):
            return chosen if chosen.count else None
        if not isinstance(chosen, int) or chosen < 0:
            raise UsageError(f"{self.name}: workers must be a number of processes, or gk.data.Workers, not {chosen!r}")
        if chosen and chosen not in self._pools:
            self._pools[chosen] = Workers(chosen)
        return self._pools.get(chosen)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.name)
        yield quantity(len(self), "sample")


class _Pools(dict[int, "Workers"]):
    """Workers of a data set, by number of processes. Subsets share them; copies in other processes have none."""

    def __reduce__(self) -> Any:
        return _Pools, ()


class _LazyBatches(Batches):
    """Batches whose samples are changed at random if they are shuffled, as in training."""

    dataset: LazyDataset

    def __init__(self, dataset: LazyDataset, batch_size: int, workers: Workers | None, **options: Any):
        super().__init__(dataset, batch_size, **options)
        self._workers = workers

    def __iter__(self) -> Iterator[Batch]:
        return super().__iter__() if self._workers is None else self._made_ahead(self._workers)

    def _key(self, epoch: int) -> tuple[int, int] | None:
        return (self.seed, epoch) if self.shuffle else None

    def _batch(self, indices: np.ndarray, index: int, epoch: int) -> Batch:
        making = Making()
        part, size = self._part(indices, index)
        inputs, targets = self.dataset.make_batch(part, self._key(epoch), making)
        self.dataset.report_damaged(making.damaged)
        return Batch(inputs, targets, len(part), size, making.replaced)

    def _made_ahead(self, workers: Workers) -> Iterator[Batch]:
        epoch = self._epoch
        indices = self.order(epoch)[self.offset :]
        while self._epoch == epoch:
            index = self._index
            parts = (self._part(indices, later)[0] for later in range(index, len(self)))
            with workers.run(self.dataset, parts, self._key(epoch)) as batches:
                # If the user sets `position`, iteration continues there, with a new run.
                while (self._epoch, self._index) == (epoch, index):
                    part, size = self._part(indices, index)
                    found = next(batches)
                    self.dataset.report_damaged(found.damaged)
                    self.position = (epoch, index + 1)
                    index += 1
                    yield Batch(found.inputs, found.targets, len(part), size, found.replaced)


def _generator(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Philox4x64-10 with the key (seed, epoch); the streams of two samples are 2^128 draws apart."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=[0, 0, number, 0]))
