"""Write tensors outside the model file: on save, one aligned file beside the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

# Pages of files, which others map, begin at multiples of this; tensors smaller than it stay in the model.
ALIGNMENT = 4096


def tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    """Every initialiser, of subgraphs too. Tensors in attributes of Constant nodes are not initialisers."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from tensors_of(attribute.g)
            for subgraph in attribute.graphs:
                yield from tensors_of(subgraph)


def raw_bytes(model: ModelProto) -> int:
    """Bytes that the initialisers hold inside the model."""
    return sum(len(t.raw_data) for t in tensors_of(model.graph) if t.HasField("raw_data"))


class Externalised:
    """A copy of a model whose larger initialisers live in one data file, and the parts of that file in order.

    The file's name carries a digest of its content, so that replacing a model never pairs it with other weights.
    The data stay in the given model until they are written.
    """

    def __init__(self, model: ModelProto, stem: str):
        self.parts: list[tuple[int, TensorProto]] = []
        self.model = ModelProto()
        moved: list[tuple[TensorProto, TensorProto]] = []
        _copy_model(model, self.model, moved)
        digest = hashlib.sha256()
        position = 0
        ranges: list[tuple[int, int]] = []
        for source, _ in moved:
            raw = source.raw_data
            position = -(-position // ALIGNMENT) * ALIGNMENT
            self.parts.append((position, source))
            digest.update(f"{source.name}:{position}:".encode())
            digest.update(raw)
            ranges.append((position, len(raw)))
            position += len(raw)
        self.location = f"{stem}-{digest.hexdigest()[:16]}.data"
        for (_, tensor), (offset, length) in zip(moved, ranges, strict=True):
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", self.location), ("offset", str(offset)), ("length", str(length))):
                tensor.external_data.add(key=key, value=value)

    def chunks(self) -> Iterator[bytes]:
        """The content of the data file, padding included."""
        written = 0
        for offset, tensor in self.parts:
            if offset > written:
                yield b"\0" * (offset - written)
            raw = tensor.raw_data
            yield raw
            written = offset + len(raw)


def _copy_model(model: ModelProto, copy: ModelProto, moved: list[tuple[TensorProto, TensorProto]]) -> None:
    """Copy a model but for the data of larger initialisers, which `moved` lists with their copies.

    Field by field: protobuf copies a message by serialising it, which ends at 2 GiB.
    """
    _copy_fields(model, copy, without="graph")
    _copy_graph(model.graph, copy.graph, moved)


def _copy_graph(graph: GraphProto, copy: GraphProto, moved: list[tuple[TensorProto, TensorProto]]) -> None:
    _copy_fields(graph, copy, without="initializer")
    for tensor in graph.initializer:
        _copy_tensor(tensor, copy.initializer.add(), moved)
    for node, copied in zip(graph.node, copy.node, strict=True):
        for attribute, target in zip(node.attribute, copied.attribute, strict=True):
            subgraphs = [(attribute.g, target.g)] if attribute.type == AttributeProto.GRAPH else []
            for inner, inner_copy in (*subgraphs, *zip(attribute.graphs, target.graphs, strict=True)):
                inner_copy.Clear()
                _copy_graph(inner, inner_copy, moved)


def _copy_tensor(tensor: TensorProto, copy: TensorProto, moved: list[tuple[TensorProto, TensorProto]]) -> None:
    if not tensor.HasField("raw_data") or len(tensor.raw_data) < ALIGNMENT:
        copy.CopyFrom(tensor)
        return
    _copy_fields(tensor, copy, without="raw_data")
    moved.append((tensor, copy))


def _copy_fields(message: Any, copy: Any, without: str) -> None:
    for field, value in message.ListFields():
        if field.name == without:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field.name).extend(value)
        elif isinstance(value, Message):
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)


def previous_data_files(path: Path) -> list[Path]:
    """Data files of earlier saves of the model at `path`."""
    pattern = re.compile(re.escape(path.stem) + r"-[0-9a-f]{16}\.data")
    return [p for p in path.parent.iterdir() if pattern.fullmatch(p.name)] if path.parent.is_dir() else []
