"""Fuse attention, softmax(scale * Q K^T + mask) V, into one operator, with the transposes around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.internal.fused_attention import AttentionOp, FusedAttention
from graphkit.ops.nn.softmax import Softmax
from graphkit.ops.tensor.shape import Squeeze
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import (
    first,
    ints,
    is_op,
    operand_orders,
    permutation,
    producer,
    same_type,
    scalar,
    split_scale,
)
from graphkit.passes.core.sweep import Readers, fuse, fused_node
from graphkit.passes.fuse.attention_guards import Guard, guard_behind, guard_of, guarded, has_weights

# Mask values up to these numbers make a weight 0, like minus infinity. float16 cannot represent the first one.
_NONE, _NONE_OF_FLOAT16 = -1e8, -6e4
_SWAP = (0, 2, 1, 3)
# Attention at inference and in training. The first operands of all are q, k, v and the mask.
_OPERATORS = ("FusedAttention", "FusedAttentionWithStatistics", "FusedAttentionGrad")
_MASK = 3
# Largest number of scales and transposes that are removed from one operand.
_PEELED = 6


@graph_pass(
    requires=[Property.HALVES_WIDENED, Property.SOFTMAXES_FUSED, Property.TRANSPOSES_MERGED, Property.HEADS_REPEATED],
    ensures=[Property.ATTENTION_FUSED],
    at=["Softmax", *_OPERATORS],
    beside=[["MatMul", *_OPERATORS]],
)
def fuse_attention(graph: Graph, *, kinds: Collection[DType] = (DType.FLOAT32,), guards: bool = True) -> Graph:
    """Fuse the two products of attention, and the nodes between them, into FusedAttention. Takes linear time.

    No other node may read an intermediate value. Operands have three or four axes; the last two are those of the
    products. The scale may be applied to the scores or to either factor. The mask is a term, or the condition of a
    Where. A transposition of all three operands, or of the result, becomes a layout. A mask that `triangle_of` proves
    to be causal becomes the attribute `causal`.

    Args:
        kinds: Types of the scores.
        guards: Fuse attention whose weights are set to 0 for queries that see no key, or whose weights are NaN. The
            result is set to 0 instead of the weights, so NaN or infinite values do not make these rows NaN.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        return (
            _attention(node, readers, guards)
            if is_op(node, "MatMul") and node.output.dtype in kinds
            else _around(node, readers)
        )

    return fuse(graph, rule, needs=("Softmax", *_OPERATORS), at=("MatMul", "Transpose", *_OPERATORS))


def _around(node: Node, readers: Readers) -> Sequence[Value] | None:
    if is_op(node, "Transpose"):
        return _output_layout(node, readers)
    if is_op(node, *_OPERATORS, domain=DOMAIN):
        return _causal(node)
    return None


class Scores(NamedTuple):
    """Q K^T before the softmax.

    Attributes:
        product: Its node.
        untransposed: Whether the second factor is K and not its transpose.
        scale: The factor of the product.
        mask: A mask that the node adds, or None.
    """

    product: Node
    untransposed: bool
    scale: float
    mask: Value | None


class Masked(NamedTuple):
    """Operand of the softmax.

    Attributes:
        scores: The scores before the mask.
        mask: None, floats to add, or booleans.
        value: The score where a boolean mask is false.
        seen: A condition in addition to an added mask. Where it is false, the score is minus infinity.
    """

    scores: Scores
    mask: Value | None
    value: float
    seen: Value | None


class Factor(NamedTuple):
    """A factor of a product: `scale` times `source`, transposed by `perm`."""

    source: Value
    scale: float
    perm: tuple[int, ...]


class AttentionMatch(NamedTuple):
    """A product of weights and values, recognised as attention: an operator on q, k, v and a mask, and its scores.

    Its result has four axes, also if the result of the product has only the last three.
    """

    op: FusedAttention
    operands: tuple[Value | None, ...]
    scores: Scores


