"""What the recurrences forward and backward share: where elements lie, working memory, products, launches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    Given,
    Input,
    Launch,
    Matrix,
    Product,
    Scratch,
)
from graphkit.executor.devices.cuda.movement.copies import End, copied
from graphkit.executor.devices.cuda.products import workspace_for
from graphkit.executor.devices.cuda.rnn.cells import Rows
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.operands import operand
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import Op, operator
from graphkit.ops.rnn.recurrence import Recurrence

_ALIGNED = 256


class WorkingMemory:
    """Scratch memory behind what the library may use, handed out piece by piece."""

    def __init__(self, workspace: int):
        self.bytes = workspace

    def array(self, elements: int, kind: DType) -> Scratch:
        place = Scratch(self.bytes)
        self.bytes += -(-elements * kind.itemsize // _ALIGNED) * _ALIGNED
        return place


class Multiplied(NamedTuple):
    """One of a step's products: where what is multiplied is, and where the result."""

    left: Scratch
    result: Scratch
    product: Product


class Operands:
    """Parameters of a kernel, each declared when it is first used."""

    def __init__(self) -> None:
        self.given: Given = []

    def _declare(self, declaration: str, argument: Argument) -> None:
        if (declaration, argument) not in self.given:
            self.given.append((declaration, argument))

    def element(self, name: str, kind: DType, argument: Argument, place: str) -> str:
        self._declare(f"const {STORED[kind]}* {name}", argument)
        return f"{name}[{place}]"

    def read(self, name: str, kind: DType, argument: Argument, place: str) -> str:
        """An element as A."""
        return f"(A)gk_read({self.element(name, kind, argument, place)})"

    def write(self, name: str, kind: DType, argument: Argument, place: str, value: str) -> str:
        self._declare(f"{STORED[kind]}* {name}", argument)
        return f"gk_write({name}[{place}], {value});"


@dataclass(frozen=True)
class Recurrent:
    """A layer of known sizes, whose elements have the type `kind`.

    A kernel has a thread for each element `at` of an array [D, N, H], number `u` of the row `row` of sequence `n` and
    direction `d`. What belongs to a step lies behind `past`, the row's number in [D, T, N].
    """

    layer: Recurrence
    kind: DType
    steps: int
    batch: int
    hidden: int
    tf32: bool

    @property
    def held(self) -> DType:
        return held_type(self.kind)

    @property
    def directions(self) -> int:
        return self.layer.directions

    @property
    def rows(self) -> int:
        """Of a state."""
        return self.directions * self.batch

    @property
    def elements(self) -> int:
        """Of a state."""
        return self.rows * self.hidden

    @property
    def places(self) -> Coordinates:
        widest = max(self.layer.gates, self.layer.saved_gates)
        return Coordinates("i", 3, self.elements * max(self.steps, 1) * widest + THREADS < 1 << 31)

    # --- where elements lie -----------------------------------------------------------------------------------------

    @property
    def of_state(self) -> str:
        """In a state as the layer has it."""
        return f"(n * {self.directions}u + d) * isize2 + u" if self.layer.layout else "at"

    @property
    def of_result(self) -> str:
        """In the layer's first result, at `time`."""
        row = f"(n * steps + time) * {self.directions}u + d"
        if not self.layer.layout:
            row = f"(time * {self.directions}u + d) * isize1 + n"
        return f"({row}) * isize2 + u"

    def of_part(self, part: int, parts: int, row: str) -> str:
        """Part `part` of `parts` side by side, of a row of them."""
        return f"({row} * {parts}u + {part}u) * isize2 + u"

    def goes_on(self, operands: Operands, lengths: int | None, time: str) -> str:
        """Whether the sequence of a row has that time; lengths: the position of their operand, if it is there."""
        if lengths is None:
            return "true"
        return f"(gk_i64)({time}) < {operands.element('lengths', DType.INT32, Input(lengths), 'n')}"

    def time(self, step: str) -> str:
        """The time of a step, counted in the order in which the layer goes forward."""
        back = f"steps - 1u - {step}"
        return {(False,): step, (True,): back, (False, True): f"(d == 0 ? {step} : {back})"}[self.layer.reversed]

    # --- launches ---------------------------------------------------------------------------------------------------

    def launch(self, name: str, step: str, operands: Operands, lines: Sequence[str]) -> Launch:
        """The kernel with a thread for each element of a state, for step 0, which is its parameter of the name `step`.

        Lines see `at`, `d`, `n`, `u`, `row`, `steps`, and the type A of what is computed.
        """
        places = self.places
        found, (direction, sequence, unit) = places.lines("at")
        found += [
            f"typedef {STORED[self.held]} A;",
            f"const {places.index} d = {direction}, n = {sequence}, u = {unit}, row = {places.line};",
        ]
        given: Given = [
            (f"{places.index} {step}", places.number(0)),
            (f"{places.index} steps", places.number(self.steps)),
            *operands.given,
        ]
        sizes = (self.directions, self.batch, self.hidden)
        return for_each(f"{self.layer.name}_{name}", sizes, places, given, [*found, *lines])

    def at_step(self, launch: Launch, number: int) -> Launch:
        """The same kernel for another step."""
        return launch._replace(arguments=(self.places.number(number), *launch.arguments[1:]))

    # --- products ---------------------------------------------------------------------------------------------------

    @property
    def workspace(self) -> int:
        """Of a step's products at most."""
        return workspace_for(self.rows * self.hidden * self.layer.gates, self.hidden * self.layer.gates)

    def part_of_r(self, r: Argument, rows: Rows, memory: WorkingMemory) -> tuple[Matrix, list[Launch]]:
        """Rows of r for both directions, as the library has them, and what copies them to where its arrays begin."""
        size, count = self.hidden * self.hidden, rows.parts * self.hidden
        stride = self.layer.gates * size
        if rows.first == 0:
            return Matrix(r, self.hidden, count, self.hidden, stride), []
        place = memory.array(self.directions * rows.parts * size, self.kind)
        source, target = End((stride, 1), rows.first * size), End((rows.parts * size, 1))
        sizes = (self.directions, rows.parts * size)
        launch = copied(sizes, source, target, self.kind.itemsize, r, place)
        assert launch is not None
        return Matrix(place, self.hidden, count, self.hidden, rows.parts * size), [launch]

    def product(self, of_r: Matrix, left: Argument, result: Argument, *, back: bool) -> Product:
        """For each direction [N, H] by the transpose of rows of r, [N, rows]; backward [N, rows] by them, [N, H].

        The result's elements have the type `held`.
        """
        across, depth = (of_r.rows, of_r.columns) if back else (of_r.columns, of_r.rows)
        return Product(
            self.kind,
            a=of_r,
            b=Matrix(left, depth, self.batch, depth, self.batch * depth),
            d=Matrix(result, across, self.batch, across, self.batch * across),
            transposed=(not back, False),
            batch=self.directions,
            tf32=self.tf32,
            workspace=self.workspace,
            sums=True,
        )


def positions(node: Node) -> dict[str, int]:
    """Of the operands that are there, by name."""
    formals = operator(node, Op).formals
    return {formal.name: i for i, formal in enumerate(formals) if operand(node, i) is not None}


def in_use(names: Sequence[str], used: Sequence[bool]) -> dict[str, int]:
    """The positions of those results that somebody reads."""
    return {name: i for i, (name, read) in enumerate(zip(names, [*used, *[True] * len(names)], strict=False)) if read}
