"""Number of parameters of a graph. All reports about a model use these functions, so that they agree."""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.named_tuples import NamedTuple


class Counts(NamedTuple):
    """Numbers of elements: parameters, trainable parameters, running statistics. bytes: of parameters and states."""

    parameters: int
    trainable: int
    state: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.parameters:,} parameters ({self.trainable:,} trainable)"


def elements(values: Iterable[Value]) -> int:
    """Return the number of elements of stored values.

    Raises:
        TypeMismatch: A value has no static shape.
    """
    total = 0
    for value in values:
        if not value.tensor.is_static:
            raise TypeMismatch(f"parameter {value} has no static shape")
        total += math.prod(value.tensor.static_shape)
    return total


def parameters(graph: Graph) -> list[Value]:
    """Return the stored values that count as parameters: all but running statistics."""
    return [v for v in graph.inputs if v.role == "parameter"]


def trainable(graph: Graph) -> list[Value]:
    """Return the parameters that training updates: floating-point, and not marked as frozen."""
    return [v for v in parameters(graph) if v.dtype.is_float and v.attrs.get("trainable", True)]


def counts(graph: Graph) -> Counts:
    """Count the stored elements of a graph."""
    stored = [v for v in graph.inputs if v.role in ("parameter", "state")]
    total, learned = elements(parameters(graph)), elements(trainable(graph))
    size = sum(elements([v]) * v.dtype.itemsize for v in stored)
    return Counts(total, learned, elements(stored) - total, size)
