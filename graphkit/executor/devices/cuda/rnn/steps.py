"""Parts of forward and backward recurrences: indices of elements, working memory, products, launches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import Op, operator
from graphkit.ops.rnn.recurrence import Recurrence

_ALIGNED = 256


class WorkingMemory:
    """Allocates pieces of scratch memory, after the workspace of the library. bytes: size of all so far."""

    def __init__(self, workspace: int):
        self.bytes = workspace

    def array(self, elements: int, kind: DType) -> Scratch:
        place = Scratch(self.bytes)
        self.bytes += -(-elements * kind.itemsize // _ALIGNED) * _ALIGNED
        return place


class Multiplied(NamedTuple):
    """A product of a step, with the memory of its left factor and of its result."""

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
        """Return the expression of an element, converted to A."""
        return f"(A)gk_read({self.element(name, kind, argument, place)})"

    def write(self, name: str, kind: DType, argument: Argument, place: str, value: str) -> str:
        self._declare(f"{STORED[kind]}* {name}", argument)
        return f"gk_write({name}[{place}], {value});"


@dataclass(frozen=True)
class Recurrent:
    """A recurrent layer with known sizes. kind: type of its elements.

    A kernel has a thread for each element of an array [D, N, H] (directions, sequences, hidden units). Its lines can
    use the index `at` of the element, the coordinates `d`, `n` and `u`, and `row`, the index in [D, N]. In arrays with
    an axis of time, `past` is the index in [D, T, N].
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
        """Number of rows of a state."""
        return self.directions * self.batch

    @property
    def elements(self) -> int:
        """Number of elements of a state."""
        return self.rows * self.hidden

    @property
    def places(self) -> Coordinates:
        widest = max(self.layer.gates, self.layer.saved_gates)
        return Coordinates("i", 3, self.elements * max(self.steps, 1) * widest + THREADS < 1 << 31)

    # --- indices of elements ----------------------------------------------------------------------------------------

    @property
    def of_state(self) -> str:
        """The index of the thread's element in a state that is an operand or a result of the layer."""
        return f"(n * {self.directions}u + d) * isize2 + u" if self.layer.layout else "at"

    @property
    def of_result(self) -> str:
        """The index of the thread's element in the first result of the layer, at `time`."""
        row = f"(n * steps + time) * {self.directions}u + d"
        if not self.layer.layout:
            row = f"(time * {self.directions}u + d) * isize1 + n"
        return f"({row}) * isize2 + u"

    def of_part(self, part: int, parts: int, row: str) -> str:
        """Return the index of the thread's element in part `part` of a row that consists of `parts` parts of size H."""
        return f"({row} * {parts}u + {part}u) * isize2 + u"

    def is_within(self, operands: Operands, lengths: int | None, time: str) -> str:
        """Return the expression for whether `time` is within the length of the thread's sequence.

        lengths: Position of the operand with the lengths; None if it is absent.
        """
        if lengths is None:
            return "true"
        return f"(gk_i64)({time}) < {operands.element('lengths', DType.INT32, Input(lengths), 'n')}"

    def time(self, step: str) -> str:
        """Return the expression of the time of a step. Steps are numbered in the order of the forward recurrence."""
        back = f"steps - 1u - {step}"
        return {(False,): step, (True,): back, (False, True): f"(d == 0 ? {step} : {back})"}[self.layer.reversed]

    # --- launches ---------------------------------------------------------------------------------------------------

    def launch(self, name: str, step: str, operands: Operands, lines: Sequence[str]) -> Launch:
        """Return the launch with a thread for each element of a state, for step 0.

        Args:
            name: Name of the kernel.
            step: Name of the parameter with the number of the step.
            operands: Further parameters.
            lines: Lines, which can use `at`, `d`, `n`, `u`, `row`, `steps`, and the type A in which to compute.
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
        """Return the same launch for another step."""
        return launch._replace(arguments=(self.places.number(number), *launch.arguments[1:]))

    # --- products ---------------------------------------------------------------------------------------------------

    @property
    def workspace(self) -> int:
        """Bytes of the library's workspace for any product of a step."""
        return workspace_for(self.rows * self.hidden * self.layer.gates, self.hidden * self.layer.gates)

    def part_of_r(self, r: Argument, rows: Rows, memory: WorkingMemory) -> tuple[Matrix, list[Launch]]:
        """Return rows of r for all directions as a matrix of the library, and launches that must run first.

        Rows that do not begin at the first one are copied, so that they are aligned.
        """
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
        """Return the product with rows of r for all directions. The result has the type `held`.

        Forward, a factor [N, H] times the transpose of the rows is [N, rows]. Backward (`back`), a factor [N, rows]
        times the rows is [N, H].
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
    """Return the positions of the operands that are present, by name."""
    formals = operator(node, Op).formals
    return {formal.name: i for i, formal in enumerate(formals) if operand(node, i) is not None}


def in_use(names: Sequence[str], used: Sequence[bool]) -> dict[str, int]:
    """Return the positions of the results that are used, by name."""
    return {name: i for i, (name, read) in enumerate(zip(names, [*used, *[True] * len(names)], strict=False)) if read}
