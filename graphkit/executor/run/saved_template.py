"""A program for any sizes in saved programs (.gkp files): the bytes of a template.

executor/native/c_interface/sized_template.cpp reads them, and makes the kernels for the sizes of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.executor.lower.lowering import ABSENT, ARENA, Location, NotNative
from graphkit.executor.lower.template import Template
from graphkit.executor.run.saved_encoding import number, optional, raw, sequence, text
from graphkit.executor.run.saved_file import SavedArrays
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Value
from graphkit.passes.core.bind import plain_name

# In the order of SizeTable::Operation in executor/native/runtime/size_table.h.
_OPERATIONS = (
    "constant", "symbol", "add", "multiply", "floordiv", "ceildiv", "mod", "min", "max", "broadcast",
)  # fmt: skip

# Element types of values that are computed from sizes.
_SHAPE_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


class SizedProgramFile:
    """A template, and the numbers of its constants in a file.

    Args:
        template: The template.
        inputs: The inputs of the file, by name.
        draws: Whether the file has a random state.
        sizes: The symbols of the template for the first program: the order of steps is chosen for them.
        arrays: Arrays of the file. Constants are added, as they are: the reader packs them.

    Raises NotNative, which says why, if the native engine cannot make the programs.
    """

    def __init__(
        self,
        template: Template,
        inputs: Mapping[str, Value],
        draws: bool,
        sizes: Mapping[str, int],
        arrays: SavedArrays,
    ):
        self._draws = draws
        self._template, self._named, self._inputs = template, inputs, list(inputs.values())
        self._larger: dict[str, Dim] = {name: size + 1 for name, size in sizes.items()}
        self._recorded = template.recorded(sizes)
        for _, dtype in self._recorded.values.values():
            if dtype not in _SHAPE_TYPES:
                raise NotNative(f"a tensor of {dtype} is computed from sizes")
        self._sources = [self._source(name) for name in self._recorded.symbols]
        self._constants = {external: arrays.place(array) for external, array in self._recorded.constants.items()}

    def _source(self, symbol: str) -> tuple[int, int]:
        """Return the input and the axis that have this size."""
        for i, value in enumerate(self._inputs):
            for axis, dim in enumerate(value.tensor.known_shape):
                if isinstance(dim, DimExpr) and plain_name(dim) == symbol:
                    return i, axis
        raise NotNative(f"no axis of an input has the size {symbol!r}")

    def larger(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return feeds for which each symbol is larger by one than for the first program. Elements are repeated."""
        kinds = {name: value.tensor.substitute(self._larger) for name, value in self._named.items()}
        return {name: np.resize(feeds[name], kind.static_shape) for name, kind in kinds.items()}

    def encoded(self) -> bytes:
        """Encode the template."""
        recorded, template = self._recorded, self._template
        results = [result.value for result in template.placement.results]
        external = self._external_numbers(len(results))
        return b"".join(
            (
                number(len(recorded.symbols)),
                sequence(
                    number(_OPERATIONS.index(operation)) + number(a) + number(b)
                    for operation, a, b in recorded.instructions.steps
                ),
                _places(recorded.instructions.results),
                sequence(number(i) + number(axis) for i, axis in self._sources),
                sequence(_places(recorded.shape_of(value)) for value in self._inputs),
                sequence(_places(recorded.shape_of(value)) for value in results),
                sequence(number(a) + number(b) + text(node) for a, b, node in recorded.equal),
                sequence(number(place) + text(node) for place, node in recorded.nonnegative),
                sequence(
                    raw(each.recipe) + _shapes(each.inputs) + _shapes(each.outputs) for each in recorded.factories
                ),
                sequence(number(first) + number(last) + number(size) for first, last, size in recorded.requests),
                sequence(
                    text(step.name)
                    + number(step.factory)
                    + sequence(_location(at, external) for at in step.inputs)
                    + sequence(_location(at, external) for at in step.outputs)
                    + _location(step.scratch, external)
                    for step in recorded.steps
                ),
                sequence(map(number, self._constants.values())),
                sequence(_places(places) + text(dtype) for places, dtype in recorded.values.values()),
            )
        )

    def _external_numbers(self, results: int) -> dict[int, int]:
        """Return the numbers of external memory in the file.

        Inputs come first, then the random state, outputs, constants, and values of sizes.
        """
        inputs = self._template.graph.inputs
        position = {value: i for i, value in enumerate(inputs)}
        given = [position[value] for value in self._inputs]
        outputs = [len(inputs) + i for i in range(results)]
        random = [position[value] for value in inputs if value.role == "rng"]
        rest = [*outputs, *self._constants, *self._recorded.values]
        first = len(given) + self._draws
        return {
            **{external: i for i, external in enumerate(given)},
            **dict.fromkeys(random, len(given)),
            **{external: first + i for i, external in enumerate(rest)},
        }


def _places(places: Sequence[int]) -> bytes:
    return sequence(map(number, places))


def _shapes(shapes: Sequence[Sequence[int] | None]) -> bytes:
    return sequence(optional(None if places is None else _places(places)) for places in shapes)


def _location(location: Location, external: Mapping[int, int]) -> bytes:
    block, offset = location
    if block == ARENA:
        return number(ARENA) + number(offset)
    return number(block) + number(0) if location == ABSENT else number(external[block]) + number(0)
