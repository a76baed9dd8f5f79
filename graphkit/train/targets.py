"""Convert targets to the type and shape that a loss needs.

Targets are converted only if there is one possible meaning: whole numbers become floats and vice versa, and axes of
size 1 are added or removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.errors import InputError, UsageError
from graphkit.ir.arrays import array_of
from graphkit.ir.graph import Graph
from graphkit.ir.names import Names
from graphkit.ir.types import DType, TensorType, Type, dtype_of
from graphkit.signatures import shown
from graphkit.text import listed, quantity
from graphkit.train.losses import BoundLoss, target_inputs, weight_input
from graphkit.train.named_losses import SAMPLE_WEIGHT, Loss

_NUMBERS = "biuf"


class Targets:
    """Converts and checks the targets of a training program.

    Args:
        types: The types of the targets by name.
        compared: For targets of named losses: the loss, and the type of its output.
        outputs: The output of each target. Users may also give a target by the name of its output.
        inputs: The input of the program for a target, where its name differs.
        weight_input: The program's input for sample weights, if it has one.

    Attributes:
        needs_weights: Whether batches without sample weights are errors. Otherwise the weights are 1.
    """

    def __init__(
        self, types: Mapping[str, TensorType], compared: Mapping[str, tuple[Loss, Type]],
        outputs: Mapping[str, str] | None = None, inputs: Mapping[str, str] | None = None,
        weight_input: str = SAMPLE_WEIGHT, weighted: bool = False,
    ):  # fmt: skip
        self.types = dict(types)
        self.weighted, self.weight_input = weighted, weight_input
        self.own_weight_name = self.weight_name = Names([*types, *(outputs or {}).values()]).take(SAMPLE_WEIGHT)
        self.needs_weights = False
        self._inputs = dict(inputs or {})
        self.names = tuple(types)
        self._target_of_output = {output: name for name, output in (outputs or {}).items()}
        self._targets = {name: _Target(name, kind, *compared.get(name, (None, None))) for name, kind in types.items()}

    def name_for(self, output: str) -> str:
        return self._target_of_output.get(output, self.names[0])

    def program_input(self, name: str) -> str:
        return self._inputs.get(name, name)

    def named(self, given: Any) -> dict[str, Any]:
        """Return targets by name, from an array, a tuple in their order, or a dict by target or output."""
        if given is None and self.names:
            raise self._no_targets("the data have")
        if given is None:
            return {}
        if isinstance(given, Mapping):
            return {self._target_of_output.get(str(n), str(n)): array for n, array in given.items()}
        arrays = given if isinstance(given, tuple) else (given,)
        if not self.names:
            raise InputError(
                "the loss needs no targets, but the data have one: give it as an input of the model, by name"
            )
        if len(arrays) != len(self.names):
            names = ", ".join(self._target_of_output if len(self._target_of_output) > 1 else self.names)
            raise InputError(f"expected {len(self.names)} targets ({names}), got {len(arrays)}")
        return dict(zip(self.names, arrays, strict=True))

    def check_given(self, data: Dataset) -> None:
        if data.targets is None and self.names:
            raise self._no_targets(f"{data.name} has")

    def _no_targets(self, having: str) -> InputError:
        return InputError(
            f"{having} no targets. Pass a pair (inputs, targets), or add an array y to the .npz file. The loss needs "
            f"{quantity(len(self.names), 'target')}: {', '.join(map(repr, self.names))}"
        )

    def metric_target(self, given: Any, output: str) -> np.ndarray:
        if not self.names:
            raise InputError("metrics need targets, but the loss has none: leave the metrics out (metrics=, --metric)")
        named, wanted = self.named(given), self.name_for(output)
        if wanted not in named:
            raise InputError(f"metrics compare the output {output!r} with the target {wanted!r}, which is not given")
        return array_of(f"target {wanted!r}", named[wanted])

    def counted(self, name: str, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an output and its target without the positions that the loss ignores.

        If the loss ignores targets, the results are [targets, classes] and [targets]. The last axis of the output
        counts the classes, whatever the `axis` of the loss.
        """
        known = self._targets.get(self.name_for(name)) if self.names else None
        if known is not None and known.axis != -1:
            output = np.moveaxis(output, known.axis, -1)
        if known is None or known.ignored is None or (found := aligned(target, output.shape[:-1])) is None:
            return output, target
        kept = found != known.ignored
        return output[kept], found[kept]

    def check_classes(self, data: Dataset, net: str) -> None:
        """Raise InputError if the output does not have the number of classes of the data.

        Data without class names may have fewer classes. net: name of the network.
        """
        if len(self.names) != 1 or (largest := self._targets[self.names[0]].largest) is None:
            return
        classes, outputs = data.num_classes, largest + 1
        if classes is None or classes == outputs or (classes < outputs and data.classes is None):
            return
        if data.classes is None and self._targets[self.names[0]].ignored is not None:
            return
        if data.classes is None and data.vocabulary is not None:
            _check_tokens(data, net, outputs)
            return
        if data.classes is None:
            found = f"the largest class number is {classes - 1}"
        else:
            found = f"there are {classes} classes ({listed(data.classes, classes, 8)})"
        raise InputError(
            f"{data.name}: {found}, but the network {net!r} has {outputs} outputs, for classes 0 to {largest}: build "
            f"it with classes={classes}, or give it a new last layer (--head classes={classes})"
        )

    def fitted(self, given: Any, weighted: bool | None = None) -> dict[str, Any]:
        """Return the targets of a batch by input, in the types and shapes of the program.

        weighted: whether the program takes sample weights (default: as the training program).

        Raises:
            InputError: A conversion would lose information, or sample weights are wrong or missing.
        """
        named = self.named(given)
        weights = named.pop(self.weight_name, None) if self.weighted or weighted else None
        feeds = {
            self._inputs.get(n, n): self._targets[n].fitted(array) if n in self._targets else array
            for n, array in named.items()
        }
        if weighted or (weighted is None and self.weighted):
            if weights is None and self.needs_weights:
                raise InputError(
                    f"the data have no sample weights: there is no target {self.weight_name!r} among "
                    f"{', '.join(map(repr, named))}"
                )
            count = next((len(array) for array in feeds.values() if np.ndim(array)), 1)
            feeds[self.weight_input] = checked_weights(np.ones(count) if weights is None else weights, count)
        return feeds

    def name_weights(self, given: Any) -> None:
        """Set the name of the sample weights to `given` if it is a text, otherwise to the default."""
        self.weight_name = given if isinstance(given, str) else self.own_weight_name

    @contextlib.contextmanager
    def reading(self, given: Any, *, required: bool) -> Iterator[None]:
        """Context in which the sample weights have the name that `given` sets (see `name_weights`).

        required: whether batches must have weights.
        """
        self.name_weights(given)
        self.needs_weights = required
        try:
            yield
        finally:
            self.name_weights(None)
            self.needs_weights = False

    def with_weights(self, given: Any, weights: Any) -> dict[str, Any]:
        return {**self.named(given), self.weight_name: weights}


