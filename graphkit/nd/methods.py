"""Installs Python's operators, indexing and the methods that make new arrays on NDArray."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.types import dtype_of
from graphkit.nd import autograd
from graphkit.nd.indexing import getitem, iterate, setitem
from graphkit.nd.ndarray import NDArray, copied, own, view
from graphkit.nd.numpy_functions import array_function, array_ufunc
from graphkit.nd.operators import binary, in_place
from graphkit.nd.runtime import settings
from graphkit.nd.tape import is_tracked
from graphkit.ops import F
from graphkit.ops._overloads import ARITHMETIC, ORDER
from graphkit.signatures import shown


def reshape(self: NDArray, *shape: Any) -> NDArray:
    """Return the elements in another shape; one size may be -1. It is a view if the elements are contiguous."""
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
    self.grad = None if grad_req == "null" else own(np.zeros(self.shape, self.dtype))


def backward(self: NDArray, head_grads: NDArray | None = None, retain_graph: bool = False) -> None:
    """Compute the gradients of the sum of all elements; see `gk.nd.autograd.backward`."""
    autograd.backward(self, head_grads, retain_graph)


def _install() -> None:
    for python, function in ARITHMETIC.items():
        setattr(NDArray, f"__{python}__", binary(function))
        setattr(NDArray, f"__r{python}__", binary(function, reflected=True))
        setattr(NDArray, f"__i{python}__", in_place(function))
    for python, function in {**ORDER, "eq": "equal", "ne": "not_equal"}.items():
        setattr(NDArray, f"__{python}__", binary(function))
    special = {
        "getitem": getitem, "setitem": setitem, "iter": iterate, "copy": copy,
        "array_ufunc": array_ufunc, "array_function": array_function,
    }  # fmt: skip
    for python, method in special.items():
        setattr(NDArray, f"__{python}__", method)
    for method in (reshape, transpose, astype, copy, copyto, detach, attach_grad, backward):
        setattr(NDArray, method.__name__, method)
    setattr(NDArray, "T", property(transpose, doc="A view with the axes in reverse order."))  # noqa: B010


_install()
