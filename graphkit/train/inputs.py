"""Convert the inputs of a batch to arrays by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.errors import InputError, did_you_mean
from graphkit.executor.run.feeds import convert
from graphkit.ir.arrays import holds_arrays
from graphkit.ir.types import TensorType, Type
from graphkit.text import quantity


class Inputs:
    def __init__(self, types: Mapping[str, Type]):
        self.types = dict(types)
        self.names = tuple(types)

    def check_names(self, data: Dataset) -> None:
        for name in data.given_names:
            if name not in self.types:
                raise InputError(
                    f"{data.name}: the array {name!r} is not an input of the model{did_you_mean(name, self.names)}"
                )

    def check_shapes(self, data: Dataset) -> None:
        if type(data) is not Dataset:  # other data sets may change the shapes in batches
            return
        for name, (label, array) in zip(data.given_names or self.names[:1], data.arrays.items(), strict=False):
            kind = self.types.get(name)
            if not isinstance(kind, TensorType) or kind.shape is None:
                continue
            axis = data.axes.get(label, 0)
            sizes = [
                (want, has) for i, (want, has) in enumerate(zip(kind.shape, array.shape, strict=False)) if i != axis
            ]
            if kind.rank != array.ndim or any(isinstance(want, int) and want != has for want, has in sizes):
                raise InputError(
                    f"{data.name}: the array for input {name!r} has shape {list(array.shape)}, but the model needs "
                    f"{kind}"
                )

    def converted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of a batch in the types of these inputs. Arrays are copied only if needed.

        Raises InputError if an array does not fit. Arrays that are not inputs stay as they are.
        """
        return {n: _converted(n, self.types[n], a) if n in self.types else a for n, a in given.items()}


def with_types(data: Any, types: Mapping[str, Type]) -> Any:
    """Convert lists among the inputs of a pair (inputs, targets) to arrays of these types.

    Raises:
        InputError: A type cannot represent the numbers, or a list is ragged.
    """
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return data
    inputs, targets = data
    if isinstance(inputs, Mapping):
        named = {n: _typed(n, types[n], a) if n in types else a for n, a in inputs.items()}
        return named, targets
    if isinstance(inputs, tuple) and len(inputs) == len(types):
        return tuple(_typed(n, kind, a) for (n, kind), a in zip(types.items(), inputs, strict=True)), targets
    if isinstance(inputs, list) and len(types) == 1 and not holds_arrays(inputs):
        ((name, kind),) = types.items()
        return _typed(name, kind, inputs), targets
    return data


def _typed(name: str, kind: Type, given: Any) -> Any:
    if not isinstance(given, list) or holds_arrays(given) or not isinstance(kind, TensorType):
        return given
    return convert(name, TensorType(kind.dtype), given)


def by_name(given: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """Return arrays as a dict by name: from one array, a tuple in the order of `names`, or a dict.

    Raises InputError for a wrong number of arrays. what: "input" or "target", for the message.
    """
    if isinstance(given, Mapping):
        return dict(given)
    arrays = given if isinstance(given, tuple) else (given,)
    if len(arrays) != len(names):
        raise InputError(f"expected {quantity(len(names), what)} ({', '.join(names)}), got {len(arrays)}")
    return dict(zip(names, arrays, strict=True))


def _converted(name: str, kind: Type, array: Any) -> Any:
    """Convert one input. For a wrong batch size, the error says how to allow other sizes."""
    try:
        return convert(name, kind, array)
    except InputError as error:
        shape = kind.shape if isinstance(kind, TensorType) else None
        given = np.shape(array)
        if not shape or len(shape) != len(given) or shape[0] in (given[0], 0) or not isinstance(shape[0], int):
            raise
        if shape[0] == 1:
            hint = "To allow any size, use graphkit.train.imported.free_batch(net) (--dynamic-batch)"
        else:
            hint = f"Every batch must have this size (batch_size={shape[0]}, --batch-size {shape[0]})"
        raise InputError(
            f"{error}. The model has the fixed batch size {shape[0]}. {hint}. If another axis of this input counts "
            f"samples, pass axes={{{name!r}: AXIS}} to gk.data.Dataset or gk.data.load (--batch-axis {name}=AXIS)"
        ) from None
