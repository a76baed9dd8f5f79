"""Weight-only quantisation: layers compute in float, and their weights are stored with 4 or 8 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import ModelProto

from graphkit.onnx_io.editing.constants import Evaluate
from graphkit.onnx_io.editing.document import Node
from graphkit.onnx_io.quantise.editing import place_before, quantised_weight, require_domain
from graphkit.onnx_io.quantise.layers import Choice, FloatWeight, Layer
from graphkit.onnx_io.quantise.layerwise import LayerwiseQuantiser
from graphkit.onnx_io.quantise.scales import in_blocks, packed

MICROSOFT = "com.microsoft"


class WeightQuantiser(LayerwiseQuantiser):
    """Quantises the weights of layers. Other arguments: as for LayerwiseQuantiser.

    Args:
        model: The model, of opset 13, or of opset 21 for blocks of standard operators.
        bits: 4 or 8.
        block: Terms that share a scale: MatMul and Gemm become MatMulNBits of com.microsoft. None: one scale for each
            channel or tensor, as int8, for all layers.
        standard: Whether blocks are dequantised by DequantizeLinear, and not by MatMulNBits.
        per_channel: Without blocks: whether each channel has a scale.
    """

    def __init__(
        self, model: ModelProto, evaluate: Evaluate, choice: Choice, *, bits: int, block: int | None, standard: bool,
        per_channel: bool, label: str,
    ):  # fmt: skip
        super().__init__(model, evaluate, choice, per_channel=per_channel, label=label, folds=False)
        self._bits, self._block, self._standard = bits, block, standard
        # Results of DequantizeLinear, and operands of MatMulNBits, by weight and axis.
        self._done: dict[tuple[str, int | None], str] = {}
        self._packed: dict[tuple[str, int | None], list[str]] = {}

    def _quantise(self, layer: Layer) -> None:
        if self._block is None:
            self._channels(layer)
        elif self._standard:
            self._blocked(layer)
        else:
            self._bits_product(layer)
            require_domain(self.document.model, MICROSOFT, 1)

    def _reason(self, layer: Layer) -> str:
        if self._block is None:
            return ""
        if layer.matrix is None:
            return "only MatMul and Gemm with a matrix as weight have weights in blocks"
        node = layer.node
        if self._standard or node.kind == "MatMul":
            return ""
        plain = not node.attribute("transA", 0) and node.attribute("alpha", 1.0) == 1
        if not plain or (node.input(2) and node.attribute("beta", 1.0) != 1):
            return "MatMulNBits has no alpha, beta or transA"
        return ""

    def _channels(self, layer: Layer) -> None:
        """Store int8 numbers, with a scale for each channel."""
        key = (layer.name, layer.axis)
        if key not in self._done:
            numbers, scale, axis = quantised_weight(layer, self._per_channel)
            node = self._editor.dequantised(layer.name, numbers, scale, axis)
            self._place(node)
            self._done[key] = node.outputs[0]
            self.floats[node.inputs[0]] = FloatWeight(layer.name, layer.weight)
        layer.node.inputs[1] = self._done[key]

    def _place(self, node: Node) -> None:
        """Put the dequantisation of a weight at the beginning of the top-level graph.

        ONNX Runtime 1.32 refuses a DequantizeLinear in a subgraph whose operands are initialisers of an outer graph.
        """
        self.document.top.nodes.insert(0, node)

    def _blocked(self, layer: Layer) -> None:
        """Store integers of 4 or 8 bits in blocks, which DequantizeLinear of opset 21 dequantises."""
        matrix, block = layer.matrix, self._block
        assert matrix is not None
        assert block is not None
        key = (layer.name, layer.axis)
        if key not in self._done:
            found = in_blocks(matrix, self._bits, block)
            kind = np.dtype(ml_dtypes.uint4) if self._bits == 4 else np.dtype(np.uint8)
            numbers = found.numbers.reshape(len(matrix), -1)[:, : matrix.shape[1]].astype(kind)
            arrays = [numbers, found.scales, found.zeros.astype(kind)]
            if layer.axis == 1:
                arrays = [np.ascontiguousarray(a.T) for a in arrays]
            add = self.document.add
            suffixes = ("quantized", "scale", "zero_point")
            operands = [add(a, f"{layer.name}_{s}") for a, s in zip(arrays, suffixes, strict=True)]
            result = self.document.fresh(f"{layer.name}_DequantizeLinear_Output")
            axis = 1 - (layer.axis or 0)
            node = self._editor.node("DequantizeLinear", operands, [result], axis=axis, block_size=block)
            self._place(node)
            self._done[key] = result
            self.floats[operands[0]] = FloatWeight(layer.name, layer.weight)
        layer.node.inputs[1] = self._done[key]

    def _bits_product(self, layer: Layer) -> None:
        """Replace the layer by MatMulNBits."""
        matrix, block = layer.matrix, self._block
        assert matrix is not None
        assert block is not None
        columns, terms = matrix.shape
        key = (layer.name, layer.axis)
        if key not in self._packed:
            found, add = in_blocks(matrix, self._bits, block), self.document.add
            self._packed[key] = [
                add(packed(found.numbers, self._bits), f"{layer.name}_Q{self._bits}"),
                add(found.scales, f"{layer.name}_scales"),
                add(packed(found.zeros, self._bits), f"{layer.name}_zero_points"),
            ]
        operands = [layer.node.inputs[0], *self._packed[key]]
        node, bias = layer.node, layer.node.input(2)
        result = self.document.fresh(f"{node.outputs[0]}_product") if bias else node.outputs[0]
        made = self._editor.node(
            "MatMulNBits", operands, [result], domain=MICROSOFT, K=terms, N=columns, bits=self._bits, block_size=block
        )
        if bias:
            # The sum is at the place of the Gemm, and has its name.
            node.proto.op_type = node.kind = "Add"
            del node.proto.attribute[:]
            place_before(layer.scope, node, [made])
            node.inputs = [result, bias]
            return
        made.proto.name = node.proto.name or made.proto.name
        layer.scope.nodes[layer.scope.nodes.index(node)] = made
