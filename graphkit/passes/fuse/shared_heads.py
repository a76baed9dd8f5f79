"""Heads of keys and values that several heads of queries share: they are read where they are, and never repeated."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, operator
from graphkit.ops.internal.fused import FusedAttention
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import first, ints, is_op, producer
from graphkit.passes.core.sweep import Readers, fuse
from graphkit.passes.fuse.attention import peeled

_HEADS = 1
_KEPT, _SWAPPED = (0, 1, 2, 3), (0, 1, 3, 2)


@graph_pass(requires=[Property.ATTENTION_FUSED], ensures=[Property.HEADS_SHARED])
def share_heads(graph: Graph) -> Graph:
    """Give attention, and products of heads, what each head was before it was repeated for several neighbours.

    To repeat is to expand an axis that is put behind that of the heads, and to join both. In products the rows of the
    heads that share one are put below each other. Ainslie et al. 2023, arXiv:2305.13245. Linear.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if is_op(node, "MatMul"):
            return _product(node)
        return _attention(node) if isinstance(node.op, FusedAttention) else None

    return fuse(graph, rule, needs=("Expand", "Tile"), at=("FusedAttention", "MatMul"))


def _attention(node: Node) -> Sequence[Value] | None:
    q, k, v, *mask = node.inputs
    axis = _HEADS if operator(node, FusedAttention).layout == "NHLD" else _HEADS + 1
    shared_k, shared_v = (_before_repetition(x, axis) for x in (k, v))
    if shared_k is None or shared_v is None or _size(shared_k, axis) != _size(shared_v, axis):
        return None
    return node.rebuilt([q, shared_k, shared_v, *mask]).outputs


def _product(node: Node) -> Sequence[Value] | None:
    a, b = node.operands
    if a.rank != 4 or b.rank != 4:
        return None
    factor = peeled(b)
    shared = _before_repetition(factor.source, _HEADS) if factor.perm in (_KEPT, _SWAPPED) else None
    if shared is None or _size(a, _HEADS) != _size(b, _HEADS) or _size(a, 0) != _size(b, 0):
        return None
    if factor.scale != 1.0:
        shared = F.mul(shared, scalar_like(factor.scale, shared))
    if factor.perm == _SWAPPED:
        shared = F.transpose(shared, perm=_SWAPPED)
    heads, groups = _size(b, _HEADS), _size(shared, _HEADS)
    assert isinstance(heads, int)
    assert isinstance(groups, int)
    sizes = F.shape(a)
    rows = F.mul(sizes[2:3], ints(heads // groups))
    stacked = F.reshape(a, F.concat(sizes[:1], ints(groups), rows, sizes[3:], axis=0), allowzero=True)
    y = F.mat_mul(stacked, shared)
    return (F.reshape(y, F.concat(sizes[:3], F.shape(y)[3:], axis=0), allowzero=True),)


def _before_repetition(value: Value | None, axis: int) -> Value | None:
    """What `value` [.., H, ..] was, [.., G, ..] along an axis, before each came H / G times, one behind the other."""
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
