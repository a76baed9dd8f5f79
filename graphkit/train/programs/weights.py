"""Weights of batches: the mean loss of a batch is a sum divided by its weight.

Means of batches, micro-batches or ranks are combined by these weights: results do not depend on the division into
batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like

# The input or output (float32 scalar) of training programs with the weight of a batch.
BATCH_WEIGHT = "batch_weight"
# The same for the sum of weights over batches or ranks.
TOTAL_WEIGHT = "total_weight"


class Term(NamedTuple):
    """The mean loss of a batch, and its divisor (a float32 scalar). None: the number of samples."""

    mean: Value
    weight: Value | None


def quotient(total: Value, weight: Value) -> Term:
    """Return `total / weight` (`total` if the weight is 0) as a Term. No gradient flows through the weight."""
    weight = F.stop_gradient(weight)
    wide = total.dtype if total.dtype is DType.FLOAT64 else DType.FLOAT32
    mean = F.div(F.cast(total, to=wide), divisor(F.cast(weight, to=wide)))
    return Term(F.cast(mean, to=total.dtype), F.cast(weight, to="float32"))


def divisor(total: Value) -> Value:
    """Return a sum of weights, or 1 if it is 0.

    If all weights are 0, the loss is the sum of its terms: 0, except with label smoothing and class weights.
    """
    result: Value = F.where(F.equal(total, scalar_like(0.0, total)), scalar_like(1.0, total), total)
    return result


def mean_of(total: float, weight: float) -> float:
    return total / weight if weight else total


def target_count(graph: Graph, target: Value) -> Value | None:
    """Return the weight of a batch: the product of the symbolic dimensions of `target`, as a float32 scalar.

    For a target [N, T, 3], it is N * T. Return None if the number of samples is the only symbolic dimension: it is then
    the weight. If the number of axes is unknown, all elements are counted.
    """
    shape = target.tensor.shape
    if shape is None:
        return F.cast(F.size(target), to="float32")
    open_axes = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    if not open_axes or (open_axes == [0] and shape[0] == _samples(graph)):
        return None
    lengths = F.gather(F.shape(target), np.array(open_axes, np.int64))
    return F.cast(F.reduce_prod(lengths, keepdims=False), to="float32")


def _samples(graph: Graph) -> object:
    first = next((v.type for v in graph.inputs if v.role == "data"), None)
    if not isinstance(first, TensorType) or not first.shape:
        return None
    return first.shape[0]


def mixed(first: Term, second: Term, share: Value) -> Term:
    """Return the loss of mixed samples: share * first + (1 - share) * second (Zhang et al., 2018).

    With weights, the formula applies to the sums (mean * weight) and to the weights. The new mean is their quotient.
    """
    rest = F.sub(scalar_like(1.0, share), share)

    def sum_of(a: Value, b: Value) -> Value:
        own, other = (F.cast(part, to=a.dtype) for part in (share, rest))
        total: Value = F.add(F.mul(own, a), F.mul(other, b))
        return total

    if first.weight is None or second.weight is None:
        return Term(sum_of(first.mean, second.mean), None)
    weights = first.weight, second.weight
    sums = [F.mul(F.cast(term.mean, to="float32"), w) for term, w in zip((first, second), weights, strict=True)]
    found = quotient(sum_of(*sums), sum_of(*weights))
    return Term(F.cast(found.mean, to=first.mean.dtype), found.weight)


def weight_in(results: Mapping[str, Any], samples: float) -> float:
    """Return the weight of a loss over all ranks, from the outputs of a step or an evaluation.

    samples: number of samples of all ranks, the weight if no output contains one.
    """
    return float(results.get(TOTAL_WEIGHT, results.get(BATCH_WEIGHT, samples)))


def weight_of(graph: Graph) -> tuple[Value, list[Value]]:
    """Return the weight of a batch, and the graph inputs to add for it.

    The weight is the output BATCH_WEIGHT, or else a new input BATCH_WEIGHT, which must be fed with the number of
    samples.
    """
    if BATCH_WEIGHT in graph.output_names:
        return graph.outputs[graph.output_names.index(BATCH_WEIGHT)], []
    fed = Value(TensorType(DType.FLOAT32, ()), BATCH_WEIGHT)
    return fed, [fed]
