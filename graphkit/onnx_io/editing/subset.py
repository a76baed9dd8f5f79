"""Cut a model: keep some of its nodes. Values that the other nodes computed become inputs or constants."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto
from onnx.defs import SchemaError, get_schema

from graphkit.ir.types import Type
from graphkit.onnx_io.editing.bodies import kinds
from graphkit.onnx_io.editing.constants import constant_nodes
from graphkit.onnx_io.editing.document import Document, Node, Scope
from graphkit.onnx_io.editing.observed import observe
from graphkit.onnx_io.editing.rules import Round
from graphkit.onnx_io.tensors import to_proto, type_to_proto


class Cutter:
    """Makes models of some of the nodes of a model. Nodes are counted from 0, in dependency order.

    Attributes:
        types: The types of values by name.
        inputs: The names of the inputs of the whole model.
    """

    def __init__(self, model: ModelProto, label: str = "model"):
        self.document = Document(model)
        constant_nodes(Round(self.document, {}))
        self.types: Mapping[str, Type] = observe(self.document, label)
        top = self.document.top
        self.inputs = {info.name: info for info in top.inputs}
        self._outputs = dict(zip(top.outputs, top.output_infos, strict=True))
        self._free = [node.free for node in top.nodes]
        self._captured = [{name for body in node.bodies.values() for name in _captured(body)} for node in top.nodes]

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.document.top.nodes)

    def operators(self, keep: Collection[int]) -> list[str]:
        """Return the operators of nodes, each followed by those in its subgraphs."""
        return kinds([self.document.top.nodes[i] for i in sorted(keep)])

    def computed(self) -> list[str]:
        """Return the names of all values that nodes compute, as far as their types are known."""
        return [name for node in self.document.top.nodes for name in node.outputs if name in self.types]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs of the whole model."""
        return list(self.document.top.outputs)

    def results(self, keep: Collection[int]) -> set[str]:
        """Return the names that nodes compute."""
        return {name for i in keep for name in self.document.top.nodes[i].outputs if name}

    def result(self, index: int) -> str:
        """Return the name of the first result of a node."""
        return self.document.top.nodes[index].outputs[0]

    def operand_count(self, index: int) -> int:
        """Return how many operands a node lists."""
        return len(self.document.top.nodes[index].inputs)

    def required_operands(self, index: int) -> int:
        """Return how many operands a node must list: those of its ONNX definition, and at least one."""
        proto = self.document.top.nodes[index].proto
        domain = _spelled(proto.domain)
        version = next((o.version for o in self.document.model.opset_import if _spelled(o.domain) == domain), 1)
        try:
            required = get_schema(proto.op_type, version, domain).min_input
        except SchemaError:  # an operator that ONNX does not define
            required = 1
        return max(1, required)

    def ancestors(self, name: str) -> tuple[int, ...]:
        """Return the nodes that a value depends on."""
        needed, found = {name}, []
        for index in reversed(range(self.count)):
            if not needed.isdisjoint(self.document.top.nodes[index].outputs):
                found.append(index)
                needed |= self._free[index]
        return tuple(reversed(found))

    def bypasses(self, index: int) -> list[str]:
        """Return the operands of a node that have the type of its only result, and can therefore replace it."""
        node = self.document.top.nodes[index]
        kind = self.types.get(node.outputs[0]) if sum(map(bool, node.outputs)) == 1 else None
        if kind is None:
            return []
        operands = dict.fromkeys(name for name in node.inputs if name and name not in self.document.initializers)
        return [name for name in operands if self.types.get(name) == kind]

    def cut_values(self, keep: Collection[int], replaced: Mapping[str, str]) -> list[str]:
        """Return the names that the kept nodes read and other nodes compute, in order."""
        nodes = self.document.top.nodes
        made = {name for i in keep for name in nodes[i].outputs}
        read = dict.fromkeys(_final(name, replaced) for i in sorted(keep) for name in sorted(self._free[i]))
        known = self.document.initializers
        return [name for name in read if name not in made and name not in known and name not in self.inputs]

    def model(
        self,
        keep: Collection[int],
        replaced: Mapping[str, str],
        constants: Mapping[str, np.ndarray],
        outputs: Sequence[str] | None,
        without: Collection[tuple[int, int]] = (),
    ) -> ModelProto | None:
        """Return the model of some nodes; None if there is none, or if a new input or output has no known type.

        Args:
            keep: Numbers of the nodes.
            replaced: Names that readers replace by other names, because the node that computes them is left out.
            constants: Values of names that become initialisers instead of inputs.
            outputs: Names of the outputs. None: the outputs of the whole model, and all values that no node reads.
            without: Operands that are left out, as pairs of node and place.
        """
        document = self.document
        nodes = [document.top.nodes[i] for i in sorted(keep)]
        table = {name: _final(name, replaced) for name in replaced}
        read = {table.get(name, name) for i in keep for name in self._free[i]}
        chosen = self._sinks(nodes, read) if outputs is None else list(outputs)
        cut = [name for name in self.cut_values(keep, replaced) if name not in constants]
        if not chosen or any(name not in self.types for name in (*cut, *chosen)):
            return None
        made = ModelProto()
        made.CopyFrom(document.model)
        made.ir_version = max(made.ir_version, 4)
        graph = made.graph
        graph.name = document.top.rest.name or "reduced"
        for i, node in zip(sorted(keep), nodes, strict=True):
            graph.node.append(node.written(table))
            for place in (place for index, place in without if index == i):
                del graph.node[-1].input[place:]
        if without:
            read = {table.get(name, name) for i in keep for name in self._captured[i]}
            read.update(name for node in graph.node for name in node.input)
        graph.initializer.extend(t for name, t in document.initializers.items() if name in read)
        graph.initializer.extend(to_proto(a, name) for name, a in constants.items() if name in read)
        graph.input.extend(info for name, info in self.inputs.items() if name in read)
        graph.input.extend(self._info(name) for name in cut)
        graph.output.extend(self._outputs.get(name) or self._info(name) for name in chosen)
        return made

    def _sinks(self, nodes: Sequence[Node], read: Collection[str]) -> list[str]:
        """The outputs of the whole model that the nodes compute, and the values that none of them reads."""
        names = [name for node in nodes for name in node.outputs if name]
        found = [name for name in names if name in self._outputs or name not in read]
        # Further results, such as the mask of Dropout, become outputs only if the first result is not one.
        kept = []
        for node in nodes:
            own = [name for name in node.outputs if name in found]
            final = [name for name in own if name in self._outputs]
            kept += final or ([] if any(name in read for name in node.outputs) else own[:1])
        return kept

    def _info(self, name: str) -> ValueInfoProto:
        return ValueInfoProto(name=name, type=type_to_proto(self.types[name]))


def digest_of(model: ModelProto) -> bytes:
    """Return a digest of a model that a Cutter made. For initialisers, it includes the names but not the data."""
    digest = hashlib.sha256()
    for node in model.graph.node:
        digest.update(node.SerializeToString(deterministic=True))
    for items in (model.graph.input, model.graph.output, model.graph.initializer):
        digest.update("\0".join(["", *(item.name for item in items), ""]).encode())
    return digest.digest()


def _captured(body: Scope) -> set[str]:
    """The names that a subgraph reads, and that are defined outside of it."""
    return Node(NodeProto(), [], [], {"body": body}).free


def _spelled(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _final(name: str, replaced: Mapping[str, str]) -> str:
    while name in replaced:
        name = replaced[name]
    return name
