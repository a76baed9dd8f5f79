"""Constant folding: what depends on constants only, or has a known integer value, becomes a Constant.

An If whose condition is constant becomes its branch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import GraphkitError, LimitReached
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.limits import limited
from graphkit.ir.subgraph import inline
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import TensorType
from graphkit.ops.control.views import IfView, is_if
from graphkit.ops.evaluate import run_node
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.declare import Property, Rewrite, graph_pass
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.match import array_of, is_op
from graphkit.passes.core.sweep import map_subgraphs, rewrite

# A folded result may be larger than its operands only up to this many bytes: files should not grow by folding.
SIZE_LIMIT = 1 << 20


@graph_pass(ensures=[Property.CONSTANTS_FOLDED])
def fold(graph: Graph, size_limit: int = SIZE_LIMIT) -> Graph:
    """Evaluate nodes of constant operands, and write known integer values as Constants.

    Random operators, loops, dequantised weights, and results that are larger than `size_limit` bytes and than their
    operands stay. A node whose evaluation fails stays as well: it fails when it runs, if it ever does. Linear.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        if is_if(node):
            node = map_branches(node, operands, lambda inner: fold(inner, size_limit))
            if (branch := IfView.of(node).chosen) is not None:
                return inline(branch, IfView.of(node).captures)
        else:
            node = node.rebuilt(operands)
        computable = _on_constants(node)
        told = any(isinstance(v.type, TensorType) and v.type.value is not None for v in node.outputs)
        if not (computable or told) or isinstance(node.op, Constant) or is_random(node.op):
            return node.outputs
        known = [_known_array(v) for v in node.outputs]
        if computable and any(a is None for a in known) and _foldable(node, size_limit):
            try:
                with limited(memory=_bound(node, size_limit)):
                    known = list(run_node(node, [None if v is None else array_of(v) for v in node.inputs]))
            except LimitReached:
                raise
            except GraphkitError:
                return node.outputs
            if sum(a.nbytes for a in known if a is not None) > _bound(node, size_limit):
                return node.outputs
        return [
            v if a is None else Node(Constant(value=Tensor(a)), (), node.name, node.meta, output_names=[v.name]).output
            for v, a in zip(node.outputs, known, strict=True)
        ]

    return rewrite(graph, rule)


def map_branches(node: Node, operands: Sequence[Value | None], transform: Rewrite) -> Node:
    """`map_subgraphs`, but for subgraphs only whose declared input types hold whenever they run.

    These are the branches of an If. What a loop carries may change its shape from one iteration to the next, so
    that a rewrite which relies on types has no business in a body.
    """
    if is_if(node):
        return map_subgraphs(node, operands, transform)
    return node.rebuilt(operands)


def _known_array(value: Value) -> np.ndarray | None:
    """The elements that inference knows, when all of them are integers."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.value is None or not kind.is_static or kind.constants is None:
        return None
    return np.array(kind.constants, dtype=kind.dtype.numpy).reshape(kind.static_shape)


def _bound(node: Node, size_limit: int) -> int:
    return max(size_limit, sum(a.nbytes for v in node.inputs if v is not None and (a := array_of(v)) is not None))


def _on_constants(node: Node) -> bool:
    """Whether every operand is a constant."""
    return all(v is None or array_of(v) is not None for v in node.inputs)


def _foldable(node: Node, size_limit: int) -> bool:
    """Whether a node on constants has results that may be constants."""
    # Weights that are stored in few bits stay so.
    if node.op.subgraphs() or is_op(node, "DequantizeLinear"):
        return False
    if not all(isinstance(v.type, TensorType) for v in node.outputs):
        return False
    return sum(v.tensor.nbytes for v in node.outputs if v.tensor.is_static) <= _bound(node, size_limit)
