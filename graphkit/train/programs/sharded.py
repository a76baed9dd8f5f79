"""Sharded optimizer states: each rank stores and updates its slice of each bucket.

Gradients are reduce-scattered, and new parameters all-gathered, as in Rajbhandari et al., "ZeRO: Memory Optimizations
Toward Training Trillion Parameter Models", SC 2020, section 5.1. A slice may begin or end within a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from graphkit.dist.collectives.layout import Slices
from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.train.optim import Optimizer
from graphkit.train.programs import finite
from graphkit.train.programs.all_reduce import Buckets, bucket_key
from graphkit.train.programs.expressions import after, as_sequence, cast_like, pair, sum_of, unpair
from graphkit.train.programs.weights import divisor

_NORM = "norm"
_IS_SHARDED = "only sharded buckets have a place"


class ParameterSlice(NamedTuple):
    """Elements [begin, end) of a flattened parameter, and their mean gradient, as vectors.

    `position` is the index among the trained parameters.
    """

    position: int
    begin: int
    end: int
    weight: Value
    gradient: Value


def check_elementwise(optimizer: Optimizer) -> None:
    if not optimizer.elementwise:
        raise UsageError(
            f"shard_optimizer (--shard-optimizer) cannot be used with {optimizer.kind}: it needs norms of whole "
            "parameters, but each process updates only parts of them"
        )


def slices_of_rank(values: Sequence[Value], buckets: Buckets, rank: int) -> Iterator[tuple[int, int, int]]:
    for group, slices in zip(buckets.groups, _slices(values, buckets), strict=True):
        for place, begin, end in slices.parts(rank):
            yield group[place], begin, end


def _slices(values: Sequence[Value], buckets: Buckets) -> list[Slices]:
    assert buckets.place is not None, _IS_SHARDED
    return [
        Slices.of([_size(values[i]) for i in group], values[group[0]].dtype.itemsize, buckets.place[1])
        for group in buckets.groups
    ]


def _size(value: Value) -> int:
    return int(np.prod(value.tensor.static_shape, dtype=np.int64))


def reduce_scatter(
    values: Sequence[Value], gradients: Sequence[Value], total: Value, buckets: Buckets
) -> tuple[list[ParameterSlice], list[Value]]:
    """Reduce-scatter gradients, and divide them by the weight of all ranks.

    Returns:
        The slices of this rank, and for each reduce-scatter a value that is available when it is complete.
    """
    assert buckets.place is not None, _IS_SHARDED
    total = divisor(total)
    if buckets.means:
        gradients = [F.div(gradient, cast_like(total, gradient)) for gradient in gradients]
    started = [
        as_sequence(F.reduce_scatter_start(*(gradients[i] for i in group), key=bucket_key(number)))
        for number, group in enumerate(buckets.groups)
    ]
    # Every wait depends on this value: every reduce-scatter starts before the first wait.
    all_started = F.all_reduce_wait(*(sums[0] for sums in started), keys=())
    done = [
        F.reduce_scatter_wait(F.control_dependency(sums[0], all_started), *sums[1:], key=bucket_key(number))
        for number, sums in enumerate(started)
    ]
    where = {i: (number, place) for number, group in enumerate(buckets.groups) for place, i in enumerate(group)}
    found = []
    for index, begin, end in slices_of_rank(values, buckets, buckets.place[0]):
        number, place = where[index]
        gradient = _slice(F.control_dependency(started[number][place], done[number]), begin, end)
        if not buckets.means:
            gradient = F.div(gradient, cast_like(total, gradient))
        found.append(ParameterSlice(index, begin, end, _slice(values[index], begin, end), gradient))
    return found, done


def all_gather(
    values: Sequence[Value],
    own: Sequence[ParameterSlice],
    new: Sequence[Value],
    guard: Value | None,
    before: Sequence[Value],
    buckets: Buckets,
) -> list[Value]:
    """All-gather the new slices of all ranks. Return the new values of all parameters.

    Args:
        own: The slices of this rank, whose new values are `new`.
        before: Values that are available when earlier collectives are complete. `guard` is checked only then:
            otherwise, a failed rank would block the others.
    """
    by_index = {piece.position: (piece, result) for piece, result in zip(own, new, strict=True)}
    started: dict[int, Value] = {}
    for number, (group, slices) in enumerate(zip(buckets.groups, _slices(values, buckets), strict=True)):
        mine = [(place, *by_index[i]) for place, i in enumerate(group) if i in by_index]
        sent = [result for _, _, result in mine]
        if not mine:  # without a slice, this rank still needs the guard
            sent = [after(finite.guarded(_slice(values[group[0]], 0, 0), guard), before)]
        wholes = F.all_gather_start(
            *sent, key=_gather_key(number), sizes=slices.sizes, of=[place for place, _, _ in mine] or [0],
            begins=[piece.begin for _, piece, _ in mine] or [0], ends=[piece.end for _, piece, _ in mine] or [0],
        )  # fmt: skip
        started.update(zip(group, as_sequence(wholes), strict=True))
    starts = [started[group[0]] for group in buckets.groups]
    found: dict[int, Value] = {}
    for number, group in enumerate(buckets.groups):
        done = F.all_reduce_wait(*starts, keys=(_gather_key(number),))
        for i in group:
            found[i] = F.reshape(F.control_dependency(started[i], done), list(values[i].tensor.static_shape))
    return [found[i] for i in range(len(values))]


def square_norm(gradients: Sequence[Value], before: Sequence[Value]) -> tuple[Value, Value, Value]:
    """Compute the squared norm of the gradients of all ranks, and whether they are finite, with one all-reduce.

    Args:
        before: Values that are available when earlier collectives are complete.

    Returns:
        The sum of squares (float32); a float32 0, or NaN if a gradient is not finite; a value that is available when
        the all-reduce is complete.
    """
    zero = F.constant(value=np.zeros((), np.float32))
    squares = [F.cast(F.reduce_sum_square(g, keepdims=False), to="float32") for g in gradients]
    both = pair(
        sum_of(squares) if squares else zero,
        finite.zero_if_finite(gradients) if gradients else zero,
    )
    (started,) = as_sequence(F.all_reduce_start(after(both, before), key=_NORM))
    done = F.all_reduce_wait(started, keys=(_NORM,))
    return *unpair(F.control_dependency(started, done)), done


def _slice(value: Value, begin: int, end: int) -> Value:
    return F.slice(F.reshape(value, [-1]), np.array([begin]), np.array([end]))


def _gather_key(number: int) -> str:
    return f"parameters {number:05}"


# --- files ----------------------------------------------------------------------------------------------


def whole_slots(
    trained: Mapping[str, Mapping[str, TensorType]],
    mine: Mapping[str, np.ndarray],
    gather: Callable[[dict[str, np.ndarray]], Sequence[Mapping[str, np.ndarray]]],
    keep: bool,
) -> dict[str, np.ndarray]:
    """Collective: gather the slots of all parameters by name, one parameter after the other.

    Args:
        keep: Whether this rank needs the result. Otherwise it is empty.
    """
    found: dict[str, np.ndarray] = {}
    for name, slots in trained.items():
        kinds = {f"{name}/{slot}": kind for slot, kind in slots.items()}
        parts = gather({key: mine[key] for key in kinds if key in mine}) if kinds else ()
        for key, kind in kinds.items() if keep else ():
            whole = np.concatenate([np.zeros(0, kind.dtype.numpy), *(part[key] for part in parts if key in part)])
            found[key] = whole.astype(kind.dtype.numpy, copy=False).reshape(kind.static_shape)
    return found


def own_slots(
    trained: Mapping[str, Value],
    slots: Mapping[str, Mapping[str, TensorType]],
    buckets: Buckets,
    arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    assert buckets.place is not None, _IS_SHARDED
    keys = {name: {f"{name}/{slot}" for slot in kinds} for name, kinds in slots.items()}
    divided = set().union(*keys.values())
    found = {key: array for key, array in arrays.items() if key not in divided}
    names = list(trained)
    for index, begin, end in slices_of_rank(list(trained.values()), buckets, buckets.place[0]):
        for key in keys[names[index]] & arrays.keys():
            found[key] = arrays[key].reshape(-1)[begin:end]
    return found
