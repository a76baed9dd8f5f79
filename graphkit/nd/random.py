"""Arrays of random numbers, which depend only on the seed and on the number of earlier calls."""

from __future__ import annotations

import itertools
from typing import Any

from graphkit.errors import UsageError
from graphkit.ir.types import dtype_of
from graphkit.nd.calls import generator, random_state
from graphkit.nd.creation import Shape, _sizes
from graphkit.nd.ndarray import NDArray
from graphkit.nd.operators import call


def seed(number: int) -> None:
    """Restart the random numbers of this process from a seed."""
    generator.seed, generator.step = int(number), itertools.count()


def uniform(low: float = 0.0, high: float = 1.0, shape: Shape = (1,), dtype: Any = "float32") -> NDArray:
    """Return uniform random numbers of [low, high)."""
    attributes = {"shape": _sizes(shape), "low": float(low), "high": float(high), "dtype": dtype_of(dtype)}
    return call("random_uniform", random_state(), **attributes)  # type: ignore[no-any-return]


def normal(loc: float = 0.0, scale: float = 1.0, shape: Shape = (1,), dtype: Any = "float32") -> NDArray:
    """Return normal random numbers of mean `loc` and standard deviation `scale`."""
    attributes = {"shape": _sizes(shape), "mean": float(loc), "scale": float(scale), "dtype": dtype_of(dtype)}
    return call("random_normal", random_state(), **attributes)  # type: ignore[no-any-return]


def randint(low: int, high: int, shape: Shape = (1,), dtype: Any = "int32") -> NDArray:
    """Return random integers from `low` to `high - 1`. The range must have at most 2^24 numbers."""
    if not 0 < high - low <= 1 << 24:
        raise UsageError(f"randint: high - low must be from 1 to 2^24, not {high - low}")
    drawn = uniform(0.0, 1.0, shape, "float64") * float(high - low)
    return call("add", call("cast", drawn, to=dtype_of("int64")), _number(low)).astype(dtype)  # type: ignore[no-any-return]


def _number(value: int) -> NDArray:
    from graphkit.nd.creation import array

    return array(value, "int64")
