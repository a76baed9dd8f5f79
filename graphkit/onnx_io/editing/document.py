"""An ONNX model as scopes of editable nodes, in which every name is defined once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphkit.errors import UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.scopes import GRADIENT
from graphkit.onnx_io.tensors import dtype_of_code, packed_nbytes, to_array, to_proto

# Older files list every initialiser as a graph input. From this version on, they need not.
_IR_VERSION = 4


class Node:
    """A node. `inputs` and `outputs` are lists of names, and `bodies` its subgraphs by attribute.

    `kind` is the operator, with its domain unless that is the standard one.
    """

    __slots__ = ("bodies", "inputs", "kind", "outputs", "proto")

    def __init__(self, proto: NodeProto, inputs: Iterable[str], outputs: Iterable[str], bodies: Mapping[str, Scope]):
        self.proto = proto
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.bodies = dict(bodies)
        self.kind = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or `default`."""
        found = next((a for a in self.proto.attribute if a.name == name), None)
        return default if found is None else onnx.helper.get_attribute_value(found)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute; None removes it."""
        kept = [a for a in self.proto.attribute if a.name != name]
        if value is not None:
            kept.append(onnx.helper.make_attribute(name, value))
        kept = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del self.proto.attribute[:]
        self.proto.attribute.extend(kept)

    def input(self, index: int) -> str:
        """Return the name of an operand; "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def free(self) -> set[str]:
        """The names that the node and its subgraphs read, and that are defined outside of the node."""
        found = set(filter(None, self.inputs))
        for body in self.bodies.values():
            own = {info.name for info in body.inputs} | {name for node in body.nodes for name in node.outputs}
            read = set(body.outputs).union(*(node.free for node in body.nodes))
            found |= read - own
        return found

    def written(self, table: Mapping[str, str] = {}) -> NodeProto:
        """Return the node as a message. table: names that it and its subgraphs read, and what they read instead."""
        made = NodeProto()
        made.CopyFrom(self.proto)
        made.ClearField("input")
        made.ClearField("output")
        made.input.extend(table.get(name, name) for name in self.inputs)
        made.output.extend(self.outputs)
        for name, body in self.bodies.items():
            made.attribute.append(AttributeProto(name=name, type=AttributeProto.GRAPH, g=body.written(table)))
        return made


class Scope:
    """A graph or subgraph: `inputs` as messages, nodes in dependency order, names of outputs.

    `rest` holds all other fields of the message.
    """

    __slots__ = ("inputs", "is_top", "nodes", "output_infos", "outputs", "rest")

    def __init__(self, rest: GraphProto, is_top: bool):
        self.rest = rest
        self.is_top = is_top
        self.inputs: list[ValueInfoProto] = []
        self.nodes: list[Node] = []
        self.outputs: list[str] = []
        self.output_infos: list[ValueInfoProto] = []

    def written(self, table: Mapping[str, str] = {}) -> GraphProto:
        """Return the scope as a message, without initialisers. table: see `Node.written`."""
        made = GraphProto()
        made.CopyFrom(self.rest)
        made.input.extend(self.inputs)
        made.node.extend(node.written(table) for node in self.nodes)
        for name, info in zip(self.outputs, self.output_infos, strict=True):
            added = made.output.add()
            added.CopyFrom(info)
            added.name = table.get(name, name)
        known = {name for node in self.nodes for name in node.outputs}
        infos = [info for info in made.value_info if info.name in known]
        infos = [ValueInfoProto.FromString(info.SerializeToString()) for info in infos]
        del made.value_info[:]
        made.value_info.extend(infos)
        return made


