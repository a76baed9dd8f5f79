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
from graphkit.nd.runtime import settings
from graphkit.ops import F


def seed(number: int) -> None:
    """Restart the random numbers of this process from a seed."""
    generator.seed, generator.step = int(number), itertools.count()


def uniform(low: float = 0.0, high: float = 1.0, shape: Shape = (1,), dtype: Any = "float32") -> NDArray:
    """Return uniform random numbers of [low, high)."""
    return _drawn("random_uniform", shape, dtype, low=float(low), high=float(high))


def normal(loc: float = 0.0, scale: float = 1.0, shape: Shape = (1,), dtype: Any = "float32") -> NDArray:
    """Return normal random numbers of mean `loc` and standard deviation `scale`."""
    # One program draws for all means and deviations.
    found = _drawn("random_normal", shape, dtype)
    if scale != 1:
        found = found * float(scale)
    return found + float(loc) if loc else found


def randint(low: int, high: int, shape: Shape = (1,), dtype: Any = "int32") -> NDArray:
    """Return random integers from `low` to `high - 1`. The range must have at most 2^24 numbers."""
    if not 0 < high - low <= 1 << 24:
        raise UsageError(f"randint: high - low must be from 1 to 2^24, not {high - low}")
    drawn = uniform(0.0, 1.0, shape, "float64") * float(high - low)
    return F.cast(F.cast(drawn, to="int64") + int(low), to=dtype_of(dtype))  # type: ignore[return-value]


def _drawn(function: str, shape: Shape, dtype: Any, **attributes: float) -> NDArray:
    """Draw numbers, or return a value that is drawn in each call of the function that is being traced."""
    options = {"shape": _sizes(shape), "dtype": dtype_of(dtype), **attributes}
    if settings.capture is not None:
        return getattr(F, function)(**options)  # type: ignore[no-any-return]
    return call(function, random_state(), **options)  # type: ignore[no-any-return]
