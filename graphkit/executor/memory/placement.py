"""Where each value of a graph lives: which values are views of others, and which memory the rest has."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from graphkit.ir import dims
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops.internal.swap import SwapIn, SwapOut
from graphkit.ops.tensor.constants import Constant
from graphkit.ops.tensor.layout import Transpose
from graphkit.passes.core.sweep import read_positions

# Kinds of memory. "result" is memory of its own, made for every run (outputs) or kept between runs (new values of
# states); "dynamic" is an array whose size is known only when it has been computed.
# "shape": small integers that follow from the sizes of the inputs, as the types say. "host" is memory of the host's
# where the others are a device's.
Place = Literal["arena", "input", "parameter", "constant", "shape", "result", "dynamic", "host"]


@dataclass(frozen=True, slots=True)
class Result:
    """An output or the new value of a state. `owned`: its storage is the result's memory; else it is copied out."""

    value: Value
    owned: bool


@dataclass(frozen=True)
class Placement:
    """Storages of a graph. A storage is known by its root: the value that writes it, or a graph input.

    `root` maps every value to the value whose bytes it is (itself, unless it is a view); `place` maps roots to
    their kind of memory. `results` are the updates' new values, then the outputs. `steps` are the nodes that
    compute something; `used` holds the values that something reads. `waits` lists, for views that ask for it, the
    storages that are written before whoever reads the view may run. Views are of as many bytes as their roots for the
    sizes at hand; `views` are pairs of which that has to be seen.
    """

    root: dict[Value, Value]
    place: dict[Value, Place]
    results: tuple[Result, ...]
    steps: tuple[Node, ...]
    used: frozenset[Value]
    waits: dict[Value, tuple[Value, ...]]
    symbols: Set[str] = frozenset()

    def is_sized(self, value: Value) -> bool:
        """Whether the value is a tensor whose bytes are known, for known `symbols`, before it is computed."""
        return _is_sized(value, self.symbols)

    def swapped_by(self, node: Node) -> Value | None:
        """Where what a SwapOut writes, or a SwapIn reads, lies in the host's memory; None for other nodes."""
        if not isinstance(node.op, (SwapOut, SwapIn)):
            return None
        stored = self.root[node.output if isinstance(node.op, SwapOut) else node.operands[0]]
        return stored if self.place[stored] == "host" else None


def place_values(
    graph: Graph, symbols: Set[str] = frozenset(), *, swaps: bool = False, hosted: Set[Value] = frozenset()
) -> Placement:
    """Place every value of `graph`. Linear.

    Tensors of unknown size, strings, sequences and optionals are dynamic: what a step makes. With `symbols`, sizes in
    which no others occur are known, and so are elements that the types tell. A view is one whatever they stand for,
    as long as it has as many bytes as its root. swaps: whether SwapOut and SwapIn are steps, as they are on devices
    with memory of their own; else they are views. hosted: what other steps write to the host's memory there.
    """
    wanted = [*(new for _, new in graph.updates), *graph.outputs]
    swapped = _swapped(graph, wanted) if swaps else frozenset()
    used = {v for node in graph.nodes for v in node.inputs if v is not None}.union(wanted)
    root: dict[Value, Value] = {v: v for v in graph.inputs}
    place: dict[Value, Place] = {v: "parameter" if v.role in ("parameter", "state") else "input" for v in graph.inputs}
    steps: list[Node] = []
    waits: dict[Value, tuple[Value, ...]] = {}
    for node in graph.nodes:
        if symbols and _is_told(node, used, symbols):
            root.update((v, v) for v in node.outputs)
            place.update(dict.fromkeys(node.outputs, "shape"))
            continue
        if not swapped.isdisjoint((*node.outputs, *node.inputs)):
            root[node.output] = node.output
            place[node.output] = "host" if node.output in swapped else "arena"
            steps.append(node)
            continue
        sources = _view_sources(node, used, root, place, symbols)
        if sources is not None:
            root.update(sources)
            awaited = _awaited(node, root, waits)
            if awaited:
                waits.update((v, awaited) for v in sources)
            continue
        root.update((v, v) for v in node.outputs)
        if isinstance(node.op, Constant):
            place[node.output] = "constant"
            continue
        place.update((v, "arena" if _is_sized(v, symbols) else "dynamic") for v in node.outputs)
        place.update((v, "host") for v in node.outputs if v in hosted)
        steps.append(node)
    results: list[Result] = []
    for value in wanted:
        source = root[value]
        owned = place[source] == "arena"
        if owned:
            place[source] = "result"
        results.append(Result(value, owned))
    return Placement(root, place, tuple(results), tuple(steps), frozenset(used), waits, symbols)


