"""If, Loop and Scan as regions of the native program.

A step here owns a block of working memory: the values that it carries from one iteration to the next, and the arenas
of its regions. A loop whose body changes a shape, or has a step without a native kernel, runs by its reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphkit.errors import TypeMismatch
from graphkit.executor.emit import ABSENT, ARENA, Emitter, Where
from graphkit.executor.kernels import VersionedArray
from graphkit.executor.memory import aligned
from graphkit.executor.placement import has_fixed_size
from graphkit.executor.region import Region, Settings
from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import DType, TensorType, Type
from graphkit.ops import Op
from graphkit.passes._base import run_passes
from graphkit.passes.bind import rebind
from graphkit.passes.cleanup import CLEANUP

ControlStep: TypeAlias = "IfStep | LoopStep"


def control_step(
    node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]
) -> ControlStep | None:
    """The regions that compute a control-flow node of static types; None when one of them needs Python.

    What a subgraph computes for an output that is not `used` is left out, unless the next iteration reads it.
    """
    if node.op.domain or not isinstance(node.op, Op) or settings.device != "cpu":
        return None
    make = {"If": _if_step, "Loop": _loop_step, "Scan": _scan_step}.get(node.op.name)
    return None if make is None else make(node, constants, settings, used)


@dataclass
class _Block:
    """A block of working memory that is being laid out."""

    size: int = 0

    def take(self, nbytes: int) -> int:
        offset = self.size
        self.size += aligned(nbytes)
        return offset


@dataclass
class IfStep:
    """The branches then and else. Only one of them runs, so that their arenas share the block.

    Types may rule one out, which fails when it is taken: that one is a message.
    """

    node: Node
    branches: tuple[Region | str, Region | str]

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(branch for branch in self.branches if isinstance(branch, Region))

    @property
    def scratch_bytes(self) -> int:
        return max(region.layout.arena_bytes for region in self.regions)

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        for branch, inner in zip(self.branches, builder.branch(name, inputs[0]), strict=True):
            if isinstance(branch, str):
                inner.fail(f"{name}: {branch}")
            else:
                read = [where for where in outputs if where != ABSENT]
                emitter.region(inner, branch, base, inputs[1:], read, prefix=f"{name}/")


@dataclass
class LoopStep:
    """A Loop or a Scan. Positions are those of the node's operands; offsets are in the block."""

    node: Node
    body: Region
    scratch_bytes: int
    arena: int  # offset of the body's arena
    trips: int  # -1: not known
    states: int
    captures: int
    before: tuple[int, ...]  # of each carried value
    after: tuple[int, ...]
    iteration: int | None = None
    flag_before: int | None = None
    flag_after: int | None = None
    slices: tuple[tuple[int, bool], ...] = ()  # of each scan input: operand, whether from the end
    written_backwards: tuple[bool, ...] = field(default=())  # of each scan output
    first_state: int = 0  # operand

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        def own(offset: int | None) -> Where | None:
            return None if offset is None else (ARENA, base + offset)

        graph = self.body.graph
        is_loop = self.flag_after is not None
        head = 2 if is_loop else 0
        carried_types = [v.tensor for v in graph.inputs[head : head + self.states]]
        before = [(ARENA, base + offset) for offset in self.before]
        after = [(ARENA, base + offset) for offset in self.after]
        carried = [
            (inputs[self.first_state + i], before[i], after[i], _optional(outputs[i]), kind.nbytes)
            for i, kind in enumerate(carried_types)
        ]
        slices: list[tuple[int, Where, int, bool]] = []
        read: list[Where] = []
        for (position, backwards), value in zip(self.slices, graph.inputs[head + self.states :], strict=False):
            external = emitter.new_external()
            read.append((external, 0))
            slices.append((external, inputs[position], value.tensor.nbytes, backwards))
        written: list[Where] = []
        stacked = graph.outputs[(1 if is_loop else 0) + self.states :]
        read_whole = [where for where in outputs[self.states :] if where != ABSENT]
        for i, (value, whole) in enumerate(zip(stacked, read_whole, strict=True)):
            external = emitter.new_external()
            written.append((external, 0))
            backwards = bool(self.written_backwards) and self.written_backwards[i]
            slices.append((external, whole, value.tensor.nbytes, backwards))
        inner = builder.loop(
            name,
            trips=self.trips,
            trip_count=_optional(inputs[0]) if is_loop else None,
            condition=_optional(inputs[1]) if is_loop else None,
            iteration=own(self.iteration),
            condition_before=own(self.flag_before),
            condition_after=own(self.flag_after),
            carried=carried,
            slices=slices,
        )
        entry = [(ARENA, base + o) for o in (self.iteration, self.flag_before) if o is not None]
        captured = list(inputs[len(inputs) - self.captures :])
        results = [*([own(self.flag_after)] if is_loop else []), *after, *written]
        emitter.region(
            inner,
            self.body,
            base + self.arena,
            [*entry, *before, *read, *captured],
            [ABSENT if w is None else w for w in results],
            prefix=f"{name}/",
        )


def _optional(where: Where) -> Where | None:
    return None if where == ABSENT else where


# --- making steps ---------------------------------------------------------------------------------


