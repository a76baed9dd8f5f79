"""Installs Python's operators, indexing and the methods that make new arrays on NDArray."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import dtype_of
from graphkit.nd import autograd, elements
from graphkit.nd.hints import of_attribute
from graphkit.nd.indexing import getitem, iterate, setitem
from graphkit.nd.ndarray import NDArray, copied, own, view
from graphkit.nd.numpy_functions import array_function, array_ufunc
from graphkit.nd.operators import binary, combine, in_place
from graphkit.nd.reductions import METHODS as REDUCTIONS
from graphkit.nd.reductions import axes_of, check_out
from graphkit.nd.runtime import settings
from graphkit.nd.tape import is_tracked
from graphkit.ops import F
from graphkit.ops._overloads import ARITHMETIC, ORDER
from graphkit.ops._value_operators import converted_operand
from graphkit.signatures import shown


def reshape(self: NDArray, *shape: Any, order: str = "C") -> NDArray:
    """Return the elements in another shape; one size may be -1. It is a view if the elements are contiguous.

    order: Only "C", the order of rows.
    """
    if order != "C":
        raise UsageError(f"reshape of {self.describe()}: order must be 'C', not {order!r}; transpose it before")
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    sizes = _integers("reshape", self, given)
    if settings.capture is not None or (settings.recording and is_tracked(self)):
        return F.reshape(self, np.array(sizes, np.int64), allowzero=True)  # type: ignore[return-value]
    source = self if self._data.flags.c_contiguous else copied(self)
    try:
        return view(source, source._data.reshape(sizes))
    except ValueError as error:
        raise TypeMismatch(f"reshape of {self.describe()}: {error}") from None


def transpose(self: NDArray, *axes: Any) -> NDArray:
    """Return a view with the axes in another order; by default in reverse order."""
    if axes == (None,):
        axes = ()
    given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    order = _integers("transpose", self, given) or list(reversed(range(self.ndim)))
    # Negative axes count from the end, and all others must stay what they are.
    order = [a + self.ndim if -self.ndim <= a < 0 else a for a in order]
    if sorted(order) != list(range(self.ndim)):
        raise TypeMismatch(
            f"transpose of {self.describe()}: the axes {list(given)} are not a permutation of its {self.ndim} axes"
        )
    if settings.capture is not None or (settings.recording and is_tracked(self)):
        return F.transpose(self, perm=order)  # type: ignore[return-value]
    return view(self, self._data.transpose(order))


def _integers(method: str, x: NDArray, given: Iterable[Any]) -> list[int]:
    """Return sizes or axes as Python's integers. Raises TypeMismatch for anything else."""
    try:
        return [operator.index(item) for item in given]
    except TypeError:
        raise TypeMismatch(f"{method} of {x.describe()}: it takes integers, not {shown(given)}") from None


def astype(self: NDArray, dtype: Any, copy: bool = True) -> NDArray:
    """Return the elements in another dtype. copy: False returns the array itself if it has the dtype already."""
    wanted = dtype_of(dtype)
    if wanted is self.tensor.dtype and not copy and settings.capture is None:
        return self
    return F.cast(self, to=wanted)  # type: ignore[return-value]


def copy(self: NDArray) -> NDArray:
    """Return a copy."""
    if settings.capture is not None or (settings.recording and is_tracked(self)):
        return F.identity(self)  # type: ignore[return-value]
    return copied(self)


def ravel(self: NDArray, order: str = "C") -> NDArray:
    """Return the elements along one axis. It is a view if the elements are contiguous."""
    return reshape(self, -1, order=order)


def flatten(self: NDArray, order: str = "C") -> NDArray:
    """Return a copy of the elements along one axis."""
    return copy(reshape(self, -1, order=order))


def squeeze(self: NDArray, axis: Any = None) -> NDArray:
    """Return a view without axes of size 1. Raises TypeMismatch if one of the given axes has another size.

    axis: An axis, or a tuple of axes; by default, all of size 1.
    """
    if axis is None:
        gone = [a for a, size in enumerate(self.shape) if size == 1]
    else:
        gone = axes_of("squeeze", self, axis)
        if any(self.shape[a] != 1 for a in gone):
            raise TypeMismatch(f"squeeze of {self.describe()}: axis {axis!r} must have size 1")
    return self[tuple([0 if a in gone else slice(None) for a in range(self.ndim)])]


