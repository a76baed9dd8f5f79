"""Base of the three forms of quantisation: preparing a model, new nodes, and quantised weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto

from graphkit.ir.types import Type
from graphkit.onnx_io.editing import constants, products
from graphkit.onnx_io.editing.document import Document, Node, Scope
from graphkit.onnx_io.editing.observed import observe
from graphkit.onnx_io.editing.rules import Round
from graphkit.onnx_io.quantise.layers import Layer
from graphkit.onnx_io.quantise.scales import INT8, integers, weight_scales
from graphkit.onnx_io.tensors import type_to_proto

# Bytes that computed constants may add to a file.
_BUDGET = 1 << 20
FOLDS: tuple[Callable[[Round], None], ...] = (products.affine_products, products.biased_products)


def prepared(
    model: ModelProto, evaluate: constants.Evaluate, label: str, *, folds: Sequence[Callable[[Round], None]] = FOLDS
) -> tuple[Document, Mapping[str, Type]]:
    """Return a model to edit, and the types of its values.

    Constant nodes become initialisers, and values that only depend on initialisers are computed. Then
    the rules `folds` are applied: by default, batch normalisation is folded into the convolution or matrix product
    before it, and a bias after a matrix product becomes part of it. All other nodes stay.

    Args:
        model: The model.
        evaluate: Computes the outputs of a model without inputs.
        label: Name of the file, for errors.
        folds: See above. Empty: nothing is folded.
    """
    document = Document(model)
    constants.constant_nodes(Round(document, {}))
    round = Round(document, observe(document, label), _BUDGET)
    constants.fold(round, evaluate)
    document.sweep()
    if not folds:
        return document, observe(document, label) if round.changes else round.types
    round = Round(document, observe(document, label) if round.changes else round.types)
    for rule in folds:
        rule(round)
    document.sweep()
    return document, observe(document, label) if round.changes else round.types


def observing(document: Document, types: Mapping[str, Type], names: Sequence[str]) -> ModelProto:
    """Return the model with further outputs: these values."""
    made = document.written()
    given = {info.name for info in made.graph.output}
    for name in names:
        if name not in given:
            made.graph.output.append(ValueInfoProto(name=name, type=type_to_proto(types[name])))
    return made


class Editor:
    """Adds nodes and initialisers to a document. Names are new ones."""

    def __init__(self, document: Document):
        self.document = document
        self._names = {node.proto.name for scope in document.scopes for node in scope.nodes}

    def node(self, kind: str, inputs: list[str], outputs: list[str], *, domain: str = "", **attributes: Any) -> Node:
        """Return a new node, which is named after its first output."""
        proto = NodeProto(op_type=kind, domain=domain)
        name, count = f"{outputs[0]}_{kind}", 0
        while name in self._names:
            count += 1
            name = f"{outputs[0]}_{kind}_{count}"
        self._names.add(name)
        proto.name = name
        proto.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items())
        return Node(proto, inputs, outputs, {})

    def dequantised(
        self,
        name: str,
        numbers: np.ndarray,
        scale: np.ndarray,
        axis: int | None = None,
        *,
        zero: bool = True,
        **attributes: Any,
    ) -> Node:
        """Add quantised numbers and their scale; return the node that dequantises them.

        Args:
            name: Name that the new names resemble.
            numbers: The integers.
            scale: A scalar, or one scale for each index of `axis`.
            axis: See `scale`.
            zero: Whether to add a zero point, which is 0.
            attributes: Further attributes of the node.
        """
        document = self.document
        operands = [document.add(numbers, f"{name}_quantized"), document.add(scale, f"{name}_scale")]
        if zero:
            operands.append(document.add(np.zeros(scale.shape, numbers.dtype), f"{name}_zero_point"))
        if scale.ndim:
            attributes["axis"] = axis
        return self.node(
            "DequantizeLinear", operands, [document.fresh(f"{name}_DequantizeLinear_Output")], **attributes
        )


def quantised_weight(layer: Layer, per_channel: bool) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Return the int8 numbers of a weight, its scale, and the axis of the scale (None: a scalar)."""
    axis = layer.axis if per_channel else None
    scale = weight_scales(layer.weight, axis)
    return integers(layer.weight, scale, INT8, axis), scale, axis


def place_before(scope: Scope, node: Node, new: list[Node]) -> None:
    """Insert nodes before a node of a scope."""
    index = scope.nodes.index(node)
    scope.nodes[index:index] = new


def require_domain(model: ModelProto, domain: str, version: int) -> None:
    """Let a model import a domain of operators."""
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
