"""Models whose inputs and outputs count samples on their first axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from graphkit.checks.maps import as_table
from graphkit.errors import UsageError
from graphkit.inference.batch_runner import BatchRunner
from graphkit.ir.types import MapType, SequenceType, TensorType, Type
from graphkit.model import Model

# Names of a symbolic batch size. If a later axis has one of them, that axis is the batch.
BATCH_NAMES = frozenset({"n", "batch", "batch_size", "batchsize", "bs"})


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
        if str(first).lower() not in BATCH_NAMES and any(str(size).lower() in BATCH_NAMES for size in others):
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


class SampleRunner:
    """Runs a model on batches, and returns arrays whose first axis counts the samples.

    model: The model. runner: Runs it, on batches of any size.
    """

    def __init__(self, model: Model, runner: BatchRunner):
        self._model, self._runner = model, runner
        self.keys: dict[str, np.ndarray] = {}  # of outputs that are maps, by name

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays by output name. Raises UsageError if an output does not count the samples of `inputs`."""
        count = len(next(iter(inputs.values())))
        arrays: dict[str, np.ndarray] = {}
        for name, value in self._runner.run(inputs, count, self._model.outputs).items():
            array = np.asanyarray(self._values(name, value) if isinstance(value, (list, tuple)) else value)
            if not array.ndim or len(array) != count:
                raise UsageError(
                    f"model {self._model.name!r}: for a batch of {count}, output {name!r} has the shape "
                    f"{list(array.shape)}, so its first axis is not the batch. Use graphkit run"
                )
            arrays[name] = array
        return arrays

    def _values(self, name: str, maps: Sequence[Any]) -> np.ndarray:
        """Return the values of one map per sample, [N, keys]. All must have the same keys."""
        table = as_table(maps)
        if table is None or not np.array_equal(self.keys.setdefault(name, table.keys), table.keys):
            raise UsageError(
                f"model {self._model.name!r}: output {name!r} consists of maps with different keys. Use graphkit run"
            )
        return table.values