def checked_weights(given: Any, count: int, source: str = "sample_weight") -> np.ndarray:
    """Return sample weights as float32 [count].

    Raises InputError, with a message that begins with `source`.
    """
    array = as_array(given)
    if array is None or (array.dtype.kind not in _NUMBERS and not _is_float(array)):
        raise InputError(f"{source}: expected one number per sample, not {shown(given)}")
    if array.ndim > 1 and array.size == len(array):
        array = array.reshape(-1)
    if array.shape != (count,):
        raise InputError(f"{source}: expected one weight per sample, [{count}], not an array {list(array.shape)}")
    with np.errstate(over="ignore"):
        found = array.astype(np.float32)
    if not (np.isfinite(found) & (found >= 0)).all():
        odd = array[~(np.isfinite(found) & (found >= 0))][0]
        raise InputError(f"{source}: weights must be finite float32 numbers of at least 0, but one is {odd}")
    return found


def expected_targets(
    graph: Graph, bound: BoundLoss, outputs: Mapping[str, Type], sample_weights: bool = False
) -> Targets:
    kinds = {name: (loss, outputs[output]) for name, (loss, output) in bound.named.items()}
    by_name = {n: output for n, (_, output) in bound.named.items()}
    weights = weight_input(graph, bound.targets)
    return Targets(bound.targets, kinds, by_name, target_inputs(graph, bound.targets), weights, sample_weights)


