"""The cost of a graph, computed from its sizes: multiply-adds, and the bytes that nodes read and write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops._base import Op, operator
from graphkit.ops.control.views import IfView, LoopView, is_if

# Operators that read only as many elements of their first operand as the result has.
_PICKING = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of all nodes of one operator. For flops and bytes, nodes of loop bodies count once per iteration.

    `flops`: two for each multiply-add of matrix products, convolutions, recurrent layers and attention; other operators
    have none. `bytes`: operands and results, each read or written once by each node; views and constants move nothing.
    `nodes`: number of nodes of the graph. `unknown`: number of those that are left out of the sums, because their sizes
    are unknown or they have operands that are not tensors.
    """

    nodes: int = 0
    flops: Dim = 0
    bytes: Dim = 0
    unknown: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.nodes + other.nodes,
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.unknown + other.unknown,
        )

    def repeated(self, times: Dim) -> Cost:
        """The cost of running the same nodes `times` times."""
        return Cost(self.nodes, self.flops * times, self.bytes * times, self.unknown)


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of a graph by operator (domain, name). open_loops: loops of unknown length; their bodies count once."""

    operators: dict[tuple[str, str], Cost]
    open_loops: tuple[str, ...]

    @property
    def total(self) -> Cost:
        return sum(self.operators.values(), Cost())


def multiply_adds(node: Node) -> Dim | None:
    """The multiply-adds of a node; None if it is not a sum of products, or if a rank is unknown."""
    types = [None if v is None else v.type for v in node.inputs]
    if not all(isinstance(kind, TensorType | None) for kind in types):
        return None
    try:
        return operator(node, Op).multiply_adds(types, [v.type for v in node.outputs])
    except TypeMismatch:
        return None


def costs(graph: Graph) -> Costs:
    """Return the cost of one run of `graph`. Symbolic sizes give symbolic costs.

    If the condition of an If is unknown, its more expensive branch counts, or the first one if symbolic costs cannot be
    compared.
    """
    found: dict[tuple[str, str], Cost] = {}
    open_loops: list[str] = []
    for node in graph.nodes:
        inner = node_costs(graph, node)
        for key, cost in inner.operators.items():
            found[key] = found.get(key, Cost()) + cost
        open_loops.extend(inner.open_loops)
    return Costs(found, tuple(open_loops))


def node_costs(graph: Graph, node: Node) -> Costs:
    """The cost of one node of `graph`, including the nodes of its branches or of all iterations of its loop."""
    key = node.op.domain, node.op.name
    found = {key: _cost(node)}
    inner, opened = Costs({}, ()), False
    times: Dim = 1
    if is_if(node):
        inner = _of_branch(IfView.of(node))
    elif not node.op.domain and node.op.name in ("Loop", "Scan"):
        view = LoopView.of(node)
        length = _length(view)
        times, opened = (1, True) if length is None else (length, False)
        inner = costs(view.body)
    for key, cost in inner.operators.items():
        found[key] = found.get(key, Cost()) + cost.repeated(times)
    return Costs(found, ((graph.node_name(node),) if opened else ()) + inner.open_loops)


def _cost(node: Node) -> Cost:
    op = operator(node, Op)
    if op.subgraphs() or op.views or not node.inputs:
        return Cost(nodes=1)
    products = multiply_adds(node)
    try:
        moved = sum(_moved(node), 0)
    except TypeMismatch:
        return Cost(nodes=1, unknown=1)
    return Cost(1, 0 if products is None else 2 * products, moved)


def _moved(node: Node) -> Iterator[Dim]:
    """Yield the bytes of operands and results. Raises TypeMismatch if a size is unknown."""
    op = operator(node, Op)
    results = [_bytes(v) for v in node.outputs]
    yield from results
    for position, value in enumerate(node.inputs):
        name = op.formals[min(position, len(op.formals) - 1)].name
        if value is None or value in node.inputs[:position] or name in op.shape_only:
            continue
        yield results[0] if position == 0 and op.name in _PICKING else _bytes(value)


def _bytes(value: Value) -> Dim:
    kind = value.tensor
    size = dims.product(kind.known_shape)
    if not dims.is_static(size) and any(name.startswith("?") for name in size.symbols):
        raise TypeMismatch("the size is data-dependent")
    return size * kind.dtype.itemsize


def _of_branch(view: IfView) -> Costs:
    """Return the costs of the branch that runs, or of the more expensive one. Subgraphs are visited once each."""
    if view.chosen is not None:
        return costs(view.chosen)
    first, second = map(costs, view.branches)
    (a, b), (c, d) = ((found.total.flops, found.total.bytes) for found in (first, second))
    comparable = all(map(dims.is_static, (a, b, c, d)))
    return second if comparable and (c, d) > (a, b) else first


def _length(view: LoopView) -> Dim | None:
    """Return the number of iterations of a loop; None if the graph does not determine it."""
    if view.scan_inputs:
        along = view.scan_inputs[0]
        shape = along.outer.tensor.shape
        return None if shape is None else shape[along.axis]
    trips = view.operands[0] if view.is_loop else None
    known = None if trips is None else trips.tensor.value
    return None if known is None else known[0]
