"""Recognise matrices with one value up to a diagonal and another value behind it, such as causal masks.

Constant folding leaves large matrices in the graph as the nodes that compute them. This module derives both values and
the diagonal from these nodes, and computes no element of a matrix twice.
"""

from __future__ import annotations

import numpy as np

from graphkit.ir.graph import Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.fused import Fused
from graphkit.ops.tensor.fill import ConstantOfShape
from graphkit.ops.tensor.select import Trilu
from graphkit.passes.core.match import array_of, is_op
from graphkit.passes.core.relevance import RESHAPES

# Largest number of nodes between a mask and its constants.
_DEPTH = 24
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_SAME_ELEMENTS = (*RESHAPES, "Expand", "Identity")


class Triangle(NamedTuple):
    """A matrix [rows, columns], or a batch of equal ones: `low` where column - row <= diagonal, else `high`.

    `low` and `high` are arrays without axes. diagonal: None if all elements are equal; the shape may then be any.
    """

    diagonal: int | None
    low: np.ndarray
    high: np.ndarray


def triangle_of(value: Value, rows: int, columns: int) -> Triangle | None:
    """Return the triangle that a graph value of [..., rows, columns] provably is; None if there is no proof.

    Linear in the nodes that compute the value, and in the elements of constants.
    """
    return _Search(rows, columns).find(value, _DEPTH)


class _Search:
    def __init__(self, rows: int, columns: int):
        self._rows, self._columns = rows, columns
        self._found: dict[Value, Triangle | None] = {}

    def find(self, value: Value, depth: int) -> Triangle | None:
        if value not in self._found:
            self._found[value] = self._derive(value, depth) if depth else None
        return self._found[value]

    def _derive(self, value: Value, depth: int) -> Triangle | None:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            return None
        array = array_of(value)
        if array is not None:
            return self._of_array(array)
        node = value.node
        if node is None or 0 in value.type.static_shape:
            return None
        if isinstance(node.op, ConstantOfShape):
            return _uniform(np.asarray(run_node(node, [np.array([1], np.int64)])[0]))
        if isinstance(node.op, Fused):
            made = self.find(inline(node.op.body, node.operands)[value.index], depth - 1)
        else:
            made = self._of_comparison(node) if is_op(node, *_COMPARISONS) else None
            made = self._of_operands(node, depth) if made is None else made
        return made if made is None or made.diagonal is None or self._fits(value) else None

    def _fits(self, value: Value) -> bool:
        return value.tensor.static_shape[-2:] == (self._rows, self._columns)

    def _of_operands(self, node: Node, depth: int) -> Triangle | None:
        """Derive the result of an operator on triangles."""
        op = node.op
        if is_op(node, *_SAME_ELEMENTS):
            assert node.inputs[0] is not None
            return self.find(node.inputs[0], depth - 1)
        if isinstance(op, Trilu):
            return self._of_trilu(node, op.upper, depth)
        if not getattr(op, "pointwise", False) or len(node.outputs) != 1:
            return None
        parts = [None if v is None else self.find(v, depth - 1) for v in node.inputs]
        known = [part for part in parts if part is not None]
        diagonals = {part.diagonal for part in known} - {None}
        if len(known) < len(node.operands) or len(diagonals) > 1:
            return None
        low, high = (
            np.asarray(run_node(_of_scalars(node), [p and p[side] for p in parts])[0]).reshape(()) for side in (1, 2)
        )
        return Triangle(next(iter(diagonals), None), low, high)

    def _of_trilu(self, node: Node, upper: bool, depth: int) -> Triangle | None:
        x, k = (*node.inputs, None)[:2]
        assert x is not None
        source = self.find(x, depth - 1)
        at = np.zeros((), np.int64) if k is None else array_of(k)
        if source is None or source.diagonal is not None or at is None:
            return None
        zero = np.zeros_like(source.low)
        if upper:
            return Triangle(int(at.reshape(())) - 1, zero, source.high)
        return Triangle(int(at.reshape(())), source.low, zero)

    def _of_comparison(self, node: Node) -> Triangle | None:
        """Derive a comparison of one number per row with one number per column."""
        a, b = (None if v is None else array_of(v) for v in node.inputs)
        if a is None or b is None:
            return None
        if self._is_row(a) and self._is_column(b):
            columns, rows, columns_first = a.reshape(-1), b.reshape(-1), True
        elif self._is_row(b) and self._is_column(a):
            columns, rows, columns_first = b.reshape(-1), a.reshape(-1), False
        else:
            return None
        if not (columns[1:] >= columns[:-1]).all() or (rows != rows).any():
            return None
        # For each row, the number of columns with the value of the first column.
        name = node.op.name
        below_rows = name.startswith("Less") == columns_first
        equal_is_low = ("Equal" in name) == below_rows
        counts = np.searchsorted(columns, rows, side="right" if equal_is_low else "left")
        diagonal = self._diagonal(counts)
        if diagonal is None:
            return None
        return Triangle(diagonal, np.asarray(below_rows), np.asarray(not below_rows))

    def _is_row(self, array: np.ndarray) -> bool:
        return array.ndim > 0 and array.shape[-1] == array.size == self._columns

    def _is_column(self, array: np.ndarray) -> bool:
        return array.ndim > 1 and array.shape[-1] == 1 and array.shape[-2] == array.size == self._rows

    def _diagonal(self, counts: np.ndarray) -> int | None:
        """Return the diagonal of a triangle whose rows have `counts` elements; None if it is not a triangle."""
        between = np.flatnonzero((counts > 0) & (counts < self._columns))
        if not between.size:
            return None
        diagonal = int(counts[between[0]] - between[0]) - 1
        wanted = np.clip(np.arange(self._rows) + diagonal + 1, 0, self._columns)
        return diagonal if (counts == wanted).all() else None

    def _of_array(self, array: np.ndarray) -> Triangle | None:
        if array.size == 0 or array.dtype == object:
            return None
        if (array == array.flat[0]).all():
            return _uniform(array)
        if array.shape[-2:] != (self._rows, self._columns) or array.size != self._rows * self._columns:
            return None
        flat = array.reshape(self._rows, self._columns)
        low, high = flat[-1, 0], flat[0, -1]
        diagonal = self._diagonal((flat == low).sum(axis=1))
        if diagonal is None:
            return None
        is_low = np.tri(self._rows, self._columns, diagonal, dtype=bool)
        if not ((flat == low) == is_low).all() or not ((flat == high) != is_low).all():
            return None
        return Triangle(diagonal, np.asarray(low), np.asarray(high))


def _uniform(array: np.ndarray) -> Triangle:
    one = np.asarray(array.reshape(-1)[0])
    return Triangle(None, one, one)


def _of_scalars(node: Node) -> Node:
    """Return the node with operands without axes."""
    inputs = [None if v is None else Value(TensorType(v.dtype, ())) for v in node.inputs]
    return Node(node.op, inputs)
