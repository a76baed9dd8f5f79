"""Which weights of an ONNX model are pruned, and which of their elements become 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.magnitudes import Pattern, in_groups, magnitude_masks, wide
from graphkit.onnx_io.editing import constants
from graphkit.onnx_io.editing.document import Document, Node
from graphkit.onnx_io.editing.observed import observe
from graphkit.onnx_io.editing.rules import Round
from graphkit.onnx_io.quantise.layers import Choice, Kept, Layer, find_layers, name_of
from graphkit.text import quantity


@dataclass(frozen=True)
class PrunedWeight:
    """A weight that was pruned.

    Attributes:
        name: Name of the weight.
        layers: Names of the nodes that read it.
        operator: The operator of these nodes.
        size: Number of elements.
        zeros_before: Number of zeros before pruning.
        zeros: Number of zeros after pruning.
    """

    name: str
    layers: tuple[str, ...]
    operator: str
    size: int
    zeros_before: int
    zeros: int


class Pruner:
    """Prunes the weights of Conv, ConvTranspose, Gemm and MatMul.

    Args:
        model: The model. It is not changed.
        choice: Which layers to prune.
        label: Name of the file, for errors.

    Attributes:
        weights: The weights that can be pruned, by name.
        kept: Layers that are not pruned: name, operator and reason.
    """

    def __init__(self, model: ModelProto, choice: Choice, label: str):
        self._document = Document(model)
        constants.constant_nodes(Round(self._document, {}))
        found = find_layers(self._document, observe(self._document, label), choice)
        found.found += _behind_transposes(self._document, found.products)
        found.keep_products()
        self.kept: list[Kept] = found.kept
        self.weights: dict[str, list[Layer]] = {}
        for layer in found.found:
            self.weights.setdefault(layer.name, []).append(layer)
        self._leave_out(self._other_reader)

    def _leave_out(self, reason: Callable[[list[Layer]], str]) -> None:
        """Keep the weights for which `reason`, called with their layers, returns a text."""
        for name, layers in list(self.weights.items()):
            if text := reason(layers):
                del self.weights[name]
                self.kept += [Kept(name_of(layer.node), layer.node.kind, text) for layer in layers]

    def _other_reader(self, layers: list[Layer]) -> str:
        """Return what else reads the weight, or its transpose; "" if nothing does."""
        name = layers[0].name
        nodes = {layer.node for layer in layers}
        transposes = {layer.transpose for layer in layers if layer.transpose is not None}
        reads = {name: {*transposes, *(layer.node for layer in layers if layer.transpose is None)}}
        reads |= {transpose.outputs[0]: nodes for transpose in transposes}
        for value, known in reads.items():
            if self._document.uses[value] == sum(node.inputs.count(value) for node in known):
                continue
            for scope in self._document.scopes:
                for node in scope.nodes:
                    if value in node.inputs and node not in known:
                        return f"its weight {name!r} is also read by {name_of(node)!r} ({node.kind})"
            return f"its weight {name!r} is also an output"
        return ""

    def masks(self, sparsity: float, *, globally: bool) -> dict[str, np.ndarray]:
        """Return masks by weight: False for the weights of the smallest magnitudes.

        sparsity: their share. globally: whether this is a share of all weights together, or of each weight.
        """
        arrays = {name: layers[0].weight for name, layers in self.weights.items()}
        return magnitude_masks(arrays, sparsity, globally=globally)

    def pattern_masks(self, pattern: Pattern) -> dict[str, np.ndarray]:
        """Return masks by weight for N:M sparsity. Groups are consecutive along the axis that the layer sums over.

        Weights without whole groups become `kept`.
        """
        self._leave_out(lambda layers: _pattern_reason(layers, pattern))
        return {
            name: in_groups(wide(layers[0].weight), pattern, _summed_axis(layers[0]))
            for name, layers in self.weights.items()
        }

    def write(self, masks: Mapping[str, np.ndarray]) -> tuple[ModelProto, tuple[PrunedWeight, ...]]:
        """Return the model with zeros where masks are False, and the zeros of each weight."""
        found = []
        for name, mask in masks.items():
            layers = self.weights[name]
            before = layers[0].weight
            new = np.where(mask, before, before.dtype.type(0))
            self._document.put(new, name)
            nodes = tuple(name_of(layer.node) for layer in layers)
            zeros = [int(a.size - np.count_nonzero(a)) for a in (before, new)]
            found.append(PrunedWeight(name, nodes, layers[0].node.kind, before.size, *zeros))
        return self._document.written(), tuple(found)


def _behind_transposes(document: Document, products: list[Node]) -> list[Layer]:
    """Remove the products with a transposed weight from `products`, and return them as layers."""
    makers = {name: node for scope in document.scopes for node in scope.nodes for name in node.outputs if name}
    computed, found = set(products), []
    for scope in document.scopes:
        for node in scope.nodes:
            maker = makers.get(node.input(1)) if node in computed else None
            if maker is None or maker.kind != "Transpose" or document.array(node.inputs[0]) is not None:
                continue
            weight = document.array(maker.inputs[0])
            if weight is not None and weight.ndim == 2 and weight.size and np.isfinite(weight).all():
                found.append(Layer(scope, node, maker.inputs[0], weight, 0, maker))
    taken = {layer.node for layer in found}
    products[:] = [node for node in products if node not in taken]
    return found


def _summed_axis(layer: Layer) -> int:
    """Return the axis of a weight that the layer sums over: the input channels of a convolution."""
    match layer.node.kind:
        case "Conv":
            return 1
        case "ConvTranspose":
            return 0
        case "Gemm":
            return 1 if layer.node.attribute("transB", 0) else 0
    if layer.transpose is not None:
        return 1
    return max(layer.weight.ndim - 2, 0)


def _pattern_reason(layers: Sequence[Layer], pattern: Pattern) -> str:
    axes = {_summed_axis(layer) for layer in layers}
    if len(axes) > 1:
        return f"its weight {layers[0].name!r} is summed over other axes in another layer"
    for layer in layers:
        size = int(layer.weight.shape[axes.copy().pop()])
        if layer.node.kind == "ConvTranspose":
            size //= int(layer.node.attribute("group", 1))
        if size % pattern.group:
            return f"it sums over {quantity(size, 'input')}, which is not a multiple of {pattern.group}"
    return ""


def with_arrays(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> ModelProto:
    """Return a model with new arrays for initialisers of the top-level graph.

    Raises UsageError if there is no such initialiser.
    """
    document = Document(model)
    for name, array in arrays.items():
        if name not in document.initializers:
            raise UsageError(f"the model has no initialiser {name!r}{did_you_mean(name, document.initializers)}")
        document.put(array, name)
    return document.written()
