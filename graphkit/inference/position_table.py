"""The largest number of tokens of a decoder: the rows of its table of positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple

# Operators that compute positions from sizes, or change only the form of an array. Relative positions of attention
# need others, such as Abs, Min and Log.
_KEEPING = frozenset(
    {
        "Add", "Cast", "Clip", "Concat", "ConstantOfShape", "CumSum", "Equal", "Expand", "Gather", "Identity", "Max",
        "Mul", "Range", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where",
    }
)  # fmt: skip
_SIZES = frozenset({"Shape", "Size"})
# Operators through which a table may pass before its rows are read.
_COPYING = frozenset({"Identity", "Cast", "DequantizeLinear"})


class PositionTable(NamedTuple):
    """A table with one row per position.

    rows: Number of rows.
    counts_mask: Whether the positions are computed from the values of the attention mask, so that padding on the left
        does not change them.
    """

    rows: int
    counts_mask: bool


def position_table(model: Model, positions: str | None, mask: str | None) -> PositionTable | None:
    """Return the smallest table that the graph reads at positions; None if there is none.

    A table is a stored matrix. Its rows are read at numbers that depend on sizes, on the input of positions or on the
    mask, but on no other input.

    Args:
        model: The model.
        positions: The input of positions.
        mask: The attention mask.
    """
    names = {model.graph.find(n, inputs_first=True): n for n in (positions, mask) if n is not None}
    found = []
    for node in model.graph.nodes:
        if node.op.name != "Gather" or len(node.operands) != 2:
            continue
        rows = _rows(node.operands[0])
        if rows is None or (reached := _reached(node.operands[1], names)) is None:
            continue
        read = {names[value] for value in reached}
        if read or _reads_size(node.operands[1]):
            found.append(PositionTable(rows, mask in read))
    return min(found, default=None)


def _rows(value: Value) -> int | None:
    """Return the number of rows of a stored matrix; None for any other value."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.rank != 2 or not kind.dtype.is_float:
        return None
    source = value
    while source.node is not None and source.node.op.name in _COPYING:
        source = source.node.operands[0]
    stored = source.role in ("parameter", "state") if source.node is None else source.node.op.name == "Constant"
    rows = (kind.shape or (None,))[0]
    return rows if stored and isinstance(rows, int) else None


def _reached(value: Value, names: Collection[Value]) -> set[Value] | None:
    """Return which of the inputs `names` a value is computed from.

    Returns None if it also depends on other inputs, or if an operator on the way is not one that computes positions.
    """
    found: set[Value] = set()
    for each in _ancestors(value):
        if each.node is None:
            if each in names:
                found.add(each)
            elif each.role == "data":
                return None
        elif each.node.op.name not in _KEEPING and each.node.op.name not in _SIZES and not _is_constant(each.node):
            return None
    return found


def _reads_size(value: Value) -> bool:
    return any(each.node is not None and each.node.op.name in _SIZES for each in _ancestors(value))


def _is_constant(node: Node) -> bool:
    return node.op.name == "Constant"


def _ancestors(value: Value) -> Iterator[Value]:
    """Yield a value and those that it is computed from. The operands of Shape and Size are left out."""
    seen = {value}
    stack = [value]
    while stack:
        each = stack.pop()
        yield each
        if each.node is None or each.node.op.name in _SIZES:
            continue
        for operand in each.node.operands:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
