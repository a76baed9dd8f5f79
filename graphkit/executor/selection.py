"""What a run computes: the graph of the selected outputs with its inputs, and how the latest run is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.executor.kernels import VersionedArray
from graphkit.executor.program import Program
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType

# numpy's bits of flags.num: C-contiguous, aligned.
_IN_PLACE = 0x0001 | 0x0100
_NO_BUFFERS: Mapping[int, np.ndarray] = {}


@dataclass(frozen=True, slots=True)
class RunInput:
    """A graph input as a run sees it.

    `needed`: the selected outputs or the updates depend on it. `stored`: it has an array unless it is fed. `derived`:
    the array is made from parameters, and cannot be fed. `sized`: the declared type says the size, so that it is no
    part of the signature.
    """

    name: str
    value: Value
    needed: bool
    stored: bool
    derived: bool
    sized: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The graph of some of the outputs, and all updates, with the names that runs need.

    `fixed` are the arrays of stored inputs.
    """

    graph: Graph
    fixed: Mapping[str, VersionedArray]
    inputs: tuple[RunInput, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]


class Repeat:
    """A program with what its feeds were like: feeds like these are checked at the cost of a few comparisons."""

    __slots__ = ("_program", "_specs", "_inputs", "_outputs")

    def __init__(self, program: Program, specs: Sequence[tuple[str, int, np.dtype, Any]], selection: Selection):
        self._program = program
        self._specs = tuple(specs)
        self._inputs = [None] * len(selection.inputs)
        self._outputs = selection.outputs

    @staticmethod
    def of(
        full: Selection | None, selection: Selection, program: Program, feeds: Mapping[str, Any], arrays: Sequence[Any]
    ) -> Repeat | None:
        """None unless the run computed all outputs natively, changed no state, and was fed arrays only."""
        if selection is not full or selection.states or program.fallbacks:
            return None
        specs: list[tuple[str, int, np.dtype, Any]] = []
        for position, spec in enumerate(selection.inputs):
            if spec.name in feeds:
                if not isinstance(arrays[position], np.ndarray):
                    return None
                specs.append((spec.name, position, arrays[position].dtype, arrays[position].shape))
            elif spec.value.role == "rng" or not isinstance(spec.value.type, TensorType):
                return None
        return Repeat(program, specs, selection)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """The outputs; None, with nothing done, for feeds of another kind."""
        if len(feeds) != len(self._specs):
            return None
        inputs: list[Any] = self._inputs.copy()
        for name, position, dtype, shape in self._specs:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return None
            if array.flags.num & _IN_PLACE != _IN_PLACE:
                return None
            inputs[position] = array
        return dict(zip(self._outputs, self._program.run(inputs, _NO_BUFFERS), strict=True))


def signature(selection: Selection, arrays: Sequence[Any], feeds: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a program depends on: the selection, which parameters are fed, and the shapes that types leave open."""
    return (
        id(selection),
        *(
            (spec.name in feeds if spec.stored else None) if spec.sized else getattr(array, "shape", None)
            for spec, array in zip(selection.inputs, arrays, strict=True)
        ),
    )
