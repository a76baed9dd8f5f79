"""Read ONNX files into messages that contain all of their data, and describe their content."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from graphkit.errors import InvalidModel, UsageError
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.tensors import to_array, to_proto
from graphkit.onnx_io.writing import EXTERNAL_ABOVE, UnwrittenModel, raw_bytes

# The type of ONNX models, for modules that do not import onnx.
Message: TypeAlias = ModelProto


def read_message(path: str | os.PathLike[str], external_root: str | os.PathLike[str] | None = None) -> Message:
    """Return the message of an ONNX file that graphkit has read before. Data in other files are moved into it.

    external_root: Another folder from which external data may be read.
    """
    try:
        model = onnx.load_model(os.fspath(path), load_external_data=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise InvalidModel(f"{path}: the file is damaged: {error}") from error
    places = os.path.abspath(path), os.path.realpath(path)
    external = ExternalData(tuple(dict.fromkeys(map(os.path.dirname, places))), external_root)
    for tensor in _tensors(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            array = to_array(tensor, f"{path}: tensor {tensor.name!r}", external)
            tensor.CopyFrom(to_proto(array, tensor.name))
    return model


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """All tensors of a graph, those in attributes and subgraphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.type == AttributeProto.GRAPH else []), *attribute.graphs):
                yield from _tensors(inner)


@dataclass(frozen=True)
class Contents:
    """Statistics of a model: nodes by operator, number of initialisers, and bytes. Subgraphs are included."""

    nodes: dict[str, int] = field(default_factory=dict)
    initializers: int = 0
    nbytes: int = 0

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return sum(self.nodes.values())


def contents(model: ModelProto) -> Contents:
    """Return what a model contains."""
    nodes: Counter[str] = Counter()
    initializers = 0
    stack = [model.graph]
    while stack:
        graph = stack.pop()
        initializers += len(graph.initializer)
        for node in graph.node:
            nodes[f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type] += 1
            for attribute in node.attribute:
                stack.extend([attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs)
    return Contents(dict(sorted(nodes.items())), initializers, _nbytes(model))


def _nbytes(model: ModelProto) -> int:
    """The bytes of a model and of its data. Protobuf itself cannot measure messages above 2 GiB."""
    if raw_bytes(model) <= EXTERNAL_ABOVE:
        return int(model.ByteSize())
    unwritten = UnwrittenModel.of(model)
    return int(unwritten.proto.ByteSize()) + unwritten.data_bytes