class Document:
    """A model that is edited in place. Initialisers of subgraphs are moved to the model's graph.

    The given message is not changed. An initialiser that is also a graph input becomes a constant.

    Raises:
        UnsupportedError: The model contains training information or a Gradient node, whose attributes name values.
    """

    def __init__(self, model: ModelProto):
        if model.training_info:
            raise UnsupportedError("a model with training information (training_info) cannot be edited")
        self._taken: set[str] = set()
        self._counter = 0
        self.initializers: dict[str, TensorProto] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self.model = ModelProto()
        for field, value in model.ListFields():
            if field.name != "graph":
                _copy(self.model, field.name, value)
        self.top = self._scope(model.graph, {}, True)
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)

    # --- reading ---------------------------------------------------------------------------------

    def _scope(self, graph: GraphProto, outer: Mapping[str, str], is_top: bool) -> Scope:
        rest = GraphProto()
        for field, value in graph.ListFields():
            if field.name not in ("node", "initializer", "input", "output"):
                _copy(rest, field.name, value)
        scope = Scope(rest, is_top)
        names = dict(outer)
        constants = {t.name for t in graph.initializer}
        for tensor in graph.initializer:
            name = names[tensor.name] = self.fresh(tensor.name)
            self.initializers[name] = tensor
            if name != tensor.name:
                self.initializers[name] = _renamed(tensor, name)
        for sparse in graph.sparse_initializer:
            names[sparse.values.name] = self.fresh(sparse.values.name)
            if names[sparse.values.name] != sparse.values.name:
                raise UnsupportedError(f"the sparse initialiser {sparse.values.name!r} has the name of another value")
        for info in graph.input:
            if info.name not in constants:
                name = names[info.name] = self.fresh(info.name)
                scope.inputs.append(_renamed(info, name))
        for proto in _sorted(graph):
            scope.nodes.append(self._node(proto, names))
        for info in graph.output:
            scope.outputs.append(names.get(info.name, info.name))
            scope.output_infos.append(info)
        return scope

    def _node(self, proto: NodeProto, names: dict[str, str]) -> Node:
        if (proto.domain, proto.op_type) == GRADIENT:
            raise UnsupportedError(
                f"node {proto.name!r} (Gradient): its attributes name values, so it cannot be edited"
            )
        own = NodeProto()
        bodies = {}
        for attribute in proto.attribute:
            if attribute.type == AttributeProto.GRAPH:
                bodies[attribute.name] = self._scope(attribute.g, names, False)
            elif attribute.type == AttributeProto.GRAPHS:
                raise UnsupportedError(f"node {proto.name!r} ({proto.op_type}): lists of subgraphs are not edited")
            else:
                own.attribute.append(attribute)
        for field, value in proto.ListFields():
            if field.name not in ("attribute", "input", "output"):
                _copy(own, field.name, value)
        inputs = [names.get(name, name) for name in proto.input]
        outputs = []
        for name in proto.output:
            if name:
                names[name] = self.fresh(name)
            outputs.append(names[name] if name else "")
        return Node(own, inputs, outputs, bodies)

    def fresh(self, hint: str) -> str:
        """Return an unused name, which resembles `hint` or is equal to it."""
        name = hint
        while name in self._taken:
            self._counter += 1
            name = f"{hint}_{self._counter}"
        self._taken.add(name)
        return name

    @property
    def scopes(self) -> Iterator[Scope]:
        """All scopes, each after the scope that contains it."""
        stack = [self.top]
        while stack:
            scope = stack.pop()
            yield scope
            stack.extend(body for node in scope.nodes for body in node.bodies.values())

    @property
    def uses(self) -> Counter[str]:
        """How often each name is read: by nodes, and as an output of a scope."""
        found: Counter[str] = Counter()
        for scope in self.scopes:
            found.update(scope.outputs)
            for node in scope.nodes:
                found.update(filter(None, node.inputs))
        return found

    # --- constants -------------------------------------------------------------------------------

    def array(self, name: str) -> np.ndarray | None:
        """Return the array of an initialiser; None for any other name."""
        if name not in self.initializers:
            return None
        if name not in self._arrays:
            self._arrays[name] = to_array(self.initializers[name], f"initializer {name!r}")
        return self._arrays[name]

    def nbytes(self, name: str) -> int:
        """Return the bytes of an initialiser in a file."""
        tensor = self.initializers[name]
        dtype = dtype_of_code(tensor.data_type)
        if dtype is DType.STRING:
            return sum(map(len, tensor.string_data))
        return packed_nbytes(dtype, int(np.prod(tensor.dims, dtype=object)))

    def dims(self, name: str) -> tuple[int, ...]:
        """Return the shape of an initialiser."""
        return tuple(self.initializers[name].dims)

    def add(self, value: np.ndarray | TensorProto, name: str) -> str:
        """Add an initialiser under a new name that resembles `name`; return the name."""
        name = self.fresh(name)
        self.put(value, name)
        return name

    def put(self, value: np.ndarray | TensorProto, name: str) -> None:
        """Add an initialiser under the name of a value that no node computes any longer."""
        self.initializers[name] = _renamed(value, name) if isinstance(value, TensorProto) else to_proto(value, name)

    # --- editing ---------------------------------------------------------------------------------

    def rename(self, table: Mapping[str, str]) -> None:
        """Let all readers of a key of `table` read its value instead. Chains of replacements are followed."""
        if not table:
            return

        def final(name: str) -> str:
            while name in table:
                name = table[name]
            return name

        for scope in self.scopes:
            scope.outputs = [final(name) for name in scope.outputs]
            for node in scope.nodes:
                node.inputs = [final(name) if name in table else name for name in node.inputs]

    def sweep(self) -> int:
        """Remove nodes and initialisers that no output depends on. Return the number of removed nodes."""
        removed = 0
        needed: set[str] = set()

        def visit(scope: Scope) -> None:
            nonlocal removed
            needed.update(scope.outputs)
            kept = []
            for node in reversed(scope.nodes):
                if not any(name in needed for name in node.outputs):
                    removed += 1
                    continue
                kept.append(node)
                needed.update(filter(None, node.inputs))
                for body in node.bodies.values():
                    visit(body)
            scope.nodes = kept[::-1]

        visit(self.top)
        self.initializers = {name: tensor for name, tensor in self.initializers.items() if name in needed}
        self._arrays = {name: array for name, array in self._arrays.items() if name in needed}
        return removed

    def written(self, keeps: Callable[[str], bool] = lambda name: True) -> ModelProto:
        """Return the model as a message. keeps: which initialisers become initialisers; others become inputs."""
        made = ModelProto()
        for field, value in self.model.ListFields():
            _copy(made, field.name, value)
        made.graph.CopyFrom(self.top.written())
        made.ir_version = max(made.ir_version, _IR_VERSION)
        for name, tensor in self.initializers.items():
            if keeps(name):
                made.graph.initializer.append(tensor)
            else:
                shape = list(tensor.dims)
                made.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, shape))
        return made

    @property
    def node_count(self) -> int:
        """The number of nodes, those of subgraphs included."""
        return sum(len(scope.nodes) for scope in self.scopes)


