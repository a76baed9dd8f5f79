"""Reductions of arrays as methods, with the names, arguments and dtypes of numpy: `x.sum(axis=0)`, `np.mean(x)`."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.types import HALVES, UNSIGNED, DType, dtype_of
from graphkit.nd.ndarray import NDArray
from graphkit.ops import F


def sum_(self: NDArray, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return the sums along axes. By default, those of integers and booleans are int64 or uint64, as in numpy."""
    return _reduced("sum", "reduce_sum", _wide("sum", self, dtype), axis, out, keepdims)


def prod(self: NDArray, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return the products along axes. By default, those of integers and booleans are int64 or uint64, as in numpy."""
    return _reduced("prod", "reduce_prod", _wide("prod", self, dtype), axis, out, keepdims)


def max_(self: NDArray, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return the largest elements along axes; NaN if there is one. Raises TypeMismatch if there are no elements."""
    return _extreme("max", self, axis, out, keepdims)


def min_(self: NDArray, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return the smallest elements along axes; NaN if there is one. Raises TypeMismatch if there are no elements."""
    return _extreme("min", self, axis, out, keepdims)


def mean(self: NDArray, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return the means along axes. By default, those of integers and booleans are float64."""
    return _reduced("mean", "reduce_mean", _real("mean", self, dtype), axis, out, keepdims)


def var(
    self: NDArray, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
) -> NDArray:
    """Return the variances along axes. By default, those of integers and booleans are float64.

    ddof: The sum of squares is divided by the number of elements minus `ddof`.
    """
    return F.cast(_variance("var", self, axis, dtype, out, ddof, keepdims), to=_result(self, dtype))  # type: ignore[return-value]


def std(
    self: NDArray, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
) -> NDArray:
    """Return the standard deviations along axes: the roots of `var`."""
    found = F.sqrt(_variance("std", self, axis, dtype, out, ddof, keepdims))
    return F.cast(found, to=_result(self, dtype))  # type: ignore[return-value]


def any_(self: NDArray, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return along axes whether any element is true, which is not 0."""
    return _reduced("any", "reduce_max", _truth(self), axis, out, keepdims)


def all_(self: NDArray, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray:
    """Return along axes whether all elements are true, which are not 0."""
    return _reduced("all", "reduce_min", _truth(self), axis, out, keepdims)


def argmax(self: NDArray, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> NDArray:
    """Return the first index of the largest element along an axis, or in all elements. NaN counts as largest."""
    return _place("argmax", "arg_max", self, axis, out, keepdims)


def argmin(self: NDArray, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> NDArray:
    """Return the first index of the smallest element along an axis, or in all elements. NaN counts as smallest."""
    return _place("argmin", "arg_min", self, axis, out, keepdims)


def cumsum(self: NDArray, axis: int | None = None, dtype: Any = None, out: None = None) -> NDArray:
    """Return the running sums along an axis, or of all elements. The dtypes are those of `sum`."""
    check_out("cumsum", out)
    x = _wide("cumsum", self, dtype)
    if axis is None:
        x, axis = _flat(x), 0
    (place,) = axes_of("cumsum", x, axis)
    return F.cum_sum(x, place)  # type: ignore[return-value]


def axes_of(method: str, x: NDArray, axis: Any) -> list[int]:
    """Return axes as numbers from 0; None means all. Raises TypeMismatch if they are not axes of the array."""
    if axis is None:
        return list(range(x.rank))
    given = axis if isinstance(axis, tuple) else (axis,)
    try:
        found = [operator.index(a) for a in given]
    except TypeError:
        raise TypeMismatch(f"{method} of {x.describe()}: axis must be an integer or a tuple, not {axis!r}") from None
    places = [a + x.rank if a < 0 else a for a in found]
    if any(not 0 <= a < x.rank for a in places) or len(set(places)) < len(places):
        raise TypeMismatch(f"{method} of {x.describe()}: axis {axis!r} must name different axes of its {x.rank}")
    return places


def _as(x: NDArray, wanted: DType) -> NDArray:
    """Return the elements in a dtype. Like the other helpers, it also takes a value of a graph that is traced."""
    return x if x.tensor.dtype is wanted else F.cast(x, to=wanted)  # type: ignore[return-value]


def _flat(x: NDArray) -> NDArray:
    return F.reshape(x, np.array([math.prod(x.tensor.static_shape)], np.int64), allowzero=True)  # type: ignore[return-value]


def check_out(method: str, out: Any) -> None:
    """Raise UsageError if numpy's `out` is given."""
    if out is not None:
        raise UsageError(f"{method} cannot write to out=: assign its result, as in y[...] = x.{method}()")


def _check_not_empty(method: str, x: NDArray, axis: Any) -> None:
    shape = x.tensor.static_shape
    if any(shape[a] == 0 for a in axes_of(method, x, axis)):
        raise TypeMismatch(f"{method} of {x.describe()}: there are no elements along axis {axis!r}")


def _reduced(method: str, function: str, x: NDArray, axis: Any, out: Any, keepdims: Any) -> NDArray:
    check_out(method, out)
    axes = np.array(axes_of(method, x, axis), np.int64)
    return getattr(F, function)(x, axes, keepdims=bool(keepdims), noop_with_empty_axes=True)  # type: ignore[no-any-return]


def _extreme(method: str, x: NDArray, axis: Any, out: Any, keepdims: Any) -> NDArray:
    _check_not_empty(method, x, axis)
    kind = x.tensor.dtype
    if kind in (DType.INT16, DType.UINT16):  # ReduceMax and ReduceMin do not have them
        return _as(_reduced(method, f"reduce_{method}", _as(x, DType.INT32), axis, out, keepdims), kind)
    return _reduced(method, f"reduce_{method}", x, axis, out, keepdims)


def _place(method: str, function: str, x: NDArray, axis: Any, out: Any, keepdims: Any) -> NDArray:
    check_out(method, out)
    _check_not_empty(method, x, axis)
    x = _as(x, DType.UINT8) if x.tensor.dtype is DType.BOOL else x
    if axis is None:
        found = getattr(F, function)(_flat(x), axis=0, keepdims=False)
        return F.reshape(found, np.ones(x.rank, np.int64)) if keepdims else found  # type: ignore[return-value]
    (place,) = axes_of(method, x, axis)
    return getattr(F, function)(x, axis=place, keepdims=bool(keepdims))  # type: ignore[no-any-return]


def _wide(method: str, x: NDArray, dtype: Any) -> NDArray:
    """Return the array in the dtype in which numpy adds its elements."""
    kind = x.tensor.dtype
    if dtype is not None:
        wanted = dtype_of(dtype)
    elif kind.is_float:
        wanted = kind
    else:
        wanted = DType.UINT64 if kind in UNSIGNED else DType.INT64
    return _as(x, wanted)


def _result(x: NDArray, dtype: Any) -> DType:
    """Return the dtype of a mean."""
    if dtype is not None:
        return dtype_of(dtype)
    return x.tensor.dtype if x.tensor.dtype.is_float else DType.FLOAT64


def _real(method: str, x: NDArray, dtype: Any) -> NDArray:
    wanted = _result(x, dtype)
    if not wanted.is_float:
        raise UsageError(f"{method} of {x.describe()}: dtype must be a floating-point type, not {wanted}")
    return _as(x, wanted)


def _variance(method: str, x: NDArray, axis: Any, dtype: Any, out: Any, ddof: float, keepdims: bool) -> NDArray:
    """Return the variances; those of half floats in float32."""
    check_out(method, out)
    x = _real(method, x, dtype)
    if x.tensor.dtype in HALVES:
        x = _as(x, DType.FLOAT32)
    axes = axes_of(method, x, axis)
    count = max(math.prod([x.tensor.static_shape[a] for a in axes]) - ddof, 0)
    apart = F.sub(x, _reduced(method, "reduce_mean", x, axis, None, True))
    total = _reduced(method, "reduce_sum", F.mul(apart, apart), axis, None, keepdims)  # type: ignore[arg-type]
    return F.div(total, np.array(count, x.tensor.dtype.numpy))  # type: ignore[return-value]


def _truth(x: NDArray) -> NDArray:
    return _as(x, DType.BOOL)


METHODS = {
    "sum": sum_, "prod": prod, "max": max_, "min": min_, "mean": mean, "var": var, "std": std, "any": any_,
    "all": all_, "argmax": argmax, "argmin": argmin, "cumsum": cumsum,
}  # fmt: skip
for _name, _method in METHODS.items():
    _method.__name__ = _name
