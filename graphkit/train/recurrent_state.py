"""State that a recurrent network passes from batch to batch, for truncated backpropagation through time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.errors import InputError, TypeMismatch, UsageError, did_you_mean
from graphkit.ir.dims import evaluate
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.passes.core.bind import match_shapes
from graphkit.text import quantity

_SUFFIX = "/carried"


class RecurrentState:
    """The carried states: outputs of the last batch that are fed to inputs of the next one.

    A state is zero at the start, and becomes zero again if its shape changes.

    Raises:
        UsageError: A name is unknown, or the types or known sizes of input and output differ.
    """

    def __init__(self, net: Model, names: Mapping[str, str]):
        self.names = dict(names)
        self._types: dict[str, TensorType] = {}
        self._arrays: dict[str, np.ndarray] = {}
        inputs, outputs = net.input_types, net.output_types
        for source, result in self.names.items():
            if source not in inputs:
                raise UsageError(
                    f"carry= (--recurrent-state): the model has no input {source!r}{did_you_mean(source, inputs)}"
                )
            if result not in outputs:
                raise UsageError(
                    f"carry= (--recurrent-state): the model has no output {result!r}{did_you_mean(result, outputs)}"
                )
            before, after = inputs[source], outputs[result]
            if not isinstance(before, TensorType) or not isinstance(after, TensorType) or before.dtype != after.dtype:
                raise UsageError(
                    f"carry= (--recurrent-state): input {source!r} is {before}, but output {result!r} is {after}"
                )
            if not _may_be_equal(before, after):
                raise UsageError(
                    f"carry= (--recurrent-state): input {source!r} is {before}, but output {result!r} is {after}; "
                    "their sizes must be equal"
                )
            self._types[source] = before
        self._given = tuple(name for name in inputs if name not in self.names)
        self._others = {n: kind for n in self._given if isinstance(kind := inputs[n], TensorType)}

    def reset(self) -> None:
        self._arrays = {}

    def named(self, inputs: Any) -> dict[str, Any]:
        """Return the inputs of a batch (an array, a tuple or a dict) by name. Carried states may be missing."""
        if isinstance(inputs, Mapping):
            return dict(inputs)
        arrays = inputs if isinstance(inputs, tuple) else (inputs,)
        if len(arrays) != len(self._given):
            several = f"{quantity(len(self._given), 'input')} ({', '.join(self._given)})"
            expected = several if self._given else "no input"
            raise InputError(
                f"expected {expected}, got {len(arrays)}; give an array for each input, by name (in an .npz file), "
                "except for recurrent states (carry=, --recurrent-state)"
            )
        return dict(zip(self._given, arrays, strict=True))

    def feeds(self, inputs: Any) -> dict[str, Any]:
        """Return the inputs of a batch by name, with the carried states."""
        known = self.named(inputs)
        return known | {name: self._state(name, known) for name in self.names if name not in known}

    def keep(self, results: Mapping[str, np.ndarray]) -> None:
        self._arrays = {name: results[output] for name, output in self.names.items() if output in results}

    def _state(self, name: str, inputs: Mapping[str, Any]) -> np.ndarray:
        declared = self._types[name]
        given = [(k, t, TensorType(t.dtype, np.shape(inputs[k]))) for k, t in self._others.items() if k in inputs]
        sizes = match_shapes(given)
        try:
            known = {k: n for k, n in sizes.items() if isinstance(n, int)}
            shape = tuple(evaluate(d, known) for d in declared.known_shape)
        except TypeMismatch as error:
            raise UsageError(
                f"carry= (--recurrent-state): the size of {name!r}, {declared}, does not follow from the other inputs: "
                f"{error}"
            ) from None
        stored = self._arrays.get(name)
        return stored if stored is not None and stored.shape == shape else np.zeros(shape, declared.dtype.numpy)

    # --- checkpoints -----------------------------------------------------------------------------

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {f"{name}{_SUFFIX}": array for name, array in self._arrays.items()}

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{name}{_SUFFIX}" for name in self.names)

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        self._arrays = {n: saved[f"{n}{_SUFFIX}"] for n in self.names if f"{n}{_SUFFIX}" in saved}


def _may_be_equal(one: TensorType, other: TensorType) -> bool:
    """Return False if two shapes differ in rank or in fixed sizes."""
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(
        a == b for a, b in zip(one.shape, other.shape, strict=True) if isinstance(a, int) and isinstance(b, int)
    )
