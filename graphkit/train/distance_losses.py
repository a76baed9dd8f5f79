"""Losses that learn distances between embeddings: contrastive and triplet losses."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.signatures import typed
from graphkit.train.loss_functions import average, value_of
from graphkit.train.programs.weights import Term, quotient

# The distance of pairs that do not count. Negatives farther than half of this are ignored.
_FAR = 1e30
# Smaller squared distances count as 0 without a gradient: the root has no derivative at 0.
_SAME = 1e-12


@typed("gk.losses.contrastive")
def contrastive(distance: Value, target: Value, margin: float = 1.0, sample_weight: Value | None = None) -> Value:
    """Mean over the pairs of t d^2 + (1 - t) max(margin - d, 0)^2 (Hadsell, Chopra and LeCun, 2006, without the 1/2).

    Args:
        distance: d, float tensor [N] or [N, 1]: the distance of two embeddings, not negative.
        target: t, of the same shape and type: 1 for pairs of similar samples, 0 for others.
        margin: Pairs with t = 0 have no loss if their distance is at least this.
        sample_weight: See `mse`.
    """
    one = scalar_like(1.0, distance)
    gap = F.relu(F.sub(scalar_like(margin, distance), distance))
    similar, different = F.mul(target, F.mul(distance, distance)), F.mul(F.sub(one, target), F.mul(gap, gap))
    return average(F.add(similar, different), sample_weight)


@typed("gk.losses.triplet_margin")
def triplet_margin(
    anchor: Value, positive: Value, negative: Value, margin: float = 1.0, sample_weight: Value | None = None
) -> Value:
    """Mean over the triplets of max(d(anchor, positive) - d(anchor, negative) + margin, 0), as in PyTorch.

    d(x, y) is the norm of x - y + 1e-6. To find triplets within a batch, use `triplet`.

    Args:
        anchor: Float tensor [N, F].
        positive: Embeddings of other samples of the anchors' classes, [N, F].
        negative: Embeddings of samples of other classes, [N, F].
        margin: By how much the distance to the negative should exceed the distance to the positive.
        sample_weight: See `mse`.
    """

    def distance(other: Value) -> Value:
        difference = F.add(F.sub(anchor, other), scalar_like(1e-6, anchor))
        return value_of(F.sqrt(F.reduce_sum(F.mul(difference, difference), np.array([-1]), keepdims=False)))

    each = F.relu(F.add(F.sub(distance(positive), distance(negative)), scalar_like(margin, anchor)))
    return average(each, sample_weight)


@typed("gk.losses.triplet")
def triplet(embedding: Value, target: Value, margin: float = 1.0, sample_weight: Value | None = None) -> Value:
    """Mean over anchors of max(d(anchor, positive) - d(anchor, negative) + margin, 0), for triplets within the batch.

    Each sample is an anchor. Its positive is the farthest sample of its class, its negative the nearest sample of
    another class (batch hard: Hermans, Beyer and Leibe, 2017). d is the Euclidean distance. Samples without a positive
    or a negative in the batch do not count. If none counts, the loss is 0.

    Args:
        embedding: Float tensor [N, F].
        target: int64 [N], class numbers.
        margin: By how much the distance to the negative should exceed the distance to the positive.
        sample_weight: float [N], the weight of each sample as an anchor.
    """
    return triplet_term(embedding, target, margin, sample_weight).mean


def triplet_term(embedding: Value, target: Value, margin: float = 1.0, sample_weight: Value | None = None) -> Term:
    """Return the result of `triplet`, and the sum of the weights of the anchors that count."""
    if embedding.rank != 2 or target.rank != 1:
        raise UsageError(f"triplet needs embeddings [N, F] and class numbers [N], not {embedding} and {target}")
    x = embedding if embedding.dtype is DType.FLOAT64 else F.cast(embedding, to="float32")
    squares = F.reduce_sum(F.mul(x, x), np.array([1]), keepdims=True)
    products = F.mat_mul(x, F.transpose(x, perm=[1, 0]))
    twice = F.add(products, products)
    squared = F.sub(F.add(squares, F.transpose(squares, perm=[1, 0])), twice)
    apart = F.greater(squared, scalar_like(_SAME, squared))
    root = F.sqrt(F.where(apart, squared, scalar_like(1.0, squared)))
    distance = F.where(apart, root, scalar_like(0.0, root))

    rows, columns = F.unsqueeze(target, np.array([1])), F.unsqueeze(target, np.array([0]))
    alike = F.equal(rows, columns)
    numbers = F.range(
        np.int64(0), F.squeeze(F.slice(F.shape(target), np.array([0]), np.array([1])), np.array([0])), np.int64(1)
    )
    itself = F.equal(F.unsqueeze(numbers, np.array([1])), F.unsqueeze(numbers, np.array([0])))
    positives = F.and_(alike, F.not_(itself))
    farthest = F.reduce_max(F.where(positives, distance, scalar_like(-_FAR, distance)), np.array([1]), keepdims=False)
    nearest = F.reduce_min(F.where(alike, scalar_like(_FAR, distance), distance), np.array([1]), keepdims=False)
    counts = F.and_(
        F.greater(farthest, scalar_like(-_FAR / 2, farthest)), F.less(nearest, scalar_like(_FAR / 2, nearest))
    )
    zero = scalar_like(0.0, farthest)
    gap = F.where(counts, F.sub(farthest, nearest), zero)
    each = F.where(counts, F.relu(F.add(gap, scalar_like(margin, gap))), zero)
    weight = F.cast(counts, to=each.dtype)
    if sample_weight is not None:
        weight = F.mul(weight, F.cast(sample_weight, to=each.dtype))
    total = F.reduce_sum(F.mul(each, weight), keepdims=False)
    found = quotient(total, F.reduce_sum(weight, keepdims=False))
    return Term(value_of(F.cast(found.mean, to=embedding.dtype)), found.weight)
