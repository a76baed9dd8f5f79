"""Convert targets to the type and shape that a loss needs.

Targets are converted only if there is one possible meaning: whole numbers become floats and vice versa, and axes of
size 1 are added or removed ([N] for an output [N, 1]). Anything else is an error that names a suitable loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.errors import InputError, UsageError
from graphkit.ir.arrays import array_of
from graphkit.ir.graph import Graph
from graphkit.ir.types import DType, TensorType, Type, dtype_of
from graphkit.text import listed
from graphkit.train.losses import Bound, Loss, target_inputs

# Kinds of numpy's element types that are real numbers; bfloat16 and its like have a kind of their own.
_NUMBERS = "biuf"


class Targets:
    """The targets of a training program by name, and what the losses want of them.

    types: as the graph declares them. compared: by target, the loss by name and the type of the output that it compares
    with; what a function wants may be anything of the declared type. outputs: by target, the output that it is of, by
    whose name it may be given too. inputs: by target, the name of the program's input, where that is another one.
    """

    def __init__(
        self, types: Mapping[str, TensorType], compared: Mapping[str, tuple[Loss, Type]],
        outputs: Mapping[str, str] | None = None, inputs: Mapping[str, str] | None = None,
    ):  # fmt: skip
        self.types = dict(types)
        self._inputs = dict(inputs or {})
        self.names = tuple(types)
        self._others = {output: name for name, output in (outputs or {}).items()}
        self._targets = {name: _Target(name, kind, *compared.get(name, (None, None))) for name, kind in types.items()}

    def of(self, output: str) -> str:
        """The name of the target that an output is compared with; the first one where none is."""
        return self._others.get(output, self.names[0])

    def named(self, given: Any) -> dict[str, Any]:
        """Targets by name: an array, a tuple in their order, or a dict by their names or those of outputs."""
        if given is None and self.names:
            raise InputError(
                f"the data have no targets, but the loss needs {', '.join(self.names)}: pass a pair (inputs, "
                "targets), or "
                "add an array y to the .npz file"
            )
        if isinstance(given, Mapping):
            return {self._others.get(str(n), str(n)): array for n, array in given.items()}
        arrays = given if isinstance(given, tuple) else (given,)
        if len(arrays) != len(self.names):
            names = ", ".join(self._others if len(self._others) > 1 else self.names)
            raise InputError(f"expected {len(self.names)} targets ({names}), got {len(arrays)}")
        return dict(zip(self.names, arrays, strict=True))

    def measured(self, given: Any, output: str) -> np.ndarray:
        """Of a batch, the target that metrics compare with an output."""
        named, wanted = self.named(given), self.of(output)
        if wanted not in named:
            raise InputError(f"metrics compare the output {output!r} with the target {wanted!r}, but it is not given")
        return array_of(f"target {wanted!r}", named[wanted])

    def check_classes(self, data: Dataset, net: str) -> None:
        """Raise InputError for data whose number of classes is not that of the output that tells them apart.

        Integers without names may be fewer than the output has classes. net: the name of the network.
        """
        if len(self.names) != 1 or (largest := self._targets[self.names[0]].largest) is None:
            return
        has, tells = data.num_classes, largest + 1
        if has is None or has == tells or (has < tells and data.classes is None):
            return
        if data.classes is None:
            found = f"the largest class number is {has - 1}"
        else:
            found = f"there are {has} classes ({listed(data.classes, has, 8)})"
        raise InputError(
            f"{data.name}: {found}, but the network {net!r} has {tells} outputs, for classes 0 to {largest}: build it "
            f"with classes={has}, or give it a new last layer (--head classes={has})"
        )

    def fitted(self, given: Any) -> dict[str, Any]:
        """The arrays of one batch by the names of inputs, cast and reshaped where that loses nothing. Raises InputError
        for the others.
        """
        named = self.named(given)
        return {
            self._inputs.get(n, n): self._targets[n].fitted(array) if n in self._targets else array
            for n, array in named.items()
        }


def expected_targets(graph: Graph, bound: Bound, outputs: Mapping[str, Type]) -> Targets:
    """The targets of a graph that is to be trained; those of losses by name are what these say.

    graph: without the loss. outputs: the types of the model's.
    """
    kinds = {name: (loss, outputs[output]) for name, (loss, output) in bound.named.items()}
    by_name = {n: output for n, (_, output) in bound.named.items()}
    return Targets(bound.targets, kinds, by_name, target_inputs(graph, bound.targets))


class _Target:
    """One target. loss: None where a function takes it."""

    def __init__(self, name: str, kind: TensorType, loss: Loss | None, output: Type | None):
        self._name, self._type, self._loss = name, kind, loss
        self._output = output if isinstance(output, TensorType) else TensorType(DType.FLOAT32, None)
        self._shape = self._output.shape or ()
        self.largest = None if loss is None else loss.largest(self._output)

    def fitted(self, given: Any) -> Any:
        wanted = self._type
        array = as_array(given)
        if array is None or (array.dtype.kind not in _NUMBERS and not _is_float(array)):
            return given  # the executor says what it takes
        if wanted.rank is not None:
            found = aligned(array, wanted.known_shape)
            if found is None:
                shape = list(array.shape)
                raise InputError(f"{self._described}; the array given has shape {shape}{self._advice(array)}")
            array = found
        array = self._cast(wanted.dtype, array)
        self._check_values(array)
        return array

    def _cast(self, wanted: DType, array: np.ndarray) -> np.ndarray:
        if array.dtype == wanted.numpy or not (wanted.is_float or wanted.is_integer):
            return array
        with np.errstate(all="ignore"):
            cast = array.astype(wanted.numpy)
            # A float is rounded to the width of another; nothing else may change.
            fits = np.isfinite(cast) == np.isfinite(array) if wanted.is_float else cast == array
            if wanted.is_integer and _is_float(array):
                # Beyond, a float does not tell whole numbers apart: which class was meant is not known.
                fits &= np.abs(array) < 2.0 ** (ml_dtypes.finfo(array.dtype).nmant + 1)
        if not np.all(fits):
            odd = array[~fits].reshape(-1)[0]
            raise InputError(f"{self._described}; the {array.dtype} array given holds {odd}{self._advice(array)}")
        return cast

    def _check_values(self, array: np.ndarray) -> None:
        limit = self.largest
        if limit is None or not array.size:
            return
        if array.dtype.kind == "i":
            # A negative number is a very large one without its sign: one pass over the array in place of two.
            fits = int(array.view(f"u{array.itemsize}").max()) <= limit
        else:
            fits = not (array.min() < 0 or array.max() > limit)
        if not fits:
            odd = array[(array < 0) | (array > limit)].reshape(-1)[0]
            raise InputError(f"{self._described}; the array given holds {odd}{self._advice(array)}")

    @property
    def _described(self) -> str:
        if self._loss is None:
            return f"target {self._name!r} is {self._type}"
        return f"loss {self._loss.name!r} compares the output {self._output} with {self._loss.wants(self._output)}"

    def _advice(self, array: np.ndarray) -> str:
        """Which other loss takes these targets; empty when none does."""
        if self._loss is None:
            return ""
        if self._loss.name == "softmax_cross_entropy":
            if _is_one_hot(array) and array.shape[-1:] == self._shape[-1:]:
                return ": these are one-hot rows; give the numbers of the classes, targets.argmax(-1)"
            if array.dtype.kind == "f" and aligned(array, self._shape) is not None:
                return ': these look like regression targets; use loss="mse" (--loss mse)'
            if array.size and array.dtype.kind in "iu" and array.min() == 1 and array.max() - 1 == self.largest:
                return ": classes count from 0; subtract 1"
            if array.dtype.kind == "f":
                return (
                    ", which is not a class number; for a regression, give the model one output and use "
                    'loss="mse" (--loss mse)'
                )
            return ""
        if array.dtype.kind in "biu" and aligned(array, self._shape[:-1]) is not None:
            return (
                ': these are whole numbers, one per sample; for class numbers use loss="softmax_cross_entropy" '
                "(the default)"
            )
        if self._loss.name == "sigmoid_binary_cross_entropy":
            return ': if these targets are not probabilities, use loss="mse" (--loss mse)'
        return ""


def as_array(given: Any) -> np.ndarray | None:
    """What is given as an array of numpy; None for what is not one without a conversion of its own."""
    if isinstance(given, (np.ndarray, np.generic, bool, int, float, list, tuple)):
        try:
            return np.asarray(given)
        except ValueError:
            return None
    return None


def aligned(array: np.ndarray, shape: tuple[Any, ...]) -> np.ndarray | None:
    """The array with axes of 1 put in or left out, so that it fits `shape`; None where more than that is different.

    shape: integers, and anything else for a dimension of any size. The first axis counts samples and stays.
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


def _is_one_hot(array: np.ndarray) -> bool:
    return array.ndim > 1 and bool(np.all((array == 0) | (array == 1)) and np.all(array.sum(-1) == 1))


def _is_float(array: np.ndarray) -> bool:
    try:
        return dtype_of(array.dtype).is_float
    except UsageError:
        return False
