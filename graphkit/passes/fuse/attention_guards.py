"""Queries that see no key: the nodes with which exporters and Attention make their results 0 instead of NaN."""

from __future__ import annotations

from graphkit.ir.graph import Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.ops._base import DOMAIN
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.match import first, ints, producer, scalar
from graphkit.passes.core.sweep import Readers


class Guard(NamedTuple):
    """Weights of attention that are 0 for some queries.

    weights: the result of the softmax. scores: its operand, without zeros for these queries. sees: a condition with a
    last axis of 1, which is false for these queries; None: they are the queries whose weights are NaN.
    """

    weights: Value
    scores: Value
    sees: Value | None


def guard_of(weights: Value, readers: Readers) -> Guard | None:
    """Return the guard that made the weights of attention; None if none did, or if other nodes read its parts."""
    node = producer(weights, "Where")
    if node is None or not readers.has_one_use(weights):
        return None
    condition, a, b = node.operands
    if scalar(a) == 0 and (test := producer(condition, "IsNaN")) is not None and first(test) is b:
        softmax = producer(b, "Softmax")
        alone = readers.has_one_use(condition) and readers.count(b) == 2
        return Guard(b, first(softmax), None) if softmax is not None and alone else None
    softmax = producer(a, "Softmax")
    inner = None if softmax is None else producer(first(softmax), "Where")
    if (
        softmax is None
        or inner is None
        or scalar(b) != 0
        or not readers.has_one_use(a)
        or not readers.has_one_use(first(softmax))
    ):
        return None
    sees, scores, zero = inner.operands
    same = sees is condition and scalar(zero) == 0 and scores.type == first(softmax).type
    is_row = sees.shape is not None and len(sees.shape) > 0 and sees.shape[-1] == 1
    return Guard(a, scores, sees) if same and is_row else None


def guarded(y: Value, sees: Value) -> Value:
    """Return y where a condition with a last axis of 1 holds, else 0."""
    result: Value = F.where(sees, y, scalar_like(0.0, y))
    return result


def has_weights(total: Value) -> Value:
    """Return whether the weights of each query are numbers, [N, H, L, 1], from the sums of attention with statistics.

    The sum is 0 if a query sees no key. It is NaN if a score is.
    """
    result: Value = F.unsqueeze(F.greater(total, scalar_like(0.0, total)), ints(-1))
    return result


def guard_behind(value: Value, readers: Readers) -> tuple[Value, Value] | None:
    """Return the condition and the operand of a guard that `guarded` has made around attention."""
    node = producer(value, "Where")
    if node is None or not readers.has_one_use(value):
        return None
    sees, y, zero = node.operands
    if scalar(zero) != 0 or sees.shape is None or len(sees.shape) != 4 or sees.shape[-1] != 1:
        return None
    if producer(y, "FusedAttention", domain=DOMAIN) is not None:
        return sees, y
    attention = producer(y, "FusedAttentionWithStatistics", domain=DOMAIN)
    test = producer(sees, "Unsqueeze")
    compared = None if test is None else producer(first(test), "Greater")
    if attention is None or compared is None or scalar(compared.operands[1]) != 0:
        return None
    return (sees, y) if first(compared) is attention.outputs[2] else None
