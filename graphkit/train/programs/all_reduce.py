"""All-reduce gradients and losses inside a program. The all-reduce of a bucket starts when its last gradient is ready.

Buckets: Li et al., "PyTorch Distributed", VLDB 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.train.programs.expressions import after, as_sequence, cast_like, pair, unpair
from graphkit.train.programs.sparse import Rows
from graphkit.train.programs.weights import divisor

LOSS = "loss"


@dataclass(frozen=True)
class Buckets:
    """The buckets of gradients that ranks all-reduce together.

    Attributes:
        groups: For each bucket, the positions of its parameters.
        means: Whether gradients are divided by the total weight before they are sent (with gradient compression).
        place: (rank, number of ranks) if each rank updates only its slice of each bucket, else None.
    """

    groups: tuple[tuple[int, ...], ...]
    means: bool = False
    place: tuple[int, int] | None = None


def make_buckets(
    graph: Graph, values: Mapping[int, Value], limit: int, means: bool, place: tuple[int, int] | None = None
) -> Buckets:
    """Return buckets of parameters, in the order in which the backward pass computes their gradients.

    A bucket has one dtype, and at least `limit` bytes. A last bucket below half of `limit` is joined to the one before:
    its all-reduce would only add latency.
    """
    first = {v: len(graph.nodes) for v in values.values()}
    for position, node in reversed(list(enumerate(graph.nodes))):
        first.update((v, position) for v in node.operands if v in first)
    groups: list[list[int]] = []
    filling: dict[DType, tuple[list[int], int]] = {}
    for index in sorted(values, key=lambda i: (-first[values[i]], i)):
        kind = values[index].tensor
        group, size = filling.get(kind.dtype, ([], limit))
        if size >= limit:
            group, size = [], 0
            groups.append(group)
        group.append(index)
        filling[kind.dtype] = group, size + kind.nbytes
    for dtype, (group, size) in filling.items():
        earlier = [g for g in groups if g is not group and values[g[0]].dtype is dtype]
        if earlier and size < limit / 2:
            earlier[-1] += group
            groups.remove(group)
    return Buckets(tuple(map(tuple, groups)), means, place)


def mean_loss(loss: Value, weight: Value) -> tuple[Value, Value]:
    """Return the mean loss and the weight of all ranks (float32). loss, weight: of this rank."""
    wide = F.cast(weight, to="float64")
    return mean_of_pair(pair(F.mul(F.cast(loss, to="float64"), wide), wide), loss.dtype)


def mean_of_pair(loss_sum: Value, dtype: DType) -> tuple[Value, Value]:
    """Do the same as `mean_loss`, from the vector [loss * weight, weight] (float64) of this rank."""
    (started,) = _start_all_reduce([loss_sum], LOSS)
    summed = F.control_dependency(started, F.all_reduce_wait(started, keys=(LOSS,)))
    loss, weight = unpair(summed)
    return F.cast(F.div(loss, divisor(weight)), to=dtype), F.cast(weight, to="float32")


def zero_after(total: Value) -> Value:
    """Return a 0 that becomes available after the all-reduced `total`.

    Updates with this guard do not run if the all-reduce raises an error.
    """
    return after(F.constant(value=np.zeros((), np.float32)), [total])


def mean_gradients(
    gradients: Sequence[Value | Rows], total: Value, buckets: Buckets
) -> tuple[list[Value | Rows], list[Value]]:
    """All-reduce gradients, and divide them by the weight of all ranks.

    Row-sparse gradients are not in buckets. Their sum contains each row only once, even if several ranks have read it.

    Returns:
        The mean gradients, and for each all-reduce a value that is available when it is complete.
    """
    dense = {i: gradient for i, gradient in enumerate(gradients) if isinstance(gradient, Value)}
    total = divisor(total)
    if buckets.means:
        dense = {i: F.div(gradient, cast_like(total, gradient)) for i, gradient in dense.items()}
    tables = {i: gradient for i, gradient in enumerate(gradients) if isinstance(gradient, Rows)}
    own = {i: rows.compact() for i, rows in tables.items()}
    started: dict[int, Value] = {}
    heads = []
    for number, group in enumerate(buckets.groups):
        sums = _start_all_reduce([dense[i] for i in group], bucket_key(number))
        heads.append(sums[0])
        started.update(zip(group, sums, strict=True))
    # Each wait reads all of `starts`: every all-reduce starts before the first wait.
    starts = [*heads, *(F.row_sparse_all_reduce_start(*own[i], key=_row_key(i)) for i in tables)]
    done = [F.all_reduce_wait(*starts, keys=(bucket_key(number),)) for number in range(len(heads))]
    bucket_of = {i: number for number, group in enumerate(buckets.groups) for i in group}
    found: dict[int, Value | Rows] = {}
    for i in dense:
        summed = F.control_dependency(started[i], done[bucket_of[i]])
        found[i] = summed if buckets.means else F.div(summed, cast_like(total, summed))
    for i, rows in tables.items():
        indices, summed = F.row_sparse_all_reduce_wait(*own[i], *starts, key=_row_key(i))
        found[i] = Rows(rows.table, indices, None, F.div(summed, cast_like(total, summed)))
        done.append(indices)
    return [found[i] for i in range(len(gradients))], done


def bucket_key(number: int) -> str:
    """Return the key of a bucket. Pending all-reduces run in the order of their keys."""
    return f"bucket {number:05}"


def _row_key(index: int) -> str:
    return f"rows {index:05}"


def _start_all_reduce(values: Sequence[Value], key: str) -> Sequence[Value]:
    return as_sequence(F.all_reduce_start(*values, key=key))
