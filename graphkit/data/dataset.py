"""Dataset: arrays of equal length, inputs by name and targets."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphkit.data import order
from graphkit.data.batches import Batches
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.arrays import array_of, holds_arrays
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed
from graphkit.text import quantity, short_repr

if TYPE_CHECKING:
    from graphkit.data.preprocessing.encoding import Encoding
    from graphkit.data.preprocessing.image import Preprocess
    from graphkit.data.preprocessing.vocabulary import Vocabulary

# Names that files may give to the targets.
TARGETS = ("y", "targets", "target", "labels", "label", "class")

# How `split` divides samples.
SPLITS_BY = ("name", "position")

# Input -> the axis that counts samples, if it is not the first. None: every batch gets the whole array.
Axes: TypeAlias = Mapping[str, int | None]


class Dataset:
    """A data set in memory, with samples along the first axis of every array, or along another one (see `axes`).

    Args:
        inputs: One array (or nested lists of numbers), a tuple or list of arrays, or a dict by input name.
        targets: An array, a dict by name, or None.
        names: Names of the inputs, if `inputs` is not a dict (default: "x", or "x0", "x1", ...).
        classes: Names of the classes, if targets are integers: target i means class `classes[i]`.
        name: Name of the data in error messages.
        axes: A dict of input name to the axis that counts samples, for example 1 for recurrent states [layers, N,
            units]. If None is given instead of an axis, every batch gets the whole array, for example a sampling rate.

    Raises:
        InputError: Lengths differ, there are no samples, or a floating-point array contains NaN.

    Attributes:
        vocabulary: For text, the token that each number represents (see Sentences, TokenStream); else None.
        preprocess: For images, their preprocessing (see ImageDataset); else None.
        encoding: For tables, the encoding of their columns (see TableData); else None.
        weight_name: The target that contains weights of samples, if one does (see `with_sample_weights`); else None.
    """

    vocabulary: Vocabulary | None = None
    preprocess: Preprocess | None = None
    encoding: Encoding | None = None
    weight_name: str | None = None
    _single = True

    @typed("gk.data.Dataset")
    def __init__(
        self,
        inputs: Any,
        targets: Any = None,
        names: Sequence[str] | None = None,
        *,
        classes: str | Sequence[Any] | None = None,
        name: str = "data",
        axes: Axes | None = None,
    ):
        self.name = name
        self.arrays: dict[str, np.ndarray] = _named(inputs, names, name)
        # An array, a dict of arrays by name, or None.
        self.targets: Any = _targets(targets, name)
        self.classes: tuple[str, ...] | None = None if classes is None else tuple(str(c) for c in classes)
        self._single = not isinstance(inputs, Mapping) and not holds_arrays(inputs)
        self.axes: dict[str, int | None] = dict(axes or {})
        for label in self.axes:
            if label not in self.arrays:
                raise InputError(
                    f"{name}: axes= (--batch-axis) names {label!r}, but there is no such "
                    f"array{did_you_mean(label, self.arrays)}"
                )
        for label, array in self._labelled():
            _check(name, label, array, self._axis(label))
        lengths = {
            label: array.shape[axis] for label, array in self._labelled() if (axis := self._axis(label)) is not None
        }
        if not lengths:
            raise InputError(f"{name}: no array has an axis that counts samples")
        if len(set(lengths.values())) != 1:
            listed = ", ".join(f"{label} has {length}" for label, length in lengths.items())
            hint = next((
                f"; if another axis of {label!r} counts samples, pass axes={{{label!r}: 1}} to gk.data.Dataset or "
                f"gk.data.load (--batch-axis {label}=1); if none does, pass axes={{{label!r}: None}} (--batch-axis "
                f"{label}=none)"
                for label, length in lengths.items()
                if label != "targets" and length != lengths.get("targets", len(self))
            ), "")  # fmt: skip
            raise InputError(f"{name}: the arrays have different numbers of samples: {listed}{hint}")
        if not len(self):
            raise InputError(f"{name}: the data set has no samples")

    def _labelled(self) -> list[tuple[str, np.ndarray]]:
        if isinstance(self.targets, dict):
            return [*self.arrays.items(), *((f"target {name}", array) for name, array in self.targets.items())]
        return [*self.arrays.items(), *([] if self.targets is None else [("targets", self.targets)])]

    @property
    def integer_targets(self) -> np.ndarray | None:
        """Integer targets; None if targets are not integers."""
        found = self.targets
        if isinstance(found, dict) and self.weight_name in found and len(found) == 2:
            found = next(array for name, array in found.items() if name != self.weight_name)
        return found if isinstance(found, np.ndarray) and found.dtype.kind in "iu" else None

    def _axis(self, label: str) -> int | None:
        return self.axes.get(label, 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.arrays)

    @property
    def given_names(self) -> tuple[str, ...]:
        """The names of the inputs if batches are dicts; empty if the data set was created with a single array."""
        return () if self._single else self.names

    @property
    def inputs(self) -> Any:
        """The array if there is one input, else a dict by name, as Trainer.step takes them."""
        return self._given(self.arrays)

    def _given(self, arrays: dict[str, np.ndarray]) -> Any:
        return next(iter(arrays.values())) if self._single else arrays

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample of the first input."""
        label, array = next(iter(self.arrays.items()))
        axis = self._axis(label)
        return array.shape if axis is None else array.shape[:axis] + array.shape[axis + 1 :]

    @property
    def num_classes(self) -> int | None:
        """Number of classes of integer targets; None for other targets."""
        if self.classes is not None:
            return len(self.classes)
        labels = self.integer_targets
        return None if labels is None else int(labels.max()) + 1

    def __len__(self) -> int:
        return next(int(a.shape[axis]) for label, a in self._labelled() if (axis := self._axis(label)) is not None)

    def take(self, index: Any) -> tuple[Any, Any]:
        """Return (inputs, targets) of the samples at `index`, in the form that the data set was created with.

        index: A slice or an integer array.
        """
        inputs = self._given({name: _part(array, self._axis(name), index) for name, array in self.arrays.items()})
        if isinstance(self.targets, dict):
            return inputs, {name: array[index] for name, array in self.targets.items()}
        return inputs, None if self.targets is None else self.targets[index]

    def subset(self, index: Any, name: str | None = None) -> Dataset:
        """Return a Dataset of the samples at `index`, a slice or an integer array."""
        try:
            inputs, targets = self.take(index)
        except (IndexError, TypeError) as error:
            raise UsageError(f"{self.name}: an index must be a slice or integers below {len(self)}: {error}") from None
        part = Dataset(
            inputs, targets, self.names if self._single else None, classes=self.classes, name=name or self.name,
            axes=self.axes,
        )  # fmt: skip
        part.weight_name = self.weight_name
        return part

    def joined(self, other: Dataset, name: str) -> Dataset:
        """Return a data set with these samples, then those of `other`, which must have the same names and classes."""
        if (
            self.names != other.names
            or self.classes != other.classes
            or (self.targets is None) != (other.targets is None)
        ):
            raise InputError(f"{name}: train and test do not contain the same arrays")
        try:
            arrays = {
                label: array if (axis := self._axis(label)) is None
                else np.concatenate([array, other.arrays[label]], axis)
                for label, array in self.arrays.items()
            }  # fmt: skip
            targets = None if self.targets is None else _joined(self.targets, other.targets)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{name}: train and test cannot be joined: {error}") from None
        names = self.names if self._single else None
        return Dataset(self._given(arrays), targets, names, classes=self.classes, name=name, axes=self.axes)

    def renumbered(self, classes: Sequence[str]) -> Dataset:
        """Return the same samples with other target numbers: target i then means `classes[i]`.

        Raises InputError if `classes` lacks a class of this data set.
        """
        if self.classes is None or self.classes == tuple(classes) or self.targets is None:
            return self
        if missing := [name for name in self.classes if name not in classes]:
            raise InputError(
                f"{self.name}: class {missing[0]!r} is not one of {', '.join(map(repr, list(classes)[:8]))}"
                + (", ..." if len(classes) > 8 else "")
            )
        places = {name: i for i, name in enumerate(classes)}
        numbers = np.array([places[name] for name in self.classes], self.targets.dtype)
        renamed = copy.copy(self)
        renamed.targets, renamed.classes = numbers[self.targets], tuple(classes)
        return renamed

    def sample_names(self) -> Sequence[str] | None:
        """Name of each sample, such as the path of its file below a folder. None if samples have no names."""
        return None

    @typed("Dataset.split")
    def split(
        self, test_fraction: float = 0.2, seed: int = 0, *, stratify: bool = True, by: str | None = None
    ) -> Splits:
        """Divide the samples into (train, test), both in the original order.

        Args:
            test_fraction: Share of the samples in the test part.
            seed: Chooses the samples.
            stratify: If targets are one integer per sample, take `test_fraction` of each class.
            by: "name" or "position" (default: "name" if the samples have names, else "position").
                "name": a hash of the seed and the sample's name chooses its part, so a sample stays in its part when
                others are added or removed. (Exception: if all samples of a class would be in one part, one of them is
                moved.) The share of the test part is `test_fraction` on average, and more for small classes.
                "position": samples are chosen at random by their numbers. The test part has exactly
                round(test_fraction * n) samples.

        Raises:
            UsageError: `test_fraction` is not between 0 and 1, or `by` is "name" and the samples have no names.
        """
        labels = self.integer_targets if stratify else None
        labels = labels if labels is None or labels.ndim == 1 else None
        names = self.sample_names()
        if by not in (None, *SPLITS_BY):
            raise UsageError(f"{self.name}: samples can be split by {' or '.join(map(repr, SPLITS_BY))}, not {by!r}")
        if by == "name" and names is None:
            raise UsageError(f"{self.name}: the samples have no names; use by='position'")
        names = None if by == "position" else names
        if names is not None and self.classes is None and labels is not None:
            # Without class names, more different integers than test samples are taken for regression targets.
            labels = labels if len(np.unique(labels)) <= round(test_fraction * len(self)) else None
        train, test = order.hold_out(self.name, len(self), test_fraction, seed, labels, names)
        return Splits(self.subset(train, f"{self.name} (train)"), self.subset(test, f"{self.name} (test)"))

    def order(self, seed: int, epoch: int, width: int) -> np.ndarray:
        """Return the order of a shuffled epoch, int64 [samples]. width: batch size over all ranks."""
        return order.permutation(len(self), seed, epoch)

    @property
    def orders_samples(self) -> bool:
        """Whether an epoch has the same order of samples for every batch size."""
        return type(self).order is Dataset.order and type(self).batches is Dataset.batches

    def batches(self, batch_size: int, **options: Any) -> Batches:
        """Return Batches of this data set.

        options: Those of `Batches`: seed, epoch, start, shuffle, rank, ranks, ...
        """
        return Batches(self, batch_size, **options)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.name)
        yield quantity(len(self), "sample")
        for label, array in self._labelled():
            yield f"{label} {array.dtype}{list(array.shape)}"


