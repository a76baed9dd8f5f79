"""Inputs that an ONNX file declares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from graphkit.ir.types import Type
from graphkit.onnx_io import validate
from graphkit.onnx_io.tensors import type_from_proto

if TYPE_CHECKING:
    from onnx import ModelProto


def declared_inputs(source: str | os.PathLike[str] | bytes | ModelProto) -> dict[str, Type]:
    """Return the types of a model's inputs that have no default, by name. Raises InvalidModel."""
    parsed = validate.read_model(source)
    graph = parsed.model.graph
    stored = {tensor.name for tensor in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}
    types = {
        entry.name: type_from_proto(entry.type, f"{parsed.label}: input {entry.name!r}")
        for entry in graph.input
        if entry.name not in stored
    }
    return {name: kind for name, kind in types.items() if kind is not None}