def _if_step(
    node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]
) -> IfStep | None:
    given = [v.type for v in node.inputs[1:] if v is not None]
    fixed = {i - 1: array for i, array in constants.items() if i > 0}
    op: Any = node.op
    branches: list[Region | str] = []
    for branch in (op.then_branch, op.else_branch):
        try:
            static = rebind(branch, dict(zip(branch.inputs, given, strict=True)))
        except TypeMismatch as error:
            branches.append(str(error))
            continue
        region = _compiled_region(_reading(static, used), fixed, settings)
        read = [v.type for v, u in zip(node.outputs, used, strict=True) if u]
        if region is None or [v.type for v in region.graph.outputs] != read:
            return None
        branches.append(region)
    return IfStep(node, (branches[0], branches[1]))


def _loop_step(
    node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]
) -> LoopStep | None:
    op: Any = node.op
    values = node.inputs[2:]
    states = len(values) - op.captures
    flag = TensorType(DType.BOOL, op.body.inputs[1].shape)
    given: list[Type] = [TensorType(DType.INT64, op.body.inputs[0].shape), flag]
    given += [_without_value(v.type) for v in values if v is not None]
    fixed = {i: array for i, array in constants.items() if i >= 2 + states}
    static = _body(op.body, given, [*[True] * (1 + states), *used[states:]])
    body = None if static is None else _compiled_region(static, fixed, settings, carried=(2, 1, states))
    if body is None:
        return None
    stacked = node.outputs[states:]
    known = node.inputs[0].tensor.constants if node.inputs[0] is not None else None
    trips = -1 if known is None else max(int(known[0]), 0)
    if stacked:
        trips = stacked[0].tensor.static_shape[0]
    block = _Block()
    before, after = _carried_slots(block, body.graph.inputs[2 : 2 + states])
    iteration, flag_before, flag_after = block.take(8), block.take(1), block.take(1)
    arena = block.take(body.layout.arena_bytes)
    return LoopStep(
        node, body, block.size, arena, trips, states, op.captures, before, after, iteration, flag_before, flag_after,
        first_state=2,
    )  # fmt: skip


def _scan_step(
    node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]
) -> LoopStep | None:
    op: Any = node.op
    scanned = op.num_scan_inputs
    states = len(node.inputs) - scanned - op.captures
    inputs = [v.tensor for v in node.inputs[states : states + scanned] if v is not None]
    outputs = [v.tensor for v in node.outputs[states:]]
    if not all(_is_first(t, a) for t, a in zip(inputs, op.scan_input_axes or (0,) * scanned, strict=True)):
        return None
    if not all(_is_first(t, a) for t, a in zip(outputs, op.scan_output_axes or (0,) * len(outputs), strict=True)):
        return None
    given: list[Type] = [_without_value(v.type) for v in node.inputs if v is not None]
    for i, kind in enumerate(inputs):
        given[states + i] = TensorType(kind.dtype, kind.static_shape[1:])
    fixed = {i: array for i, array in constants.items() if i >= states + scanned}
    static = _body(op.body, given, [*[True] * states, *used[states:]])
    body = None if static is None else _compiled_region(static, fixed, settings, carried=(0, 0, states))
    if body is None:
        return None
    block = _Block()
    before, after = _carried_slots(block, body.graph.inputs[:states])
    arena = block.take(body.layout.arena_bytes)
    read = op.scan_input_directions or (0,) * scanned
    written = op.scan_output_directions or (0,) * len(outputs)
    return LoopStep(
        node, body, block.size, arena, inputs[0].static_shape[0], states, op.captures, before, after,
        slices=tuple((states + i, bool(d)) for i, d in enumerate(read)),
        written_backwards=tuple(bool(d) for d, u in zip(written, used[states:], strict=True) if u),
    )  # fmt: skip


def _carried_slots(block: _Block, values: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where carried values lie when an iteration starts, and where it leaves them."""
    sizes = [v.tensor.nbytes for v in values]
    return tuple(block.take(s) for s in sizes), tuple(block.take(s) for s in sizes)


def _compiled_region(
    static: Graph, fixed: Mapping[int, VersionedArray], settings: Settings, carried: tuple[int, int, int] = (0, 0, 0)
) -> Region | None:
    """The region of a subgraph of static types; None when it cannot run without Python.

    `carried` is (first input, first output, count) of what a loop carries: the types have to agree, so that those of
    the first iteration are those of all.
    """
    first_in, first_out, count = carried
    for i in range(count):
        if _without_value(static.outputs[first_out + i].type) != static.inputs[first_in + i].type:
            return None
    if settings.optimize:
        static = run_passes(static, CLEANUP)
    if static.updates or not all(has_fixed_size(v) for v in (*static.inputs, *static.outputs)):
        return None
    region = Region(static, {static.inputs[i]: array for i, array in fixed.items()}, settings)
    return region if region.compiled else None


def _body(graph: Graph, types: Sequence[Type], used: Sequence[bool]) -> Graph | None:
    """A loop's body on operands of these types, with the results that are used; None when they rule it out: the
    reference says what does not fit."""
    try:
        return _reading(rebind(graph, dict(zip(graph.inputs, types, strict=True))), used)
    except TypeMismatch:
        return None


def _reading(graph: Graph, used: Sequence[bool]) -> Graph:
    """The graph with the outputs that are used."""
    return graph if all(used) else graph.replace(outputs=[v for v, u in zip(graph.outputs, used, strict=True) if u])


def _without_value(kind: Type) -> Type:
    return TensorType(kind.dtype, kind.shape) if isinstance(kind, TensorType) else kind


def _is_first(kind: TensorType, axis: int) -> bool:
    """Whether slices along `axis` are contiguous and follow each other."""
    place = axis % len(kind.static_shape)
    return all(size == 1 for size in kind.static_shape[:place])
