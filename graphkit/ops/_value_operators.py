"""Python's operators and numpy's functions on values of graphs. `_overloads` imports it when one is first called.

An array or NumPy scalar becomes a constant. It is converted to the value's dtype if it is of the same kind: floats and
integers for a float value, integers for an integer value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import NotAnArray, UsageError
from graphkit.ir.arrays import array_of, native_order
from graphkit.ir.graph import Value
from graphkit.ir.types import FLOATS, HALVES, INTEGERS, SIGNED, DType, TensorType, dtype_of
from graphkit.ops._base import F, as_value, constant, registry
from graphkit.ops._calls import elsewhere


def converted_operand(operand: np.ndarray | np.generic, like: Value, exponent: bool = False) -> np.ndarray | np.generic:
    """Return an array to be combined with `like`, in its dtype. exponent: integers keep their dtype.

    Raises UsageError if the conversion would change the kind, or elements of integers.
    """
    wanted, given = like.tensor.dtype, dtype_of(operand.dtype)
    if given is wanted or (exponent and given in INTEGERS):
        return native_order(operand) if isinstance(operand, np.ndarray) else operand
    kinds = (INTEGERS | FLOATS) if wanted in FLOATS else INTEGERS if wanted in INTEGERS else frozenset()
    if given not in kinds:
        raise UsageError(f"{given}{list(operand.shape)} cannot be combined with {like.describe()}: cast one of them")
    with np.errstate(over="ignore"):
        converted = operand.astype(wanted.numpy)
    if wanted in INTEGERS and not (converted == operand).all():
        raise UsageError(
            f"{given}{list(operand.shape)} cannot be combined with {like.describe()}: elements do not fit {wanted}"
        )
    return converted


def _operand(operand: Any, like: Value, exponent: bool = False) -> Value:
    """Return `operand` as a Value to be combined with `like`. exponent: integers keep their dtype."""
    if isinstance(operand, (list, tuple)):
        operand = array_of("an operand", operand, objects=True)
    if not isinstance(operand, (np.ndarray, np.generic)) or not isinstance(like.type, TensorType):
        return as_value(operand, like)
    return constant(converted_operand(operand, like, exponent))


def combined(function: str, a: Any, b: Any) -> Any:
    """Apply `function` to two operands, at least one of which is a Value."""
    like = a if isinstance(a, Value) else b
    a, b = _operand(a, like), _operand(b, like, exponent=function == "pow")
    return BUILT[function](a, b) if function in BUILT else getattr(F, function)(a, b)


def floor_div(a: Value, b: Value) -> Value:
    """Return a // b as numpy computes it, from standard operators. The gradient is 0."""
    dtype = a.tensor.dtype
    if dtype.is_float:
        return _float_floor_div(a, b)
    if dtype not in SIGNED:
        return F.div(a, b)
    if _is_size_arithmetic(a, b):
        return F.div(F.sub(a, F.mod(a, b)), b)
    zero = np.zeros((), dtype.numpy)
    # Not a - mod(a, b), which overflows near the ends of the range.
    is_inexact = F.not_(F.equal(F.mod(a, b), zero))
    is_above = F.and_(is_inexact, F.xor(F.less(a, zero), F.less(b, zero)))
    return F.sub(F.div(a, b), F.cast(is_above, to=dtype))


def _is_size_arithmetic(a: Value, b: Value) -> bool:
    """Whether all elements are known sizes, far from the ends of int64: shape inference knows a - mod(a, b)."""
    known = [*(a.tensor.value or ()), *(b.tensor.value or ())]
    return (
        a.tensor.dtype is DType.INT64
        and a.tensor.value is not None
        and b.tensor.value is not None
        and all(not isinstance(v, int) or abs(v) < 1 << 62 for v in known)
    )


