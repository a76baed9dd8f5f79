"""Arrays of random numbers, which depend only on the seed and on the number of earlier calls."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import numpy as np

from graphkit.errors import BAD_VALUE, UsageError
from graphkit.executor.run.random_kernel import DTYPES, random_kernel
from graphkit.ir.types import DType, dtype_of
from graphkit.nd import elements
from graphkit.nd.calls import generator, random_state
from graphkit.nd.creation import Shape, dtype_or_float32, sizes
from graphkit.nd.ndarray import NDArray, own
from graphkit.nd.operators import call
from graphkit.nd.runtime import queue, settings
from graphkit.ops import F
from graphkit.signatures import shown

_NAMES = {"random_uniform": "RandomUniform", "random_normal": "RandomNormal"}


def seed(number: int) -> None:
    """Restart the random numbers of this process from a seed. Raises UsageError if it is not an integer."""
    generator.seed, generator.step = _integer("seed", "number", number), itertools.count()


def uniform(low: float = 0.0, high: float = 1.0, shape: Shape = (1,), dtype: Any = "float32") -> NDArray:
    """Return uniform random numbers of [low, high). Raises UsageError if a bound is not a finite number.

    Rounding to `dtype` may give `high` itself.
    """
    start, end, kind = _real("uniform", "low", low), _real("uniform", "high", high), dtype_or_float32(dtype)
    for name, bound in (("low", start), ("high", end)):
        if not math.isfinite(bound):
            raise UsageError(f"uniform: {name} must be finite, not {bound}")
    if not math.isfinite(end - start):
        # Half of the range fits into float64.
        return F.mul(uniform(start / 2, end / 2, shape, kind), np.array(2.0, kind.numpy))  # type: ignore[return-value]
    return _drawn("random_uniform", shape, kind, start, end - start, low=start, high=end)


def normal(loc: float = 0.0, scale: float = 1.0, shape: Shape = (1,), dtype: Any = "float32") -> NDArray:
    """Return normal random numbers of mean `loc` and standard deviation `scale`.

    Raises UsageError if one of these is not a number.
    """
    mean, deviation, kind = _real("normal", "loc", loc), _real("normal", "scale", scale), dtype_or_float32(dtype)
    return _drawn("random_normal", shape, kind, mean, deviation, mean=mean, scale=deviation)


def randint(low: int, high: int, shape: Shape = (1,), dtype: Any = "int32") -> NDArray:
    """Return random integers from `low` to `high - 1`. The range must have at most 2^24 numbers.

    Raises UsageError if a bound is not an integer, or if `dtype` is not an integer type that can store the range.
    """
    first, end = _integer("randint", "low", low), _integer("randint", "high", high)
    kind = DType.INT32 if dtype is None else dtype_of(dtype)
    if not 0 < end - first <= 1 << 24:
        raise UsageError(f"randint: high - low must be from 1 to 2^24, not {end - first}")
    if not kind.is_integer:
        raise UsageError(f"randint: dtype must be an integer type, not {kind}; convert the result with astype")
    limits = np.iinfo(kind.numpy)
    if first < limits.min or end - 1 > limits.max:
        raise UsageError(f"randint: {kind} cannot store all integers from {first} to {end - 1}; give another dtype")
    # `cast` keeps the lowest bits of a wider range, so uint64 can be computed in int64.
    start = first if first <= np.iinfo(np.int64).max else first - (1 << 64)
    drawn = uniform(0.0, 1.0, shape, "float64") * float(end - first)
    return F.cast(F.add(F.cast(drawn, to=DType.INT64), np.array(start, np.int64)), to=kind)  # type: ignore[return-value]


def _integer(function: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{function}: {name} must be an integer, not {shown(value)}") from None


def _real(function: str, name: str, value: Any) -> float:
    try:
        return float(value)
    except BAD_VALUE:
        raise UsageError(f"{function}: {name} must be a number, not {shown(value)}") from None


def _drawn(function: str, shape: Shape, kind: DType, first: float, second: float, **attributes: float) -> NDArray:
    """Draw numbers, or return a value that is drawn in each call of the function that is being traced.

    first + second * (standard number) is the same law as that of the attributes of the operator.
    """
    given = sizes(shape)
    if settings.capture is not None:
        return getattr(F, function)(shape=given, dtype=kind, **attributes)  # type: ignore[no-any-return]
    if kind not in DTYPES:
        return call(function, random_state(), shape=given, dtype=kind, **attributes)  # type: ignore[no-any-return]
    name = _NAMES[function]
    kernel = random_kernel(name, function == "random_normal", first, second, given, kind)
    state, made = random_state(), own(elements.empty(given, kind.numpy))
    queue().push_kernel(name, kernel, [state._data], made._data, (state._memory.state,), made._memory.state)
    return made
