"""Fuse regions of pointwise nodes into one operator, which processes them block by block in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, TensorType, Type
from graphkit.ops.internal.fused import Fused
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.match import array_of, fixed_values
from graphkit.passes.core.sweep import is_control, map_bodies, rewrite, shape_readers

# Limits of a region, so that a block of all its operands and intermediate results fits into the cache.
NODE_LIMIT = 64
OPERAND_LIMIT = 24


class _Region:
    """A region of pointwise nodes, which becomes one kernel.

    `members` are in reverse topological order. Only the result of the last node, `root`, is read from outside.
    """

    def __init__(self, root: Node):
        self.root = root
        self.members: list[Node] = []
        self.operands: set[Value] = set()


@graph_pass(
    requires=[Property.SIMPLIFIED, Property.BROADCASTS_LAZY, Property.MATMULS_FUSED, Property.CONVOLUTIONS_FUSED],
    breaks=[Property.POINTWISE_APART],
)
def fuse_pointwise(graph: Graph, *, nested: bool = False, fusable: Callable[[Node], bool] | None = None) -> Graph:
    """Fuse each maximal region of pointwise nodes with the same shape into a Fused operator. Takes linear time.

    A node joins a region if all of its readers are in this region. Not fused: nodes that depend only on parameters,
    because they do not run every time; regions of one node; and nodes for which `fusable`, if given, returns False. A
    region becomes one kernel, which must support all of its nodes.
    """
    roots = {region.root: region for region in _regions(graph, nested, fusable) if len(region.members) > 1}
    replaced: dict[Value, Value] = {}
    scalars: dict[Value, Constant] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node in roots:
            return (_fused(roots[node], replaced, scalars),)
        if not is_control(node):
            # Keep the other members, too: nodes that read only their shapes may remain.
            return None
        return map_bodies(node, operands, lambda inner: fuse_pointwise(inner, nested=True, fusable=fusable)).outputs

    return rewrite(graph, rule, at={*CONTROL, *[root.op.name for root in roots]}, replaced=replaced)


def _regions(graph: Graph, nested: bool, fusable: Callable[[Node], bool] | None) -> list[_Region]:
    ignored = set() if nested else set(shape_readers(graph))
    results = {*graph.outputs, *(new for _, new in graph.updates)}
    fixed, is_pointwise = fixed_values(graph), _Pointwise()
    found: list[_Region] = []
    # For each value that a visited node reads, the region of all its readers; None if they are not in one region.
    shared: dict[Value | None, _Region | None] = {}
    for node in reversed(graph.nodes):
        region = None
        if is_pointwise(node) and node.outputs[0] not in fixed and (fusable is None or fusable(node)):
            output = node.outputs[0]
            region = None if output in results else shared.get(output)
            if region is None or not _fits(node, region):
                region = _Region(node)
                found.append(region)
            region.members.append(node)
            region.operands.discard(output)
            region.operands.update([v for v in node.operands if not _is_one_constant(v)])
        if ignored and node in ignored:
            continue
        for value in node.inputs:
            if shared.setdefault(value, region) is not region:
                shared[value] = None
    return found


def _is_one_constant(value: Value) -> bool:
    made = value.node
    return made is not None and isinstance(made.op, Constant) and bool(made.op.value.array.size == 1)


class _Pointwise:
    """Tells whether nodes are pointwise, with operands that are tensors of numbers of known rank."""

    def __init__(self) -> None:
        # Whether values of a type are such tensors, by the identity of the type.
        self._known: dict[int, bool] = {}

    def __call__(self, node: Node) -> bool:
        if not getattr(node.op, "pointwise", False) or len(node.outputs) != 1:
            return False
        kind = node.outputs[0].type
        # Known elements are shape arithmetic. They become constants when the dimensions are bound.
        if getattr(kind, "value", None) is not None:
            return False
        known = self._known
        for value in (*node.operands, node.outputs[0]):
            found = known.get(id(value.type))
            if found is None:
                found = known[id(value.type)] = _holds_numbers(value.type)
            if not found:
                return False
        return True


def _holds_numbers(kind: Type) -> bool:
    """Return whether a type is that of tensors of numbers of known rank."""
    return isinstance(kind, TensorType) and kind.shape is not None and kind.dtype is not DType.STRING


def _fits(node: Node, region: _Region) -> bool:
    """Return whether the region may contain the node: it has the same shape, and the region is within its limits."""
    if node.outputs[0].shape != region.root.outputs[0].shape or len(region.members) >= NODE_LIMIT:
        return False
    given, operands = node.operands, region.operands
    return len(operands) + len(given) - 1 <= OPERAND_LIMIT or len(operands.union(given)) - 1 <= OPERAND_LIMIT


def _fused(region: _Region, replaced: Mapping[Value, Value], scalars: dict[Value, Constant]) -> Value:
    """Return the Fused node of a region.

    Args:
        region: The region.
        replaced: The new values, by the old ones that they replace.
        scalars: The 0-d constants of earlier regions, by the constants that they replace.
    """
    root = region.root
    try:
        body, operands = _body(region, replaced, scalars)
        fits = body.outputs[0].type == root.output.type
    except TypeMismatch:  # an operator that broadcasts one operand to the other, which was embedded
        fits = False
    if not fits:
        # Some axes of the result come only from constants, so these must stay operands.
        body, operands = _body(region, replaced, scalars, embed=False)
    meta: dict[str, Any] = {k: v for node in reversed(region.members) for k, v in node.meta.items()}
    # The operands have the types of the body's inputs.
    types = [v.type for v in body.outputs]
    return Node(Fused(body=body), operands, root.name, meta, output_names=[root.output.name], types=types).output


def _body(
    region: _Region, replaced: Mapping[Value, Value], scalars: dict[Value, Constant], embed: bool = True
) -> tuple[Graph, list[Value]]:
    """Return the region as a graph, and its operands. embed: whether constants of one element become 0-d constants
    inside.
    """
    inner: dict[Value, Value] = {}
    inputs: list[Value] = []
    operands: list[Value] = []
    for node in reversed(region.members):
        for value in node.operands:
            if value in inner:
                continue
            array = array_of(value)
            if array is not None and array.size == 1 and (embed or array.ndim == 0):
                if value not in scalars:
                    scalars[value] = Constant(value=Tensor(array.reshape(())))
                inner[value] = Node(scalars[value], (), output_names=[value.name]).output
                continue
            operand = replaced.get(value, value)
            operands.append(operand)
            inner[value] = Value(operand.type, value.name)
            inputs.append(inner[value])
        inner[node.output] = node.rebuilt([None if v is None else inner[v] for v in node.inputs]).output
    return Graph(inputs, [inner[region.root.output]], name=region.root.name), operands