def _float_floor_div(a: Value, b: Value) -> Value:
    """Follow npy_floor_divide of numpy, which computes float16 in float32."""
    dtype = a.tensor.dtype
    if dtype in HALVES:
        wide = [F.cast(v, to=DType.FLOAT32) for v in (a, b)]
        return F.cast(_float_floor_div(*wide), to=dtype)
    zero, half, one = [np.asarray(v, dtype.numpy) for v in (0.0, 0.5, 1.0)]
    quotient, rest = F.div(a, b), F.mod(a, b, fmod=True)
    nearly = F.div(F.sub(a, rest), b)
    is_above = F.and_(F.not_(F.equal(rest, zero)), F.xor(F.less(rest, zero), F.less(b, zero)))
    nearly = F.where(is_above, F.sub(nearly, one), nearly)
    below = F.floor(nearly)
    rounded = F.where(F.greater(F.sub(nearly, below), half), F.add(below, one), below)
    # A quotient of 0 has the sign of a / b.
    signed = F.where(F.equal(nearly, zero), F.mul(quotient, zero), rounded)
    # All elements are whole numbers, infinite or NaN: this Floor changes none, but its gradient is 0.
    return F.floor(F.where(F.equal(b, zero), quotient, signed))


def _bitwise(function: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: getattr(F, f"{function}_" if a.tensor.dtype is DType.BOOL else f"bitwise_{function}")(a, b)


# Python operators that are not one operator of graphkit, or depend on the dtype.
BUILT: dict[str, Callable[[Value, Value], Value]] = {
    "floordiv": floor_div,
    "fmod": lambda a, b: F.mod(a, b, fmod=True),
    "not_equal": lambda a, b: F.not_(F.equal(a, b)),
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": lambda a, b: F.xor(a, b) if a.tensor.dtype is DType.BOOL else F.bitwise_xor(a, b),
}


def invert(self: Value) -> Any:
    """Return the logical complement of booleans, or the bitwise one of integers."""
    return F.not_(self) if self.tensor.dtype is DType.BOOL else F.bitwise_not(self)


# numpy's functions -> graphkit's functions, or keys of BUILT. All others but invert and square raise NotAnArray.
UFUNCS_OF_TWO = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "power": "pow",
    "floor_divide": "floordiv", "remainder": "mod", "fmod": "fmod", "matmul": "mat_mul", "maximum": "max",
    "minimum": "min", "less": "less", "less_equal": "less_or_equal", "greater": "greater",
    "greater_equal": "greater_or_equal", "equal": "equal", "not_equal": "not_equal", "logical_and": "and_",
    "logical_or": "or_", "logical_xor": "xor", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
}  # fmt: skip
UFUNCS_OF_ONE = {
    "negative": "neg", "positive": "identity", "absolute": "abs", "fabs": "abs", "sign": "sign", "exp": "exp",
    "log": "log", "sqrt": "sqrt", "reciprocal": "reciprocal", "floor": "floor", "ceil": "ceil", "rint": "round",
    "sin": "sin", "cos": "cos", "tan": "tan", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "isnan": "is_nan",
    "isinf": "is_inf", "logical_not": "not_",
}  # fmt: skip
# numpy ufunc -> the numpy function that calls its `reduce`, and the graphkit function to use instead.
_REDUCTIONS = {
    "add": ("sum", "gk.reduce_sum"), "multiply": ("prod", "gk.reduce_prod"), "maximum": ("max", "gk.reduce_max"),
    "minimum": ("min", "gk.reduce_min"), "logical_and": ("all", "gk.reduce_min"),
    "logical_or": ("any", "gk.reduce_max"),
}  # fmt: skip