HasOneUse: TypeAlias = Callable[[Value], bool]
Attention = TypeVar("Attention", bound=AttentionOp)


def _attention(node: Node, readers: Readers, guards: bool) -> Sequence[Value] | None:
    guard = guard_of(node.operands[0], readers) if guards else None
    if guard is not None:
        return _guarded(node, guard, readers)
    found = match_attention(node, readers.has_one_use) if readers.has_one_use(node.operands[0]) else None
    if found is None:
        return None
    result = fused_node(found.op, found.operands, (found.scores.product, node))
    return (result if node.output.rank == 4 else _without_batch(result, node),)


def _guarded(node: Node, guard: Guard, readers: Readers) -> Sequence[Value] | None:
    """Fuse attention whose weights are set to 0 for some queries: set its result to 0 instead."""
    found = match_attention(node, readers.has_one_use, guard=guard)
    if found is None or node.output.rank != 4:
        return None
    if guard.sees is not None:
        result = fused_node(found.op, found.operands, (found.scores.product, node))
        return (guarded(result, guard.sees),)
    shapes = [None if v is None else v.tensor.shape for v in found.operands[:2]]
    axis = 1 if found.op.layout == "NHLD" else 2
    if any(shape is None for shape in shapes) or len({shape[axis] for shape in shapes if shape is not None}) > 1:
        return None
    from graphkit.ops.internal.attention_gradient import FusedAttentionWithStatistics

    op = FusedAttentionWithStatistics(**found.op.attributes())
    made = Node(op, found.operands, found.scores.product.name, node.meta)
    return (guarded(made.outputs[0], has_weights(made.outputs[2])),)


def match_attention(
    node: Node, has_one_use: HasOneUse, *, peel_scales: bool = True, guard: Guard | None = None
) -> AttentionMatch | None:
    """Return the attention whose last product is the MatMul `node`; None if there is none.

    has_one_use: Returns whether a value before the softmax has a single reader. peel_scales: Whether constant factors
    of q and k become part of the scale.
    guard: The guard between softmax and product, if there is one.
    """
    weights, v = node.operands
    weights = weights if guard is None else guard.weights
    softmax = producer(weights, "Softmax")
    rank = node.output.rank
    if softmax is None or rank not in (3, 4) or weights.rank != rank or v.rank != rank:
        return None
    scores = first(softmax) if guard is None else guard.scores
    masked = _masked(scores, has_one_use) if operator(softmax, Softmax).axis in (-1, rank - 1) else None
    if masked is None:
        return None
    found, mask = masked.scores, masked.mask
    q, k = (peel(x, scales=peel_scales) for x in found.product.operands[:2])
    if len(q.perm) != rank or len(k.perm) != rank:
        return None
    value = Factor(v, 1.0, tuple(range(rank)))
    transpose = producer(v, "Transpose")
    if transpose is not None:
        value = Factor(first(transpose), 1.0, permutation(transpose) or value.perm)
    if not found.untransposed:
        k = k._replace(perm=(*k.perm[:-2], k.perm[-1], k.perm[-2]))
    layout, operands = _arranged((q, k, value), rank)
    if not _go_together(operands, layout):
        return None
    if mask is not None and rank == 3 and mask.rank == 3:
        mask = F.unsqueeze(mask, ints(0))
    op = FusedAttention(scale=q.scale * k.scale * found.scale, mask_value=masked.value, layout=layout)
    if masked.seen is None:
        op, mask = _causal_part(op, operands[0], operands[1], mask)
    elif _hides_the_future(op, operands[0], operands[1], masked.seen):
        op = op.replace(causal=True)
    else:
        return None
    return AttentionMatch(op, tuple(operands) if mask is None else (*operands, mask), found)


def _without_batch(result: Value, node: Node) -> Value:
    """Remove the batch axis from the result of attention, for operands of three axes."""
    names = [node.output.name]
    return Node(Squeeze(), (result, _axis(0)), output_names=names).output


