"""Placement: find the storage of each value of a graph, and the kind of memory of each storage."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

from graphkit.ir import dims
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.match import first, is_op, permutation
from graphkit.passes.core.sweep import read_positions

# Kinds of memory:
# - "result": memory outside the arena, allocated for every run (outputs) or kept between runs (new values of states);
# - "dynamic": an array whose size is known only after it was computed;
# - "shape": small integers that are computed from the shapes of the inputs, by type inference;
# - "host": host memory, if the program runs on a device with its own memory.
Place = Literal["arena", "input", "parameter", "constant", "shape", "result", "dynamic", "host"]


class Result(NamedTuple):
    """An output, or the new value of a state.

    owned: Whether the step writes directly to the memory that the caller receives. If not, the value is copied there.
    """

    value: Value
    owned: bool


class Placement(NamedTuple):
    """The storages of a graph. A storage is a block of bytes, identified by its root: a value that is not a view.

    Attributes:
        root: For every value, the root of its storage. It is the value itself unless the value is a view.
        place: For every root, its kind of memory.
        results: The new values of states, then the outputs.
        steps: The nodes that compute something: all but views and constants.
        used: The values that a node, an output or an update reads.
        view_dependencies: For some views, storages that must be written before a reader of the view may run, although
            the view does not read them (see ControlDependency).
        symbols: Symbolic dimensions that are known when the program runs.
    """

    root: dict[Value, Value]
    place: dict[Value, Place]
    results: tuple[Result, ...]
    steps: tuple[Node, ...]
    used: frozenset[Value]
    view_dependencies: dict[Value, tuple[Value, ...]]
    symbols: Set[str] = frozenset()

    def is_sized(self, value: Value) -> bool:
        """Whether the value is a tensor whose size is known before it is computed, if `symbols` are known."""
        return _is_sized(value, self.symbols)

    def host_storage(self, node: Node) -> Value | None:
        """Return the storage in host memory that a SwapOut writes or a SwapIn reads. None if `node` swaps nothing."""
        if not is_op(node, "SwapOut", "SwapIn", domain=DOMAIN):
            return None
        stored = self.root[node.output if node.op.name == "SwapOut" else node.operands[0]]
        return stored if self.place[stored] == "host" else None


def place_values(
    graph: Graph, symbols: Set[str] = frozenset(), *, swaps: bool = False, hosted: Set[Value] = frozenset()
) -> Placement:
    """Find the storage and the kind of memory of every value of `graph`. Takes linear time.

    Tensors of unknown size, strings, sequences and optionals are dynamic.

    Args:
        graph: The graph.
        symbols: Symbolic dimensions that are known when the program runs. Sizes that depend only on them count as
            known, and so do elements that type inference computes from them. A view of such a size must have as many
            bytes as its root.
        swaps: Whether SwapOut and SwapIn are steps, as on devices with their own memory. If not, they are views.
        hosted: Values that steps other than SwapOut write to host memory.
    """
    finals = [*(new for _, new in graph.updates), *graph.outputs]
    swapped = _swapped_values(graph, finals) if swaps else frozenset()
    used = {v for node in graph.nodes for v in node.inputs if v is not None}.union(finals)
    root: dict[Value, Value] = {v: v for v in graph.inputs}
    place: dict[Value, Place] = {v: "parameter" if v.role in ("parameter", "state") else "input" for v in graph.inputs}
    steps: list[Node] = []
    view_dependencies: dict[Value, tuple[Value, ...]] = {}
    sized: dict[int, bool] = {}  # by the identity of the type
    for node in graph.nodes:
        if symbols and _is_computed_from_shapes(node, used, symbols):
            root.update((v, v) for v in node.outputs)
            place.update(dict.fromkeys(node.outputs, "shape"))
            continue
        if swapped and not swapped.isdisjoint((*node.outputs, *node.inputs)):
            root[node.output] = node.output
            place[node.output] = "host" if node.output in swapped else "arena"
            steps.append(node)
            continue
        op = node.op
        may_view = op.name == "Transpose" or bool(getattr(op, "views", ()))
        sources = _view_sources(node, used, root, place, symbols) if may_view else None
        if sources is not None:
            root.update(sources)
            if dependencies := _unread_operands(node, root, view_dependencies):
                view_dependencies.update((v, dependencies) for v in sources)
            continue
        if isinstance(node.op, Constant):
            root[node.output], place[node.output] = node.output, "constant"
            continue
        for v in node.outputs:
            root[v] = v
            is_sized = sized.get(id(v.type))
            if is_sized is None:
                is_sized = sized[id(v.type)] = _is_sized(v, symbols)
            place[v] = "host" if v in hosted else "arena" if is_sized else "dynamic"
        steps.append(node)
    results: list[Result] = []
    for value in finals:
        source = root[value]
        owned = place[source] == "arena"
        if owned:
            place[source] = "result"
        results.append(Result(value, owned))
    return Placement(root, place, tuple(results), tuple(steps), frozenset(used), view_dependencies, symbols)


def has_fixed_size(value: Value) -> bool:
    """Whether the value is a tensor whose size in bytes is known before a run."""
    return isinstance(value.type, TensorType) and value.type.is_static and value.type.dtype is not DType.STRING


def has_run_time_size(value: Value) -> bool:
    """Whether the value is a tensor whose size in bytes is known only after it was computed."""
    return isinstance(value.type, TensorType) and not value.type.is_static and value.type.dtype is not DType.STRING


def _swapped_values(graph: Graph, finals: Sequence[Value]) -> frozenset[Value]:
    """Return the results of SwapOut that only SwapIn reads.

    finals: The new values of states and the outputs.
    """
    found = {n.output for n in graph.nodes if is_op(n, "SwapOut", domain=DOMAIN) and has_fixed_size(n.output)}
    if found:
        found.difference_update(finals)
        swapped_in = [n for n in graph.nodes if is_op(n, "SwapIn", domain=DOMAIN)]
        found.difference_update(v for n in set(graph.nodes).difference(swapped_in) for v in n.operands)
        found.difference_update(n.operands[1] for n in swapped_in)
    return frozenset(found)


def _is_sized(value: Value, symbols: Set[str]) -> bool:
    """See `Placement.is_sized`."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or kind.dtype is DType.STRING:
        return False
    if not symbols:
        return kind.is_static
    return all(not isinstance(d, DimExpr) or d.symbols <= symbols for d in kind.shape)


