"""Prove that the rows of a graph are independent, from its operators and its types, without a run."""

from __future__ import annotations

from collections.abc import Collection

from graphkit.executor.lower.batch import reads_shapes_alone
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops import Op
from graphkit.passes.core.match import is_op


def rows_are_independent(graph: Graph, rows: str) -> bool:
    """Return whether the operators prove that each row of the outputs depends only on the same row of the inputs.

    If not, the rows may be independent all the same. Takes linear time.

    Args:
        graph: A graph whose data inputs have the first dimension `rows`. Passes must have removed what only training
            needs.
        rows: The name of that dimension.
    """
    proof = _Proof(graph, rows)
    return all(map(proof.admits, graph.nodes)) and all(value in proof.examples for value in graph.outputs)


class _Proof:
    """Follows the rows through a graph.

    Attributes:
        examples: Values whose first axis has the rows, each computed from the same row of the inputs.
        counts: Other values that depend on the number of rows, such as a shape.
    """

    def __init__(self, graph: Graph, rows: str):
        self.examples = {value for value in graph.inputs if value.role == "data"}
        self.counts: set[Value] = set()
        self._rows = symbol(rows)
        self._used = {value for node in graph.nodes for value in node.operands} | set(graph.outputs)
        sizes = [size for value in self.examples for size in _shape(value.type) or ()]
        # Sizes that do not depend on the number of rows. Other symbols may be computed from it.
        self._fixed = {name for size in sizes if isinstance(size, DimExpr) for name in size.symbols} - {rows}

    def admits(self, node: Node) -> bool:
        """Follow the rows through a node. Return False if its results may mix them."""
        op, operands = node.op, set(node.operands)
        if not isinstance(op, Op) or op.subgraphs() or op.random:
            return False
        results = [value for value in node.outputs if value in self._used]
        if operands.isdisjoint(self.examples) and operands.isdisjoint(self.counts):
            return True
        if reads_shapes_alone(node, self.examples):
            self._follow_sizes(node, results)
            return True
        self.examples.update(results)
        return self._keeps_separate(node, op) and all(map(self._has_rows, results))

    def _follow_sizes(self, node: Node, results: Collection[Value]) -> None:
        """Follow the number of rows through a node that reads only shapes, and values computed from them."""
        if self._repeats(node):
            self.examples.update(results)
        else:
            self.counts.update(value for value in results if not self._is_fixed(value))

    def _repeats(self, node: Node) -> bool:
        """Return whether a node computes the same row for each row of the inputs."""
        if not self._has_rows(node.outputs[0]):
            return False
        if is_op(node, "ConstantOfShape"):
            return True
        given, kind = _shape(node.operands[0].type), _shape(node.outputs[0].type)
        if not is_op(node, "Expand") or node.operands[0] in self.counts or given is None or kind is None:
            return False
        return len(given) < len(kind) or given[0] == 1

    def _keeps_separate(self, node: Node, op: Op) -> bool:
        types = [None if value is None else value.type for value in node.inputs]
        if any(kind is not None and _shape(kind) is None for kind in types):
            return False
        # The types of the results show whether a new shape keeps the rows along the first axis.
        if not self.counts.isdisjoint(node.operands) and not is_op(node, "Reshape", "Resize"):
            return False
        if is_op(node, "MaxPool"):
            return node.outputs[1] not in self._used  # positions count the elements of all rows
        return op.is_batchwise(types, [value in self.examples for value in node.inputs])

    def _has_rows(self, value: Value) -> bool:
        """Return whether the first dimension, and no other one, is the number of rows."""
        shape = _shape(value.type) or ()
        return shape[:1] == (self._rows,) and all(map(self._is_known, shape[1:]))

    def _is_fixed(self, value: Value) -> bool:
        """Return whether the elements of an integer tensor are known, and do not depend on the number of rows."""
        elements = value.type.value if isinstance(value.type, TensorType) else None
        return elements is not None and all(map(self._is_known, elements))

    def _is_known(self, size: object) -> bool:
        return not isinstance(size, DimExpr) or self._fixed.issuperset(size.symbols)


def _shape(kind: Type) -> tuple[int | DimExpr, ...] | None:
    """Return the shape of a tensor; None if its rank is unknown, or if the value is not a tensor."""
    return kind.shape if isinstance(kind, TensorType) else None
