"""What a run computes: the graph of the selected outputs with its inputs, and how the latest run can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.run.executable import Executable
from graphkit.executor.run.keys import Key
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType

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

    `fixed` are the arrays of stored inputs. `borrowed` are the positions of inputs that other programs of the same
    device have computed.
    """

    graph: Graph
    fixed: Mapping[str, VersionedArray]
    inputs: tuple[RunInput, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]
    borrowed: tuple[int, ...] = ()

    @cached_property
    def feedable(self) -> dict[str, int]:
        """The inputs that a caller may give: positions by name."""
        return {spec.name: i for i, spec in enumerate(self.inputs) if not spec.derived}

    @cached_property
    def required(self) -> list[str]:
        """The names of the inputs that every run has to be given."""
        return [s.name for s in self.inputs if s.needed and not s.stored and not s.derived and s.value.role != "rng"]

    @cached_property
    def read(self) -> list[int]:
        """Positions of stored inputs whose shapes the arrays say; programs have their own way to the others' arrays."""
        return [i for i, s in enumerate(self.inputs) if s.stored and not s.derived and s.needed and not s.static]

    @cached_property
    def open(self) -> list[int]:
        """Positions of the inputs whose shapes a program depends on."""
        return [i for i, spec in enumerate(self.inputs) if not spec.static]

    @cached_property
    def generators(self) -> tuple[int, ...]:
        """Positions of the inputs that are states of a random generator."""
        return tuple(i for i, spec in enumerate(self.inputs) if spec.value.role == "rng")

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether feeds say all that a program depends on, and their dtypes and shapes all that is to be checked."""
        kinds = [s.value.type for s in self.inputs]
        return all(isinstance(t, TensorType) and t.dtype is not DType.STRING for t in kinds) and all(
            s.static or not s.stored for s in self.inputs
        )

    @cached_property
    def _unwritten(self) -> dict[int, VersionedArray]:
        # What every run writes is not worth a packed copy.
        written = set(self.states)
        return {i: self.fixed[s.name] for i, s in enumerate(self.inputs) if s.stored and s.name not in written}

    def key(self, arrays: Sequence[Any], feeds: Iterable[str]) -> Key:
        """What the program for these inputs depends on."""
        at = self.feedable
        fed = tuple(sorted([at[name] for name in feeds if self.inputs[at[name]].stored]))
        return Key(id(self), fed, tuple([getattr(arrays[position], "shape", None) for position in self.open]))

    def shapes(self, key: Key) -> dict[str, tuple[int, ...]]:
        """The shapes that the key says, by the names of the graph's inputs."""
        found = {}
        for position, shape in zip(self.open, key.shapes, strict=True):
            value = self.inputs[position].value
            if shape is not None and isinstance(value.type, TensorType):
                found[self.graph.name_of(value)] = shape
        return found

    def with_shapes(self, key: Key, shapes: Mapping[int, tuple[int, ...]]) -> Key:
        """The key for other shapes of some inputs, by position."""
        pairs = zip(self.open, key.shapes, strict=True)
        return key._replace(shapes=tuple([shapes.get(position, shape) for position, shape in pairs]))

    def unfed(self, key: Key) -> Mapping[int, VersionedArray]:
        """The arrays of the inputs that only change with a version, by position."""
        if not key.fed:
            return self._unwritten
        return {position: array for position, array in self._unwritten.items() if position not in key.fed}


class Repeat:
    """A program with what its feeds were like: feeds like these are checked at the cost of a few comparisons."""

    __slots__ = ("program", "selection", "_specs", "_nothing")

    def __init__(
        self, selection: Selection, program: Executable, specs: Sequence[tuple[str, int, np.dtype, Any, bool]]
    ):
        self.selection = selection
        self.program = program
        self._specs = tuple(specs)
        self._nothing = [None] * len(selection.inputs)

    @staticmethod
    def of(
        full: Selection | None,
        selection: Selection,
        program: Executable,
        feeds: Mapping[str, Any],
        arrays: Sequence[Any],
    ) -> Repeat | None:
        """None unless the run computed all outputs natively, fed arrays for data alone, and stored ones are static."""
        if selection is not full or program.fallbacks or not selection.is_repeatable:
            return None
        specs: list[tuple[str, int, np.dtype, Any, bool]] = []
        for position in sorted([selection.feedable[name] for name in feeds]):
            spec = selection.inputs[position]
            if not isinstance(arrays[position], np.ndarray) or spec.name in selection.states:
                return None
            specs.append((spec.name, position, arrays[position].dtype, arrays[position].shape, spec.static))
        return Repeat(selection, program, specs)

    def inputs(self, feeds: Mapping[str, Any]) -> tuple[list[Any], bool] | None:
        """The arrays of the program's inputs, None for what is not fed, and whether their shapes are the same again.

        Where they are not, the program is another one, and what was fed fits if there is one. None for feeds of
        another kind.
        """
        if len(feeds) != len(self._specs):
            return None
        inputs: list[Any] = self._nothing.copy()
        same = True
        for name, position, dtype, shape, static in self._specs:
            array = feeds.get(name)
            if type(array) is not np.ndarray:
                if shape != () or type(array) is not dtype.type:
                    return None
                array = np.asarray(array)
            elif array.dtype != dtype:
                return None
            if array.shape != shape:
                if static:
                    return None
                same = False
            if array.flags.num & _IN_PLACE != _IN_PLACE:
                return None
            inputs[position] = array
        return inputs, same

    def of_another_size(self, program: Executable, inputs: Sequence[Any]) -> Repeat | None:
        """The same for a program whose inputs have other shapes; None where it is not native as a whole."""
        if program.fallbacks:
            return None
        specs = [(name, at, dtype, inputs[at].shape, static) for name, at, dtype, _, static in self._specs]
        return Repeat(self.selection, program, specs)
