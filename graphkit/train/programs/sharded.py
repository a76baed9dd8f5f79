"""Sharded optimizer states: each process stores a part, updates its slice of each bucket, and receives the other
slices.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5.1. The
parameters of a bucket lie one after another, so a slice can contain parts of some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphkit.dist.collectives.layout import Slices
from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.train.optim import Optimizer
from graphkit.train.programs import finite
from graphkit.train.programs.all_reduce import Buckets, bucket_key, cast_like
from graphkit.train.programs.weights import divisor

# Of the squares of all gradients' norms, and what is NaN if one is not finite.
_NORM = "norm"


class Piece(NamedTuple):
    """Elements [begin, end) of the parameter at a position: what they are, and their mean gradient, vectors."""

    position: int
    begin: int
    end: int
    weight: Value
    gradient: Value


def check_elementwise(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer that needs whole parameters, whose states cannot be sharded."""
    if not optimizer.elementwise:
        raise UsageError(
            f"shard_optimizer: {optimizer.kind} needs norms of whole parameters, but each process updates only parts "
            "of them"
        )


def parts_of(values: Sequence[Value], buckets: Buckets, rank: int) -> Iterator[tuple[int, int, int]]:
    """Parameters of which a rank's slices have something: position, begin and end."""
    for group, slices in zip(buckets.groups, _slices(values, buckets), strict=True):
        for place, index in enumerate(group):
            begin, end = slices.part(place, rank)
            if begin < end:
                yield index, begin, end


def _slices(values: Sequence[Value], buckets: Buckets) -> list[Slices]:
    """Of each bucket."""
    assert buckets.place is not None, "it is sharded"
    return [
        Slices.of([_size(values[i]) for i in group], values[group[0]].dtype.itemsize, buckets.place[1])
        for group in buckets.groups
    ]


def _size(value: Value) -> int:
    return int(np.prod(value.tensor.static_shape, dtype=np.int64))


def scattered(
    values: Sequence[Value], parts: Sequence[Value], total: Value, buckets: Buckets
) -> tuple[list[Piece], list[Value]]:
    """This process's pieces of parameters with their gradients, `parts` summed and divided by `total`; and what is
    there once each sum is. All sums are begun before the first is awaited.
    """
    assert buckets.place is not None, "it is sharded"
    total = divisor(total)
    if buckets.means:
        parts = [F.div(part, cast_like(total, part)) for part in parts]
    begun = [
        _several(F.reduce_scatter_start(*(parts[i] for i in group), key=bucket_key(number)))
        for number, group in enumerate(buckets.groups)
    ]
    all_begun = F.all_reduce_wait(*(sums[0] for sums in begun), keys=())
    done = [
        F.reduce_scatter_wait(F.control_dependency(sums[0], all_begun), *sums[1:], key=bucket_key(number))
        for number, sums in enumerate(begun)
    ]
    where = {i: (number, place) for number, group in enumerate(buckets.groups) for place, i in enumerate(group)}
    found = []
    for index, begin, end in parts_of(values, buckets, buckets.place[0]):
        number, place = where[index]
        gradient = _cut(F.control_dependency(begun[number][place], done[number]), begin, end)
        if not buckets.means:
            gradient = F.div(gradient, cast_like(total, gradient))
        found.append(Piece(index, begin, end, _cut(values[index], begin, end), gradient))
    return found, done