class _Target:
    def __init__(self, name: str, kind: TensorType, loss: Loss | None, output: Type | None):
        self._name, self._type, self._loss = name, kind, loss
        self._output = output if isinstance(output, TensorType) else TensorType(DType.FLOAT32, None)
        self._shape = self._output.shape or ()
        self.largest = None if loss is None else loss.largest_target(self._output)
        self.ignored = None if loss is None else loss.ignore_index
        self.axis = -1 if loss is None else loss.class_axis

    def fitted(self, given: Any) -> Any:
        """Return the array in the type and shape of the target. Raises InputError if that loses information."""
        wanted = self._type
        array = as_array(given)
        if array is None or (array.dtype.kind not in _NUMBERS and not _is_float(array)):
            return given
        if wanted.rank is not None:
            found = aligned(array, wanted.known_shape)
            if found is None:
                shape = list(array.shape)
                raise InputError(f"{self._described}; the targets given have shape {shape}{self._advice(array)}")
            array = found
        array = self._cast(wanted.dtype, array)
        self._check_values(array)
        return array

    def _cast(self, wanted: DType, array: np.ndarray) -> np.ndarray:
        if array.dtype == wanted.numpy or not (wanted.is_float or wanted.is_integer):
            return array
        with np.errstate(all="ignore"):
            cast = array.astype(wanted.numpy)
            # Floats may be rounded to another float type. All other conversions must be exact.
            fits = np.isfinite(cast) == np.isfinite(array) if wanted.is_float else cast == array
            if wanted.is_integer and _is_float(array):
                # Larger floats cannot represent every whole number.
                fits &= np.abs(array) < 2.0 ** (ml_dtypes.finfo(array.dtype).nmant + 1)
        if not np.all(fits):
            odd = array[~fits].reshape(-1)[0]
            raise InputError(
                f"{self._described}; the targets given are {array.dtype} and contain {odd}{self._advice(array)}"
            )
        return cast

    def _check_values(self, array: np.ndarray) -> None:
        limit = self.largest
        if limit is None or not array.size:
            return
        if self.ignored is not None:
            array = array[array != self.ignored]
            if not array.size:
                return
        if array.dtype.kind == "i":
            # Viewed as unsigned, negative numbers are too large as well.
            fits = int(array.view(f"u{array.itemsize}").max()) <= limit
        else:
            fits = not (array.min() < 0 or array.max() > limit)
        if not fits:
            odd = array[(array < 0) | (array > limit)].reshape(-1)[0]
            raise InputError(f"{self._described}; the targets given contain {odd}{self._advice(array)}")

    def _counts_classes_on_axis_1(self, array: np.ndarray) -> bool:
        """Whether targets [N, ...] fit an output [N, classes, ...], but not [N, ..., classes]."""
        if self._loss is None or "axis" not in self._loss.takes or self.axis != -1 or len(self._shape) < 3:
            return False
        return array.dtype.kind in "iu" and aligned(array, (self._shape[0], *self._shape[2:])) is not None

    @property
    def _described(self) -> str:
        if self._loss is None:
            return f"target {self._name!r} is {self._type}"
        return f"loss {self._loss.name!r} needs {self._loss.describe_target(self._output)}"

    def _advice(self, array: np.ndarray) -> str:
        if self._loss is None:
            return ""
        if self._counts_classes_on_axis_1(array):
            return (
                f". If axis 1 of the output counts the classes, set axis=1: gk.losses.get({self._loss.name!r}, axis=1) "
                "(--loss-option axis=1)"
            )
        if self._loss.name == "softmax_cross_entropy":
            if is_one_hot(array) and array.shape[-1:] == self._shape[-1:]:
                return ". They are one-hot rows: give the numbers of the classes, targets.argmax(-1)"
            if array.dtype.kind == "f" and aligned(array, self._shape) is not None and _are_distributions(array):
                return '. They are probabilities of the classes: use loss="categorical_cross_entropy"'
            if array.dtype.kind == "f" and aligned(array, self._shape) is not None:
                return '. They look like regression targets: use loss="mse" (--loss mse)'
            if array.size and array.dtype.kind in "iu" and array.min() == 1 and array.max() - 1 == self.largest:
                return ". Classes count from 0: subtract 1"
            if array.dtype.kind == "f":
                return (
                    ". They are not class numbers: for a regression, give the model one output and use "
                    'loss="mse" (--loss mse)'
                )
            return ""
        if array.dtype.kind in "biu" and aligned(array, self._shape[:-1]) is not None:
            return (
                '. They are whole numbers, one per sample: for class numbers, use loss="softmax_cross_entropy" '
                "(the default)"
            )
        if self._loss.name == "sigmoid_binary_cross_entropy":
            return '. If they are not probabilities, use loss="mse" (--loss mse)'
        return ""


