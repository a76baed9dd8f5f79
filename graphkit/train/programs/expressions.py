"""Small expressions of values that several training programs use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphkit.ir.graph import Value
from graphkit.ops import F


def cast_like(scalar: Value, like: Value) -> Value:
    """Return a scalar in the dtype of another value."""
    result: Value = scalar if scalar.dtype is like.dtype else F.cast(scalar, to=like.dtype)
    return result


def sum_of(values: Sequence[Value]) -> Value:
    """Return the elementwise sum of one or more values of the same type."""
    result: Value = values[0] if len(values) == 1 else F.sum(*values)
    return result


def after(value: Value, others: Iterable[Value]) -> Value:
    """Return `value`, which becomes available only when all `others` have been computed."""
    for other in others:
        value = F.control_dependency(value, other)
    return value


def pair(first: Value, second: Value) -> Value:
    """Return two scalars of one dtype as a vector [2]. `unpair` is the inverse."""
    result: Value = F.concat(F.reshape(first, [1]), F.reshape(second, [1]), axis=0)
    return result


def unpair(vector: Value) -> tuple[Value, Value]:
    """Return the two scalars of a vector [2]."""
    first, second = (F.squeeze(element, [0]) for element in F.split(vector, num_outputs=2))
    return first, second


def as_sequence(outputs: Value | Sequence[Value]) -> Sequence[Value]:
    """Return the outputs of an operator call as a sequence, even if there is only one."""
    return [outputs] if isinstance(outputs, Value) else outputs
