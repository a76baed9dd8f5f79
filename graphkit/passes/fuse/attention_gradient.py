"""Fuse attention in training: the forward pass with statistics, and the three gradients."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property, partial

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import FLOATS, DType
from graphkit.ops import F, operator
from graphkit.ops._base import DOMAIN
from graphkit.ops.internal.attention_gradient import FusedAttentionGrad, FusedAttentionWithStatistics
from graphkit.ops.internal.softmax_grad import SoftmaxGrad
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.match import first, ints, is_op, permutation, producer, scalar, split_scale
from graphkit.passes.core.sweep import Readers, is_control, map_bodies, readers_of, rewrite, use_counts
from graphkit.passes.fuse.attention import AttentionMatch, match_attention, peel, swapped
from graphkit.passes.fuse.softmax import SoftmaxGradient, softmax_gradient
from graphkit.passes.simplify.transpose import eliminate_transpose

# Each gradient of a softmax contains one of these operators.
_GRADIENTS = ("SoftmaxGrad", "ReduceSum")


@graph_pass(
    requires=[Property.SOFTMAXES_FUSED, Property.TRANSPOSES_MERGED, Property.ATTENTION_FUSED],
    at=["Softmax"],
    beside=[["MatMul"], _GRADIENTS],
)
def fuse_attention_gradient(graph: Graph, *, kinds: Collection[DType] = FLOATS, nested: bool = False) -> Graph:
    """Replace attention and its three gradients by FusedAttentionWithStatistics and FusedAttentionGrad.

    Attention is what `fuse_attention` recognises. It is replaced only if no other node reads the softmax or a value
    between the gradients. So it stays unchanged if the mask has a gradient, if there is a dropout, or if a gradient in
    q, k or v is missing. The gradient of the softmax may be SoftmaxGrad or its formula.

    Args:
        graph: The graph.
        kinds: Types of scores to fuse.
        nested: Whether the graph is a body of another one.
    """
    found = _training(graph, kinds, nested)
    inside = partial(fuse_attention_gradient, kinds=kinds, nested=True)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            return map_bodies(node, operands, inside).outputs
        part = found.get(node)
        return None if part is None else part.replaced(node, operands)

    # The new operators need transposes, which may cancel with existing ones.
    fused = rewrite(graph, rule, at={*CONTROL, *(node.op.name for node in found)})
    return eliminate_transpose(fused) if found else fused


class _Training:
    """The nodes of one attention in the old graph, and their replacements.

    `forward` and `spread` compute the result and dy v^T; `dq`, `dk` and `dv` the gradients. A sweep calls `replaced`
    for each of them, first for `forward`.
    """

    def __init__(self, forward: Node, spread: Node, dq: Node, dk: Node, dv: Node):
        self.forward, self.spread, self.dq, self.dk, self.dv = forward, spread, dq, dk, dv
        self._made: tuple[AttentionMatch, Node] | None = None
        self._gradients: tuple[Value, ...] | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.forward, self.spread, self.dq, self.dk, self.dv

    def replaced(self, node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node is self.forward:
            return (self._with_statistics(node.rebuilt(operands)),)
        if node is self.spread or (node is self.dv and self._gradients is None):
            dy = operands[0 if node is self.spread else 1]
            assert dy is not None
            self._gradients = self._gradients or self._made_gradients(dy)
        if node is self.spread:
            return None
        assert self._gradients is not None
        dq, dk, dv = self._gradients
        if node is self.dk:  # this node computes the gradient of k transposed
            rank = node.output.rank
            assert rank is not None
            return (F.transpose(dk, perm=(*range(rank - 2), rank - 1, rank - 2)),)
        return (dq if node is self.dq else dv,)

    def _with_statistics(self, node: Node) -> Value:
        """Return the result of FusedAttentionWithStatistics, in the layout of the product that it replaces."""
        found = match_attention(node, lambda value: True, peel_scales=False)
        assert found is not None
        attributes = {**found.op.attributes(), "output_layout": found.op.layout}
        parts = (found.scores.product, node)
        made = Node(
            FusedAttentionWithStatistics(**attributes), [v for v in found.operands if v is not None],
            next((part.name for part in parts if part.name), ""), {k: v for p in parts for k, v in p.meta.items()},
        )  # fmt: skip
        self._made = found, made
        return _as_product(made.outputs[0], found.op.layout, node.output)

    def _made_gradients(self, dy: Value) -> tuple[Value, ...]:
        assert self._made is not None
        found, forward = self._made
        attributes = {**found.op.attributes(), "output_layout": found.op.layout}
        layout, rank = found.op.layout, dy.rank
        if layout == "NLHD":
            assert rank is not None
            dy = F.transpose(dy, perm=swapped(rank))
        dy = dy if rank == 4 else F.unsqueeze(dy, ints(0))
        q, k, v, mask = (*found.operands, None)[:4]
        gradient = Node(FusedAttentionGrad(**attributes), [q, k, v, mask, *forward.outputs, dy], forward.name)
        like = self.forward.output
        return tuple(_as_product(x, layout, like) for x in gradient.outputs)


def _as_product(x: Value, layout: str, like: Value) -> Value:
    """Convert a result with four axes in a layout to the rank and the axes of the product `like`."""
    rank = like.rank
    assert rank is not None
    x = x if rank == 4 else F.squeeze(x, ints(0))
    return F.transpose(x, perm=swapped(rank)) if layout == "NLHD" else x


# --- the search in a graph ------------------------------------------------------------------------


def _training(graph: Graph, kinds: Collection[DType], nested: bool) -> dict[Node, _Training]:
    """Find all attention with gradients. Returns each of their nodes with the group that it belongs to."""
    found: dict[Node, _Training] = {}
    if graph.operators.isdisjoint(_GRADIENTS):
        return found
    # All nodes of a group are matrix products.
    places = {node: place for place, node in enumerate(graph.nodes) if node.op.name == "MatMul"}
    search = _Search(graph, nested)
    for node in graph.nodes:
        gradient = search.gradient(node) if node.op.name in ("SoftmaxGrad", "Sub") else None
        part = search.around(gradient) if gradient is not None and gradient.dy.dtype in kinds else None
        if part is not None and places[part.forward] < min(places[n] for n in part.nodes[1:]):
            found.update(dict.fromkeys(part.nodes, part))
    return found


class _Search:
    """Finds attention with gradients in a graph, by the readers of its values."""

    def __init__(self, graph: Graph, nested: bool):
        self._readers = readers_of(graph, nested=nested)
        self._graph = graph
        self._kept = {*graph.outputs, *(new for _, new in graph.updates)}

    @cached_property
    def _counts(self) -> Readers:
        return Readers(use_counts(self._graph))

    def _of(self, value: Value) -> list[Node]:
        """Return the nodes that read a value; empty if it is an output of the graph."""
        return [] if value in self._kept else self._readers.get(value, [])

    def _sole(self, value: Value) -> bool:
        return len(self._of(value)) == 1

    def gradient(self, node: Node) -> SoftmaxGradient | None:
        """Match the gradient of a softmax whose last node is `node`."""
        if not is_op(node, "SoftmaxGrad", domain=DOMAIN):
            return softmax_gradient(node, self._counts) if is_op(node, "Sub") else None
        op = operator(node, SoftmaxGrad)
        dy, y = node.operands
        return None if op.log else SoftmaxGradient(dy, y, op.axis, (node,))

    def around(self, gradient: SoftmaxGradient) -> _Training | None:
        """Match the attention whose softmax has this gradient."""
        dp, weights = gradient.dy, gradient.y
        softmax, spread = producer(weights, "Softmax"), producer(dp, "MatMul")
        last = gradient.axis in (-1, (dp.rank or 0) - 1)
        if softmax is None or spread is None or not last or not self._sole(dp):
            return None
        products = self._of_weights(weights, gradient.nodes)
        found = None if products is None else match_attention(products[0], self._sole, peel_scales=False)
        if products is None or found is None or not is_op(found.scores.product, "MatMul"):
            return None
        forward, dv = products
        dy, v = spread.operands
        if not _same(dv.operands[1], dy) or dy.type != forward.output.type:
            return None
        if not _same(v, forward.operands[1], exchanged=True):
            return None
        scores = self._scores_gradient(gradient.nodes[-1].output, softmax, found)
        return None if scores is None else self._products(scores, found, forward, spread, dv)

    def _of_weights(self, weights: Value, gradient: Collection[Node]) -> tuple[Node, Node] | None:
        """Return the two other readers of the weights: the product with v, and the gradient of v.

        None if there are others.
        """
        readers = [node for node in self._of(weights) if node not in gradient]
        forward = next((n for n in readers if is_op(n, "MatMul") and n.inputs[0] is weights), None)
        transpose = next((n for n in readers if is_op(n, "Transpose") and _exchanges(n)), None)
        if len(readers) != 2 or forward is None or transpose is None or not self._sole(transpose.output):
            return None
        (dv,) = self._of(transpose.output)
        return (forward, dv) if is_op(dv, "MatMul") and dv.inputs[0] is transpose.output else None

    def _scores_gradient(self, value: Value, softmax: Node, found: AttentionMatch) -> Value | None:
        """Follow the gradient through the mask and the scale, to the gradient of the product q k^T."""
        masked = first(softmax).node
        if masked is not None and is_op(masked, "Where"):
            (node,) = self._of(value) if self._sole(value) else (None,)
            # The side of the scores has the gradient, the other one 0.
            side = 1 if scalar(masked.inputs[2]) is not None else 2
            if node is None or not is_op(node, "Where") or node.inputs[0] is not masked.inputs[0]:
                return None
            if node.inputs[side] is not value or scalar(node.inputs[3 - side]) != 0:
                return None
            value = node.output
        if found.scores.scale != 1.0:
            (node,) = self._of(value) if self._sole(value) else (None,)
            factor = None if node is None else split_scale(node)
            if node is None or factor is None or not math.isclose(factor[1], found.scores.scale, rel_tol=1e-6):
                return None
            value = node.output
        return value

    def _products(
        self, scores: Value, found: AttentionMatch, forward: Node, spread: Node, dv: Node
    ) -> _Training | None:
        q, k = found.scores.product.operands[:2]
        readers = self._of(scores)
        if len(readers) != 2 or not all(is_op(n, "MatMul") for n in readers):
            return None
        dq = next((n for n in readers if n.inputs[0] is scores and _same(n.operands[1], k, exchanged=True)), None)
        dk = next((n for n in readers if n.inputs[1] is scores and _same(n.operands[0], q, exchanged=True)), None)
        if dq is None or dk is None or dq is dk:
            return None
        return _Training(forward, spread, dq, dk, dv)


def _exchanges(transpose: Node) -> bool:
    perm = permutation(transpose)
    return perm is not None and perm == (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2)


def _same(a: Value, b: Value, *, exchanged: bool = False) -> bool:
    """Whether two values are equal, also if both are transposed. exchanged: the last two axes of one are swapped."""
    left, right = (peel(x, scales=False) for x in (a, b))
    perm = (*right.perm[:-2], right.perm[-1], right.perm[-2]) if exchanged else right.perm
    return left.source is right.source and left.perm == perm
