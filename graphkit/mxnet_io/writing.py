"""Writing of graphs as symbols of MXNet: the symbol so far, the writer of one node, and the table of writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.stored import StoredArray
from graphkit.mxnet_io.arrays import type_number
from graphkit.ops import Op
from graphkit.ops.evaluate import run_node

# (node, output) of a value in the symbol.
Entry: TypeAlias = tuple[int, int]


class Writing:
    """The symbol that is being written."""

    def __init__(self, graph: Graph, params: Mapping[str, np.ndarray | StoredArray]) -> None:
        self.graph = graph
        self.params = params
        self.nodes: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray | StoredArray] = {}
        self.entries: dict[Value, Entry] = {}
        # Results that depend on parameters and constants only.
        self.fixed: dict[Value, np.ndarray | None] = {}
        self.names = Names()
        for value in graph.inputs:
            self.names.take(graph.name_of(value))

    # --- what a writer of a node uses -----------------------------------------------------------------

    def entry(self, value: Value) -> Entry:
        """Return the place of a value, adding a variable for one that is fixed."""
        if value not in self.entries:
            name = self.graph.name_of(value)
            if value.is_input and value.role in ("parameter", "state"):
                self.entries[value] = self.variable(name, self.params[name], state=value.role == "state")
            elif value.is_input:
                self.entries[value] = self.add("null", name, [], _declared(name, value))
            else:
                array = np.atleast_1d(self.array(value))
                # MXNet 1.9 reads files with booleans, but its operators take numbers only.
                array = array.astype(np.float32) if array.dtype == np.bool_ else array
                self.entries[value] = self.variable(self.names.take(name), array)
        return self.entries[value]

    def variable(self, name: str, array: np.ndarray | StoredArray, *, state: bool = False) -> Entry:
        """Add a variable with an array."""
        self.arrays[("aux:" if state else "arg:") + name] = array
        return self.add("null", name, [])

    def constant(self, array: np.ndarray, name: str) -> Entry:
        return self.variable(self.names.take(name), array)

    def is_fixed(self, value: Value | None) -> bool:
        return value in self.fixed or (value is not None and value.is_input and value.role in ("parameter", "state"))

    def array(self, value: Value) -> np.ndarray:
        """Return the elements of a fixed value. Raises UnsupportedError for one that depends on the data."""
        if value.is_input and self.is_fixed(value):
            return self._known(value)
        if value not in self.fixed:
            raise UnsupportedError(f"{value} depends on the data, but is an attribute in MXNet")
        pending = [value]
        while pending:
            node = pending[-1].node
            assert node is not None
            missing = [v for v in node.operands if not v.is_input and self.fixed[v] is None]
            if self.fixed[pending[-1]] is None and missing:
                pending += missing
                continue
            if self.fixed[pending.pop()] is None:
                results = run_node(node, [None if v is None else self._known(v) for v in node.inputs])
                self.fixed.update(zip(node.outputs, results, strict=True))
        return self._known(value)

    def _known(self, value: Value) -> np.ndarray:
        """Return the elements of a parameter, a state or a value that is computed already."""
        if value.is_input:
            return np.asarray(self.params[self.graph.name_of(value)])
        found = self.fixed[value]
        assert found is not None
        return found

    def add(
        self, op: str, name: str, inputs: Sequence[Entry], attributes: Mapping[str, Any] | None = None, output: int = 0
    ) -> Entry:
        """Add a node; return the place of one of its outputs. Attributes that are None are left out."""
        node: dict[str, Any] = {"op": op, "name": name}
        texts = {key: _text(value) for key, value in (attributes or {}).items() if value is not None}
        if texts:
            node["attrs"] = texts
        node["inputs"] = [[index, number, 0] for index, number in inputs]
        self.nodes.append(node)
        return len(self.nodes) - 1, output


class Writer:
    """Writes one node of a graph. A writer function returns the place of its result, or a list for several outputs."""

    def __init__(self, writing: Writing, node: Node) -> None:
        self.writing = writing
        self.node = node
        self.name = writing.graph.node_name(node)
        self.inputs = node.inputs
        assert isinstance(node.op, Op)
        self.attributes: Mapping[str, Any] = {key: getattr(node.op, key) for key in node.op.fields}

    def __getitem__(self, key: str) -> Any:
        return self.attributes[key]

    def value(self, position: int) -> Value:
        value = self.inputs[position]
        assert value is not None
        return value

    def given(self, position: int) -> Value | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def entry(self, position: int) -> Entry:
        return self.writing.entry(self.value(position))

    def array(self, position: int) -> np.ndarray | None:
        """Return the elements of a fixed operand; None if it is absent."""
        value = self.given(position)
        return None if value is None else self.writing.array(value)

    def add(self, op: str, inputs: Sequence[Entry], last: bool = True, **attributes: Any) -> Entry:
        """Add a node of MXNet. The last one of a node has its name."""
        name = self.name if last else self.writing.names.take(f"{self.name}_{op.strip('_').lower()}")
        return self.writing.add(op, name, inputs, attributes)


NodeWriter: TypeAlias = Callable[[Writer], "Entry | list[Entry]"]
# ONNX's name of an operator -> the function that writes its nodes.
WRITERS: dict[str, NodeWriter] = {}


def writes(*names: str) -> Callable[[NodeWriter], NodeWriter]:
    """Return a decorator that registers the writer of these operators."""

    def register(function: NodeWriter) -> NodeWriter:
        for name in names:
            assert name not in WRITERS, name
            WRITERS[name] = function
        return function

    return register


def _declared(name: str, value: Value) -> dict[str, Any]:
    """Return the annotations of a data input: its shape, with 0 for sizes that vary, and its element type."""
    number = type_number(name, value.dtype)
    shape = value.tensor.shape
    if shape is None:
        return {"__dtype__": number}
    return {"__shape__": tuple(size if is_static(size) else 0 for size in shape), "__dtype__": number}


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(str, value)) + ("," if len(value) == 1 else "") + ")"
    return str(value)
