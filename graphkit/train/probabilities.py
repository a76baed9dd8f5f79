"""Find the Softmax or Sigmoid behind an output, and its logits.

The search continues through operators that move elements, cast between floats, or only keep probabilities away from 0
and 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from graphkit.ir.graph import Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.passes.core.match import first, is_op, scalar
from graphkit.passes.core.relevance import RESHAPES

_MOVES = frozenset({*RESHAPES, "Identity", "Transpose", "Slice", "Gather", "Expand"})
# A Clip, Max or Min with a bound this near to 0 or 1 is ignored: it only keeps logarithms finite.
_MARGIN = 1e-2


class _Source(NamedTuple):
    node: Node
    path: Sequence[Node]


def are_probabilities(output: Value) -> bool:
    return _source(output) is not None


def logits_of(output: Value, name: str) -> Value:
    """Return the logits of an output that comes from a Softmax or Sigmoid (`name`), in the shape of the output.

    If there is no such operator, return the output itself. If a Softmax is not over the last axis, warn, and return the
    output itself.
    """
    found = _source(output)
    if found is None or found.node.op.name != name:
        return output
    if name == "Softmax" and not _classes_are_last(found):
        behind = ", ".join(node.op.name for node in reversed(found.path)) or "nothing"
        warnings.warn(
            f"the loss treats {output} as logits, although it comes from {found.node.describe()} (followed by "
            f"{behind}). The Softmax is not over the last axis of the output, so its operand cannot be used. Choose an "
            "output with the logits, or one whose last axis counts the classes",
            stacklevel=2,
        )
        return output
    value = first(found.node)
    for node in reversed(found.path):
        if node.op.name in _MOVES or node.op.name == "Cast":
            value = node.rebuilt([value, *node.inputs[1:]]).outputs[0]
    return value


def _source(output: Value) -> _Source | None:
    path: list[Node] = []
    value = output
    while (node := value.node) is not None and not node.op.domain:
        if is_op(node, "Softmax", "Sigmoid"):
            return _Source(node, path)
        if not _keeps_values(node) or value is not node.outputs[0]:
            return None
        path.append(node)
        value = first(node)
    return None


def _keeps_values(node: Node) -> bool:
    if node.op.name in _MOVES:
        return True
    if node.op.name == "Cast":
        return first(node).dtype.is_float and node.outputs[0].dtype.is_float
    if is_op(node, "Clip"):
        low, high = (*node.inputs[1:], None, None)[:2]
        return _is_negligible(low, 0.0) and _is_negligible(high, 1.0)
    if is_op(node, "Max", "Min") and len(node.inputs) == 2:
        return _is_negligible(node.inputs[1], 0.0 if node.op.name == "Max" else 1.0)
    return False


def _is_negligible(bound: Value | None, end: float) -> bool:
    """Whether a bound changes probabilities by at most _MARGIN. end: 0 for a lower bound, 1 for an upper bound."""
    if bound is None:
        return True
    number = scalar(bound)
    return number is not None and (number <= _MARGIN if end == 0.0 else number >= 1.0 - _MARGIN)


def _classes_are_last(found: _Source) -> bool:
    """Whether the axis of a Softmax is the last axis of the output, not counting removed axes of size 1."""
    shape = first(found.node).tensor.shape
    if shape is None:
        return not found.path and found.node.op.attributes()["axis"] == -1
    axis: int = found.node.op.attributes()["axis"] % max(len(shape), 1)
    for node in reversed(found.path):
        before, after = first(node).tensor.shape, node.outputs[0].tensor.shape
        if before is None or after is None:
            return False
        if is_op(node, "Transpose"):
            permutation = node.op.attributes()["perm"] or range(len(before))[::-1]
            axis = list(permutation).index(axis)
        elif node.op.name in _MOVES and node.op.name != "Identity":
            behind = before[axis + 1 :]
            places = [k for k in range(len(after)) if after[k] == before[axis] and all(d == 1 for d in after[k + 1 :])]
            if any(d != 1 for d in behind) or not places:
                return False
            axis = places[0]
    final = found.path[0].outputs[0].tensor.shape if found.path else shape
    return final is not None and axis == len(final) - 1
