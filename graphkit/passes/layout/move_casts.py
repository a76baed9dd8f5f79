"""Move casts to float16 and bfloat16 before data movement, and casts from them behind it.

The moved data then have half of the bytes. Casts that become neighbours can be merged, or cancel each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType
from graphkit.ops import F, operator
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import is_op
from graphkit.passes.core.relevance import RESHAPES
from graphkit.passes.core.sweep import elements_read, map_bodies, rewrite

# Operators that return all elements of their data operands, and operators that return some of them.
_WHOLE = ("Concat", "Split", "Transpose", *RESHAPES)
_PARTS = ("DepthToSpace", "Gather", "GatherElements", "Slice", "SpaceToDepth")


@graph_pass(breaks=[Property.SIMPLIFIED, Property.EQUALS_MERGED])
def move_casts(graph: Graph) -> Graph:
    """Run data movement in float16 or bfloat16 if its results are rounded to that type.

    If all readers round, the cast moves before the data movement. If the data were cast from this type and some reader
    rounds, the cast from it moves behind the data movement.

    Results are bit-identical, because casts and data movement commute. `simplify` removes superfluous casts, and `cse`
    merges equal ones. Takes linear time.
    """
    rounded = _Rounded(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        data = _data(node, operands)
        if not data:
            return map_bodies(node, operands, move_casts).outputs if node.op.subgraphs() else None
        kind = _widened(data)
        if kind is None or not all(rounded.some_reader_rounds(v, kind) for v in node.outputs):
            kind = rounded.all_readers_round(node.outputs) if is_op(node, *_WHOLE) else None
        if kind is None or any(v.dtype is not DType.FLOAT32 for v in data):
            return None
        moved = Node(node.op, [*(_cast_to(kind, v) for v in data), *operands[len(data) :]], node.name, node.meta)
        casts = zip(node.outputs, moved.outputs, strict=True)
        return [Node(Cast(to=DType.FLOAT32), (new,), output_names=[old.name]).output for old, new in casts]

    return rewrite(graph, rule)


def _data(node: Node, operands: Sequence[Value | None]) -> list[Value]:
    """Return the operands whose elements a node moves."""
    if not is_op(node, *_WHOLE, *_PARTS):
        return []
    return [v for v in (operands if is_op(node, "Concat") else operands[:1]) if v is not None]


class _Rounded:
    """The types to which the readers of each value round it, directly or after data movement."""

    def __init__(self, graph: Graph):
        # Contains None if a reader uses the value without rounding.
        self._all: dict[Value, set[DType | None]] = {}
        for value in (*graph.outputs, *(new for _, new in graph.updates)):
            self._all.setdefault(value, set()).add(None)
        for node in reversed(graph.nodes):
            self._read(node)

    def _read(self, node: Node) -> None:
        """Add a node to the readers of its operands. The readers of the node's results must have been added before."""
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

    def some_reader_rounds(self, value: Value, kind: DType) -> bool:
        """Return whether some reader rounds the value to this type."""
        return kind in self._all.get(value, ())

    def all_readers_round(self, values: Sequence[Value]) -> DType | None:
        """Return the type to which all readers of all these values round; None if there is none."""
        kinds = set().union(*(self._all.get(v, set()) for v in values))
        return kinds.pop() if len(kinds) == 1 else None


def _widened(values: Sequence[Value]) -> DType | None:
    """Return the 16-bit type from which all values were cast to float32; None if there is none."""
    kinds = {_source(v).dtype for v in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in HALVES else None


def _source(value: Value) -> Value:
    """Return the operand of the cast to float32 that made the value; the value itself if there is no cast."""
    if value.node is None or not is_op(value.node, "Cast") or value.dtype is not DType.FLOAT32:
        return value
    return value.node.operands[0]


def _cast_to(kind: DType, value: Value) -> Value:
    source = _source(value)
    return source if source.dtype is kind else F.cast(value, to=kind)
