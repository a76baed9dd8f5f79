"""Structural keys of the nodes of graphs: equal keys mean equal structure, whatever the names of values are.

Identity nodes are ignored: a reader of the result counts as a reader of the operand. Constants are not nodes here, but
operands with contents. Floating-point constants of more than a few elements count as weights, as parameters do: their
keys are their types, so that a fine-tuned model has the same structure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import FLOATS, MapType, OptionalType, SequenceType, TensorType, Type

# Floating-point constants with more elements are compared as weights, not as attributes.
_FEW = 16
_ANONYMOUS = re.compile(r"\?\d+")


def constant_of(value: Value) -> Tensor | None:
    """Return the elements of a constant; None for another value."""
    node = value.node
    if node is None or node.op.name != "Constant" or node.op.domain != "":
        return None
    found = node.op.attributes()["value"]
    return found if isinstance(found, Tensor) else None


def is_weight(value: Value) -> bool:
    """Whether a value is a parameter, a state, or a floating-point constant of more than a few elements."""
    if value.node is None:
        return value.role in ("parameter", "state")
    tensor = constant_of(value)
    return tensor is not None and tensor.dtype in FLOATS and tensor.array.size > _FEW


def attributes_of(node: Node) -> Mapping[str, Any]:
    """Return the attributes of a node, without the stream of a random operator, which compilation fills in."""
    found = node.op.attributes()
    return {k: v for k, v in found.items() if k != "stream"} if getattr(node.op, "random", False) else found


def type_text(kind: Type) -> str:
    """Return a type as text, without known elements; anonymous dimensions are written `?`."""
    if isinstance(kind, TensorType):
        kind = TensorType(kind.dtype, kind.shape)
    elif isinstance(kind, SequenceType):
        return f"sequence({type_text(kind.element)})"
    elif isinstance(kind, OptionalType):
        return f"optional({type_text(kind.element)})"
    elif isinstance(kind, MapType):
        return f"map({kind.key}, {type_text(kind.element)})"
    return _ANONYMOUS.sub("?", str(kind))


def _weight_type(value: Value) -> Hashable:
    return type_text(value.type)


class Keys:
    """Numbers for structural keys. Equal keys have equal numbers, in all graphs that share this object."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._graphs: dict[Graph, int] = {}

    def number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def attribute(self, value: Any) -> Hashable:
        """Return a key for the value of an attribute. NaN equals NaN; 1, 1.0 and True differ.

        Floats are compared as float32, because ONNX files store them so.
        """
        if isinstance(value, Tensor):
            return "tensor", value.digest
        if isinstance(value, Graph):
            return "graph", self.graph(value)
        if isinstance(value, float):
            with np.errstate(over="ignore"):
                return "float", float(np.float32(value)).hex()
        if isinstance(value, (tuple, list)):
            return tuple(map(self.attribute, value))
        if isinstance(value, (TensorType, SequenceType, OptionalType, MapType)):
            return "type", type_text(value)
        return type(value).__name__, value

    def graph(self, graph: Graph) -> int:
        """Return the number of a subgraph. Equal subgraphs have the same number; inputs are equal by position."""
        if graph not in self._graphs:
            inputs = {v: i for i, v in enumerate(graph.inputs)}
            structure = Structure(graph, self, inputs, {})
            found = tuple(structure.values[structure.source(v)] for v in graph.outputs)
            self._graphs[graph] = self.number(("graph", len(graph.inputs), found))
        return self._graphs[graph]

    def operator(self, node: Node) -> int:
        return self.number(("operator", node.op.domain, node.op.name))

    def attributes(self, node: Node) -> int:
        found = tuple((k, self.attribute(v)) for k, v in sorted(attributes_of(node).items()))
        return self.number(("attributes", self.operator(node), found))