def swapped(rank: int) -> tuple[int, ...]:
    """Return the permutation between layouts of three or four axes."""
    return _SWAP if rank == 4 else (1, 0, 2)


def _axis(axis: int) -> Value:
    value: Value = F.constant(value=ints(axis))
    return value


def _arranged(operands: Sequence[Factor], rank: int) -> tuple[str, list[Value]]:
    """Return a layout, and the operands in it, with four axes. If their layouts differ, they are transposed."""
    swap = swapped(rank)
    layout = "NLHD" if all(o.perm == swap for o in operands) else "NHLD"
    arranged = []
    for source, _, perm in operands:
        x = source if layout == "NLHD" or perm == tuple(range(rank)) else F.transpose(source, perm=perm)
        arranged.append(x if rank == 4 else F.unsqueeze(x, ints(0)))
    return layout, arranged


def _go_together(operands: Sequence[Value], layout: str) -> bool:
    """Whether all operands provably have the same batch and heads. Attention does not broadcast these axes."""
    heads = 1 if layout == "NHLD" else 2
    shapes = [v.tensor.shape for v in operands]
    return all(s is not None for s in shapes) and len({(s[0], s[heads]) for s in shapes if s is not None}) == 1


def _masked(value: Value, has_one_use: HasOneUse) -> Masked | None:
    """Match the operand of a softmax: scores, possibly with a mask."""
    node = value.node
    if node is None or not has_one_use(value):
        return None
    plain, mask, hidden = value, None, -np.inf
    if is_op(node, "Add"):
        for a, b in operand_orders(node):
            if _scores(a, has_one_use) is not None and b.dtype is a.dtype:
                plain, mask = a, b
                break
    elif is_op(node, "Where"):
        condition, a, b = node.operands
        kept, other = scalar(b), scalar(a)
        if kept is not None:
            plain, mask, hidden = a, condition, kept
        elif other is not None:
            plain, mask, hidden = b, F.not_(condition), other
        if mask is not None and hidden == -np.inf and producer(plain, "Add") is not None and same_type(plain, value):
            inner = _masked(plain, has_one_use)
            return None if inner is None else inner._replace(seen=mask)
    found = _scores(plain, has_one_use)
    # A mask that is larger than the scores would broadcast them.
    if found is None or not same_type(plain, value) or (mask is not None and found.mask is not None):
        return None
    return Masked(found, found.mask if mask is None else mask, hidden, None)


def _scores(value: Value, has_one_use: HasOneUse) -> Scores | None:
    scale = 1.0
    factor = None if value.node is None or not has_one_use(value) else split_scale(value.node)
    if factor is not None:
        value, scale = factor
    if value.node is None or not has_one_use(value):
        return None
    if is_op(value.node, "MatMul"):
        return Scores(value.node, False, scale, None)
    op = value.node.op
    if not isinstance(op, FusedMatMul) or op.transA or op.activation:
        return None
    _, _, bias, mask = (*value.node.inputs, None, None)[:4]
    if bias is not None or (mask is not None and scale != 1.0):
        return None
    return Scores(value.node, op.transB, scale * op.alpha, mask)


def peel(value: Value, *, scales: bool = True) -> Factor:
    """Remove transposes from a factor of Q K^T, and with `scales` also constant factors."""
    scale = 1.0
    perm = tuple(range(value.rank or 0))
    for _ in range(_PEELED):
        node = value.node
        if node is None:
            break
        factor = split_scale(node) if scales else None
        inner = permutation(node) if is_op(node, "Transpose") else None
        if factor is not None:
            value, scale = factor[0], scale * factor[1]
        elif inner is not None:
            value, perm = first(node), tuple(inner[axis] for axis in perm)
        else:
            break
    return Factor(value, scale, perm)


# --- neighbours of attention ----------------------------------------------------------------------