def swapaxes(self: NDArray, axis1: int, axis2: int) -> NDArray:
    """Return a view with two axes exchanged."""
    (first,), (second,) = axes_of("swapaxes", self, axis1), axes_of("swapaxes", self, axis2)
    order = list(range(self.ndim))
    order[first], order[second] = second, first
    return transpose(self, order)


def clip(self: NDArray, min: Any = None, max: Any = None, out: None = None) -> NDArray:
    """Return the elements, limited to the range from `min` to `max`. None means no limit."""
    check_out("clip", out)
    found: Any = self
    for function, bound in (("max", min), ("min", max)):
        if bound is not None:
            found = combine(function, found, bound)
    return copy(self) if found is self else found


def round_(self: NDArray, decimals: int = 0, out: None = None) -> NDArray:
    """Return the elements, rounded to a number of decimals. Halves are rounded to even numbers."""
    check_out("round", out)
    (places,) = _integers("round", self, [decimals])
    if not self.tensor.dtype.is_float:
        if places < 0:
            raise UsageError(f"round of {self.describe()}: decimals of integers must be at least 0, not {places}")
        return copy(self)
    if places == 0:
        return F.round(self)  # type: ignore[return-value]
    scale = 10.0 ** abs(places)
    return F.round(self * scale) / scale if places > 0 else F.round(self / scale) * scale  # type: ignore[return-value]


