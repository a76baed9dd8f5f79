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
from graphkit.passes.core.bind import bind
from graphkit.quantisation.ranges import Collector
from graphkit.train.inputs import by_name
from graphkit.train.progress import ProgressBar

# Bytes of the values of a batch that are computed in one run. A value whose size depends on the data counts as a part.
PART_BYTES, _UNKNOWN = 256 << 20, 16


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


def observed_values(
    message: Any, names: Sequence[str], samples: Samples, threads: int | None, bar: ProgressBar
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Run a model on all samples. Yield the number of a batch, and some of the values; each value once for each batch.

    If the values of a batch take more than PART_BYTES, the model runs on it several times, each time for some of them.
    So memory does not grow with the number of values.

    Args:
        message: The model, as an ONNX message that has the values as outputs.
        names: Names of the values; inputs of the model may be among them.
        samples: The samples.
        threads: Number of CPU threads.
        bar: Shows the progress.

    Raises:
        InputError: The samples have no array for an input.
    """
    with warnings.catch_warnings():
        # Reading the original has given these warnings already.
        warnings.simplefilter("ignore", GraphkitWarning)
        model = load(message)
        runner = BatchRunner(model, threads=threads, axes=samples.axes)
    inputs = [name for name in names if name in model.inputs]
    computed = [name for name in names if name not in inputs]
    bar.start("calibration", len(samples.feeds), transient=True)
    for number, feed in enumerate(samples.feeds):
        if missing := [name for name in model.inputs if name not in feed.arrays]:
            raise InputError(f"data: there is no array for input {missing[0]!r}")
        arrays = {name: feed.arrays[name] for name in model.inputs}
        if inputs:
            yield number, {name: np.asarray(arrays[name]) for name in inputs}
        for part in _parts(model, arrays, computed):
            yield number, runner.run(arrays, feed.size, part)
        bar.advance()


def _parts(model: Model, arrays: Mapping[str, Any], names: Sequence[str]) -> Iterator[list[str]]:
    """Divide outputs of a model into parts of at most PART_BYTES, as far as their sizes are known from the inputs."""
    shapes = {}
    for name, kind in model.input_types.items():
        if isinstance(kind, TensorType) and kind.shape is not None:
            sizes = zip(kind.shape, np.shape(arrays[name]), strict=False)
            shapes[name] = tuple(fixed if isinstance(fixed, int) else given for fixed, given in sizes)
    bound = bind(model.graph, shapes)
    types = {name: value.type for name, value in zip(bound.output_names, bound.outputs, strict=True)}
    part: list[str] = []
    total = 0
    for name in names:
        kind = types[name]
        size = kind.nbytes if isinstance(kind, TensorType) and kind.is_static else PART_BYTES // _UNKNOWN
        if part and total + size > PART_BYTES:
            yield part
            part, total = [], 0
        part.append(name)
        total += size
    if part:
        yield part


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
        names = self._quantiser.observed
        for number, results in observed_values(
            self._quantiser.observing(names), names, self._samples, self._threads, bar
        ):
            for name, values in results.items():
                self._check(name, values, number)
                self._found[name].add(values)
        return {name: collector.range() for name, collector in self._found.items()}

    def _check(self, name: str, values: np.ndarray, batch: int) -> None:
        finite = np.isfinite(values.astype(np.float32) if values.dtype == np.float16 else values)
        if finite.all():
            return
        kind = "NaN" if np.isnan(values).any() else "infinity"
        raise InputError(
            f"calibration: {name!r}, {self._quantiser.reader(name)}, contains {kind} for a sample of batch {batch} of "
            "the data. Remove such samples, or leave the nodes that read it in float (exclude, --exclude)"
        )
