"""Recognise GELU in its formulas: x (1 + erf(x / sqrt 2)) / 2, and the approximation with tanh."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.nn.smooth_activation import Gelu
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.match import is_op, producer, same_type, scalar
from graphkit.passes.core.sweep import Readers, cached_use_counts, fuse, fused_node, shape_readers
from graphkit.passes.fuse.polynomial import Expansion, Polynomial, matches

_ERF: Polynomial = {(1,): math.sqrt(0.5)}
_TANH: Polynomial = {(1,): math.sqrt(2.0 / math.pi), (3,): math.sqrt(2.0 / math.pi) * 0.044715}
# The polynomial x / 2 + x t / 2 in x and t, where t is the erf or tanh.
_GELU: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}

# The largest number of products between the result and the sum with 1.
_DEPTH = 3
# The largest number of products and sums between x and the argument of the erf or tanh.
_ARGUMENT_DEPTH = 4


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.GELUS_FUSED],
    at=["Erf", "Tanh"],
    beside=[["Mul", "Div"]],
)
def fuse_gelu(graph: Graph) -> Graph:
    """Replace the formula of GELU by Gelu. The formula with tanh gets approximate="tanh". Takes linear time.

    Factors and terms may be in any order. No other node may read an intermediate value.
    """
    if not _has_single_use(graph):
        return graph

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if not is_op(node, "Mul", "Div"):
            return None
        for curve in _curves(node):
            for x in _arguments(curve):
                op = _recognised(node, curve, x, readers)
                if op is not None:
                    return (fused_node(op, (x,), (curve, node)),)
        return None

    return fuse(graph, rule, needs=("Erf", "Tanh"), at=("Mul", "Div"))


def _has_single_use(graph: Graph) -> bool:
    """Return whether a sum may be the only reader of an Erf or Tanh. In training, its gradient is another reader."""
    if not graph.operators.isdisjoint(CONTROL):
        return True  # the formula may be in a subgraph
    counts = cached_use_counts(graph)
    ignored = Counter(v for node in shape_readers(graph) for v in node.operands)
    curves = [n.outputs[0] for n in graph.nodes if n.op.name in ("Erf", "Tanh") and not n.op.domain]
    return 1 in [counts.get(curve, 0) - ignored.get(curve, 0) for curve in curves]


def _curves(root: Node) -> Iterator[Node]:
    """Yield each Erf or Tanh in a sum that is a factor of the root's product."""
    level = [v for v in root.operands if scalar(v) is None]
    for _ in range(_DEPTH):
        below: list[Value] = []
        for value in level:
            total = producer(value, "Add", "Sum")
            product = producer(value, "Mul", "Div")
            if total is not None:
                for term in total.operands:
                    factor = producer(term, "Mul", "Div")
                    for v in (term, *(factor.operands if factor else ())):
                        curve = producer(v, "Erf", "Tanh")
                        if curve is not None:
                            yield curve
            if product is not None:
                below += [v for v in product.operands if scalar(v) is None]
        level = below


def _arguments(curve: Node) -> Iterator[Value]:
    """Yield the candidates for x: values that the argument of the erf or tanh contains in products and sums."""
    seen: dict[Value, None] = {}
    level = list(curve.operands)
    for _ in range(_ARGUMENT_DEPTH):
        below: list[Value] = []
        for value in level:
            node = producer(value, "Mul", "Div", "Add", "Sum", "Pow")
            if node is not None:
                below += [v for v in node.operands if scalar(v) is None and v not in seen]
                seen.update((v, None) for v in below)
        level = below
    yield from seen


def _recognised(root: Node, curve: Node, x: Value, readers: Readers) -> Gelu | None:
    if not same_type(x, root.output):
        return None
    inner, outer = Expansion((x,)), Expansion((x, curve.output))
    argument = curve.inputs[0]
    assert argument is not None
    tanh = is_op(curve, "Tanh")
    if not matches(inner.of(argument), _TANH if tanh else _ERF) or not matches(outer.of(root.output), _GELU):
        return None
    if (
        not readers.has_one_use(curve.output)
        or not inner.closed(readers, ())
        or not outer.closed(readers, (root.output,))
    ):
        return None
    return Gelu(approximate="tanh") if tanh else Gelu()
