"""Functions of numpy on arrays: as operators of graphkit where possible, or else on copies of the elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import tree
from graphkit.ir.graph import Value
from graphkit.nd.ndarray import NDArray
from graphkit.nd.operators import combine, immediate
from graphkit.nd.runtime import settings
from graphkit.nd.tape import is_tracked
from graphkit.ops import F
from graphkit.ops._value_operators import UFUNCS_OF_ONE, UFUNCS_OF_TWO, invert

# Reductions of floating-point arrays. numpy sums integers in other dtypes than graphkit.
_REDUCTIONS = {"add": "reduce_sum", "multiply": "reduce_prod", "maximum": "reduce_max", "minimum": "reduce_min"}
# Functions whose results have no gradient, although they are floating-point numbers.
_CONSTANTS = frozenset({"zeros_like", "ones_like", "empty_like", "full_like"})


def _log1p(x: NDArray) -> Any:
    # Near 0, log(1 + x) would lose the digits of x.
    near = F.less(F.abs(x), 0.5)
    small = F.where(near, x, 0.0)
    return F.where(near, F.mul(F.atanh(F.div(small, F.add(small, 2.0))), 2.0), F.log(F.add(x, 1.0)))


def _expm1(x: NDArray) -> Any:
    near = F.less(F.abs(x), 0.5)
    small = F.where(near, x, 0.0)
    return F.where(near, F.mul(F.tanh(F.div(small, 2.0)), F.add(F.exp(small), 1.0)), F.sub(F.exp(x), 1.0))


# Functions of one operand that are several operators.
_BUILT: dict[str, Callable[[NDArray], Any]] = {
    "square": lambda x: F.mul(x, x), "invert": invert, "bitwise_not": invert, "log1p": _log1p, "expm1": _expm1,
}  # fmt: skip
_OF_FLOATS = ("log1p", "expm1")


def array_ufunc(self: NDArray, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
    """Call a function of numpy: as operators of graphkit if possible, or else on copies as numpy arrays.

    Raises UsageError if the function would write to an array, or if gradients would be lost.
    """
    name = ufunc.__name__
    if method == "__call__" and not options:
        if name in UFUNCS_OF_TWO:
            return combine(UFUNCS_OF_TWO[name], *operands)
        if name in UFUNCS_OF_ONE:
            return getattr(F, UFUNCS_OF_ONE[name])(self)
        if name in _BUILT and (self.tensor.dtype.is_float or name not in _OF_FLOATS):
            return _BUILT[name](self)
    if any(type(out) is NDArray for out in options.get("out") or ()):
        raise UsageError(f"np.{name} cannot write to an NDArray: assign its result, as in x[:] = np.{name}(...)")
    if method == "at" and type(operands[0]) is NDArray:
        raise UsageError(f"np.{name}.at cannot write to an NDArray; use gk.scatter_nd, or assign to elements")
    given = [*operands, options.get("where")]
    if settings.capture is not None or any(isinstance(v, Value) and type(v) is not NDArray for v in given):
        values = {key: _value(v) for key, v in options.items()}  # numpy then calls the method of graph values
        return getattr(ufunc, method)(*map(_value, operands), **values)
    plain = {"axis", "keepdims"}.issuperset(k for k, v in options.items() if v is not None)
    if method == "reduce" and name in _REDUCTIONS and self.tensor.dtype.is_float and plain:
        return _reduced(self, _REDUCTIONS[name], options.get("axis", 0), bool(options.get("keepdims")))
    copies = {key: _copy(v) for key, v in options.items()}
    result = getattr(ufunc, method)(*map(_copy, operands), **copies)
    _check_gradients(f"np.{name}" if method == "__call__" else f"np.{name}.{method}", given, result)
    return result


def _value(x: Any) -> Any:
    return immediate.constant(x) if type(x) is NDArray else x


def _copy(x: Any) -> Any:
    return x.asnumpy() if type(x) is NDArray else x


def _reduced(x: NDArray, function: str, axis: Any, keepdims: bool) -> Any:
    if axis is None:
        return getattr(F, function)(x, keepdims=keepdims)
    axes = [operator.index(a) for a in (axis if isinstance(axis, tuple) else (axis,))]
    return getattr(F, function)(x, np.array(axes, np.int64), keepdims=keepdims, noop_with_empty_axes=True)


def array_function(
    self: NDArray, function: Any, types: Sequence[type], arguments: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Call a function of numpy that is not a ufunc, on copies as numpy arrays.

    Raises UsageError if gradients would be lost.
    """
    result = function._implementation(*arguments, **options)
    if settings.recording and function.__name__ not in _CONSTANTS:
        _check_gradients(f"np.{function.__name__}", (arguments, options), result)
    return result


def _check_gradients(name: str, operands: Any, result: Any) -> None:
    """Raise UsageError if an operand has a gradient, and numpy computed floating-point numbers from it."""
    if not settings.recording:
        return
    tracked = next((x for x in _arrays(operands) if is_tracked(x)), None)
    if tracked is not None and any(map(_is_float, tree.leaves(result))):
        raise UsageError(
            f"{name} of {tracked.type}: gradients do not pass through this function of numpy; use gk's functions, or "
            "give it x.detach()"
        )


def _is_float(y: Any) -> bool:
    return isinstance(y, (np.ndarray, np.generic)) and y.dtype.kind in "fcV"  # V: bfloat16


def _arrays(operands: Any) -> Iterator[NDArray]:
    return (x for x in tree.leaves(operands) if type(x) is NDArray)
