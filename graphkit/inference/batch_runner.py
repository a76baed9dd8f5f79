"""Runs batches of any size through a model, in graphkit or in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data.dataset import Axes
from graphkit.errors import InputError, UsageError
from graphkit.inference.engines import open_engine
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.train.inputs import Inputs

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice


class BatchRunner:
    """Runs a model on batches.

    If the inputs of the model have a fixed batch size, a batch is split into parts of this size. The last part is
    padded with copies of its last sample. Results contain only the samples of the batch.

    Args:
        model: The model.
        engine: "graphkit" or "onnxruntime".
        file: The ONNX file that ONNX Runtime runs. Default: an export of the model.
        device: Device of graphkit; ONNX Runtime runs on the CPU.
        threads: Number of CPU threads.
        axes: Input name to the axis that counts samples, see Dataset.
        shared: Names of inputs that are passed on unchanged, such as recurrent states. If there are any, batches are
            not split.

    Raises:
        UsageError: The engine is unknown, or ONNX Runtime should run on another device than the CPU.
    """

    def __init__(
        self,
        model: Model,
        engine: str = "graphkit",
        *,
        file: str | os.PathLike[str] | None = None,
        device: AnyDevice = "cpu",
        threads: int | None = None,
        axes: Axes | None = None,
        shared: Sequence[str] = (),
    ):
        self._model = model
        self._inputs = Inputs(model.input_types)
        self._axes = {n: a for n in model.inputs if n not in shared and (a := (axes or {}).get(n, 0)) is not None}
        self._fixed = None if shared else _fixed_size(model, self._axes)
        self._run = open_engine(model, engine, file=file, device=device, threads=threads)

    def run(self, feeds: Mapping[str, Any], size: int, outputs: Sequence[str]) -> dict[str, Any]:
        """Return outputs of a batch by name.

        Args:
            feeds: Arrays by input name.
            size: Number of samples.
            outputs: Names of the outputs.

        Raises:
            InputError: An array does not fit its input.
        """
        feeds = {name: self._cast(name, array) for name, array in feeds.items()}
        fixed = self._fixed
        if fixed is None or fixed == size:
            return self._run(self._inputs.converted(feeds), outputs)
        parts = []
        for start in range(0, size, fixed):
            count = min(fixed, size - start)
            places = np.minimum(np.arange(start, start + fixed), size - 1)
            part = {n: np.take(a, places, self._axes[n]) if n in self._axes else a for n, a in feeds.items()}
            results = self._run(self._inputs.converted(part), outputs)
            parts.append({name: self._first(name, value, count) for name, value in results.items()})
        return {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}

    def _first(self, name: str, value: Any, count: int) -> Any:
        """Return the first `count` samples of an output. Outputs that do not count samples stay as they are."""
        counts = len(value) if isinstance(value, list) or np.ndim(value) else None
        return value[:count] if counts == self._fixed else value

    def _cast(self, name: str, given: Any) -> Any:
        """Return an array in the type of its input, if that is a float for a float, or an integer for an integer."""
        kind = self._inputs.types.get(name)
        if not isinstance(kind, TensorType) or not isinstance(given, np.ndarray) or given.dtype == object:
            return given
        own, wanted = dtype_of(given.dtype), kind.dtype
        if own is wanted or not ((own.is_float and wanted.is_float) or (own.is_integer and wanted.is_integer)):
            return given
        with np.errstate(over="ignore"):
            cast = given.astype(wanted.numpy)
        overflows = wanted.is_float and not np.array_equal(np.isfinite(cast), np.isfinite(given))
        if overflows or (wanted.is_integer and not np.array_equal(cast, given)):
            raise InputError(f"input {name!r} is {kind}, which cannot represent all numbers of the data ({own})")
        return cast


def _fixed_size(model: Model, axes: Mapping[str, int | None]) -> int | None:
    """Return the fixed batch size of the inputs; None if their batch dimension is dynamic."""
    found: dict[int, str] = {}
    for name, kind in model.input_types.items():
        axis = axes.get(name)
        if axis is None or not isinstance(kind, TensorType) or not kind.shape or axis >= len(kind.shape):
            continue
        if isinstance(size := kind.shape[axis], int):
            found.setdefault(size, name)
    if len(found) > 1:
        each = ", ".join(f"{name} has {size}" for size, name in found.items())
        raise UsageError(
            f"the inputs of {model.name!r} have different fixed batch sizes ({each}). If another axis counts samples, "
            "or none does, pass a gk.data.Dataset with axes= (--batch-axis)"
        )
    return next(iter(found), None)


def _joined(name: str, values: Sequence[Any]) -> Any:
    """Return the outputs of the parts of a batch as one output."""
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    if not np.ndim(values[0]):
        return values[0]
    if len({value.shape[1:] for value in values}) > 1:
        raise InputError(f"output {name!r} has another shape for each part of a batch, so the parts cannot be joined")
    return np.concatenate(values)
