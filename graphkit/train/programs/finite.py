"""Losses and gradients that are NaN or infinite: how a Trainer handles them, and which node made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.checks.nonfinite import first_nonfinite
from graphkit.errors import GraphkitError, UsageError, did_you_mean
from graphkit.executor.run.feeds import convert
from graphkit.executor.run.params import ParamStore
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.train.programs.expressions import cast_like, sum_of

CHOICES = ("raise", "skip", "ignore")

_ELSEWHERE = "from another process"


def check_choice(on_nonfinite: str) -> None:
    if on_nonfinite not in CHOICES:
        raise UsageError(f"Trainer: unknown on_nonfinite={on_nonfinite!r}{did_you_mean(str(on_nonfinite), CHOICES)}")


def zero_if_finite(values: Sequence[Value]) -> Value:
    """Return a float32 scalar: 0 if all elements of all tensors are finite, else NaN."""
    # 0 * x is NaN if x is not finite. Unlike a norm, this sum cannot overflow.
    sums = [F.reduce_sum(F.mul(v, np.zeros((), v.dtype.numpy)), keepdims=False) for v in values]
    sums = [s if s.dtype is DType.FLOAT32 else F.cast(s, to="float32") for s in sums]
    return sum_of(sums)


def loss_and_gradient_guard(loss: Value | None, zero: Value) -> Value:
    result: Value = zero if loss is None else F.add(cast_like(loss, zero), zero)
    return result


def guarded(value: Value, guard: Value | None) -> Value:
    """Return `value`; the run raises NotFinite if `guard`, a float scalar, is not finite.

    A run that fails writes no states: a guard on one update prevents all updates of the step.
    """
    result: Value = value if guard is None else F.finite_guard(value, guard)
    return result


def origin(
    program: Graph,
    store: ParamStore,
    feeds: Mapping[str, Any],
    rng: tuple[int, int],
    others: bool = False,
    outputs: int | None = 1,
) -> str:
    """Return a clause for an error: which node made an output of a program NaN or infinite.

    Args:
        rng: (seed, step) of the failed run.
        others: Whether other processes contribute to the loss.
        outputs: Number of outputs that are examined; None: all outputs, and all guards.
    """
    if others and not len(next(iter(feeds.values()), ())):
        return _ELSEWHERE
    arrays = []
    for value in program.inputs:
        name = program.name_of(value)
        if value.role == "rng":
            arrays.append(np.array([rng[0] % (1 << 64), rng[1]], np.uint64))
        else:
            arrays.append(convert(name, value.type, feeds[name]) if name in feeds else store[name])
    wanted = list(program.outputs[:outputs])
    # A guard may check a loss that is not an output.
    if outputs is None:
        guards = [node.inputs[1] for node in program.nodes if node.op.name == "FiniteGuard"]
        wanted += dict.fromkeys(guard for guard in guards if guard is not None)
    needed = Graph(program.inputs, wanted)
    try:
        found = first_nonfinite(needed, arrays)
    except (GraphkitError, MemoryError) as error:
        return f"from an unknown node, because the search failed: {error}"
    if found is not None:
        return f"from {found}"
    return _ELSEWHERE if others else "but no node produces it in the numpy reference: rounding in the kernels causes it"
