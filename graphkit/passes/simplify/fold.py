"""Constant folding: replace values that depend only on constants, or whose elements are known integers, by Constants.

An If with a constant condition is replaced by the branch that it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import GraphkitError, LimitReached
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.limits import limited
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import TensorType
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.match import array_of, is_op
from graphkit.passes.core.sweep import map_branches, rewrite

if TYPE_CHECKING:
    from graphkit.ir.sweeps import NativeSweeps

# Largest size in bytes of a folded result that is larger than its operands. The limit keeps saved files small.
SIZE_LIMIT = 1 << 20

_BRANCHES = frozenset({"If"})


@graph_pass(ensures=[Property.CONSTANTS_FOLDED])
def fold(graph: Graph, size_limit: int = SIZE_LIMIT) -> Graph:
    """Evaluate nodes whose operands are constants, and replace values with known integer elements by Constants.

    Not folded: random operators, loops, dequantised weights, and results that are larger than both `size_limit` bytes
    and their operands. If the evaluation of a node fails, the node is kept: it fails when it is run. Takes linear time.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        if is_op(node, "If"):
            from graphkit.ir.subgraph import inline
            from graphkit.ops.control.views import IfView

            node = map_branches(node, operands, lambda inner: fold(inner, size_limit))
            if (branch := IfView.of(node).chosen) is not None:
                return inline(branch, IfView.of(node).captures)
        elif operands is not node.inputs:
            node = node.rebuilt(operands)
        computable = _has_constant_operands(node)
        if not (computable or _has_known_elements(node)) or isinstance(node.op, Constant) or is_random(node.op):
            return node.outputs
        known = [_known_array(v) for v in node.outputs]
        if computable and any(a is None for a in known) and _foldable(node, size_limit):
            from graphkit.ops.evaluate import run_node

            try:
                with limited(memory=_byte_limit(node, size_limit)):
                    known = list(run_node(node, [None if v is None else array_of(v) for v in node.inputs]))
            except LimitReached:
                raise
            except GraphkitError:
                return node.outputs
            if sum(a.nbytes for a in known if a is not None) > _byte_limit(node, size_limit):
                return node.outputs
        return [
            v if a is None else Node(Constant(value=Tensor(a)), (), node.name, node.meta, output_names=[v.name]).output
            for v, a in zip(node.outputs, known, strict=True)
        ]

    def advance(sweeps: NativeSweeps, nodes: tuple[Node, ...], position: int, table: dict[Any, Value]) -> int:
        return sweeps.copy_until(nodes, position, _BRANCHES, table, None, Constant)

    return rewrite(graph, rule, advance=advance)


def _known_array(value: Value) -> np.ndarray | None:
    """Return the elements that inference knows, if all of them are integers; else None."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.value is None or not kind.is_static or kind.constants is None:
        return None
    return np.array(kind.constants, dtype=kind.dtype.numpy).reshape(kind.static_shape)


def _byte_limit(node: Node, size_limit: int) -> int:
    return max(size_limit, sum(a.nbytes for v in node.inputs if v is not None and (a := array_of(v)) is not None))


def _has_constant_operands(node: Node) -> bool:
    """Return whether all operands are constants."""
    for value in node.inputs:
        if value is not None and (value.node is None or not isinstance(value.node.op, Constant)):
            return False
    return True


def _has_known_elements(node: Node) -> bool:
    """Return whether inference knows the elements of a result."""
    known = [v for v in node.outputs if isinstance(v.type, TensorType) and v.type.value is not None]
    return bool(known)


def _foldable(node: Node, size_limit: int) -> bool:
    """Return whether the results of a node with constant operands may be stored as constants."""
    # Dequantised weights would need more memory than the quantised ones.
    if node.op.subgraphs() or is_op(node, "DequantizeLinear"):
        return False
    if not all(isinstance(v.type, TensorType) for v in node.outputs):
        return False
    return sum(v.tensor.nbytes for v in node.outputs if v.tensor.is_static) <= _byte_limit(node, size_limit)
