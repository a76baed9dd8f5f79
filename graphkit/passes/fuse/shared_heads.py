"""Grouped-query attention: do not repeat the heads of keys and values that several heads of queries share.

Ainslie et al. 2023, arXiv:2305.13245. Graphs contain two forms. Exporters repeat the heads: they insert an axis after
that of the heads, expand it, and merge both axes. `shared_product` stacks the rows of all query heads that share a
head, but `fuse_attention` does not recognise this form. So `repeat_heads` converts the second form to the first one
before attention is fused. Afterwards, `share_heads` removes all repetitions, including those of exporters.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, operator
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.ops.nn.heads import repeated_heads, shared_product
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import first, is_op, producer
from graphkit.passes.core.sweep import Readers, fuse
from graphkit.passes.fuse.attention import Factor, peel

_HEADS = 1
_KEPT, _SWAPPED = (0, 1, 2, 3), (0, 1, 3, 2)


@graph_pass(ensures=[Property.HEADS_REPEATED], at=["Softmax"], beside=[["MatMul"], ["Reshape"]])
def repeat_heads(graph: Graph) -> Graph:
    """Convert products of the form of `shared_product` to products with repeated heads. Takes linear time."""

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        shared = _shared_product(node) if is_op(node, "Reshape") else None
        if shared is None:
            return None
        factor = peel(shared.b)
        if factor.perm not in (_KEPT, _SWAPPED):
            factor = Factor(shared.b, 1.0, _KEPT)
        every = repeated_heads(factor.source, shared.a)
        return (F.mat_mul(shared.a, _like_factor(every, factor)),)

    return fuse(graph, rule, needs=("Softmax",), at=("Reshape",))


@graph_pass(
    requires=[Property.ATTENTION_FUSED],
    ensures=[Property.HEADS_SHARED],
    at=["Expand", "Tile"],
    beside=[["FusedAttention", "MatMul"], ["Reshape"]],
)
def share_heads(graph: Graph) -> Graph:
    """Let attention and products of heads read the heads of keys and values before they were repeated.

    Takes linear time.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if is_op(node, "MatMul"):
            return _product(node)
        return _attention(node) if isinstance(node.op, FusedAttention) else None

    return fuse(graph, rule, needs=("Expand", "Tile"), at=("FusedAttention", "MatMul"))


class _SharedProduct(NamedTuple):
    """The factors [B, H, L, m] and [B, G, m, n] of a product whose H heads share G heads."""

    a: Value
    b: Value


def _shared_product(node: Node) -> _SharedProduct | None:
    """Return the factors if `node` reshapes the result of a product in the form of `shared_product`; else None."""
    product = producer(first(node), "MatMul")
    stack = None if product is None else producer(product.operands[0], "Reshape")
    if product is None or stack is None:
        return None
    a, stacked, b, y = first(stack), stack.output, product.operands[1], node.output
    if not all(v.shape is not None and len(v.shape) == 4 for v in (a, stacked, b, y)):
        return None
    batch, heads, rows, terms = a.tensor.known_shape
    groups = _size(b, _HEADS)
    if not isinstance(heads, int) or not isinstance(groups, int) or groups == 0 or heads % groups or heads == groups:
        return None
    is_shared = (
        stacked.shape == (batch, groups, rows * (heads // groups), terms)
        and y.shape == (batch, heads, rows, _size(b, 3))
        and _size(b, 0) == batch
    )  # fmt: skip
    return _SharedProduct(a, b) if is_shared else None


def _like_factor(x: Value, factor: Factor) -> Value:
    """Apply the scale and the transposition of a factor to x."""
    if factor.scale != 1.0:
        x = F.mul(x, scalar_like(factor.scale, x))
    return F.transpose(x, perm=_SWAPPED) if factor.perm == _SWAPPED else x


def _attention(node: Node) -> Sequence[Value] | None:
    q, k, v, *mask = node.inputs
    axis = _HEADS if operator(node, FusedAttention).layout == "NHLD" else _HEADS + 1
    shared_k, shared_v = (_unrepeated(x, axis) for x in (k, v))
    if shared_k is None or shared_v is None or _size(shared_k, axis) != _size(shared_v, axis):
        return None
    return node.rebuilt([q, shared_k, shared_v, *mask]).outputs


def _product(node: Node) -> Sequence[Value] | None:
    a, b = node.operands
    if a.rank != 4 or b.rank != 4:
        return None
    factor = peel(b)
    shared = _unrepeated(factor.source, _HEADS) if factor.perm in (_KEPT, _SWAPPED) else None
    if shared is None or _size(a, _HEADS) != _size(b, _HEADS) or _size(a, 0) != _size(b, 0):
        return None
    y: Value = shared_product(a, _like_factor(shared, factor))
    return (y,)


def _unrepeated(value: Value | None, axis: int) -> Value | None:
    """Return the value [.., G, ..] from which `value` [.., H, ..] was made by repeating each head H / G times; else
    None.
    """
    joined = producer(value, "Reshape")
    repeated = None if joined is None else producer(first(joined), "Expand", "Tile")
    apart = None if repeated is None else producer(first(repeated), "Unsqueeze", "Reshape")
    if value is None or joined is None or repeated is None or apart is None:
        return None
    source = first(apart)
    whole, many, one, few = (v.shape for v in (value, first(joined), first(repeated), source))
    if whole is None or many is None or one is None or few is None:
        return None
    if len(few) != 4 or (len(many), len(one)) != (5, 5) or len(whole) != 4:
        return None
    groups, times = few[axis], many[axis + 1]
    if not isinstance(groups, int) or not isinstance(times, int) or one[axis + 1] != 1:
        return None
    is_repetition = (
        _without(one, axis + 1) == _without(many, axis + 1) == tuple(few)
        and tuple(whole) == (*few[:axis], groups * times, *few[axis + 1 :])
    )  # fmt: skip
    return source if is_repetition else None


def _without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _size(value: Value, axis: int) -> Dim:
    return value.tensor.known_shape[axis]