def has_fixed_size(value: Value) -> bool:
    """Whether the value is a tensor whose bytes are known before it is computed."""
    return isinstance(value.type, TensorType) and value.type.is_static and value.type.dtype is not DType.STRING


def has_run_time_size(value: Value) -> bool:
    """Whether the value is a tensor that only its shape, known once it is computed, tells the bytes of."""
    return isinstance(value.type, TensorType) and not value.type.is_static and value.type.dtype is not DType.STRING


def _swapped(graph: Graph, wanted: Sequence[Value]) -> frozenset[Value]:
    """What SwapOut makes and SwapIn alone reads."""
    found = {n.output for n in graph.nodes if isinstance(n.op, SwapOut) and has_fixed_size(n.output)}
    if found:
        found.difference_update(wanted)
        found.difference_update(v for n in graph.nodes if not isinstance(n.op, SwapIn) for v in n.operands)
        found.difference_update(n.operands[1] for n in graph.nodes if isinstance(n.op, SwapIn))
    return frozenset(found)


def _is_sized(value: Value, symbols: Set[str]) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or kind.dtype is DType.STRING:
        return False
    return all(not isinstance(d, DimExpr) or d.symbols <= symbols for d in kind.shape)


def _is_told(node: Node, used: set[Value], symbols: Set[str]) -> bool:
    """Whether the types tell the elements of every used output."""
    if isinstance(node.op, Constant):
        return False
    for value in node.outputs:
        if value in used:
            elements = value.type.value if isinstance(value.type, TensorType) and value.type.is_static else None
            if elements is None or not all(not isinstance(d, DimExpr) or d.symbols <= symbols for d in elements):
                return False
    return True


def _awaited(node: Node, root: dict[Value, Value], waits: dict[Value, tuple[Value, ...]]) -> tuple[Value, ...]:
    """The storages that readers of a view wait for: those of operands of which the view reads nothing."""
    read = set(read_positions(node))
    found: dict[Value, None] = {}
    for position, value in enumerate(node.inputs):
        if value is not None:
            found.update(dict.fromkeys(waits.get(value, ())))
            if position not in read:
                found[root[value]] = None
    return tuple(found)


def _view_sources(
    node: Node, used: set[Value], root: dict[Value, Value], place: dict[Value, Place], symbols: Set[str]
) -> dict[Value, Value] | None:
    """The storage of each used output when all of them are views of operands of known size; None otherwise."""
    pairs = ((0, 0),) if _keeps_order(node, symbols) else getattr(node.op, "views", ())
    if not pairs:
        return None
    operand_of = {output: node.inputs[operand] for operand, output in pairs}
    sources: dict[Value, Value] = {}
    for index, value in enumerate(node.outputs):
        operand = operand_of.get(index)
        if value not in used:
            continue
        if operand is None or not _is_sized(value, symbols) or not _is_sized(operand, symbols):
            return None
        bytes_of = [v.tensor.size * v.dtype.itemsize for v in (operand, value)]
        if place[root[operand]] == "dynamic" or not dims.may_equal(*bytes_of):
            return None
        sources[value] = root[operand]
    return sources


def _keeps_order(node: Node, symbols: Set[str]) -> bool:
    """Whether a transposition only moves axes of one element."""
    if not isinstance(node.op, Transpose) or not _is_sized(node.output, symbols):
        return False
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.known_shape
    perm = node.op.perm if node.op.perm is not None else range(len(shape))[::-1]
    long = [axis for axis in perm if shape[axis] != 1]
    return long == sorted(long)
