"""What a run computes: the graph of the selected outputs with its inputs, and how the latest run is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.run.compile import AnyProgram
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType

# numpy's bits of flags.num: C-contiguous, aligned.
_IN_PLACE = 0x0001 | 0x0100


@dataclass(frozen=True, slots=True)
class RunInput:
    """A graph input as a run sees it.

    `needed`: the selected outputs or the updates depend on it. `stored`: it has an array unless it is fed. `derived`:
    the array is made from parameters, and cannot be fed. `static`: the declared type says the size, so that it is no
    part of the signature.
    """

    name: str
    value: Value
    needed: bool
    stored: bool
    derived: bool
    static: bool


@dataclass(frozen=True)
class Selection:
    """The graph of some of the outputs, and all updates, with the names that runs need.

    `fixed` are the arrays of stored inputs.
    """

    graph: Graph
    fixed: Mapping[str, VersionedArray]
    inputs: tuple[RunInput, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]

    @cached_property
    def feedable(self) -> list[str]:
        """The names of the inputs that a caller may give."""
        return [spec.name for spec in self.inputs if not spec.derived]

    @cached_property
    def generators(self) -> tuple[int, ...]:
        """Positions of the inputs that are states of a random generator."""
        return tuple(i for i, spec in enumerate(self.inputs) if spec.value.role == "rng")


class Repeat:
    """A program with what its feeds were like: feeds like these are checked at the cost of a few comparisons."""

    __slots__ = ("program", "selection", "_specs", "_nothing")

    def __init__(self, selection: Selection, program: AnyProgram, specs: Sequence[tuple[str, int, np.dtype, Any]]):
        self.selection = selection
        self.program = program
        self._specs = tuple(specs)
        self._nothing = [None] * len(selection.inputs)

    @staticmethod
    def of(
        full: Selection | None,
        selection: Selection,
        program: AnyProgram,
        feeds: Mapping[str, Any],
        arrays: Sequence[Any],
    ) -> Repeat | None:
        """None unless the run computed all outputs natively, fed arrays for data alone, and stored ones are static."""
        if selection is not full or program.fallbacks:
            return None
        specs: list[tuple[str, int, np.dtype, Any]] = []
        for position, spec in enumerate(selection.inputs):
            if not isinstance(spec.value.type, TensorType) or (spec.stored and not spec.static):
                return None
            if spec.name in feeds:
                if not isinstance(arrays[position], np.ndarray) or spec.name in selection.states:
                    return None
                specs.append((spec.name, position, arrays[position].dtype, arrays[position].shape))
        return Repeat(selection, program, specs)

    def inputs(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """The arrays of the program's inputs, None for what is not fed; None for feeds of another kind."""
        if len(feeds) != len(self._specs):
            return None
        inputs: list[Any] = self._nothing.copy()
        for name, position, dtype, shape in self._specs:
            array = feeds.get(name)
            if type(array) is not np.ndarray:
                if shape != () or type(array) is not dtype.type:
                    return None
                array = np.asarray(array)
            elif array.dtype != dtype or array.shape != shape:
                return None
            if array.flags.num & _IN_PLACE != _IN_PLACE:
                return None
            inputs[position] = array
        return inputs


def signature(selection: Selection, arrays: Sequence[Any], feeds: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a program depends on: the selection, which parameters are fed, and the shapes that types leave open."""
    return (
        id(selection),
        *(
            (spec.name in feeds if spec.stored else None, None if spec.static else getattr(array, "shape", None))
            for spec, array in zip(selection.inputs, arrays, strict=True)
        ),
    )