def _output_layout(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Replace a transposition of the result of attention by a layout."""
    value, perm = first(node), permutation(node)
    if perm == _SWAP and (behind := guard_behind(value, readers)) is not None:
        return _guard_layout(*behind, node, readers)
    squeeze = producer(value, "Squeeze") if perm == (1, 0, 2) else None
    if squeeze is not None:
        attention = producer(first(squeeze), "FusedAttention", domain=DOMAIN) if readers.has_one_use(value) else None
    else:
        attention = producer(value, "FusedAttention", domain=DOMAIN) if perm == _SWAP else None
    if attention is None:
        return None
    op = operator(attention, FusedAttention)
    if op.output_layout != "NHLD" or not readers.has_one_use(attention.output):
        return None
    if squeeze is None:
        return (fused_node(op.replace(output_layout="NLHD"), attention.inputs, (attention, node)),)
    moved = fused_node(op.replace(output_layout="NLHD"), attention.inputs, (attention,))
    return (_without_batch(moved, node),)


def _guard_layout(sees: Value, y: Value, node: Node, readers: Readers) -> Sequence[Value] | None:
    """Replace a transposition of a guarded result of attention (see `guarded`) by a layout."""
    attention = y.node
    assert attention is not None
    op = operator(attention, AttentionOp)
    if op.output_layout != "NHLD" or not readers.has_one_use(y):
        return None
    moved = Node(op.replace(output_layout="NLHD"), attention.inputs, attention.name, attention.meta)
    if is_op(attention, "FusedAttentionWithStatistics", domain=DOMAIN):
        sees = has_weights(moved.outputs[2])
    return (guarded(moved.outputs[0], F.transpose(sees, perm=_SWAP)),)


def _causal(node: Node) -> Sequence[Value] | None:
    """Replace a mask, or a part of it, that has become constant, by the attribute `causal`."""
    op = operator(node, AttentionOp)
    operands = [*node.inputs, *[None] * (_MASK + 1 - len(node.inputs))]
    q, k, mask = operands[0], operands[1], operands[_MASK]
    assert q is not None
    assert k is not None
    causal, operands[_MASK] = _causal_part(op, q, k, mask)
    if causal is op:
        return None
    while operands[-1] is None:
        operands.pop()
    return Node(causal, operands, node.name, node.meta, output_names=[v.name for v in node.outputs]).outputs


def _causal_part(op: Attention, q: Value, k: Value, mask: Value | None) -> tuple[Attention, Value | None]:
    """If a part of the mask is causal, return the causal operator and the rest of the mask; else both unchanged."""
    if _hides_the_future(op, q, k, mask):
        return op.replace(causal=True, mask_value=-np.inf), None
    both = producer(mask, "And")
    if both is not None and op.mask_value == -np.inf:
        for part, rest in operand_orders(both):
            if _hides_the_future(op, q, k, part):
                return op.replace(causal=True), rest
    return op, mask


def _hides_the_future(op: AttentionOp, q: Value, k: Value, mask: Value | None) -> bool:
    """Whether a mask provably hides exactly the keys after each query."""
    axis = 2 if op.layout == "NHLD" else 1
    rows, keys = (None if x.tensor.shape is None else x.tensor.shape[axis] for x in (q, k))
    if mask is None or op.causal or not isinstance(rows, int) or not isinstance(keys, int) or keys < rows:
        return False
    from graphkit.passes.fuse.triangles import triangle_of

    found = triangle_of(mask, rows, keys)
    if found is None:
        return False
    none = _NONE_OF_FLOAT16 if q.dtype is DType.FLOAT16 else _NONE
    if mask.dtype is DType.BOOL:
        shows, hides = bool(found.low), not bool(found.high) and op.mask_value <= none
    else:
        shows, hides = bool(found.low == 0), bool(found.high <= none)
    if found.diagonal is None:
        return rows == 1 and shows  # the only query sees all keys
    return found.diagonal == keys - rows and shows and hides
