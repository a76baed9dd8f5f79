"""The array namespace that references are written in. It contains only what numpy and CuPy share.

`numpy_xp` and `cupy_xp()` are two instances of one list of names, so that a reference that works on numpy finds every
function on the GPU, too. `special` and `linalg` (scipy, cupyx) load when first used.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

# Functions and constants that both libraries have, with the same meaning.
SHARED = frozenset(
    """
    abs absolute add all any amax amin arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin
    argpartition argsort around array asarray ascontiguousarray atleast_1d atleast_2d bincount bitwise_and bitwise_or
    bitwise_xor bool_ broadcast_arrays broadcast_shapes broadcast_to ceil clip complex128 complex64 concatenate
    conj copysign copyto cos cosh count_nonzero cumprod cumsum diag diagonal divide dot e einsum empty empty_like
    equal exp expand_dims expm1 eye fft fill_diagonal finfo flip float16 float32 float64 floor floor_divide
    fmax fmin fmod full full_like greater greater_equal hypot identity iinfo imag indices inf int16 int32 int64 int8
    interp invert isfinite isinf isnan left_shift less less_equal linspace log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor matmul max maximum mean meshgrid min minimum mod moveaxis multiply nan
    nan_to_num ndarray ndim ndindex negative newaxis nonzero not_equal ones ones_like outer pad pi power prod
    promote_types ravel real reciprocal remainder repeat reshape result_type right_shift rint roll rollaxis rot90 round
    searchsorted shape sign signbit sin sinh size sort split sqrt square squeeze stack std subtract sum swapaxes take
    take_along_axis tan tanh tensordot tile trace transpose tri tril triu true_divide trunc uint16 uint32 uint64 uint8
    unique unravel_index vander var vdot where zeros zeros_like dtype
    """.split()  # noqa: SIM905 - a word list reads better
)


class Namespace:
    """`xp.exp`, `xp.special.erf`, ...; AttributeError for a name that only one of the libraries has."""

    def __init__(self, module: Any, special: str, linalg: str):
        self._module = module
        self._paths = {"special": special, "linalg": linalg}

    def __getattr__(self, name: str) -> Any:
        if name in SHARED:
            found = getattr(self._module, name)
        elif name in self._paths:
            found = importlib.import_module(self._paths[name])
        else:
            raise AttributeError(f"xp.{name} is not in the namespace that numpy and CuPy share")
        setattr(self, name, found)
        return found

    @property
    def is_numpy(self) -> bool:
        return self._module is np

    def to_host(self, array: Any) -> np.ndarray:
        """Return the array as a numpy array: itself, or a copy from GPU memory."""
        host: np.ndarray = array if self.is_numpy else self._module.asnumpy(array)
        return host

    def windows(self, x: Any, shape: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> Any:
        """View of the sliding windows over the last len(shape) axes: [..., *positions, *shape]. No copy."""
        lead = x.ndim - len(shape)
        span = [(k - 1) * d + 1 for k, d in zip(shape, dilations, strict=True)]
        positions = [max((n - s) // st + 1, 0) for n, s, st in zip(x.shape[lead:], span, strides, strict=True)]
        steps = x.strides[lead:]
        as_strided = self._module.lib.stride_tricks.as_strided
        return as_strided(
            x,
            (*x.shape[:lead], *positions, *shape),
            (
                *x.strides[:lead],
                *(s * st for s, st in zip(steps, strides, strict=True)),
                *(s * d for s, d in zip(steps, dilations, strict=True)),
            ),
        )

    def scatter_add(self, target: Any, index: Any, values: Any) -> None:
        """target[index] += values, with repeated indices accumulated."""
        self.scatter("add", target, index, values)

    def solve(self, a: Any, b: Any) -> Any:
        """Solve a x = b for matrices [..., n, n] and [..., n, k]; batches broadcast."""
        if not self.is_numpy:
            # CuPy's solve does not broadcast batches.
            batch = self.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            a, b = (self.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
        return self.linalg.solve(a, b)

    def scatter(self, reduction: str, target: Any, index: Any, values: Any) -> None:
        """Combine target[index] with values by "add", "mul", "max" or "min"; repeated indices accumulate."""
        if self.is_numpy or reduction != "mul":
            function = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}[reduction]
            getattr(self._module, function).at(target, index, values)
        else:
            # CuPy has no multiply.at: multiply once per repetition, each with indices that do not repeat.
            positions = self.arange(target.size).reshape(target.shape)[index].reshape(-1)
            order = self.argsort(positions, kind="stable")
            grouped = positions[order]
            repetition = self.arange(grouped.size) - self.searchsorted(grouped, grouped)
            factors, flat = values.reshape(-1)[order], target.reshape(-1)
            for number in range(int(repetition.max()) + 1 if repetition.size else 0):
                chosen = repetition == number
                flat[grouped[chosen]] *= factors[chosen]


numpy_xp = Namespace(np, "scipy.special", "numpy.linalg")


@cache
def cupy_xp() -> Namespace:
    """Return the instance for CuPy. Raises ImportError if CuPy is not installed."""
    return Namespace(importlib.import_module("cupy"), "cupyx.scipy.special", "cupy.linalg")
