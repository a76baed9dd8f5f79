"""Small expressions of values that several training programs use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphkit.ir.graph import Value
from graphkit.ops import F


def cast_like(scalar: Value, like: Value) -> Value:
    result: Value = scalar if scalar.dtype is like.dtype else F.cast(scalar, to=like.dtype)
    return result


def sum_of(values: Sequence[Value]) -> Value:
    result: Value = values[0] if len(values) == 1 else F.sum(*values)
    return result


def after(value: Value, others: Iterable[Value]) -> Value:
    """Return `value`, which becomes available after all `others`."""
    for other in others:
        value = F.control_dependency(value, other)
    return value


def pair(first: Value, second: Value) -> Value:
    result: Value = F.concat(F.reshape(first, [1]), F.reshape(second, [1]), axis=0)
    return result


def unpair(vector: Value) -> tuple[Value, Value]:
    first, second = (F.squeeze(element, [0]) for element in F.split(vector, num_outputs=2))
    return first, second


def as_sequence(outputs: Value | Sequence[Value]) -> Sequence[Value]:
    return [outputs] if isinstance(outputs, Value) else outputs