class Structure:
    """The nodes of a graph with their keys.

    Attributes:
        nodes: All nodes that are neither constants nor Identity, in topological order.
        operands: For each node, its inputs without trailing absent ones; results of Identity are replaced.
        operator: A number for each node's operator.
        local: A number for its operator, attributes, constants, and keys of weights (by default, their types).
        weighted: The nodes that read weights.
        forward: A number for the node and everything that it is computed from.
        backward: A number for the node and everything that is computed from it.
        values: A number for each value and everything that it is computed from.
        users: For each value, the nodes that read it, with the position of the operand.
    """

    def __init__(
        self,
        graph: Graph,
        keys: Keys,
        inputs: Mapping[Value, Hashable],
        outputs: Mapping[Value, Sequence[Hashable]],
        weight: Callable[[Value], Hashable] = _weight_type,
    ):
        """inputs: key of each data input. outputs: keys of the outputs that a value is. weight: key of a weight."""
        self.graph = graph
        self.nodes: list[Node] = []
        self.operands: dict[Node, tuple[Value | None, ...]] = {}
        self.weighted: list[Node] = []
        self.operator: dict[Node, int] = {}
        self.local: dict[Node, int] = {}
        self.forward: dict[Node, int] = {}
        self.backward: dict[Node, int] = {}
        self.values: dict[Value, int] = {}
        self.users: dict[Value, list[tuple[Node, int]]] = {}
        self._sources: dict[Value, Value] = {}
        for value in graph.inputs:
            self.values[value] = keys.number(_leaf(value, inputs, weight))
        for node in graph.nodes:
            if node.op.name == "Identity" and not node.op.domain and node.inputs[0] is not None:
                self._sources[node.outputs[0]] = self.source(node.inputs[0])
            elif constant_of(node.outputs[0]) is not None:
                self.values[node.outputs[0]] = keys.number(_leaf(node.outputs[0], inputs, weight))
            else:
                self.nodes.append(node)
                self._look_back(node, keys)
        results: dict[Value, list[Hashable]] = {}
        for value, found in outputs.items():
            results.setdefault(self.source(value), []).extend(found)
        for node in reversed(self.nodes):
            self._look_ahead(node, keys, results)

    def source(self, value: Value) -> Value:
        """Return the value, or for the result of Identity nodes what they copy."""
        return self._sources.get(value, value)

    def _look_back(self, node: Node, keys: Keys) -> None:
        # The state of the random generator is an operand that compilation fills in.
        operands = [None if v is None or v.role == "rng" else self.source(v) for v in node.inputs]
        while operands and operands[-1] is None:
            operands.pop()
        self.operands[node] = tuple(operands)
        stored = tuple(self.values[v] if v is not None and _is_stored(v) else None for v in operands)
        if any(v is not None and is_weight(v) for v in operands):
            self.weighted.append(node)
        self.operator[node] = keys.operator(node)
        self.local[node] = keys.number(("local", keys.attributes(node), stored))
        below = tuple(None if v is None else self.values[v] for v in operands)
        self.forward[node] = keys.number(("forward", self.local[node], below))
        for value in node.outputs:
            self.values[value] = keys.number(("output", self.forward[node], value.index))
        for position, operand in enumerate(operands):
            if operand is not None:
                self.users.setdefault(operand, []).append((node, position))

    def _look_ahead(self, node: Node, keys: Keys, outputs: Mapping[Value, Sequence[Hashable]]) -> None:
        above = []
        for value in node.outputs:
            readers = sorted((self.backward[user], position) for user, position in self.users.get(value, ()))
            results = tuple(outputs.get(value, ()))
            if readers or results:  # outputs that nothing reads are left out in some files
                above.append((value.index, tuple(readers), results))
        self.backward[node] = keys.number(("backward", self.local[node], tuple(above)))


def _is_stored(value: Value) -> bool:
    return is_weight(value) or constant_of(value) is not None


def _leaf(value: Value, inputs: Mapping[Value, Hashable], weight: Callable[[Value], Hashable]) -> Hashable:
    """Return the key of a graph input or a constant."""
    if value in inputs:
        return "input", inputs[value]
    if is_weight(value):
        return "weight", weight(value)
    tensor = constant_of(value)
    return ("constant", tensor.digest) if tensor is not None else ("other", value.role)
