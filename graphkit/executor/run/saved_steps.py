"""The steps of a saved program: which ones there are, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.kernel import NativeKernel
from graphkit.executor.lower.branch import Branch
from graphkit.executor.lower.loop import Loop
from graphkit.executor.lower.loop_layout import LoopLayout
from graphkit.executor.lower.lowering import ABSENT, Location, LoweredGraph, Lowering
from graphkit.executor.lower.native_kernel import PreparedKernel
from graphkit.executor.lower.run_time_kernel import RunTimeKernel, RunTimeOperand
from graphkit.executor.lower.run_time_shape import RowStep, ShapeStep
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.executor.run.saved_encoding import number, optional, raw, sequence, text
from graphkit.ir.graph import Node
from graphkit.named_tuples import NamedTuple
from graphkit.text import listed

# An error names at most this many nodes.
MOST_NAMED = 5

# Limits of the reader (step_check.cpp, loop_check.cpp): levels of subgraphs, and states or slices of a loop.
_MOST_LEVELS, _MOST_PIECES = 32, 1024

# Kinds of steps, as SavedStep::Kind in executor/native/c_interface/step_check.h.
_KERNEL, _COPY, _BRANCH, _LOOP, _SIZES, _ROW, _SIZED, _FAIL = range(8)


class SavedBuffer(NamedTuple):
    """A buffer that loops stack rows in.

    Args:
        row: The shape of a row.
        item: Bytes of an element.
    """

    row: Sequence[int]
    item: int


class SavedSizedKernel(NamedTuple):
    """How a step makes its kernel in a run.

    Args:
        recipe: The recipe of the factory.
        operands: The shape of each operand, None for a buffer or an absent operand, and the bytes of an element.
        results: For each result, the source of its sizes (see `RunTimeKernel.result_sizes`), and the bytes of an
            element.
    """

    recipe: bytes
    operands: Sequence[tuple[Sequence[int] | None, int]]
    results: Sequence[tuple[Sequence[tuple[int, int]], int]]


class SavedSlice(NamedTuple):
    """An array that a loop reads or writes row by row.

    Args:
        external: Number of the external memory where the body finds the row.
        whole: Where the array is. It may be a buffer, which the loop reads.
        stride: Bytes of a row; 0 for a buffer.
        backwards: Whether the last row is the first one.
    """

    external: int
    whole: Location
    stride: int
    backwards: bool


class SavedStack(NamedTuple):
    """A buffer that a loop writes row by row.

    Args:
        external: Number of the external memory where the body finds the row.
        whole: Where the buffer is.
        backwards: Whether the last row is the first one.
    """

    external: int
    whole: Location
    backwards: bool


class SavedState(NamedTuple):
    """A state of a loop.

    Args:
        before: Number of the external memory where the body reads it.
        after: Number of the external memory where the body writes it.
        initial: Where the first value is.
        final: Where the last value will be; ABSENT if it is not used.
        nbytes: Bytes of a value.
        row: Position of the slice or stack whose rows are the values; None if there is none.
        turns: The two places that iterations write in turn; empty if there is a slice.
    """

    before: int
    after: int
    initial: Location
    final: Location
    nbytes: int
    row: int | None
    turns: Sequence[Location]


class SavedLoop(NamedTuple):
    """A loop, without the steps of its body.

    Args:
        trips: The largest number of iterations; -1 if it is not known.
        values: Where the trip count, the condition, the iteration number, and the condition that the body reads and
            that it writes are. ABSENT for those that the loop lacks.
        slices: Arrays that it reads or writes row by row.
        stacks: Buffers that it writes row by row.
        states: Its states.
    """

    trips: int
    values: Sequence[Location]
    slices: Sequence[SavedSlice]
    stacks: Sequence[SavedStack]
    states: Sequence[SavedState]

    @property
    def externals(self) -> Iterator[int]:
        """The external memory of the body, in the order in which the reader numbers it."""
        yield from (each.external for each in self.slices)
        yield from (each.external for each in self.stacks)
        for state in self.states:
            yield state.before
            if state.row is None:
                yield state.after


class SavedStep(NamedTuple):
    """A step of the file.

    Args:
        kind: One of the numbers above.
        name: Name of the step; the message of a failure.
        inputs: Where the operands are: those of a kernel, the source of a copy, the condition of a branch, or a buffer
            and the index of a row.
        outputs: Where the results are.
        kernel: The kernel.
        scratch: Where the working memory is.
        nbytes: Bytes of a copy, or of the index of a row.
        axes: The axes whose sizes are written: the first one, and the one after the last.
        sized: How the kernel is made in a run.
        loop: What a loop does.
        blocks: For a branch, the steps that run if the condition is true, and the others. For a loop, its body.
    """

    kind: int
    name: str
    inputs: Sequence[Location] = ()
    outputs: Sequence[Location] = ()
    kernel: NativeKernel | None = None
    scratch: Location = ABSENT
    nbytes: int = 0
    axes: tuple[int, int] = (0, 0)
    sized: SavedSizedKernel | None = None
    loop: SavedLoop | None = None
    blocks: Sequence[StepList] = ()

    def all_steps(self) -> Iterator[SavedStep]:
        """Yield this step, and those of its blocks."""
        yield self
        for block in self.blocks:
            for step in block.steps:
                yield from step.all_steps()


class StepList:
    """Replaces the native builder: lists the steps that the emitter writes.

    buffers: The buffers of the program, by the number of their external memory. Loops add those that they write.
    """

    def __init__(self, buffers: dict[int, SavedBuffer]) -> None:
        self.buffers = buffers
        self.steps: list[SavedStep] = []

    @property
    def all_steps(self) -> Iterator[SavedStep]:
        """All steps, also those of blocks, in the order in which they are encoded."""
        for step in self.steps:
            yield from step.all_steps()

    def kernel(
        self,
        name: str,
        kernel: NativeKernel,
        inputs: Sequence[Location],
        outputs: Sequence[Location],
        scratch: Location,
    ) -> None:
        given, results = inputs[: kernel.input_count], outputs[: kernel.output_count]
        working = scratch if kernel.scratch_bytes else ABSENT
        self.steps.append(SavedStep(_KERNEL, name, given, results, kernel, working))

    def copy(self, name: str, source: Location, target: Location, nbytes: int) -> None:
        self.steps.append(SavedStep(_COPY, name, [source], [target], nbytes=nbytes))

    def branch(self, name: str, condition: Location) -> tuple[StepList, StepList]:
        blocks = (StepList(self.buffers), StepList(self.buffers))
        self.steps.append(SavedStep(_BRANCH, name, [condition], blocks=blocks))
        return blocks

    def loop(
        self,
        name: str,
        *,
        trips: int,
        trip_count: Location | None,
        condition: Location | None,
        iteration: Location | None,
        condition_before: Location | None,
        condition_after: Location | None,
        states: Sequence[tuple[Any, ...]],
        dynamic_states: Sequence[Any],
        slices: Sequence[tuple[Any, ...]],
        stacks: Sequence[tuple[Any, ...]],
        empty: Any,
    ) -> StepList:
        assert not any((dynamic_states, empty)), "such loops are refused before"
        values = [_present(at) for at in (trip_count, condition, iteration, condition_before, condition_after)]
        rows = [SavedSlice(row, whole, stride, back) for row, whole, stride, back, *_ in slices]
        grown = [SavedStack(row, (whole, 0), back) for row, whole, _, _, back in stacks]
        for _, whole, shape, item, _ in stacks:
            self._add_buffer(name, whole, shape, item)
        externals = [*(each.external for each in rows), *(each.external for each in grown)]
        place = {external: position for position, external in enumerate(externals)}
        kept = []
        for initial, before, after, turns, final, nbytes in states:
            in_row = isinstance(turns, bool)
            row = place[after] if in_row else None
            kept.append(SavedState(before, after, initial, _present(final), nbytes, row, () if in_row else turns))
        body = StepList(self.buffers)
        loop = SavedLoop(trips, values, rows, grown, kept)
        self.steps.append(SavedStep(_LOOP, name, loop=loop, blocks=(body,)))
        return body

    def sizes(self, name: str, buffer: int, first: int, last: int, target: Location) -> None:
        self.steps.append(SavedStep(_SIZES, name, [(buffer, 0)], [target], axes=(first, last)))

    def row(self, name: str, buffer: int, item: int, index: Location, wide: bool, target: Location) -> None:
        self.steps.append(SavedStep(_ROW, name, [(buffer, 0), index], [target], nbytes=8 if wide else 4))

    def dynamic(
        self,
        name: str,
        make: Any,
        inputs: Sequence[Location],
        operands: Sequence[RunTimeOperand],
        outputs: Sequence[Location],
        results: Sequence[RunTimeOperand],
    ) -> None:
        kernel: RunTimeKernel = make.__self__  # `make` is its method, see `AtRunTime.emit`
        recipe, sizes = kernel.recipe, kernel.result_sizes
        assert recipe is not None, "such nodes are refused before"
        assert sizes is not None, "such nodes are refused before"
        shapes = kernel.known_shapes
        given = [
            (None if at == ABSENT else shape, item)
            for at, shape, (_, item, *_) in zip(inputs, shapes, operands, strict=False)
        ]
        given += [(None, 0)] * (len(inputs) - len(given))
        for (buffer, item, *_), value in zip(results, kernel.node.outputs, strict=True):
            if buffer >= 0:
                self._add_buffer(name, buffer, value.tensor.known_shape[1:], item)
        made = [(size, item) for size, (_, item, *_) in zip(sizes, results, strict=True)]
        self.steps.append(SavedStep(_SIZED, name, inputs, outputs, sized=SavedSizedKernel(recipe, given, made)))

    def _add_buffer(self, name: str, external: int, row: Sequence[Any], item: int) -> None:
        buffer = SavedBuffer(tuple(row), item)
        if self.buffers.setdefault(external, buffer) != buffer:
            raise UnsupportedError(f"{name}: the rows of a result have another shape in the other branch of an If")

    def fail(self, message: str) -> None:
        self.steps.append(SavedStep(_FAIL, message))

    def store(self, name: str, *_: Any) -> None:
        raise UnsupportedError(f"{name}: a size depends on values, which programs for C do not support yet")

    resize = store

    def commit(self) -> None:
        """Do nothing: no step overwrites a state."""


def _present(location: Location | None) -> Location:
    return ABSENT if location is None else location


# --- steps that cannot be saved -------------------------------------------------------------------


def refuse_other_steps(lowered: LoweredGraph) -> None:
    """Raise UnsupportedError for steps that cannot be saved."""
    if refused := list(_refused(lowered)):
        names = listed(refused, len(refused), MOST_NAMED)
        raise UnsupportedError(f"these nodes cannot be saved in a program for C: {names}")


def _refused(lowered: LoweredGraph, prefix: str = "", level: int = 1) -> Iterator[str]:
    """Yield the steps that cannot be saved, and why."""
    for node, lowering in lowered.steps:
        name = prefix + lowered.graph.node_name(node)
        too_deep = bool(lowering.subgraphs) and level >= _MOST_LEVELS
        why = f"more than {_MOST_LEVELS} levels of branches and loops" if too_deep else _why_refused(node, lowering)
        if why:
            yield f"{name} ({node.op.name}: {why})"
        if not too_deep:
            for part, graph in lowering.subgraphs.items():
                yield from _refused(graph, f"{name}/{part}/", level + 1)


def _why_refused(node: Node, lowering: Lowering) -> str:
    """Return why a step cannot be saved; "" if it can, apart from the steps of its subgraphs."""
    if isinstance(lowering, PreparedKernel):
        name = type(lowering.kernel).__name__
        return "" if lowering.kernel.recipe is not None else f"kernels of the class {name} cannot be saved yet"
    if isinstance(lowering, Branch):
        return ""
    if isinstance(lowering, Loop):
        layout = lowering.layout
        if max(len(layout.states), len(layout.scanned) + len(layout.stacked)) > _MOST_PIECES:
            return f"more than {_MOST_PIECES} states, or inputs and outputs that are read or written in slices"
        return _why_sizes_vary(layout)
    if isinstance(lowering, ShapeStep | RowStep):
        return ""
    if isinstance(lowering, RunTimeKernel) and lowering.recipe is not None and lowering.result_sizes is not None:
        return ""
    if lowering.reason or lowering.in_python:
        return lowering.reason or "it runs in Python"
    return "shapes that depend on values cannot be saved yet"


def _why_sizes_vary(layout: LoopLayout) -> str:
    """Return which values of a loop cannot be saved because their rows have no known size; "" if all can be saved."""
    if any(state.buffers is None for state in layout.states):
        return "the shape of a state changes"
    if not all(map(has_fixed_size, [*(s.row for s in layout.scanned), *(s.row for s in layout.stacked)])):
        return "the shape of the slices that it reads or stacks depends on values"
    return ""


# --- encoding -------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """Numbers in the file: those of kernels by their recipe, and those of external memory."""

    kernels: Mapping[bytes, int]
    external: Mapping[int, int]


def encoded_buffers(steps: StepList) -> bytes:
    """Encode the buffers of a program, in the order in which they are numbered."""
    return sequence(sequence(map(number, each.row)) + number(each.item) for each in steps.buffers.values())


def encoded_steps(steps: StepList, numbers: Numbers) -> bytes:
    """Encode steps as RecipeCodec<SavedStep> in executor/native/c_interface/step_check.h reads them."""
    return _steps(steps, numbers, _written(steps))


def _written(steps: StepList) -> Set[int]:
    """Return the numbers of the external memory that steps write."""
    every = list(steps.all_steps)
    found = {location[0] for step in every for location in step.outputs}
    for step in reversed(every):  # a loop after those in its body
        if step.loop is not None:
            found.update(each.whole[0] for each in step.loop.slices if each.external in found)
            found.update(state.final[0] for state in step.loop.states)
    return found


def _steps(steps: StepList, numbers: Numbers, written: Set[int]) -> bytes:
    return sequence(_step(step, numbers, written) for step in steps.steps)


def _step(step: SavedStep, numbers: Numbers, written: Set[int]) -> bytes:
    external, kernel = numbers.external, step.kernel
    packed = () if kernel is None else kernel.packed_inputs
    layouts = [kernel.packed_layout(i) if kernel is not None and i in packed else "" for i in range(len(step.inputs))]
    return b"".join(
        (
            number(step.kind),
            text(step.name),
            number(0 if kernel is None else numbers.kernels[kernel.recipe or b""]),
            sequence(_location(location, external) for location in step.inputs),
            sequence(map(text, layouts)),
            sequence(_location(location, external) for location in step.outputs),
            _location(step.scratch, external),
            number(step.nbytes),
            *map(number, step.axes),
            optional(None if step.sized is None else _sized(step.sized)),
            optional(None if step.loop is None else _loop(step.loop, external, written)),
            sequence(_steps(block, numbers, written) for block in step.blocks),
        )
    )


def _sized(kernel: SavedSizedKernel) -> bytes:
    operands = (
        optional(None if shape is None else sequence(map(number, shape))) + number(item)
        for shape, item in kernel.operands
    )
    results = (
        sequence(number(operand) + number(size) for operand, size in sizes) + number(item)
        for sizes, item in kernel.results
    )
    return raw(kernel.recipe) + sequence(operands) + sequence(results)


def _loop(loop: SavedLoop, external: Mapping[int, int], written: Set[int]) -> bytes:
    slices = [
        _location(each.whole, external)
        + number(each.stride)
        + number(each.backwards)
        + number(each.external in written)
        for each in loop.slices
    ]
    stacks = [_location(each.whole, external) + number(each.backwards) for each in loop.stacks]
    states = [
        b"".join(
            (
                _location(state.initial, external),
                _location(state.final, external),
                number(state.nbytes),
                optional(None if state.row is None else number(state.row)),
                sequence(_location(place, external) for place in state.turns),
            )
        )
        for state in loop.states
    ]
    values = (_location(location, external) for location in loop.values)
    return b"".join((number(loop.trips), *values, sequence(slices), sequence(stacks), sequence(states)))


def _location(location: Location, external: Mapping[int, int]) -> bytes:
    block, offset = location
    return number(external[block] if block >= 0 else block) + number(offset if location != ABSENT else 0)