def array_ufunc(self: Value, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
    """Build the nodes for a call of numpy's `ufunc`. Raises NotAnArray for calls without a counterpart."""
    name = ufunc.__name__
    if method == "__call__" and not options:
        if name in UFUNCS_OF_TWO:
            return combined(UFUNCS_OF_TWO[name], *operands)
        if name in UFUNCS_OF_ONE:
            return getattr(F, UFUNCS_OF_ONE[name])(self)
        if name in ("invert", "bitwise_not"):
            return invert(self)
        if name == "square":
            return F.mul(self, self)
    if "out" in options:
        raise NotAnArray(
            f"np.{name} cannot write into an array (out=, or an operator such as +=), because {self} has no elements "
            "before the graph runs; write y = y + x instead of y += x"
        )
    call = f"np.{name}" if method == "__call__" else f"np.{name}.{method}"
    known = UFUNCS_OF_TWO.get(name) or UFUNCS_OF_ONE.get(name)
    if method == "reduce":
        hint = _REDUCTIONS.get(name, ("", "gk.reduce_sum, gk.reduce_max, ..."))[1]
    else:
        hint = "gk.cum_sum" if method == "accumulate" else ""
    hint = hint or (f"gk.{known}" if known in registry.function_names() else "graphkit's own functions (gk.relu, ...)")
    given = f" with {', '.join(sorted(options))}" if options else ""
    if method == "reduce" and name in _REDUCTIONS:
        call = f"np.{_REDUCTIONS[name][0]} ({call})"
    raise NotAnArray(f"{call}{given} of {self}: it has no elements before the graph runs; use {hint}")


def no_array(self: Value, dtype: Any = None, copy: Any = None) -> Any:
    raise NotAnArray(
        f"{self} is a value of a graph, not an array: its elements exist only in a run (gk.Model(...).run({{...}}))"
    )


def index_value(self: Value, key: Any) -> Value:
    """Index by integers, slices with constant bounds, Ellipsis and None, as numpy does.

    Raises UsageError for anything else: use `gk.gather` for indices that are graph values.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise UsageError(f"{self.describe()}: an index can contain ... only once")
    rank = self.tensor.rank
    if rank is None:
        raise UsageError(f"{self.describe()} cannot be indexed: its rank is unknown")
    consumed = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if consumed > rank:
        raise UsageError(f"{self.describe()} has rank {rank}, {consumed} indices given")
    if not any(k is Ellipsis for k in keys):
        keys = (*keys, Ellipsis)
    position = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys = (*keys[:position], *[slice(None)] * (rank - consumed), *keys[position + 1 :])
    starts, ends, axes, steps, drop, add = [], [], [], [], [], []
    axis = out = 0
    for k in keys:
        if k is None:
            add.append(out)
            out += 1
            continue
        if isinstance(k, (int, np.integer)) and not isinstance(k, bool):
            _check_index(self, int(k), axis)
            starts.append(int(k))
            ends.append(int(k) + 1 if k != -1 else np.iinfo(np.int64).max)
            axes.append(axis)
            steps.append(1)
            drop.append(axis)
        elif isinstance(k, slice):
            first, last, step = _bounds(self, k)
            if _begins_before(self, first, step, axis):
                first, last, step = 0, 0, 1  # Slice would begin at element 0; numpy selects nothing
            low, high = (0, np.iinfo(np.int64).max) if step > 0 else (np.iinfo(np.int64).max, np.iinfo(np.int64).min)
            if k != slice(None):
                starts.append(low if first is None else first)
                ends.append(high if last is None else last)
                axes.append(axis)
                steps.append(step)
            out += 1
        else:
            raise UsageError(f"{self.describe()} cannot be indexed by {k!r}; use gather for computed indices")
        axis += 1
    result = self
    if axes:
        result = F.slice(result, *(np.asarray(v, np.int64) for v in (starts, ends, axes, steps)))
    if drop:
        result = F.squeeze(result, np.asarray(drop, np.int64))
    if add:
        result = F.unsqueeze(result, np.asarray(add, np.int64))
    return result


def _bounds(x: Value, key: slice) -> tuple[int | None, int | None, int]:
    """Return start, stop and step of a slice. Raises UsageError if one of them is not an integer."""
    try:
        first, last, step = [None if b is None else operator.index(b) for b in (key.start, key.stop, key.step)]
    except TypeError:
        raise UsageError(f"{x.describe()} cannot be indexed by {key!r}: its bounds must be integers") from None
    return first, last, 1 if step is None else step


def _begins_before(x: Value, first: int | None, step: int, axis: int) -> bool:
    """Whether a slice with a negative step begins before element 0, as far as the size of the axis is known."""
    size = x.tensor.known_shape[axis]
    return step < 0 and first is not None and isinstance(size, int) and first < -size


def _check_index(x: Value, index: int, axis: int) -> None:
    size = x.tensor.known_shape[axis]
    if isinstance(size, int) and not -size <= index < size:
        raise UsageError(f"index {index} is out of range for axis {axis}, which has size {size}: {x.describe()}")


def no_attribute(self: Value, name: str) -> Any:
    """Raise AttributeError with a hint; called if a Value lacks an attribute.

    Reads no attribute of `self`, because `copy` asks for attributes before it sets any.
    """
    right = elsewhere(name)
    if right is None and not name.startswith("_") and registry.function(name) is not None:
        right = f"gk.{name}(x)"
    hint = "" if right is None else f"; write {right}"
    raise AttributeError(f"a graph value has no {name!r}{hint}", name=name, obj=None)
