"""Groups of nodes for other engines: find the nodes that a backend supports, and make one node of each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from graphkit.ir import context, dims
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import Op
from graphkit.ops.cost import multiply_adds
from graphkit.ops.internal.backend_group import BackendGroup
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.sweep import all_nodes, is_constant, is_control
from graphkit.passes.distribution.convex import divide
from graphkit.text import quantity

# Why a node of a training step that is not part of the forward pass stays in graphkit.
NOT_FORWARD = "it is not part of the forward pass of the training step"


class Partitioner(Protocol):
    """The part of a backend that decides which nodes it gets.

    Attributes:
        name: The name of the backend.
        min_nodes: Smallest number of nodes of a group. Constants and views, such as Reshape, do not count.
        min_flops: Smallest number of floating-point operations of a group; each symbolic size counts as 1.
        control_flow: Whether If, Loop and Scan may be in a group, together with all nodes inside them.
        dynamic: Whether sizes may be unknown when a group is compiled. Otherwise, nodes whose sizes depend on data stay
            in graphkit.
    """

    @property
    def name(self) -> str: ...
    @property
    def min_nodes(self) -> int: ...
    @property
    def min_flops(self) -> int: ...
    @property
    def control_flow(self) -> bool: ...
    @property
    def dynamic(self) -> bool: ...

    def refusal(self, node: Node) -> str | None:
        """Return why the backend does not support a node; None if it does."""
        ...


class Decision(NamedTuple):
    """Where a node is computed.

    Attributes:
        node: The name of the node.
        operator: The name of its operator.
        group: The name of its group, such as "onnxruntime/0"; "" if graphkit computes the node.
        reason: Why graphkit computes the node: one sentence for each backend; "" for a node in a group. If a node is in
            a group that the backend could not compile for some input shapes, the reason says so.
    """

    node: str
    operator: str
    group: str
    reason: str


def group_of(node: Node) -> BackendGroup | None:
    """Return the operator of a node that a backend computes; None for other nodes."""
    return node.op if isinstance(node.op, BackendGroup) else None


def _kept_in_group(graph: Graph) -> Node | None:
    """Return a group with a node that must stay outside of groups, or None if there is none."""
    for node in graph.nodes:
        group = group_of(node)
        if group is not None and any(_effect(inner) for inner in all_nodes(group.body)):
            return node
    return None


@graph_pass(
    requires=[Property.SIMPLIFIED, Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.BACKENDS_SERVED],
    check=_kept_in_group,
)
def group_for_backends(
    graph: Graph, backends: Sequence[Partitioner] = (), decisions: list[Decision] | None = None
) -> Graph:
    """Return the graph with one BackendGroup node for each group. Earlier backends choose first. Takes linear time.

    If the graph has updates, it is a training step: only the nodes that its outputs depend on can be in a group. So the
    backend computes the forward pass, and graphkit gradients and updates.

    Args:
        graph: The graph.
        backends: The backends, in the order in which they choose.
        decisions: Receives one entry for each node of `graph`, without constants.
    """
    record = _Record()
    original = graph
    for backend in backends:
        graph = _Grouping(graph, backend, record).grouped()
    if decisions is not None:
        decisions += record.decisions(original)
    return graph


class _Record:
    """Which group each node of the original graph is in, and why backends refused it."""

    def __init__(self) -> None:
        # Nodes that were rebuilt for an earlier backend, with the nodes of the original graph.
        self.origin: dict[Node, Node] = {}
        self._reasons: dict[Node, list[str]] = {}
        self._groups: dict[Node, str] = {}

    def refuse(self, node: Node, reason: str) -> None:
        self._reasons.setdefault(self.origin.get(node, node), []).append(reason)

    def group(self, node: Node, name: str) -> None:
        self._groups[self.origin.get(node, node)] = name

    def decisions(self, graph: Graph) -> Iterator[Decision]:
        """Yield the decision for each node of the original graph, without constants."""
        for node in graph.nodes:
            if not is_constant(node):
                group = self._groups.get(node, "")
                reason = "" if group else " ".join(self._reasons.get(node, ()))
                yield Decision(graph.node_name(node), node.op.name, group, reason)


class _Grouping:
    """Makes the groups of one backend."""

    def __init__(self, graph: Graph, backend: Partitioner, record: _Record):
        self._graph, self._backend, self._record = graph, backend, record
        self._forward = set(topological(graph.outputs)) if graph.updates else None
        self._known = {s for v in graph.inputs for d in _dims(v) for s in _symbols(d)}
        self._nodes = [node for node in graph.nodes if not is_constant(node)]

    def grouped(self) -> Graph:
        at = {node: i for i, node in enumerate(self._nodes)}
        operands = [
            list(dict.fromkeys(at[v.node] for v in node.operands if v.node is not None and v.node in at))
            for node in self._nodes
        ]
        refusals = [self._refusal(node) for node in self._nodes]
        division = divide(operands, [why is None for why in refusals])
        accepted: dict[int, str] = {}
        for place in division.groups:
            nodes = [self._nodes[i] for i in division.parts[place]]
            small = self._too_small(nodes)
            for i in division.parts[place] if small else ():
                refusals[i] = small
            if not small:
                accepted[place] = f"{self._backend.name}/{len(accepted)}"
        for node, why in zip(self._nodes, refusals, strict=True):
            if why is not None and group_of(node) is None:
                self._record.refuse(node, f"{self._backend.name}: {why}.")
        if not accepted:
            return self._graph
        return self._rebuilt(division.parts, accepted)

    def _rebuilt(self, parts: Sequence[Sequence[int]], accepted: dict[int, str]) -> Graph:
        """Return the graph in the order of the parts, with one node for each accepted part."""
        graph = self._graph
        table: dict[Value, Value] = {}
        read_by: dict[Value, set[int]] = {}
        place_of = {i: place for place, part in enumerate(parts) for i in part}
        for i, node in enumerate(self._nodes):
            for value in node.operands:
                read_by.setdefault(value, set()).add(place_of[i])
        final = {*graph.outputs, *(new for _, new in graph.updates)}
        with context.detached():
            for place, part in enumerate(parts):
                nodes = [self._nodes[i] for i in part]
                if place not in accepted:
                    for node in nodes:
                        rebuilt = node.rebuilt([table.get(v, v) if v is not None else None for v in node.inputs])
                        if rebuilt is not node:
                            self._record.origin[rebuilt] = self._record.origin.get(node, node)
                        table.update(zip(node.outputs, rebuilt.outputs, strict=True))
                    continue
                results = [v for node in nodes for v in node.outputs if v in final or read_by.get(v, set()) - {place}]
                made = self._group(nodes, results, accepted[place], table)
                table.update(zip(results, made.outputs, strict=True))
        return graph.replace(
            outputs=[table.get(v, v) for v in graph.outputs],
            updates=[(state, table.get(new, new)) for state, new in graph.updates],
            output_names=graph.output_names,
        )

    def _group(self, nodes: Sequence[Node], results: Sequence[Value], name: str, table: dict[Value, Value]) -> Node:
        """Return the node of a group. Constants that it reads are copied into its body."""
        inside = {v for node in nodes for v in node.outputs}
        outer = dict.fromkeys(
            v for node in nodes for v in node.operands
            if v not in inside and (v.node is None or not is_constant(v.node))
        )  # fmt: skip
        names = [self._graph.name_of(v) for v in outer]
        inner: dict[Value, Value] = {v: Value(v.type, n) for v, n in zip(outer, names, strict=True)}
        for node in nodes:
            self._record.group(node, name)
            made = node.rebuilt([inner.get(v, v) if v is not None else None for v in node.inputs])
            inner.update(zip(node.outputs, made.outputs, strict=True))
        result_names = [self._graph.name_of(v) for v in results]
        body = Graph([inner[v] for v in outer], [inner[v] for v in results], name=name, output_names=result_names)
        return Node(
            BackendGroup(body=body, backend=self._backend.name, group=name),
            [table.get(v, v) for v in outer],
            name,
            output_names=[v.name for v in results],
            types=[v.type for v in results],
        )

    def _refusal(self, node: Node) -> str | None:
        """Return why a node cannot be in a group of this backend; None if it can."""
        if context.GRADIENT in node.meta or (self._forward is not None and node not in self._forward):
            return NOT_FORWARD
        for value in (*node.operands, *node.outputs):
            if why := self._unsuitable(value):
                return why
        return self._refused(node)

    def _refused(self, node: Node) -> str | None:
        """Return why a node, which may be inside of control flow, is refused; None if it is not."""
        if why := _effect(node):
            return why
        if is_control(node):
            if not self._backend.control_flow:
                return "the backend takes no If, Loop and Scan"
            if (why := self._backend.refusal(node)) is not None:
                return why
            for inner in (n for body in node.op.subgraphs().values() for n in body.nodes if not is_constant(n)):
                if (why := self._refused(inner)) is not None:
                    return f"it contains {inner.op.name}: {why}"
            return None
        return self._backend.refusal(node)

    def _unsuitable(self, value: Value) -> str | None:
        """Return why a value cannot be in a group; None if it can."""
        if not isinstance(value.type, TensorType) or value.type.dtype is DType.STRING:
            return f"{value} is not a tensor of numbers"
        if self._backend.dynamic:
            return None
        if value.type.shape is None:
            return f"{value} has an unknown rank"
        if not all(_symbols(d) <= self._known for d in _dims(value)):
            return f"the size of {value} depends on data"
        return None

    def _too_small(self, nodes: Sequence[Node]) -> str | None:
        """Return why a group is not worth a call of the backend; None if it is."""
        backend = self._backend
        count = sum(not getattr(node.op, "views", ()) and not is_constant(node) for node in _with_inner(nodes))
        if count < backend.min_nodes:
            return f"its group has {quantity(count, 'node')} (without views), fewer than min_nodes={backend.min_nodes}"
        if backend.min_flops:
            flops = _flops(nodes)
            if flops < backend.min_flops:
                return f"its group has {flops} FLOPs, fewer than min_flops={backend.min_flops}"
        return None


def _effect(node: Node) -> str | None:
    """Return why a node must not be in any group; None if it may be."""
    if is_random(node.op):
        return "it draws random numbers"
    if isinstance(node.op, Op) and node.op.collective:
        return "it communicates with other ranks"
    group = group_of(node)
    return None if group is None else f"it is computed by {group.backend}"


def _flops(nodes: Sequence[Node]) -> int:
    """Return the floating-point operations of nodes. Symbolic sizes count as 1, and loops as one iteration."""
    total = sum((2 * (multiply_adds(node) or 0) for node in _with_inner(nodes)), 0)
    return dims.evaluate(total, dict.fromkeys(_symbols(total), 1))


def _with_inner(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes, and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for body in node.op.subgraphs().values():
            yield from all_nodes(body)


def _dims(value: Value) -> Iterator[object]:
    if isinstance(value.type, TensorType):
        yield from value.type.shape or ()


def _symbols(dim: object) -> frozenset[str]:
    return dim.symbols if isinstance(dim, DimExpr) else frozenset()