def as_array(given: Any) -> np.ndarray | None:
    if isinstance(given, (np.ndarray, np.generic, bool, int, float, list, tuple)):
        try:
            return np.asarray(given)
        except ValueError:
            return None
    return None


def aligned(array: np.ndarray, shape: tuple[Any, ...]) -> np.ndarray | None:
    """Return the array in the given shape by inserting or removing axes of size 1, or None.

    shape: sizes; a size that is not an int is symbolic. The first axis counts samples and is kept.
    """
    if array.ndim == len(shape) and _fits(array.shape, shape):
        return array
    if not array.ndim or not shape:
        return array.reshape(()) if array.size == 1 and not shape else None
    sizes = list(array.shape[1:])
    new = [array.shape[0]]
    for dim in shape[1:]:
        while isinstance(dim, int) and dim != 1 and sizes and sizes[0] == 1:
            sizes.pop(0)
        if dim == 1 and (not sizes or sizes[0] != 1):
            new.append(1)
        elif sizes:
            new.append(sizes.pop(0))
        else:
            return None
    return array.reshape(new) if all(size == 1 for size in sizes) and _fits(new, shape) else None


def _fits(sizes: Any, shape: tuple[Any, ...]) -> bool:
    return all(not isinstance(dim, int) or dim == size for dim, size in zip(shape, sizes, strict=True))


def _are_distributions(array: np.ndarray) -> bool:
    return bool(array.size and array.min() >= 0 and np.allclose(array.sum(-1), 1, atol=1e-3))


def is_one_hot(array: np.ndarray) -> bool:
    return array.ndim > 1 and bool(np.all((array == 0) | (array == 1)) and np.all(array.sum(-1) == 1))


def _is_float(array: np.ndarray) -> bool:
    try:
        return dtype_of(array.dtype).is_float
    except UsageError:
        return False


def _check_tokens(data: Dataset, net: str, outputs: int) -> None:
    assert data.vocabulary is not None
    largest = int(np.max(data.targets))
    if largest >= outputs:
        raise InputError(
            f"{data.name}: the text contains token {largest} ({data.vocabulary.tokens[largest]!r}), but the network "
            f"{net!r} has {outputs} outputs, for tokens 0 to {outputs - 1}. Use the vocabulary of the model "
            f"(--tokenizer), or build it for all {len(data.vocabulary)} tokens with vocab={len(data.vocabulary)}"
        )
