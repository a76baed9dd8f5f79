"""Types of all values of a model, by the names of the file."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto

from graphkit.ir import context
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, Type, same_type
from graphkit.onnx_io.building import Differentiate, Names, Setting
from graphkit.onnx_io.editing.document import Document
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.importer import Builder
from graphkit.onnx_io.scopes import RawNode


class _Recorder(Builder):
    """Builds a model, and records the type of each value under its name."""

    def __init__(self, model: ModelProto, label: str, differentiate: Differentiate | None = None):
        super().__init__(model, label, ExternalData(), None, differentiate)
        self.types: dict[str, Type | None] = {}

    def node(self, raw: RawNode, names: Names, setting: Setting) -> None:
        super().node(raw, names, setting)
        if setting.calls:  # a local name of a function
            return
        for name in filter(None, raw.outputs):
            found = names.output(name).type
            # A body that is built several times may get several types. Then nothing is known.
            first = self.types.setdefault(name, found)
            if first is not None and not same_type(first, found):
                self.types[name] = None


def observe(document: Document, label: str = "model") -> dict[str, Type]:
    """Return the inferred types of inputs, initialisers and node outputs by name. Names of unknown type are left out.

    Larger initialisers are not read: their elements do not determine types.
    """
    uses_values = {name for scope in document.scopes for node in scope.nodes if node.bodies for name in node.inputs}
    proto = document.written(lambda name: document.nbytes(name) <= 8 * MAX_KNOWN_ELEMENTS or name in uses_values)
    recorder = _Recorder(proto, label)
    with context.detached():
        built: Any = recorder.build()
    found = {name: kind for name, kind in recorder.types.items() if kind is not None}
    for value in built.graph.inputs:
        found.setdefault(value.name, value.type)
    return found
