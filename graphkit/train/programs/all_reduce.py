"""All-reduce of gradients and losses inside a program, in buckets; each starts when its last gradient is ready.

Buckets: Li et al., "PyTorch Distributed", VLDB 2020. A bucket contains parameters that the backward pass reaches at
about the same time, from the loss to the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.train.programs.sparse import Rows
from graphkit.train.programs.weights import divisor

# The key of the sum of losses.
LOSS = "loss"


@dataclass(frozen=True)
class Buckets:
    """Positions of parameters, bucket by bucket. means: what is sent is divided by the weight of all before.

    place: this process's rank and how many there are, where each updates its slice of a bucket alone.
    """

    groups: tuple[tuple[int, ...], ...]
    means: bool = False
    place: tuple[int, int] | None = None


def make_buckets(
    graph: Graph, values: Mapping[int, Value], limit: int, means: bool, place: tuple[int, int] | None = None
) -> Buckets:
    """Buckets of parameters of `graph`, by position, of one dtype each, which take more as long as they are below
    `limit` bytes.

    The last of a dtype, whose sum nothing is left to hide, is joined to the one before where it has less than half:
    the two are begun almost at once, and a sum more costs its latency.
    """
    first = {v: len(graph.nodes) for v in values.values()}
    for position, node in reversed(list(enumerate(graph.nodes))):
        first.update((v, position) for v in node.operands if v in first)
    groups: list[list[int]] = []
    filled: dict[DType, tuple[list[int], int]] = {}
    for index in sorted(values, key=lambda i: (-first[values[i]], i)):
        kind = values[index].tensor
        group, held = filled.get(kind.dtype, ([], limit))
        if held >= limit:
            group, held = [], 0
            groups.append(group)
        group.append(index)
        filled[kind.dtype] = group, held + kind.nbytes
    for dtype, (group, held) in filled.items():
        before = [g for g in groups if g is not group and values[g[0]].dtype is dtype]
        if before and held < limit / 2:
            before[-1] += group
            groups.remove(group)
    return Buckets(tuple(map(tuple, groups)), means, place)


def mean_loss(loss: Value, weight: Value) -> tuple[Value, Value]:
    """The mean of all processes' losses, and the sum of their weights (float32)."""
    one = [1]
    wide = F.cast(weight, to="float64")
    pair = F.concat(F.reshape(F.mul(F.cast(loss, to="float64"), wide), one), F.reshape(wide, one), axis=0)
    return mean_of(pair, loss.dtype)


def mean_of(pair: Value, dtype: DType) -> tuple[Value, Value]:
    """The same of the pair (loss * weight, weight) of this process."""
    (begun,) = _begun([pair], LOSS)
    summed = F.control_dependency(begun, F.all_reduce_wait(begun, keys=(LOSS,)))
    loss, weight = (F.squeeze(part, [0]) for part in F.split(summed, num_outputs=2))
    return F.cast(F.div(loss, divisor(weight)), to=dtype), F.cast(weight, to="float32")


def zero_after(total: Value) -> Value:
    """A 0 that is there once the sum `total` is: nothing is written in steps in which that sum fails."""
    zero: Value = F.control_dependency(F.constant(value=np.zeros((), np.float32)), total)
    return zero


def means(parts: Sequence[Value | Rows], total: Value, buckets: Buckets) -> tuple[list[Value | Rows], list[Value]]:
    """The sums of `parts` over all processes, divided by `total`, and what is there once each sum is.

    Of a table, which is in no bucket, they are the rows that any process has, each once. All sums are begun before the
    first is awaited.
    """
    dense = {i: part for i, part in enumerate(parts) if isinstance(part, Value)}
    total = divisor(total)
    if buckets.means:
        dense = {i: F.div(part, cast_like(total, part)) for i, part in dense.items()}
    tables = {i: part for i, part in enumerate(parts) if isinstance(part, Rows)}
    own = {i: rows.compact() for i, rows in tables.items()}
    begun: dict[int, Value] = {}
    heads = []
    for number, group in enumerate(buckets.groups):
        sums = _begun([dense[i] for i in group], bucket_key(number))
        heads.append(sums[0])
        begun.update(zip(group, sums, strict=True))
    firsts = [*heads, *(F.row_sparse_all_reduce_start(*own[i], key=_row_key(i)) for i in tables)]
    done = [F.all_reduce_wait(*firsts, keys=(bucket_key(number),)) for number in range(len(heads))]
    bucket_of = {i: number for number, group in enumerate(buckets.groups) for i in group}
    found: dict[int, Value | Rows] = {}
    for i in dense:
        summed = F.control_dependency(begun[i], done[bucket_of[i]])
        found[i] = summed if buckets.means else F.div(summed, cast_like(total, summed))
    for i, rows in tables.items():
        indices, summed = F.row_sparse_all_reduce_wait(*own[i], *firsts, key=_row_key(i))
        found[i] = Rows(rows.table, indices, None, F.div(summed, cast_like(total, summed)))
        done.append(indices)
    return [found[i] for i in range(len(parts))], done


def bucket_key(number: int) -> str:
    """Of a bucket. What is begun first is first in the order of keys, and summed first."""
    return f"bucket {number:05}"


def _row_key(index: int) -> str:
    return f"rows {index:05}"


def _begun(parts: Sequence[Value], key: str) -> Sequence[Value]:
    found = F.all_reduce_start(*parts, key=key)
    return [found] if isinstance(found, Value) else found


def cast_like(scalar: Value, like: Value) -> Value:
    """A scalar of the dtype of another value."""
    cast: Value = scalar if scalar.dtype is like.dtype else F.cast(scalar, to=like.dtype)
    return cast
