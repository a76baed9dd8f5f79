"""Templates as plain data, which saved programs contain. `Template.recorded` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.executor.lower.lowering import Location
from graphkit.ir.graph import Value
from graphkit.ir.sizes import SizeInstructions
from graphkit.named_tuples import NamedTuple


class RecordedFactory(NamedTuple):
    """How kernels are made: a recipe, and the shapes of operands and results as positions in the table of sizes."""

    recipe: bytes
    inputs: Sequence[Sequence[int] | None]
    outputs: Sequence[Sequence[int] | None]


class RecordedStep(NamedTuple):
    """A step whose kernels a factory makes.

    A location in the arena contains the index of a memory request (`RecordedTemplate.requests`) instead of an offset.
    """

    name: str
    factory: int
    inputs: Sequence[Location]
    outputs: Sequence[Location]
    scratch: Location


class RecordedTemplate(NamedTuple):
    """A template as plain data, for saved programs.

    Its memory plan is valid for every kernel that a factory can make. So each step has working memory, even for kernels
    that need none. No step writes a result over an operand.

    Attributes:
        symbols: The names of sizes.
        instructions: The instructions that compute the table of sizes.
        shape_of: A function that returns the shape of a value, as positions in the table.
        equal: Positions of sizes that must be equal, and the name of the node that requires it.
        nonnegative: Positions of sizes that must not be negative, in the order of the graph. Each with the name of the
            first node whose results have this size; "" for inputs.
        factories: The factories of the steps' kernels.
        requests: Blocks of the arena: (first step, last step, size). The size is a position in the table, or -1 - i for
            the working memory of step i.
        steps: In the order of a run.
        constants: Arrays that steps read, by the number of their external memory.
        values: Tensors whose elements are sizes, by the number of their external memory. Each is given as the elements'
            positions in the table, and the dtype.
    """

    symbols: Sequence[str]
    instructions: SizeInstructions
    shape_of: Callable[[Value], Sequence[int]]
    equal: Sequence[tuple[int, int, str]]
    nonnegative: Sequence[tuple[int, str]]
    factories: Sequence[RecordedFactory]
    requests: Sequence[tuple[int, int, int]]
    steps: Sequence[RecordedStep]
    constants: Mapping[int, np.ndarray]
    values: Mapping[int, tuple[Sequence[int], str]]


class UnplannedKernel(NamedTuple):
    """Represents all kernels of a step in a memory plan that is valid for each of them.

    The step gets working memory, does not write results over operands, and packs no constants.
    """

    kernel: Any
    scratch_bytes: int = 1
    inplace: Sequence[tuple[int, int]] = ()
    packed: Sequence[int] = ()
    layouts: Sequence[str] = ()


class StepRecorder:
    """Stores the steps that a `_Writer` of `graphkit.executor.lower.template` writes."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Sequence[Location], Sequence[Location], Location]] = []

    def kernel(
        self, name: str, kernel: Any, inputs: Sequence[Location], outputs: Sequence[Location], scratch: Location
    ) -> None:
        self.steps.append((name, inputs, outputs, scratch))