def _copy(message: Any, field: str, value: Any) -> None:
    if hasattr(value, "extend"):
        getattr(message, field).extend(value)
    elif hasattr(value, "CopyFrom"):
        getattr(message, field).CopyFrom(value)
    else:
        setattr(message, field, value)


def _renamed(message: Any, name: str) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.name = name
    return copy


def _sorted(graph: GraphProto) -> list[NodeProto]:
    """Return the nodes in dependency order; in the order of the file if that is one."""
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    order: list[int] = []
    done: set[int] = set()
    for start in range(len(graph.node)):
        stack = [start]
        while stack:
            index = stack[-1]
            needed = [
                producers[name] for name in _free(graph.node[index])
                if name in producers and producers[name] not in done and producers[name] != index
            ] if index not in done else []  # fmt: skip
            if needed:
                stack.extend(needed)
                continue
            stack.pop()
            if index not in done:
                done.add(index)
                order.append(index)
    return [graph.node[i] for i in order]


def _free(node: NodeProto) -> Iterator[str]:
    """Names that a node reads. Names that its subgraphs define themselves may be among them."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            own = {name for inner in attribute.g.node for name in inner.output}
            own |= {info.name for info in attribute.g.input} | {t.name for t in attribute.g.initializer}
            for inner in attribute.g.node:
                yield from (name for name in _free(inner) if name not in own)
            yield from (info.name for info in attribute.g.output if info.name not in own)
