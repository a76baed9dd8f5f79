"""Run any part of a model in one of the engines, with chosen values as its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphkit.checks.sides import Side
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import TensorType, dtype_of, type_of_array
from graphkit.model import Model
from graphkit.onnx_io.segments import Segments
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.bind import bind


@dataclass(frozen=True)
class Step:
    """A node of a model: its name and operator, and the names of the values that it reads and makes."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Trace(Protocol):
    """A model in one engine. Values are known by their names.

    steps: its nodes in topological order, without constants. stored: names of parameters and constants, which parts of
    the model contain; they are never inputs of a part. outputs: names of the values that the model returns.
    """

    steps: list[Step]
    stored: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, steps: Sequence[int], given: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
        """Run the nodes with these numbers on `given`, and return the values `wanted`."""

    def part(self, steps: Sequence[int], given: Mapping[str, Any], wanted: Sequence[str]) -> Any:
        """Return a Model or ModelProto of the nodes with these numbers."""

    def branch(self, step: int, key: str, given: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
        """Return a branch of an If as a Model or ModelProto, and the outer value of each of its inputs.

        given: arrays of the outer values.
        """

    def stored_array(self, name: str) -> Any:
        """Return a parameter or constant; None if it is not a tensor."""


class GraphTrace:
    """A model in graphkit. Its shapes are those that the arrays `feeds` give."""

    def __init__(self, model: Model, feeds: Mapping[str, Any], threads: int | None = None, device: str = "cpu"):
        self._model, self._threads, self._device = model, threads, device
        known = {n: a.shape for n, a in feeds.items() if isinstance(a, np.ndarray)}
        self._graph = bind(model.graph, known)
        names = self._graph.name_of
        self._nodes = [node for node in self._graph.nodes if not isinstance(node.op, Constant)]
        self._values = {names(value): value for value in self._graph.values}
        self.steps = [
            Step(
                self._label(node), _operator(node.op),
                tuple("" if v is None else names(v) for v in node.inputs), tuple(map(names, node.outputs)),
            )
            for node in self._nodes
        ]  # fmt: skip
        self.stored = frozenset(
            name for name, v in self._values.items()
            if (v.node is None and v.role != "data") or (v.node is not None and isinstance(v.node.op, Constant))
        )  # fmt: skip
        self.inputs = model.inputs
        self.outputs = tuple(map(names, self._graph.outputs))

    def _label(self, node: Node) -> str:
        """The name of a node, else that of its first result, as ONNX files without names of nodes need it."""
        named = next((v.name for v in node.outputs if v.name), "")
        return node.name or named or self._graph.node_name(node)

    def nbytes(self, name: str) -> int | None:
        """The size of a value; None if it is not known before a run."""
        kind = self._values[name].type if name in self._values else None
        return kind.nbytes if isinstance(kind, TensorType) and kind.is_static else None

    def run(self, steps: Sequence[int], given: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
        return self.part(steps, given, wanted).compile(device=self._device, threads=self._threads).run(given)

    def part(self, steps: Sequence[int], given: Mapping[str, Any], wanted: Sequence[str]) -> Model:
        table: dict[Value, Value] = {}
        inputs: dict[Value, None] = {}
        with context.detached():
            for name, array in given.items():
                table[self._values[name]] = self._input(name, array)
                inputs[table[self._values[name]]] = None
            for i in steps:
                node = self._nodes[i]
                made = node.rebuilt([None if v is None else table.get(v, v) for v in node.inputs])
                table.update(zip(node.outputs, made.outputs, strict=True))
        outputs = [table.get(self._values[name], self._values[name]) for name in wanted]
        read = (v for i in steps for v in self._nodes[i].inputs)
        stored = dict.fromkeys(v for v in (*read, *outputs) if v is not None and v.node is None and v.role != "data")
        graph = Graph([*inputs, *stored], outputs, name=self._graph.name, output_names=wanted)
        params = {graph.name_of(v): self._model.params.entry(self._graph.name_of(v)) for v in stored}
        return Model.from_graph(graph, params)

    def branch(self, step: int, key: str, given: Mapping[str, Any]) -> tuple[Model, dict[str, str]]:
        """Return a branch of an If as a model, and the outer value of each of its inputs."""
        node = self._nodes[step]
        graph = node.op.subgraphs()[key]
        outer = [self._graph.name_of(value) for value in node.inputs[1:] if value is not None]
        return Model.from_graph(graph, {}), dict(zip(graph.input_names, outer, strict=True))

    def _input(self, name: str, array: Any) -> Value:
        kind = self._values[name].type
        if isinstance(array, np.ndarray):
            # Sizes that shape inference knows in the whole model stay known in the part.
            knows = isinstance(kind, TensorType) and kind.value is not None
            kind = type_of_array(array) if knows else TensorType(dtype_of(array.dtype), array.shape)
        return Value(kind, name)

    def stored_array(self, name: str) -> Any:
        value = self._values[name]
        if value.node is None:
            return np.asarray(self._model.params[name])
        found = next((item for item in value.node.op.attributes().values() if isinstance(item, Tensor)), None)
        return None if found is None else np.asarray(found.array)


class OnnxTrace:
    """A model in ONNX Runtime."""

    def __init__(self, source: Any, threads: int | None = None):
        self._segments = Segments(source)
        self._threads = threads
        self.steps = [Step(e.name, e.operator, e.inputs, e.outputs) for e in self._segments.entries]
        self.stored = self._segments.stored
        self.inputs, self.outputs = self._segments.inputs, self._segments.outputs

    def run(self, steps: Sequence[int], given: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
        from graphkit.onnx_io.runtime_process import running

        with running(self.part(steps, given, wanted), given, self._threads) as pending:
            return dict(zip(wanted, pending.results().values(), strict=True))

    def part(self, steps: Sequence[int], given: Mapping[str, Any], wanted: Sequence[str]) -> Any:
        return self._segments.segment([self._segments.entries[i] for i in steps], given, wanted)

    def branch(self, step: int, key: str, given: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
        """Return a branch of an If as a ModelProto, and the outer value of each of its inputs."""
        proto = self._segments.branch(self._segments.entries[step], key, given)
        return proto, {value.name: value.name for value in proto.graph.input}

    def stored_array(self, name: str) -> Any:
        return self._segments.stored_array(name)


def trace_of(side: Side, feeds: Mapping[str, Any]) -> GraphTrace | OnnxTrace:
    """Return the trace of a side for inputs with the shapes of `feeds`."""
    if side.engine == "graphkit":
        return GraphTrace(side.model, feeds, side.threads, side.device)
    return OnnxTrace(side.file, side.threads)


def _operator(op: Any) -> str:
    return f"{op.domain}.{op.name}" if op.domain else str(op.name)
