"""Data in the form of other libraries: objects with a length and items, iterables of samples or batches, generators."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.data.batches import Batch
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.lazy import LazyDataset
from graphkit.data.stacking import arrays, leaves, stacked
from graphkit.errors import InputError, UsageError
from graphkit.signatures import check_argument, shown, typed
from graphkit.text import short_repr


@typed("gk.data.as_dataset")
def as_dataset(data: Any, ranks: Mapping[str, int | None]) -> Dataset | IterableDataset:
    """Convert the data given to `fit` or `evaluate` to an object that has batches.

    Accepted are a Dataset; a pair (inputs, targets); an object with `__len__` and `__getitem__`, whose items are
    samples; an iterable, or a function that returns one, whose items are samples or batches. An item is a batch if its
    first array has as many axes as the model's first input, and a sample if it has one axis less. A sample or batch is
    a pair (inputs, targets), or a dict by name. In a dict, every array that is not an input is a target.

    A tuple or list of length 2 is read as the pair (inputs, targets). Exception: a list of two samples (each a tuple of
    length 2, or a dict), if the first array of the first sample has one axis less than the model's first input.

    Args:
        data: See above.
        ranks: The number of axes of each input of the model, by name.

    Raises:
        InputError: The data have another form.
    """
    return dataset_of(data, ranks, "data")


def dataset_of(data: Any, ranks: Mapping[str, int | None], argument: str) -> Dataset | IterableDataset:
    """Return `as_dataset(data, ranks)`. argument: name of the argument that the user gave, for messages."""
    if isinstance(data, (Dataset, IterableDataset)):
        return data
    if isinstance(data, Splits):
        raise UsageError(
            f"{argument} must be one data set, not Splits (train, test): train on its .train; evaluate on its .test, "
            "or pass it as valid="
        )
    if isinstance(data, (tuple, list)) and len(data) == 2 and not are_samples(data, ranks):
        return _pair_of_arrays(data, argument)
    if isinstance(data, (str, bytes)):
        raise InputError(
            f"{argument} must be a pair (inputs, targets) or a data set, not the text {shown(data)}; to load a data "
            "set by its name or path, use gk.data.load, for example gk.data.load('digits').train"
        )
    if isinstance(data, (np.ndarray, Mapping)) or hasattr(data, "__array__"):
        raise InputError(f"{argument} must be a pair (inputs, targets) or a data set, but only {shown(data)} is given")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        found = MapDataset(data, tuple(ranks))
        if isinstance(data, (tuple, list)):
            found.name = argument
        return found
    if not hasattr(data, "__iter__") and callable(data):
        _check_takes_nothing(data, argument)
        return IterableDataset(data, ranks)
    if hasattr(data, "__iter__"):
        return IterableDataset(data, ranks)
    raise InputError(
        f"{argument} must be a pair (inputs, targets), a Dataset, an object with __len__ and __getitem__, or an "
        f"iterable, not {shown(data)}"
    )


def are_samples(data: Any, ranks: Mapping[str, int | None]) -> bool:
    """Return whether the data are a list of two samples, and not a pair (inputs, targets).

    The items of such a list are pairs, or dicts with an input of the model. Their first input has one axis less than
    that of the model.
    """
    rank = next(iter(ranks.values()), None)
    if not isinstance(data, list) or len(data) != 2 or rank is None:
        return False
    if all(isinstance(item, tuple) and len(item) == 2 for item in data):
        inputs = data[0][0]
    elif all(isinstance(item, Mapping) and not ranks.keys().isdisjoint(item) for item in data):
        inputs = {name: value for name, value in data[0].items() if name in ranks}
    else:
        return False
    try:
        found = leaves(arrays(inputs))
    except InputError:
        return False
    return bool(found) and np.ndim(found[0]) == rank - 1


def _pair_of_arrays(data: Sequence[Any], argument: str) -> Dataset:
    """Return the data set of a pair (inputs, targets)."""
    try:
        return Dataset(*data, name=argument)
    except InputError as error:
        if not isinstance(data, list):
            raise
        raise InputError(
            f"{error}. {argument} is a list of 2 items, so it was read as a pair (inputs, targets); if the items are "
            "samples, pass gk.data.MapDataset(list)"
        ) from None


def _check_takes_nothing(function: Callable[..., Any], argument: str) -> None:
    """Raise InputError for a function that cannot be called without arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a built-in function may have none
    if any(
        p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()
    ):
        raise InputError(
            f"{argument} is {shown(function)} that needs arguments; a function that returns data must not need any"
        )


