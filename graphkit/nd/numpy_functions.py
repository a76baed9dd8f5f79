"""Functions of numpy on arrays: as operators of graphkit where possible, or else on copies of the elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import tree
from graphkit.ir.graph import Value
from graphkit.nd.creation import array
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
    "isfinite": lambda x: F.less(F.abs(x), float("inf")),
}  # fmt: skip
_LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor"})


def array_ufunc(self: NDArray, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
    """Call a function of numpy: as operators of graphkit if possible, or else on copies as numpy arrays.

    Raises UsageError if the function would write to an array, or if gradients would be lost.
    """
    name = ufunc.__name__
    if method == "__call__" and not options:
        if name in UFUNCS_OF_TWO:
            if name in _LOGICAL:
                operands = tuple(map(_truth, operands))
            return combine(UFUNCS_OF_TWO[name], *operands)
        if name in UFUNCS_OF_ONE or name in _BUILT:
            return _of_one(self, ufunc)
        if name == "divmod":
            return combine("floordiv", *operands), combine("mod", *operands)
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


def _of_one(x: NDArray, ufunc: np.ufunc) -> Any:
    """Call a function of one operand. Integers and booleans are converted as numpy does."""
    name = ufunc.__name__
    if name == "logical_not":
        return F.not_(_truth(x))
    if not x.tensor.dtype.is_float:
        is_test = name in ("isnan", "isinf", "isfinite")  # float32 can store all integers, if only roughly
        inner = "float32" if is_test else ufunc.resolve_dtypes((x.dtype, None))[0]
        x = x.astype(inner, copy=False)
        if name in ("floor", "ceil", "positive") and not x.tensor.dtype.is_float:
            return x.copy()
    return _BUILT[name](x) if name in _BUILT else getattr(F, UFUNCS_OF_ONE[name])(x)


def _truth(x: Any) -> Any:
    """Return whether elements are not 0, of an array; other operands as numpy's booleans."""
    if type(x) is NDArray:
        return x.astype("bool", copy=False)
    return x if isinstance(x, Value) else np.asarray(x).astype(bool)


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
    """Call a function of numpy that is not a ufunc: as operators or methods if possible, or else on copies.

    Functions such as `np.mean` call the method of the array. Raises UsageError if gradients would be lost, or if the
    function would write to an array.
    """
    if type(options.get("out")) is NDArray:
        name = function.__name__
        raise UsageError(f"np.{name} cannot write to an NDArray: assign its result, as in x[:] = np.{name}(...)")
    own = _OWN.get(function)
    if own is not None:
        found = own(*arguments, **options)
        if found is not NotImplemented:
            return found
    given = (tuple(arguments), dict(options))
    used = given if _COPIED.isdisjoint(options) else tree.map_leaves(_copy, given)
    result = function._implementation(*used[0], **used[1])
    if settings.recording and function.__name__ not in _CONSTANTS:
        _check_gradients(f"np.{function.__name__}", (arguments, options), result)
    return result


# Options of numpy's functions that methods do not have.
_COPIED = frozenset({"where", "initial", "out"})


def _concatenate(arrays: Sequence[Any], axis: int | None = 0, **options: Any) -> Any:
    if options or not _are_alike(arrays):
        return NotImplemented
    if axis is None:
        return F.concat([x.reshape(-1) for x in arrays], axis=0)
    return F.concat(list(arrays), axis=axis)


def _stack(arrays: Sequence[Any], axis: int = 0, **options: Any) -> Any:
    if options or not _are_alike(arrays):
        return NotImplemented
    return F.concat([_expand_dims(x, axis) for x in arrays], axis=axis)


def _are_alike(arrays: Sequence[Any]) -> bool:
    """Whether all are arrays of one dtype."""
    return (
        isinstance(arrays, (list, tuple))
        and all(type(x) is NDArray for x in arrays)
        and len({x.dtype for x in arrays}) == 1
    )


def _expand_dims(x: Any, axis: Any) -> Any:
    if type(x) is not NDArray:
        return NotImplemented
    axes = axis if isinstance(axis, tuple) else (axis,)
    return F.unsqueeze(x, np.array([operator.index(a) for a in axes], np.int64))


def _where(condition: Any, *branches: Any) -> Any:
    arrays = [x for x in branches if type(x) is NDArray]
    if len(branches) != 2 or not arrays or any(x.dtype != arrays[0].dtype for x in arrays):
        return NotImplemented
    numbers = [x for x in branches if type(x) is not NDArray]
    kind = arrays[0].tensor.dtype
    allowed = (int, float) if kind.is_float else (int,) if kind.is_integer else (bool,)
    if any(type(x) not in allowed for x in numbers):
        return NotImplemented
    chosen = condition if type(condition) is NDArray else array(condition)
    return F.where(chosen.astype("bool", copy=False), *branches)


def _ravel(x: Any, order: str = "C") -> Any:
    return x.ravel(order) if type(x) is NDArray and order == "C" else NotImplemented


def _dot(a: Any, b: Any, **options: Any) -> Any:
    return NotImplemented if options or type(a) is not NDArray or not _are_alike([a, b]) else a.dot(b)


# Functions of numpy that are operators. They return NotImplemented for other arguments, which are copied.
_OWN: dict[Any, Callable[..., Any]] = {
    np.concatenate: _concatenate, np.stack: _stack, np.expand_dims: _expand_dims, np.where: _where, np.dot: _dot,
    np.ravel: _ravel,
}  # fmt: skip


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
