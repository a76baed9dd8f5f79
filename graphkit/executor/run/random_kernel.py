"""Kernels that draw random numbers, for arrays. Unlike a compiled graph, they are made in microseconds."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphkit import config
from graphkit.executor.devices.loading import load_device, native_module
from graphkit.executor.run.base_program import failure_of
from graphkit.ir.types import DType

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native

# Fewer numbers are drawn by one thread.
_SHARED = 1 << 14
DTYPES = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})


@lru_cache(maxsize=256)
def random_kernel(
    operator: str, normal: bool, first: float, second: float, shape: tuple[int, ...], dtype: DType
) -> _native.Kernel:
    """Return a kernel with one operand, the random state. It gives the bits of the operator's node in stream 0.

    Args:
        operator: Name of the operator, for errors.
        normal: True for normal numbers, False for uniform ones.
        first: Added to all numbers: the mean, or the lower bound.
        second: Factor of standard numbers: the standard deviation, or the range.
        shape: Shape of the result.
        dtype: One of DTYPES.

    Raises:
        RuntimeFailure: The result has too many elements.
    """
    load_device("cpu")
    native: Any = native_module()
    # Reading the number of threads takes longer than drawing few numbers.
    threads = 1 if math.prod(shape) < _SHARED else config.num_threads(None)
    source = native.PhiloxSource(0, 0, 0, True)
    try:
        made: _native.Kernel = native.RandomFill(
            operator, normal, first, second, None, shape, dtype.value, source, threads
        )
    except native.Error as error:
        raise failure_of(error) from None
    return made