class Splits(NamedTuple):
    """The training part and the test part of a data set, both Datasets: `train, test = splits`."""

    train: Dataset
    test: Dataset


def _named(inputs: Any, names: Sequence[str] | None, source: str) -> dict[str, np.ndarray]:
    if isinstance(inputs, Mapping):
        if names is not None:
            raise UsageError(f"{source}: names= is only for inputs without names; the keys of a dict are the names")
        found = {str(key): array_of(f"{source}: input {key!r}", value) for key, value in inputs.items()}
    else:
        given = inputs if holds_arrays(inputs) else [inputs]
        arrays = [array_of(f"{source}: an input", array) for array in given]
        if names is None:
            names = ["x"] if len(arrays) == 1 else [f"x{i}" for i in range(len(arrays))]
        if len(names) != len(arrays) or len(set(names)) != len(names):
            raise UsageError(
                f"{source}: names= must have {len(arrays)} different names, one per input, not {list(names)}"
            )
        found = dict(zip(names, arrays, strict=True))
    if not found:
        raise InputError(f"{source}: at least one input array is required")
    return found


def _targets(given: Any, source: str) -> Any:
    if isinstance(given, Mapping):
        return {str(name): array_of(f"{source}: target {name!r}", array) for name, array in given.items()}
    return None if given is None else array_of(f"{source}: the array of targets", given)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {name: np.concatenate([array, second[name]]) for name, array in first.items()}
    return np.concatenate([first, second])


