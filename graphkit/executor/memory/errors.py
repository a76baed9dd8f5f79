"""Raise OutOfMemory errors that name the node, or the largest value of the graph."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Container, Iterable, Iterator, Sequence

from graphkit.errors import GraphkitError, OutOfMemory
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType

# Bytes. Asking the system for its free memory is not worth the time for smaller results.
_SMALL = 1 << 26


@contextlib.contextmanager
def out_of_memory(graph: Graph, what: str) -> Iterator[None]:
    """Turn errors of an allocation inside the block into OutOfMemory, which names the largest value of `graph`.

    what: Description of the allocated memory, for the message.
    """
    try:
        yield
    except (MemoryError, OverflowError, ValueError, TypeError) as error:
        raise_if_out_of_memory(graph, what, error)
        raise


def raise_if_out_of_memory(graph: Graph, what: str, error: Exception) -> None:
    """Raise OutOfMemory if `error` means that an allocation failed or was too large; else return."""
    _, size = _largest(graph)
    # For sizes beyond its limits numpy raises ValueError, and the native engine TypeError.
    if isinstance(error, GraphkitError) or not (isinstance(error, (MemoryError, OverflowError)) or size > sys.maxsize):
        return
    raise larger_than_allowed(graph, OutOfMemory(f"no memory for {what} ({error})")) from error


def require_memory_for(nodes: Iterable[Node], used: Container[Value]) -> None:
    """Raise OutOfMemory, which names the node, if the `used` results of a node need more memory than allowed."""
    limit = _SMALL if limits.current().memory is None else -1
    sizes: dict[int, int] = {}  # by the identity of the type
    for node in nodes:
        nbytes = 0
        for value in node.outputs:
            if value in used:
                kind = value.type
                size = sizes.get(id(kind))
                if size is None:
                    size = kind.nbytes if isinstance(kind, TensorType) and kind.is_static else 0
                    sizes[id(kind)] = size
                nbytes += size
        if nbytes > limit:
            limits.require_memory(nbytes, node.describe())


def require_shapes_for(nodes: Iterable[Node]) -> None:
    """Raise OutOfMemory, which names the node, if an empty result of it has a shape that numpy cannot represent."""
    seen: set[int] = set()  # the identities of types
    for node in nodes:
        for value in node.outputs:
            kind = value.type
            if id(kind) in seen:
                continue
            seen.add(id(kind))
            # numpy multiplies the sizes of the axes that are not 0, and rejects a product beyond its limits.
            if (
                isinstance(kind, TensorType)
                and kind.is_static
                and kind.nbytes == 0
                and _exceeds_numpy(kind.static_shape)
            ):
                raise OutOfMemory(f"{node.describe()}: the shape {list(kind.static_shape)} is too large for an array")


def _exceeds_numpy(shape: Sequence[int]) -> bool:
    """Whether the sizes that are not 0 multiply to more than an array can hold."""
    return math.prod(max(size, 1) for size in shape) > sys.maxsize // 16


def larger_than_allowed(graph: Graph, error: OutOfMemory) -> OutOfMemory:
    """Return `error` with the largest value of `graph` added to its message."""
    value, size = _largest(graph)
    largest = "" if value is None else f"; the largest value is {_described(graph, value)}, {size} bytes"
    return OutOfMemory(f"{error}{largest}")


def _largest(graph: Graph) -> tuple[Value | None, int]:
    """Return the largest value of known size, and its bytes."""
    found: Value | None = None
    most = 0
    for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs)):
        kind = value.type
        if isinstance(kind, TensorType) and kind.is_static and kind.nbytes > most:
            found, most = value, kind.nbytes
    return found, most


def _described(graph: Graph, value: Value) -> str:
    """Return a value as text for a message."""
    return f"input {graph.name_of(value)!r}" if value.node is None else f"that of {value.node.describe()}"