def gathered(
    values: Sequence[Value],
    own: Sequence[Piece],
    new: Sequence[Value],
    token: Value | None,
    before: Sequence[Value],
    buckets: Buckets,
) -> list[Value]:
    """All parameters from the new values of the pieces that each process has.

    token: what has to be finite before; before: all other sums, which nobody may wait behind.
    """
    by_index = {piece.position: (piece, result) for piece, result in zip(own, new, strict=True)}
    begun: dict[int, Value] = {}
    for number, (group, slices) in enumerate(zip(buckets.groups, _slices(values, buckets), strict=True)):
        mine = [(place, *by_index[i]) for place, i in enumerate(group) if i in by_index]
        pieces = [result for _, _, result in mine]
        if not mine:  # a slice of nothing, behind what everybody looks at
            pieces = [_behind(finite.guarded(_cut(values[group[0]], 0, 0), token), before)]
        wholes = F.all_gather_start(
            *pieces, key=_gather_key(number), sizes=slices.sizes, of=[place for place, _, _ in mine] or [0],
            begins=[piece.begin for _, piece, _ in mine] or [0], ends=[piece.end for _, piece, _ in mine] or [0],
        )  # fmt: skip
        begun.update(zip(group, _several(wholes), strict=True))
    firsts = [begun[group[0]] for group in buckets.groups]
    found: dict[int, Value] = {}
    for number, group in enumerate(buckets.groups):
        done = F.all_reduce_wait(*firsts, keys=(_gather_key(number),))
        for i in group:
            found[i] = F.reshape(F.control_dependency(begun[i], done), list(values[i].tensor.static_shape))
    return [found[i] for i in range(len(values))]


def of_all(gradients: Sequence[Value], before: Sequence[Value]) -> tuple[Value, Value, Value]:
    """Over the pieces of all processes: the sum of squares (float32), a 0 that is NaN where one is not finite, and what
    is there once they are. before: all sums so far, which nobody may wait behind.
    """
    none = np.zeros((), np.float32)
    squares = [F.cast(F.reduce_sum_square(g, keepdims=False), to="float32") for g in gradients]
    total = F.constant(value=none) if not squares else squares[0] if len(squares) == 1 else F.sum(*squares)
    zero = finite.zero_if_finite(gradients) if gradients else F.constant(value=none)
    both = F.concat(F.reshape(total, [1]), F.reshape(zero, [1]), axis=0)
    (begun,) = _several(F.all_reduce_start(_behind(both, before), key=_NORM))
    done = F.all_reduce_wait(begun, keys=(_NORM,))
    first, second = (F.squeeze(part, [0]) for part in F.split(F.control_dependency(begun, done), num_outputs=2))
    return first, second, done


def _behind(value: Value, before: Sequence[Value]) -> Value:
    """The value, once these are there."""
    for other in before:
        value = F.control_dependency(value, other)
    return value


def _cut(value: Value, begin: int, end: int) -> Value:
    """Elements of it, as a vector."""
    return F.slice(F.reshape(value, [-1]), np.array([begin]), np.array([end]))


def _several(found: Value | Sequence[Value]) -> Sequence[Value]:
    return [found] if isinstance(found, Value) else found


def _gather_key(number: int) -> str:
    return f"parameters {number:05}"


# --- files ----------------------------------------------------------------------------------------------


def whole_slots(
    trained: Mapping[str, Mapping[str, TensorType]],
    mine: Mapping[str, np.ndarray],
    gather: Callable[[dict[str, np.ndarray]], Sequence[Mapping[str, np.ndarray]]],
    keep: bool,
) -> dict[str, np.ndarray]:
    """Slots of all parameters, by name, of the parts that processes have, as rank 0 writes them.

    trained: the types of the whole slots of each parameter. One parameter after the other goes through `gather`, which
    every process calls; nothing is kept where not `keep`.
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
    """The arrays with this process's parts in place of whole slots. slots: those of each parameter."""
    assert buckets.place is not None, "it is sharded"
    keys = {name: {f"{name}/{slot}" for slot in kinds} for name, kinds in slots.items()}
    divided = set().union(*keys.values())
    found = {key: array for key, array in arrays.items() if key not in divided}
    names = list(trained)
    for index, begin, end in parts_of(list(trained.values()), buckets, buckets.place[0]):
        for key in keys[names[index]] & arrays.keys():
            found[key] = arrays[key].reshape(-1)[begin:end]
    return found
