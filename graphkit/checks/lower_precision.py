"""The precision of a model: its narrowest floating-point type, or the integers that it quantises to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from graphkit.checks.noise import EPSILON
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.named_tuples import NamedTuple

# Default (rtol, atol) by the element type of an output. Types that are not listed must be equal.
TOLERANCES: Mapping[DType, tuple[float, float]] = {
    DType.FLOAT64: (1e-7, 1e-9),
    DType.FLOAT32: (1e-4, 1e-5),
    DType.FLOAT16: (1e-2, 1e-3),
    DType.BFLOAT16: (4e-2, 1e-2),
}
_DOUBLE_EPSILON = 2.0**-52
# Types that models quantise to, and the number of their significant bits. A float8 has 3 or 4, with its implicit bit.
_BITS: Mapping[DType, int] = {
    DType.INT16: 16, DType.UINT16: 16, DType.INT8: 8, DType.UINT8: 8, DType.INT4: 4, DType.UINT4: 4, DType.INT2: 2,
    DType.UINT2: 2, DType.FLOAT8E4M3FN: 4, DType.FLOAT8E4M3FNUZ: 4, DType.FLOAT8E5M2: 3, DType.FLOAT8E5M2FNUZ: 3,
    DType.FLOAT4E2M1: 2,
}  # fmt: skip
# Parts of the names of operators that compute with quantised tensors.
_QUANTISED = ("quantize", "qlinear", "qgemm", "matmulinteger", "convinteger")


class Precision(NamedTuple):
    """The precision of a model: a name, its epsilon, and the default (rtol, atol) of a comparison."""

    name: str
    epsilon: float
    tolerances: tuple[float, float]


def precision_of(graph: Graph) -> Precision | None:
    """Return the lowest precision of the results of a graph's nodes; None if it computes no floats.

    A model that quantises to b bits has the epsilon 2^(1-b), relative to the largest element of a tensor. Its
    tolerances are ten times that.
    """
    return max(_precisions(graph), key=lambda found: found.epsilon, default=None)


def precisions_of_values(graph: Graph) -> dict[Value, Precision | None]:
    """Return the lowest precision among the nodes that each result depends on; None if they compute no floats."""
    found: dict[Value, Precision | None] = {}
    for node in graph.nodes:
        known = (found.get(value) for value in node.operands)
        lowest = max(filter(None, (precision_of_node(node), *known)), key=lambda each: each.epsilon, default=None)
        found |= dict.fromkeys(node.outputs, lowest)
    return found


def precision_of_node(node: Node) -> Precision | None:
    """Return the lowest precision of a node's results, or of nodes inside of it; None if it computes no floats."""
    return max(_precisions_of(node), key=lambda found: found.epsilon, default=None)


def precision_of_type(dtype: DType) -> Precision:
    """Return the precision of a floating-point type of TOLERANCES."""
    return Precision(str(dtype), EPSILON.get(dtype, _DOUBLE_EPSILON), TOLERANCES[dtype])


def lower_of(one: Precision | None, other: Precision | None) -> Precision | None:
    """Return the lower of two precisions; None if they are equal, or one of them is unknown."""
    if one is None or other is None or one.epsilon == other.epsilon:
        return None
    return max(one, other, key=lambda found: found.epsilon)


def _precisions(graph: Graph) -> Iterator[Precision]:
    for node in graph.nodes:
        yield from _precisions_of(node)


def _precisions_of(node: Node) -> Iterator[Precision]:
    for inner in node.op.subgraphs().values():
        yield from _precisions(inner)
    if node.operands:
        for dtype in _dtypes(node.outputs):
            if dtype in FLOATS and dtype in TOLERANCES:
                yield precision_of_type(dtype)
    if bits := _bits(node):
        epsilon = 2.0 ** (1 - bits)
        yield Precision(f"{bits}-bit quantisation", epsilon, (10 * epsilon, 10 * epsilon))


def _bits(node: Node) -> int:
    """The number of bits that a node quantises to, or reads; 0 if it does not."""
    if not any(part in node.op.name.lower() for part in _QUANTISED):
        return 0
    found = [_BITS.get(dtype, 0) for dtype in _dtypes((*node.operands, *node.outputs))]
    return min(filter(None, found), default=0)


def _dtypes(values: Iterable[Value]) -> Iterator[DType]:
    return (value.type.dtype for value in values if isinstance(value.type, TensorType))