def take(self: NDArray, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise") -> NDArray:
    """Return the elements, or the parts along an axis, that integers select.

    mode: "raise": indices outside of the axis are errors. "wrap" and "clip" move them into it.
    """
    check_out("take", out)
    if mode not in ("raise", "wrap", "clip"):
        raise UsageError(f"take of {self.describe()}: mode must be 'raise', 'wrap' or 'clip', not {mode!r}")
    source, where = (reshape(self, -1), 0) if axis is None else (self, axis)
    (place,) = axes_of("take", source, where)
    if type(indices) is NDArray and indices.tensor.dtype.is_integer and mode == "raise":
        return F.gather(source, astype(indices, "int64", copy=False), axis=place)  # type: ignore[return-value]
    found = _taken(self, indices, mode, source.tensor.static_shape[place])
    return F.gather(source, found, axis=place)  # type: ignore[return-value]


def _taken(self: NDArray, indices: Any, mode: str, size: int) -> np.ndarray:
    """Return the indices of `take` as numbers of an axis of this size. Booleans are the numbers 0 and 1."""
    found = np.asarray(indices)
    if found.dtype == np.bool_ or found.size == 0:
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise UsageError(f"take of {self.describe()}: indices must be integers, not {shown(indices)}")
    if found.size and mode != "raise" and size:
        found = found % size if mode == "wrap" else found.clip(0, size - 1)
    if found.size and (found.min() < -size or found.max() >= size):
        raise UsageError(f"take of {self.describe()}: an index is out of range for an axis of size {size}")
    return found.astype(np.int64)


def repeat(self: NDArray, repeats: Any, axis: int | None = None) -> NDArray:
    """Return each element, or each part along an axis, several times.

    repeats: A number, or integers, one for each part.
    """
    source, where = (reshape(self, -1), 0) if axis is None else (self, axis)
    (place,) = axes_of("repeat", source, where)
    try:
        order = np.repeat(np.arange(source.shape[place]), np.asarray(repeats))
    except (TypeError, ValueError) as error:
        raise UsageError(f"repeat of {self.describe()}: {error}") from None
    return take(source, order, place)


def dot(self: NDArray, b: Any) -> Any:
    """Return numpy's dot product: sums over the last axis of the array and the last but one of `b`."""
    rank = len(b.tensor.static_shape) if isinstance(b, Value) else np.ndim(b)
    if rank == 0 or self.ndim == 0:
        return self * b
    if rank <= 2:
        return self @ b
    other: Any = b if isinstance(b, Value) else own(np.array(converted_operand(np.asarray(b), self), order="C"))
    # One matrix: the axis of the sum comes first.
    order = [rank - 2, *range(rank - 2), rank - 1]
    size, *rest = [other.tensor.static_shape[a] for a in order]
    matrix = F.reshape(F.transpose(other, perm=order), np.array([size, math.prod(rest)]), allowzero=True)
    return F.reshape(self @ matrix, np.array([*self.shape[:-1], *rest], np.int64), allowzero=True)


def fill(self: NDArray, value: Any) -> None:
    """Write one value to all elements."""
    self[...] = value


def copyto(self: NDArray, other: NDArray) -> NDArray:
    """Write the elements to another array, and return it. Raises UsageError if `other` is not an NDArray."""
    if type(other) is not NDArray:
        raise UsageError(f"copyto writes to an NDArray, not {shown(other)}; asnumpy() returns a copy as a numpy array")
    other[...] = self
    return other


def detach(self: NDArray) -> NDArray:
    """Return a view through which no gradient flows."""
    return view(self, self._data)


def attach_grad(self: NDArray, grad_req: str = "write") -> None:
    """Let `backward` compute the gradient of this array, and forget how the array was computed.

    Args:
        grad_req: "write": `backward` writes it to `grad`. "add": `backward` adds it to `grad`. "null": no gradient.

    Raises:
        UsageError: The array is not floating-point.
    """
    if grad_req not in ("write", "add", "null"):
        raise UsageError(f"attach_grad: grad_req must be 'write', 'add' or 'null', not {grad_req!r}")
    if not self.tensor.dtype.is_float:
        raise UsageError(f"attach_grad of {self.describe()}: only floating-point arrays have gradients")
    self._origin = None
    self._grad_req = "" if grad_req == "null" else grad_req
    self.grad = None if grad_req == "null" else own(elements.zeros(self.shape, self.dtype))


def backward(self: NDArray, head_grads: NDArray | None = None, retain_graph: bool = False) -> None:
    """Compute the gradients of the sum of all elements; see `gk.nd.autograd.backward`."""
    autograd.backward(self, head_grads, retain_graph)


def _matrix_transpose(self: NDArray) -> NDArray:
    if self.ndim < 2:
        raise TypeMismatch(f"mT of {self.describe()}: it has no two axes")
    return swapaxes(self, -1, -2)


def _round(self: NDArray, digits: int | None = None) -> Any:
    """Return the only element rounded, as Python's `round` of a number; a rounded array for other arrays."""
    if self.size == 1 and not self.shape:
        return round(self.asscalar(), digits)
    return round_(self, digits or 0)


def _divmod(self: NDArray, other: Any) -> tuple[NDArray, NDArray]:
    return self // other, self % other


def _reflected_divmod(self: NDArray, other: Any) -> tuple[NDArray, NDArray]:
    return other // self, other % self


def _no_attribute(self: NDArray, name: str) -> Any:
    # `copy` asks for attributes before there are any.
    raise AttributeError(f"an NDArray has no attribute {name!r}{of_attribute(name)}", name=name, obj=None)


def _contains(self: NDArray, value: Any) -> bool:
    return bool((self == value).any())


def _install() -> None:
    for python, function in ARITHMETIC.items():
        setattr(NDArray, f"__{python}__", binary(function))
        setattr(NDArray, f"__r{python}__", binary(function, reflected=True))
        setattr(NDArray, f"__i{python}__", in_place(function))
    for python, function in {**ORDER, "eq": "equal", "ne": "not_equal"}.items():
        setattr(NDArray, f"__{python}__", binary(function))
    special = {
        "getitem": getitem, "setitem": setitem, "iter": iterate, "copy": copy,
        "round": _round, "divmod": _divmod, "rdivmod": _reflected_divmod, "contains": _contains,
        "getattr": _no_attribute,
        "array_ufunc": array_ufunc, "array_function": array_function,
    }  # fmt: skip
    for python, method in special.items():
        setattr(NDArray, f"__{python}__", method)
    methods = (
        reshape, transpose, astype, copy, copyto, detach, attach_grad, backward, ravel, flatten, squeeze, swapaxes,
        clip, take, repeat, dot, fill,
    )  # fmt: skip
    for name, method in {**{m.__name__: m for m in methods}, **REDUCTIONS, "round": round_}.items():
        setattr(NDArray, name, method)
    setattr(NDArray, "mT", property(_matrix_transpose, doc="A view with the last two axes exchanged."))  # noqa: B010
    setattr(NDArray, "T", property(transpose, doc="A view with the axes in reverse order."))  # noqa: B010


_install()
