"""Parts of an ONNX model as models of their own: some of its nodes, with the initialisers that they read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from graphkit.errors import InvalidModel
from graphkit.ir.types import SequenceType, TensorType, Type, dtype_of
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.scopes import RawNode, Reader, Region
from graphkit.onnx_io.tensors import to_array, to_proto, type_to_proto


@dataclass(frozen=True)
class Entry:
    """A node: its name, its operator, and the names of the values that it and its subgraphs read, and that it makes."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: Any


class Segments:
    """The nodes of an ONNX file or ModelProto in topological order. `segment` makes a model of some of them.

    External data are read when a segment needs them.
    """

    def __init__(self, source: str | os.PathLike[str] | ModelProto):
        if isinstance(source, ModelProto):
            self._model, folders = source, []
        else:
            self._model = onnx.load(os.fspath(source), load_external_data=False)
            folders = [Path(source).parent]
        self._external = ExternalData(folders)
        region = Reader(str(getattr(source, "name", source))[:80]).graph(self._model.graph)
        self._tensors = region.initializers
        self._constants = {node.outputs[0]: node for node in region.nodes if node.op_type == "Constant"}
        self.entries = [_entry(node) for node in region.nodes if node.op_type != "Constant"]
        self.stored = frozenset((*self._tensors, *region.sparse, *self._constants))
        self._sparse = region.sparse
        self.inputs = tuple(name for name, _ in region.inputs if name not in self.stored)
        self.outputs = tuple(name for name, _ in region.outputs)
        self.declared = _declared(region)

    def segment(self, entries: Sequence[Entry], given: Mapping[str, Any], wanted: Iterable[str]) -> ModelProto:
        """Return a model of these nodes. `given`: arrays (or lists of arrays) for its inputs. `wanted`: its outputs."""
        read = dict.fromkeys(name for entry in entries for name in entry.inputs if name in self.stored)
        made = {name for entry in entries for name in entry.outputs}
        passed = [name for name in wanted if name not in made and name in self.stored]
        # A branch that is not taken may not accept the shapes of this run.
        shaped = not any(attribute.HasField("g") for entry in entries for attribute in entry.proto.attribute)
        constants = [self._constants[n].proto for n in dict.fromkeys((*read, *passed)) if n in self._constants]
        graph = helper.make_graph(
            [*constants, *(entry.proto for entry in entries)],
            self._model.graph.name or "segment",
            [self._declaration(name, value, shaped) for name, value in given.items()],
            [ValueInfoProto(name=name) for name in wanted],
            [self._tensor(n) for n in dict.fromkeys((*read, *passed)) if n in self._tensors],
            sparse_initializer=[self._sparse[n] for n in read if n in self._sparse],
        )
        known = {name: self.declared[name] for name in wanted if name in self.declared}
        for output in graph.output:
            if output.name in known:
                output.type.CopyFrom(known[output.name])
        model = helper.make_model(graph, opset_imports=self._model.opset_import, functions=self._model.functions)
        model.ir_version = self._model.ir_version
        return model

    def branch(self, entry: Entry, key: str, given: Mapping[str, Any]) -> ModelProto:
        """Return a branch of an If as a model. `given`: arrays for the outer values that it may read."""
        graph = onnx.GraphProto()
        graph.CopyFrom(next(attribute.g for attribute in entry.proto.attribute if attribute.name == key))
        outer = [name for name in entry.inputs[1:] if name]
        graph.input.extend(self._declaration(name, given[name], True) for name in outer if name not in self.stored)
        graph.initializer.extend(self._tensor(name) for name in outer if name in self._tensors)
        nodes = [*(self._constants[n].proto for n in outer if n in self._constants), *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        model = helper.make_model(graph, opset_imports=self._model.opset_import, functions=self._model.functions)
        model.ir_version = self._model.ir_version
        return model

    def stored_array(self, name: str) -> Any:
        """Return the array of an initialiser or of a Constant node; None if it is not a dense tensor."""
        if name in self._tensors:
            return to_array(self._tensors[name], f"initializer {name!r}", self._external)
        for attribute in self._constants[name].proto.attribute if name in self._constants else ():
            if attribute.name == "value":
                return to_array(attribute.t, f"constant {name!r}", self._external)
        return None

    def _declaration(self, name: str, value: Any, shaped: bool) -> ValueInfoProto:
        if name in self.declared:
            return helper.make_value_info(name, self.declared[name])
        kind = _type_of(name, value)
        if not shaped and isinstance(kind, TensorType):
            kind = TensorType(kind.dtype, None)
        return helper.make_value_info(name, type_to_proto(kind))

    def _tensor(self, name: str) -> TensorProto:
        tensor = self._tensors[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            return tensor
        return to_proto(to_array(tensor, f"initializer {name!r}", self._external), name)


def _entry(node: RawNode) -> Entry:
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    first = next(filter(None, node.outputs), "")
    needs = (*node.inputs, *(name for name in dict.fromkeys(node.needs) if name not in node.inputs))
    return Entry(node.name or first, operator, needs, tuple(filter(None, node.outputs)), node.proto)


def _declared(region: Region) -> dict[str, Any]:
    """The declared types of sequences and optionals, which ONNX Runtime does not infer in every case."""
    found = {**region.declared, **dict(region.inputs), **dict(region.outputs)}
    return {n: kind for n, kind in found.items() if kind is not None and kind.WhichOneof("value") != "tensor_type"}


def _type_of(name: str, value: Any) -> Type:
    if isinstance(value, (list, tuple)):
        if not value:
            raise InvalidModel(f"{name!r} is an empty sequence: its element type is not known")
        first = value[0]
        return SequenceType(TensorType(dtype_of(first.dtype), [f"{name}_{i}" for i in range(first.ndim)]))
    if not hasattr(value, "dtype"):
        raise InvalidModel(f"{name!r} is neither a tensor nor a sequence: a part of a model cannot read it")
    return TensorType(dtype_of(value.dtype), value.shape)