class MapDataset(LazyDataset):
    """Samples of an object with `__len__` and `__getitem__`. They are fetched when their batch is created.

    Args:
        data: The object. Its items from 0 to its length - 1 are samples: pairs (inputs, target), or dicts by name.
        inputs: If samples are dicts, the names that belong to inputs; all other names are targets.

    Raises:
        InputError: The object lacks one of the two methods.
    """

    def __init__(self, data: Any, inputs: tuple[str, ...] = ()):
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise InputError(f"MapDataset takes an object with __len__ and __getitem__, not {shown(data)}")
        super().__init__(len(data), name=type(data).__name__)
        self._data, self._inputs = data, inputs

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[Any, Any]:
        return _pair(self.name, self._data[number], self._inputs)


class IterableDataset:
    """Data from an iterable, which decides their order and length.

    Each epoch iterates the source again. If training is resumed within an epoch, batches that were already trained on
    are read and skipped. The result is then exact only if the source gives the same order again.

    Args:
        source: An iterable of samples or batches, or a function that returns one (see `as_dataset`).
        ranks: The number of axes of each input of the model, by name.
    """

    orders_samples = False

    def __init__(self, source: Any, ranks: Mapping[str, int | None]):
        self.name = getattr(source, "__name__", type(source).__name__)
        self._source: Callable[[], Iterable[Any]] = source if callable(source) else lambda: source
        self._inputs = tuple(ranks)
        self._rank = next(iter(ranks.values()), None)

    def batches(self, batch_size: int, *, start: int = 0, ranks: int = 1, epoch: int = 0, **_: Any) -> Iterator[Batch]:
        """Return the batches of an epoch, beginning with batch `start`.

        Args:
            batch_size: Number of samples per batch, if the source gives samples.
            start: Number of the first batch, from 0.
            ranks: Number of processes; must be 1.
            epoch: Number of the epoch, for error messages.

        Raises:
            UsageError: `ranks` is above 1.
        """
        if ranks > 1:
            raise UsageError(f"{self.name}: {ranks} processes cannot share an iterable; pass data with a length")
        return self._batches(batch_size, start, epoch)

    def _batches(self, batch_size: int, start: int, epoch: int) -> Iterator[Batch]:
        source = self._source()
        check_argument(self.name, "what the function returns", "Iterable", source)
        items: Iterator[tuple[Any, Any]] = (_pair(self.name, item, self._inputs) for item in source)
        first = next(items, None)
        if first is None:
            raise InputError(
                f"{self.name}: there were no data in epoch {epoch + 1}; a generator runs only once: pass a function "
                "that returns one, or an object that can be iterated again"
            )
        items = itertools.chain([first], items)
        made = items if self._are_batches(first[0]) else self._gathered(items, batch_size)
        for inputs, targets in itertools.islice(made, start, None):
            inputs, targets = arrays(inputs), arrays(targets)
            size = len(leaves(inputs)[0])
            yield Batch(inputs, targets, size, size)

    def _are_batches(self, inputs: Any) -> bool:
        found = np.ndim(leaves(arrays(inputs))[0])
        if self._rank is None or found == self._rank:
            return True
        if found == self._rank - 1:
            return False
        expected = f"{self._rank} (batches) or {self._rank - 1} (samples)"
        raise InputError(f"{self.name}: the inputs of an item have rank {found}; the model needs rank {expected}")

    def _gathered(self, samples: Iterator[tuple[Any, Any]], batch_size: int) -> Iterator[tuple[Any, Any]]:
        while group := list(itertools.islice(samples, batch_size)):
            yield stacked(group, self.name)

    def __repr__(self) -> str:
        return short_repr(self, lambda: [repr(self.name)])


def _pair(source: str, item: Any, inputs: tuple[str, ...]) -> tuple[Any, Any]:
    """(inputs, targets) of a sample or batch."""
    if isinstance(item, Mapping):
        given = {name: value for name, value in item.items() if name in inputs}
        if not given:
            raise InputError(
                f"{source}: an item has {', '.join(map(repr, item))}; none of these is an input of the model"
            )
        return given, {name: value for name, value in item.items() if name not in inputs} or None
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1]
    raise InputError(f"{source}: each item must be a pair (inputs, targets) or a dict by name, not {shown(item)}")