def _is_computed_from_shapes(node: Node, used: set[Value], symbols: Set[str]) -> bool:
    """Whether type inference knows the elements of every used output, for known `symbols`."""
    if isinstance(node.op, Constant):
        return False
    for value in node.outputs:
        if value in used:
            elements = value.type.value if isinstance(value.type, TensorType) and value.type.is_static else None
            if elements is None or not all(not isinstance(d, DimExpr) or d.symbols <= symbols for d in elements):
                return False
    return True


def _unread_operands(
    node: Node, root: dict[Value, Value], view_dependencies: dict[Value, tuple[Value, ...]]
) -> tuple[Value, ...]:
    """Return the storages of operands whose elements a view does not read, also of views that it is a view of."""
    read = set(read_positions(node))
    found: dict[Value, None] = {}
    for position, value in enumerate(node.inputs):
        if value is not None:
            found.update(dict.fromkeys(view_dependencies.get(value, ())))
            if position not in read:
                found[root[value]] = None
    return tuple(found)


def _view_sources(
    node: Node, used: set[Value], root: dict[Value, Value], place: dict[Value, Place], symbols: Set[str]
) -> dict[Value, Value] | None:
    """Return the storage of each used output if all of them are views of operands of known size, else None."""
    pairs = ((0, 0),) if _is_reshape(node, symbols) else getattr(node.op, "views", ())
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


def _is_reshape(node: Node, symbols: Set[str]) -> bool:
    """Whether a Transpose only moves axes of size 1, so that the elements keep their order in memory."""
    if node.op.name != "Transpose" or node.op.domain or not _is_sized(node.output, symbols):
        return False
    shape, perm = first(node).tensor.known_shape, permutation(node)
    assert perm is not None
    long = [axis for axis in perm if shape[axis] != 1]
    return long == sorted(long)
