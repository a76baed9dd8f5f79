"""Python's operators and methods of NDArray: arithmetic, comparisons, indexing, assignment, conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.arrays import array_of
from graphkit.ir.graph import Value
from graphkit.nd.calls import Call, Immediate, exact, remember
from graphkit.nd.hybrid import hybridize
from graphkit.nd.ndarray import NDArray, Signature, own, write
from graphkit.nd.runtime import settings
from graphkit.nd.tape import is_tracked, record
from graphkit.ops import Op, registry
from graphkit.ops._registry import array_operand
from graphkit.ops._value_operators import BUILT, combined, converted_operand

immediate = Immediate(record)
registry.immediate = immediate

_operators: dict[Any, Op] = {}
_scalars: dict[Any, NDArray] = {}
# Numbers that are kept as arrays, for `x + 1.5`.
_MOST_SCALARS = 1024


def call(function: str, *operands: Any, **attributes: Any) -> Any:
    """Run the operator of a function `gk.NAME` on arrays; return its only result."""
    return immediate.call(_operator_of(function, **attributes), operands)[0]


def _operator_of(function: str, **attributes: Any) -> Op:
    """Return the operator of a function `gk.NAME` with these attributes, the same object as before if it is kept."""
    key = (function, *[(name, exact(value)) for name, value in attributes.items()]) if attributes else function
    operator = _operators.get(key)
    if operator is None:
        found = registry.function(function)
        assert found is not None, function
        operator = found.op(**attributes)
        remember(_operators, key, operator)
    return operator


# --- arithmetic and comparisons -----------------------------------------------------------------------


def _other(x: Any, like: NDArray, exponent: bool = False) -> NDArray:
    """Return the second operand of a Python operator as an array, with the dtype rules of graph values."""
    kind = type(x)
    if kind is float or kind is int or kind is bool:
        key = (kind, x, like.dtype)
        found = _scalars.get(key)
        # NaN is not equal to itself, and 0.0 is equal to -0.0.
        if found is None or x == 0 or x != x:
            found = own(np.asarray(array_operand(x, like)))
            remember(_scalars, key, found, _MOST_SCALARS)
        return found
    if isinstance(x, (list, tuple)):
        x = array_of("an operand", x, objects=True)
    if isinstance(x, (np.ndarray, np.generic)):
        return own(np.array(converted_operand(x, like, exponent), order="C"))
    return own(np.asarray(array_operand(x, like)))


# Each of these functions runs as one program.
_BUILT = {name: hybridize(function) for name, function in BUILT.items()}
# Calls of operators of two arrays, by function and signatures. They are found faster than by operator.
_of_two: dict[tuple[str, Signature, Signature], Call] = {}
# Calls that write the result to the first operand. None: it is not possible for these signatures.
_in_place: dict[tuple[str, Signature, Signature], Call | None] = {}


def combine(function: str, a: Any, b: Any) -> Any:
    """Apply a function of two operands, at least one of which is an array. A value of a graph gives NotImplemented."""
    if settings.capture is not None or (isinstance(a, Value) and type(a) is not NDArray):
        return _symbolic(function, a, b)
    if type(b) is not NDArray:
        if isinstance(b, Value):
            return _symbolic(function, a, b)
        b = _other(b, a, function == "pow")
    elif type(a) is not NDArray:
        a = _other(a, b)
    if function in _BUILT:
        return _BUILT[function](a, b)
    key = (function, a._signature, b._signature)
    found = _of_two.get(key)
    if found is None:
        found = immediate.known(_operator_of(function), (a, b))
        if found is None:
            return call(function, a, b)
        remember(_of_two, key, found)
    made = found.run((a, b))
    if settings.recording:
        record(found, (a, b), made)
    return made[0]


def _symbolic(function: str, a: Any, b: Any) -> Any:
    """Apply a function to operands of a graph, some of which are arrays."""
    a, b = [immediate.constant(v) if type(v) is NDArray else v for v in (a, b)]
    return combined(function, a, b)


def binary(function: str, reflected: bool = False) -> Callable[[NDArray, Any], Any]:
    def method(self: NDArray, other: Any) -> Any:
        if other is None:
            return NotImplemented
        return combine(function, other, self) if reflected else combine(function, self, other)

    return method


def in_place(function: str) -> Callable[[NDArray, Any], NDArray]:
    def method(self: NDArray, other: Any) -> NDArray:
        check_writable(self, other)
        if type(other) is not NDArray:
            if isinstance(other, Value):
                raise UsageError(f"{self.describe()} cannot be changed in place by a value of a graph")
            other = _other(other, self, function == "pow")
        key = (function, self._signature, other._signature)
        try:
            found = _in_place[key]
        except KeyError:
            found = None if function in _BUILT else immediate.in_place(_operator_of(function), self, other)
            remember(_in_place, key, found)
        if found is not None and found.overwrite(self, other):
            return self
        result = combine(function, self, other)
        if result._signature is not self._signature:
            raise TypeMismatch(f"an in-place operation of {self.describe()} cannot store its result, {result.type}")
        write(result, self)
        return self

    return method


def check_writable(x: NDArray, source: Any = None) -> None:
    """Raise UsageError if writing the array would make recorded gradients wrong.

    source: The value that is written, or an operand of it.
    """
    if settings.capture is not None:
        raise UsageError(f"{x.describe()}: a hybridized function cannot write to arrays; return the new values")
    if settings.recording and (is_tracked(x) or (type(source) is NDArray and is_tracked(source))):
        raise UsageError(
            f"{x.describe()}: an array with a gradient cannot be written while operations are recorded; write y = y "
            "+ x instead of y += x, or write in `with gk.nd.pause():`"
        )
    x._origin = None
