"""Errors for want of memory, by the node that wants most."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence

from graphkit.errors import GraphkitError, OutOfMemory
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType

# What is not worth a look at what the machine has left.
_SMALL = 1 << 26


@contextlib.contextmanager
def out_of_memory(graph: Graph, what: str) -> Iterator[None]:
    """Raise OutOfMemory, naming the largest value of `graph`, where the block gets no memory, or cannot count sizes."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError, TypeError) as error:
        raise_if_out_of_memory(graph, what, error)
        raise


def raise_if_out_of_memory(graph: Graph, what: str, error: Exception) -> None:
    """Raise OutOfMemory in place of `error`, if that is what it means."""
    _, size = _largest(graph)
    # numpy has a ValueError for sizes past its own limits, the native part a TypeError.
    if isinstance(error, GraphkitError) or not (isinstance(error, (MemoryError, OverflowError)) or size > sys.maxsize):
        return
    raise larger_than_allowed(graph, OutOfMemory(f"no memory for {what} ({error})")) from error


def require_memory_for(node: Node, values: Iterable[Value]) -> None:
    """Raise OutOfMemory, naming the node, where these results of it would pass the limit."""
    kinds = [v.type for v in values]
    nbytes = sum(t.nbytes for t in kinds if isinstance(t, TensorType) and t.is_static)
    if nbytes > _SMALL or limits.current().memory is not None:
        limits.require_memory(nbytes, node.describe())


def require_shapes_for(node: Node) -> None:
    """Raise OutOfMemory, naming the node, where a result of it has no elements, but a shape that no array can have."""
    for value in node.outputs:
        kind = value.type
        # Such an array takes no memory, but numpy has none whose other axes pass its limits.
        if isinstance(kind, TensorType) and kind.is_static and kind.nbytes == 0 and _beyond(kind.static_shape):
            raise OutOfMemory(f"{node.describe()}: the shape {list(kind.static_shape)} is too large for an array")


def _beyond(shape: Sequence[int]) -> bool:
    return math.prod(max(size, 1) for size in shape) > sys.maxsize // 16


def larger_than_allowed(graph: Graph, error: OutOfMemory) -> OutOfMemory:
    """What a limit says of a run of `graph`, with the largest value of it."""
    value, size = _largest(graph)
    largest = "" if value is None else f"; the largest value is {_described(graph, value)}, {size} bytes"
    return OutOfMemory(f"{error}{largest}")


def _largest(graph: Graph) -> tuple[Value | None, int]:
    found: Value | None = None
    most = 0
    for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs)):
        kind = value.type
        if isinstance(kind, TensorType) and kind.is_static and kind.nbytes > most:
            found, most = value, kind.nbytes
    return found, most


def _described(graph: Graph, value: Value) -> str:
    return f"input {graph.name_of(value)!r}" if value.node is None else f"that of {value.node.describe()}"
