"""Run a model on batches of any size: split and pad them where the model fixes its batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from graphkit.checks.maps import as_table
from graphkit.errors import UsageError
from graphkit.inference.engines import Run
from graphkit.ir.types import MapType, SequenceType, TensorType, Type
from graphkit.model import Model

# Names of a symbolic batch size. If a later axis has one of them, that axis is the batch.
_BATCH = frozenset({"n", "batch", "batch_size", "batchsize", "bs"})


def fixed_batch_size(model: Model) -> int | None:
    """Return the batch size that the inputs of a model fix; None if any size works.

    Raises:
        UsageError: The first axis of an input or output is not the batch.
    """
    fixed: dict[str, int] = {}
    for name, kind in model.input_types.items():
        if not isinstance(kind, TensorType) or kind.rank == 0:
            _refuse(model, "input", name, kind)
        if kind.shape is None:
            continue
        first, *others = kind.shape
        if str(first).lower() not in _BATCH and any(str(size).lower() in _BATCH for size in others):
            _refuse(model, "input", name, kind)
        if isinstance(first, int):
            fixed[name] = first
    sizes = set(fixed.values())
    if len(sizes) > 1 or 0 in sizes:
        listed = ", ".join(f"{name} {model.input_types[name]}" for name in fixed)
        raise UsageError(f"model {model.name!r}: the inputs {listed} have no common batch size; use graphkit run")
    size = next(iter(sizes), None)
    for name, kind in model.output_types.items():
        if isinstance(kind, SequenceType) and isinstance(kind.element, MapType):
            continue  # one map per sample
        if not isinstance(kind, TensorType) or kind.rank == 0:
            _refuse(model, "output", name, kind)
        leading = None if kind.shape is None else kind.shape[0]
        if isinstance(leading, int) and leading != size:
            _refuse(model, "output", name, kind)
    return size


def _refuse(model: Model, what: str, name: str, kind: Type) -> NoReturn:
    raise UsageError(
        f"model {model.name!r}: {what} {name!r} is {kind}, so its first axis is not the batch; graphkit predict needs "
        "samples on the first axis of every input and output. Use graphkit run"
    )


class Batches:
    """Runs a model on batches, in parts of its fixed size if it has one.

    model: The model. run: Computes outputs of a batch. fixed: The batch size that the model fixes, or None.
    """

    def __init__(self, model: Model, run: Run, fixed: int | None):
        self._model, self._run, self._fixed = model, run, fixed
        self.keys: dict[str, np.ndarray] = {}  # of outputs that are maps, by name

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays by output name. Their first axis counts the samples of `inputs`."""
        count = len(next(iter(inputs.values())))
        if self._fixed in (None, count):
            return self._arrays(self._run(inputs, self._model.outputs), count)
        parts = [
            self._arrays(self._run(part, self._model.outputs), size)
            for part, size in _parts(inputs, count, self._fixed)
        ]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _arrays(self, results: Mapping[str, Any], count: int) -> dict[str, np.ndarray]:
        """Return the arrays of results, without padding behind `count` samples."""
        arrays: dict[str, np.ndarray] = {}
        for name, value in results.items():
            if isinstance(value, (list, tuple)):
                value = self._values(name, value)
            arrays[name] = np.asanyarray(value)
            expected = count if self._fixed is None else self._fixed
            if not arrays[name].ndim or len(arrays[name]) != expected:
                raise UsageError(
                    f"model {self._model.name!r}: for a batch of {expected}, output {name!r} has the shape "
                    f"{list(arrays[name].shape)}, so its first axis is not the batch. Use graphkit run"
                )
            arrays[name] = arrays[name][:count]
        return arrays

    def _values(self, name: str, maps: Sequence[Any]) -> np.ndarray:
        """Return the values of one map per sample, [N, keys]. All must have the same keys."""
        table = as_table(maps)
        if table is None or not np.array_equal(self.keys.setdefault(name, table.keys), table.keys):
            raise UsageError(
                f"model {self._model.name!r}: output {name!r} consists of maps with different keys. Use graphkit run"
            )
        return table.values


def _parts(inputs: Mapping[str, np.ndarray], count: int, size: int) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield batches of exactly `size` samples, with the number of those that are not padding."""
    for start in range(0, count, size):
        part = {name: array[start : start + size] for name, array in inputs.items()}
        held = min(size, count - start)
        if held < size:
            # Repeated samples are valid inputs, unlike zeros.
            part = {n: np.concatenate([a, np.repeat(a[-1:], size - held, axis=0)]) for n, a in part.items()}
        yield part, held