def _part(array: np.ndarray, axis: int | None, index: Any) -> np.ndarray:
    """The samples at `index` along an axis; the whole array if no axis counts samples."""
    return array if axis is None else array[(*[slice(None)] * axis, index)]


def _check(source: str, label: str, array: np.ndarray, axis: int | None) -> None:
    if array.dtype.kind not in "biufc" and array.dtype.name not in ("bfloat16", "float16"):
        held = "texts" if array.dtype.kind in "OUST" else array.dtype
        number = "; to number them, use np.unique(targets, return_inverse=True)[1]" if label == "targets" else ""
        raise InputError(f"{source}: {label} contains {held}, not numbers{number}")
    if array.ndim == 0 and axis is not None:
        raise InputError(
            f"{source}: {label} is a single number, but the first axis must count samples, unless "
            f"you pass axes={{{label!r}: None}} to gk.data.Dataset or gk.data.load (--batch-axis {label}=none)"
        )
    if axis is not None and not 0 <= axis < array.ndim:
        raise InputError(f"{source}: {label} has shape {list(array.shape)}, and no axis {axis} to count samples")
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        array = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0)
        bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
        what = "NaN" if np.isnan(array[bad[0]]).any() else "infinity"
        raise InputError(
            f"{source}: {label} holds {what} in {len(bad)} of {len(array)} samples, first in sample {bad[0]}"
        )
