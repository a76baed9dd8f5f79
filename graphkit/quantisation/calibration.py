"""Calibration: run the float model on samples, and find the range of each value that is quantised."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data import Dataset, TokenStream, as_dataset
from graphkit.data.images.feeding import Said
from graphkit.data.preprocessing.decode import SUFFIXES
from graphkit.errors import GraphkitWarning, InputError, UsageError
from graphkit.inference.batch_runner import BatchRunner
from graphkit.inference.labelled_data import read_labelled
from graphkit.inference.samples import open_samples
from graphkit.ir.types import TensorType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.quantise.scales import Range
from graphkit.onnx_io.quantise.static import StaticQuantiser
from graphkit.quantisation.ranges import Collector
from graphkit.train.inputs import by_name
from graphkit.train.progress import ProgressBar


class Feed(NamedTuple):
    """Arrays of one batch by input name, and the number of samples."""

    arrays: Mapping[str, Any]
    size: int


@dataclass(frozen=True)
class Samples:
    """Batches of samples, and the axis that counts samples by input name, where it is not the first."""

    feeds: Sequence[Feed]
    axes: Mapping[str, int | None]

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(feed.size for feed in self.feeds)

    def first(self, model: Model) -> dict[str, np.ndarray]:
        """Return the arrays of the first batch; see `batch`."""
        return self.batch(model, 0)

    def batch(self, model: Model, index: int) -> dict[str, np.ndarray]:
        """Return the arrays of a batch in the types and fixed sizes of the inputs of a model.

        If a fixed batch size is larger than the batch, its last sample is repeated.
        """
        found = {}
        for name, kind in model.input_types.items():
            array, axis = np.asarray(self.feeds[index].arrays[name]), self.axes.get(name, 0)
            if isinstance(kind, TensorType):
                array = array.astype(kind.dtype.numpy)
                size = None if axis is None or kind.shape is None else kind.shape[axis]
                if axis is not None and isinstance(size, int) and size != array.shape[axis]:
                    array = np.take(array, np.minimum(np.arange(size), array.shape[axis] - 1), axis)
            found[name] = array
        return found


def read_samples(model: Model, data: Any, count: int, batch_size: int, *, images: Said | None = None) -> Samples:
    """Return at most `count` samples for the inputs of a model. From a data set in memory, they are evenly spaced.

    Args:
        model: The model. Its metadata describe how images, columns of tables and texts become inputs.
        data: A path or name as `gk.evaluate` or `gk.predict` takes it; an array, or a dict of arrays by input name; or
            a data set as `gk.evaluate` takes it. Targets are not used. If the data have a training part of their own,
            it is taken.
        count: Largest number of samples.
        batch_size: Samples per batch.
        images: Preprocessing of images without targets, instead of that in the model's metadata.

    Raises:
        InputError: The data are empty, or do not fit the inputs.
    """
    if count < 1 or batch_size < 1:
        raise UsageError(f"samples={count} and batch_size={batch_size} must be at least 1")
    types = model.input_types
    if isinstance(data, (np.ndarray, Mapping)):
        data = Dataset(data, None)
    elif isinstance(data, (str, os.PathLike)):
        spec = os.fspath(data)
        if is_for_predict(spec):
            return _unlabelled(model, spec, count, batch_size, images)
        labelled = read_labelled(model, spec)
        data = read_labelled(model, spec, part="train").data if labelled.part == "test" else labelled.data
    found = as_dataset(data, {n: kind.rank if isinstance(kind, TensorType) else None for n, kind in types.items()})
    if isinstance(found, Dataset) and not isinstance(found, TokenStream) and len(found) > count:
        found = found.subset(np.linspace(0, len(found) - 1, count).astype(np.int64))
    feeds, left = [], count
    for batch in found.batches(batch_size, shuffle=False):
        arrays = by_name(batch.inputs, tuple(types), "input")
        if missing := [name for name in types if name not in arrays]:
            raise InputError(f"{found.name}: there is no array for input {missing[0]!r}; it has {', '.join(arrays)}")
        feeds.append(Feed({name: arrays[name] for name in types}, batch.size))
        left -= batch.size
        if left <= 0:
            break
    if not feeds:
        raise InputError(f"{found.name}: the data set has no samples")
    return Samples(feeds, dict(getattr(found, "axes", None) or {}))


def is_for_predict(spec: str) -> bool:
    """Whether a file or folder contains samples without targets, in a form that only `gk.predict` reads."""
    path = Path(spec)
    if path.is_dir():
        entries = list(path.iterdir())
        return not any(entry.is_dir() for entry in entries) and any(e.suffix.lower() in SUFFIXES for e in entries)
    return path.suffix.lower() in {".npy", *SUFFIXES}


def _unlabelled(model: Model, spec: str, count: int, batch_size: int, images: Said | None) -> Samples:
    samples = open_samples(spec, model, images)
    feeds = []
    for start in range(0, min(len(samples), count), batch_size):
        numbers = range(start, min(start + batch_size, count, len(samples)))
        chunk = samples.chunk(numbers, False, lambda make, items: [make(item) for item in items])
        feeds += [Feed(part.inputs, len(part.numbers)) for part in chunk.parts]
    return Samples(feeds, {})


class Calibration:
    """Finds the ranges of values of a model.

    Args:
        quantiser: Names the values, and makes models that compute them.
        samples: The samples.
        make: Makes a collector for each value.
        threads: Number of CPU threads.
    """

    def __init__(
        self, quantiser: StaticQuantiser, samples: Samples, make: Callable[[], Collector], threads: int | None
    ):
        self._quantiser, self._samples = quantiser, samples
        self._found = {name: make() for name in quantiser.observed}
        self._threads = threads

    def ranges(self, bar: ProgressBar) -> dict[str, Range]:
        """Run the model on all samples, and return the ranges.

        Raises:
            InputError: A value is NaN or infinite for one of the samples. The message names it.
        """
        for number, results in enumerate(self._results(bar)):
            for name, collector in self._found.items():
                self._check(name, results[name], number)
                collector.add(results[name])
        return {name: collector.range() for name, collector in self._found.items()}

    def _results(self, bar: ProgressBar) -> Iterator[dict[str, np.ndarray]]:
        names, inputs = self._quantiser.observed, set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphkitWarning)
            model = load(self._quantiser.observing(names))
            inputs = set(model.inputs)
            runner = BatchRunner(model, threads=self._threads, axes=self._samples.axes)
        computed = [name for name in names if name not in inputs]
        bar.start("calibration", len(self._samples.feeds), transient=True)
        for feed in self._samples.feeds:
            given = {name: np.asarray(feed.arrays[name]) for name in names if name in inputs}
            yield given | (runner.run(feed.arrays, feed.size, computed) if computed else {})
            bar.advance()

    def _check(self, name: str, values: np.ndarray, batch: int) -> None:
        finite = np.isfinite(values.astype(np.float32) if values.dtype == np.float16 else values)
        if finite.all():
            return
        kind = "NaN" if np.isnan(values).any() else "infinity"
        raise InputError(
            f"calibration: {name!r}, {self._quantiser.reader(name)}, contains {kind} for a sample of batch {batch} of "
            "the data. Remove such samples, or leave the nodes that read it in float (exclude, --exclude)"
        )
