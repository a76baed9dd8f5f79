"""Dynamic quantisation: activations get their scale in each run (DynamicQuantizeLinear), and products are integers."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto

from graphkit.onnx_io.editing.constants import Evaluate
from graphkit.onnx_io.editing.document import Node
from graphkit.onnx_io.quantise.editing import quantised_weight
from graphkit.onnx_io.quantise.layers import Choice, Layer
from graphkit.onnx_io.quantise.layerwise import LayerwiseQuantiser


class DynamicQuantiser(LayerwiseQuantiser):
    """Replaces MatMul, Gemm and Conv by MatMulInteger and ConvInteger. The model must have opset 11 or newer."""

    def __init__(self, model: ModelProto, evaluate: Evaluate, choice: Choice, *, per_channel: bool, label: str):
        super().__init__(model, evaluate, choice, per_channel=per_channel, label=label)
        # Numbers, scale and zero point of each quantised activation, by scope and name.
        self._activations: dict[tuple[int, str], list[str]] = {}
        self._weights: dict[tuple[str, int | None, bool, float], tuple[str, str, str]] = {}

    def _quantise(self, layer: Layer) -> None:
        nodes = self._nodes(layer)
        index = layer.scope.nodes.index(layer.node)
        layer.scope.nodes[index : index + 1] = nodes

    def _reason(self, layer: Layer) -> str:
        node = layer.node
        if layer.weight.dtype != np.float32:
            return f"its element type is {layer.weight.dtype}; DynamicQuantizeLinear takes float32"
        if node.kind == "ConvTranspose":
            return "there is no ConvTranspose of integers"
        if node.kind == "MatMul" and layer.weight.ndim == 1:
            return "its weight is a vector"
        if node.kind == "Gemm" and node.attribute("transA", 0):
            return "MatMulInteger has no transA"
        bias = node.input(2)
        fixed = not bias or bias in self.document.initializers
        if not fixed and (node.kind == "Conv" or node.attribute("beta", 1.0) != 1):
            return "its bias is not constant"
        return ""

    def _nodes(self, layer: Layer) -> list[Node]:
        """Return the nodes that compute the result of a layer."""
        node, document, editor = layer.node, self.document, self._editor
        before, (x, x_scale, x_zero) = self._activation(layer)
        w, w_scale, w_zero = self._weight(layer)
        result = node.outputs[0]
        fresh = document.fresh
        product = fresh(f"{result}_quantized")
        if node.kind == "Conv":
            inner = editor.node("ConvInteger", [x, w, x_zero, w_zero], [product])
            inner.proto.attribute.extend(node.proto.attribute)
        else:
            inner = editor.node("MatMulInteger", [x, w, x_zero, w_zero], [product])
        total, scale = fresh(f"{result}_cast"), fresh(f"{result}_scales")
        cast = editor.node("Cast", [product], [total], to=TensorProto.FLOAT)
        scales = editor.node("Mul", [x_scale, w_scale], [scale])
        bias = self._bias(layer)
        scaled = fresh(f"{result}_scaled") if bias else result
        nodes = [*before, inner, cast, scales, editor.node("Mul", [total, scale], [scaled])]
        if bias:
            nodes.append(editor.node("Add", [scaled, bias], [result]))
        nodes[-1].proto.name = node.proto.name or nodes[-1].proto.name
        return nodes

    def _activation(self, layer: Layer) -> tuple[list[Node], list[str]]:
        """Return new nodes, and the names of numbers, scale and zero point of the layer's input."""
        name = layer.node.inputs[0]
        key = (id(layer.scope), name)
        if key in self._activations:
            return [], self._activations[key]
        made = [self.document.fresh(f"{name}_{part}") for part in ("quantized", "scale", "zero_point")]
        self._activations[key] = made
        return [self._editor.node("DynamicQuantizeLinear", [name], made)], made

    def _weight(self, layer: Layer) -> tuple[str, str, str]:
        """Return the names of numbers, scale and zero point of the layer's weight."""
        node = layer.node
        turned = node.kind == "Gemm" and bool(node.attribute("transB", 0))
        factor = float(node.attribute("alpha", 1.0)) if node.kind == "Gemm" else 1.0
        key = (layer.name, layer.axis, turned, factor)
        if key not in self._weights:
            numbers, scale, axis = quantised_weight(layer, self._per_channel)
            if axis is not None and node.kind == "Conv":
                scale = scale.reshape(-1, *[1] * (layer.weight.ndim - 2))
            numbers = np.ascontiguousarray(numbers.T) if turned else numbers
            add = self.document.add
            self._weights[key] = (
                add(numbers, f"{layer.name}_quantized"),
                add((scale * factor).astype(np.float32), f"{layer.name}_scale"),
                add(np.zeros((), np.int8), f"{layer.name}_zero_point"),
            )
        return self._weights[key]

    def _bias(self, layer: Layer) -> str:
        """Return the name of what is added to the product; "" for nothing."""
        node = layer.node
        name = node.input(2)
        array = self.document.array(name) if name else None
        if array is None:
            return name
        if node.kind == "Conv":
            shape = (1, -1, *[1] * (layer.weight.ndim - 2))
            return self.document.add(array.reshape(shape), f"{name}_column")
        beta = float(node.attribute("beta", 1.0))
        return name if beta == 1 else self.document.add((array * beta).astype(array.dtype), f"{name}_scaled")
