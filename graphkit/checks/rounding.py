"""Run a graph in double precision, with and without random rounding errors, to measure how much rounding matters."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphkit.checks.noise import EPSILON, Spread, Spreads
from graphkit.checks.precision import in_float64, widened_value
from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops.evaluate import run_node

# Number of runs with random errors. There are fewer if nodes compute more than this number of elements in them.
DRAWS, _ELEMENTS = 4, 1 << 31
# Factor on the epsilon of the element type for errors in models that quantise.
_BEFORE_STEPS = 4.0
# Functions whose results ONNX Runtime computes with an absolute error, also where they are tiny.
_ABSOLUTE = frozenset({"Sigmoid", "HardSigmoid"})
# With OTHER_FACTOR of noise.py, this scale of their random errors allows 4 epsilons.
_ABSOLUTE_SCALE = 0.25
# Operators that round to a grid which does not follow from the element type.
_QUANTISING = ("Quantize", "QLinear", "QGemm")


@dataclass(frozen=True)
class Rounding:
    """Random errors that are added after every node.

    of_element: error relative to each element. of_tensor: error relative to the largest element of the tensor.
    absolute: whether `of_tensor` is relative to at least _ABSOLUTE_SCALE in results of the functions in _ABSOLUTE.

    If two results differ by no more than these errors change them, rounding explains the difference (random rounding:
    Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997).
    """

    of_element: float
    of_tensor: float
    seed: int
    absolute: bool = False

    def disturbed(self, value: Any, operator: str, rng: np.random.Generator) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64 or not value.size:
            return value
        finite = value[np.isfinite(value)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
        if self.absolute and operator in _ABSOLUTE:
            largest = max(largest, _ABSOLUTE_SCALE)
        found = value
        with np.errstate(all="ignore"):
            if self.of_element:
                found = found * (1.0 + self.of_element * rng.uniform(-1.0, 1.0, value.shape))
            if self.of_tensor:
                found = found + self.of_tensor * largest * rng.uniform(-1.0, 1.0, value.shape)
        # Whole numbers stay: they are exact, and may be positions, or quantised values that Cast would truncate to
        # other ones.
        return np.where(value == np.rint(value), value, found)


def in_double_precision(model: Any, feeds: Mapping[str, Any], rounding: Rounding | None = None) -> dict[str, Any]:
    """The model's outputs by name, computed in float64 by the interpreter, without rewrites or native kernels.

    Operators that do not support float64 compute in their own types. Raises GraphkitError if there is too little
    memory.
    """
    return _run(model, feeds, rounding)[0]


def _run(model: Any, feeds: Mapping[str, Any], rounding: Rounding | None) -> tuple[dict[str, Any], int]:
    """Return the outputs of `in_double_precision`, and the number of elements that nodes computed."""
    graph = model.graph
    given = [feeds[name] if name in feeds else model.params[name] for name in graph.input_names]
    needed = sum(8 * np.asarray(array).size for array in given)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory // 2:
        raise UnsupportedError(
            f"inputs and parameters need {needed >> 20} MiB in double precision, more than half of the "
            f"{memory >> 20} MiB of memory"
        )
    wide = in_float64(graph, narrow=True)
    try:
        results, elements = _evaluated(wide, [widened_value(array) for array in given], rounding)
    except MemoryError as error:
        raise UnsupportedError(f"double precision needs more memory than is available: {error}") from None
    return dict(zip(model.outputs, results, strict=True)), elements


def _evaluated(graph: Graph, inputs: Sequence[Any], rounding: Rounding | None) -> tuple[list[Any], int]:
    elements = 0
    rng = np.random.default_rng(0 if rounding is None else rounding.seed)
    table: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node, spent in zip(graph.nodes, graph.spent, strict=True):
        made: Sequence[Any] = run_node(node, [None if v is None else table[v] for v in node.inputs])
        if rounding is not None and node.operands:
            made = [rounding.disturbed(value, node.op.name, rng) for value in made]
        elements += sum(np.size(value) for value in made if isinstance(value, np.ndarray))
        table.update(zip(node.outputs, made, strict=True))
        for value in spent:
            del table[value]
    return [table[v] for v in graph.outputs], elements


def quantises(graph: Graph) -> bool:
    """Whether a node quantises, also in subgraphs, which can turn an error in the last digit into a whole step."""

    def does(node: Node) -> bool:
        inner = node.op.subgraphs().values()
        return any(part in node.op.name for part in _QUANTISING) or any(map(quantises, inner))

    return any(map(does, graph.nodes))


# Called with the numbers of finished runs, and of all runs at most.
Progress = Callable[[int, int], None]


def spreads(
    model: Any, feeds: Mapping[str, Any], truth: Mapping[str, Any], epsilon: float | None = None,
    absolute: bool = False, progress: Progress | None = None,
) -> Iterator[dict[str, Spreads]]:  # fmt: skip
    """Yield how far rounding moves each output that is a tensor of floats, by name, after 1, 2, ... random runs.

    Each run can only raise `highest` and `mean`, because `mean` counts runs that are left as 0. So outputs that pass
    after some runs also pass after all runs. If nodes compute very many elements, there are fewer runs than DRAWS.

    truth: outputs in double precision. epsilon: of the rounding (default: that of the model's element types).
    absolute: see `Rounding`. progress: called before each run.
    """
    step = epsilon or max((EPSILON.get(dtype, 0.0) for dtype in _dtypes(model.graph)), default=0.0)
    kinds = [Rounding(0.0, step, 0, absolute=absolute)]
    if quantises(model.graph):
        kinds.append(Rounding(_BEFORE_STEPS * step, 0.0, 0))
    moved = [_Moved(truth) for _ in kinds]
    draws, elements = DRAWS, 0
    for seed in itertools.count():
        for place, (kind, found) in enumerate(zip(kinds, moved, strict=True)):
            if progress is not None:
                progress(seed * len(kinds) + place, draws * len(kinds))
            drawn, made = _run(model, feeds, replace(kind, seed=seed))
            found.add(drawn)
            elements += made
        draws = max(1, min(DRAWS, _ELEMENTS * (seed + 1) // max(elements, 1)))
        tensors, *others = (found.spreads(max(draws, seed + 1)) for found in moved)
        steps = others[0] if others else {}
        yield {name: Spreads(found, steps.get(name)) for name, found in tensors.items()}
        if seed + 1 >= draws:
            break


class _Moved:
    """The distances of random runs from `truth`, by output: `spreads`."""

    def __init__(self, truth: Mapping[str, Any]):
        self._truth = {
            name: value for name, value in truth.items() if isinstance(value, np.ndarray) and value.dtype == np.float64
        }
        # Means are summed over the runs.
        self._sums = {name: Spread(np.zeros(value.shape), 0.0) for name, value in self._truth.items()}

    def spreads(self, runs: int) -> dict[str, Spread]:
        """Return the spreads. Means are over `runs` runs; those that were not added count as 0."""
        return {name: Spread(found.highest, found.mean / runs) for name, found in self._sums.items()}

    def add(self, drawn: Mapping[str, Any]) -> None:
        """Add the outputs of a run."""
        for name, truth in self._truth.items():
            mean, before = 0.0, self._sums[name]
            distance = np.zeros(truth.shape)
            if drawn[name].shape == truth.shape:
                with np.errstate(all="ignore"):
                    distance = np.abs(drawn[name] - truth)
                distance = np.where(np.isfinite(distance), distance, 0.0)
                mean = float(distance.mean()) if distance.size else 0.0
            self._sums[name] = Spread(np.fmax(before.highest, distance), before.mean + mean)


def _dtypes(graph: Graph) -> Iterator[DType]:
    """The element types that nodes compute in. Inputs and constants are not rounded."""
    for value in (v for node in graph.nodes if node.operands for v in node.outputs):
        if isinstance(value.type, TensorType):
            yield value.type.dtype
