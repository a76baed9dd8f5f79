"""Move casts to float16 and bfloat16 before data movement, and casts from them behind it.

The moved data then have half of the bytes. Equal casts meet, and casts that undo each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType
from graphkit.ops import F, operator
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import RESHAPES, is_op
from graphkit.passes.core.sweep import elements_read, map_bodies, rewrite

# What hands on all elements of its first operand, or of all of them, and those that hand on some.
_WHOLE = ("Concat", "Split", "Transpose", *RESHAPES)
_PARTS = ("DepthToSpace", "Gather", "GatherElements", "Slice", "SpaceToDepth")


@graph_pass(breaks=[Property.SIMPLIFIED, Property.EQUALS_MERGED])
def move_casts(graph: Graph) -> Graph:
    """Move elements that are rounded behind it as half floats, and those that were widened before it, where somebody
    rounds them again.

    The bits stay: to move elements and to cast them are in either order the same. Casts that have become superfluous
    are for `simplify`, equal ones for `merge_equal`. Linear.
    """
    rounded = _Rounded(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        data = _data(node, operands)
        if not data:
            return map_bodies(node, operands, move_casts).outputs if node.op.subgraphs() else None
        kind = _widened(data)
        if kind is None or not all(rounded.by_some(v, kind) for v in node.outputs):
            kind = rounded.by_all(node.outputs) if is_op(node, *_WHOLE) else None
        if kind is None or any(v.dtype is not DType.FLOAT32 for v in data):
            return None
        moved = Node(node.op, [*(_in(kind, v) for v in data), *operands[len(data) :]], node.name, node.meta)
        casts = zip(node.outputs, moved.outputs, strict=True)
        return [Node(Cast(to=DType.FLOAT32), (new,), output_names=[old.name]).output for old, new in casts]

    return rewrite(graph, rule)


def _data(node: Node, operands: Sequence[Value | None]) -> list[Value]:
    """What a node moves."""
    if not is_op(node, *_WHOLE, *_PARTS):
        return []
    return [v for v in (operands if is_op(node, "Concat") else operands[:1]) if v is not None]


class _Rounded:
    """What the readers of a graph's values round them to, as they are or when they were moved."""

    def __init__(self, graph: Graph):
        # None where somebody reads the value itself.
        self._all: dict[Value, set[DType | None]] = {}
        for value in (*graph.outputs, *(new for _, new in graph.updates)):
            self._all.setdefault(value, set()).add(None)
        for node in reversed(graph.nodes):
            self._read(node)

    def _read(self, node: Node) -> None:
        """What a node tells of its operands, whose own readers come behind it."""
        data = {*_data(node, node.inputs)}
        every: set[DType | None] = {None}
        if is_op(node, "Cast"):
            every = {kind} if (kind := operator(node, Cast).to) in HALVES else every
        elif data:
            every = set[DType | None]().union(*(self._all.get(v, ()) for v in node.outputs))
            if not is_op(node, *_WHOLE):
                every.add(None)
        for value in elements_read(node):
            self._all.setdefault(value, set()).update(every if is_op(node, "Cast") or value in data else {None})

    def by_some(self, value: Value, kind: DType) -> bool:
        """Whether a reader does so to this kind."""
        return kind in self._all.get(value, ())

    def by_all(self, values: Sequence[Value]) -> DType | None:
        """The half floats to which all readers of all of them do."""
        kinds = set().union(*(self._all.get(v, set()) for v in values))
        return kinds.pop() if len(kinds) == 1 else None


def _widened(values: Sequence[Value]) -> DType | None:
    """The half floats that all values were before they became float32."""
    kinds = {_source(v).dtype for v in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in HALVES else None


def _source(value: Value) -> Value:
    """What a cast widened to become a value; else the value."""
    if value.node is None or not is_op(value.node, "Cast") or value.dtype is not DType.FLOAT32:
        return value
    return value.node.operands[0]


def _in(kind: DType, value: Value) -> Value:
    source = _source(value)
    return source if source.dtype is kind else F.cast(value, to=kind)
