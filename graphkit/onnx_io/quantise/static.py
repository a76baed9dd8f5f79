"""Static quantisation in QDQ form: QuantizeLinear and DequantizeLinear around operators, with calibrated scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto

from graphkit.ir.types import TensorType
from graphkit.onnx_io.editing.constants import Evaluate
from graphkit.onnx_io.editing.document import Node
from graphkit.onnx_io.quantise.editing import Editor, observing, place_before, prepared
from graphkit.onnx_io.quantise.layers import Choice, FloatWeight, Kept, Layer, Layers, find_layers, name_of
from graphkit.onnx_io.quantise.scales import (
    INT8,
    Grid,
    Parameters,
    Range,
    bias_integers,
    fitting_bias,
    integers,
    parameters,
    weight_scales,
)
from graphkit.onnx_io.quantise.selection import Selection


class StaticQuantiser:
    """Quantises a model to QDQ form, as ONNX Runtime's `quantize_static` does.

    Layers of subgraphs stay in float, because calibration only observes values of the top-level graph.

    Args:
        model: The model, of opset 13 or newer; 19 for float16.
        evaluate: Computes the outputs of a model without inputs.
        choice: Which layers and nodes to quantise.
        grid: The integers of activations.
        per_channel: Whether each output channel of a weight has a scale.
        label: Name of the file, for errors.

    Attributes:
        layers: The layers that are quantised, and those that are not.
        observed: Names of the values whose ranges `write` needs.
        floats: After `write`: the float weight of each initialiser of quantised weights, by the initialiser's name.
    """

    def __init__(
        self, model: ModelProto, evaluate: Evaluate, choice: Choice, *, grid: Grid, per_channel: bool, label: str
    ):
        self.document, self._types = prepared(model, evaluate, label)
        self._editor = Editor(self.document)
        self._grid, self._per_channel = grid, per_channel
        self.layers: Layers = self._top_level(find_layers(self.document, self._types, choice))
        self._selection = Selection(self.document, self._types, self.layers, choice, not grid.symmetric)
        tensors = self._selection.tensors
        self.observed = tuple(dict.fromkeys(self._selection.scale_of(name) for name in tensors))
        self._scales: dict[str, tuple[Parameters, list[str]]] = {}
        self._weights: dict[tuple[str, int | None, bytes], str] = {}
        self.floats: dict[str, FloatWeight] = {}

    def _top_level(self, found: Layers) -> Layers:
        """Return the layers of the top-level graph."""
        top = self.document.top
        inside = set(top.nodes)
        nodes = [*(layer.node for layer in found.found), *found.products]
        reason = "it is inside a loop or branch, where nothing is calibrated"
        kept = [Kept(name_of(node), node.kind, reason) for node in nodes if node not in inside]
        return Layers(
            [layer for layer in found.found if layer.scope is top], [*found.kept, *kept],
            [node for node in found.products if node in inside],
        )  # fmt: skip

    def names_between(self) -> list[str]:
        """Return the names of the nodes between layers that run on integers."""
        return self._selection.names_of_nodes()

    def reader(self, name: str) -> str:
        """Return the name and operator of the node that computes a value, or that it is an input; for messages."""
        for node in self.document.top.nodes:
            if name in node.outputs:
                return f"node {name_of(node)!r} ({node.kind})"
        return "an input"

    def observing(self, names: Sequence[str]) -> ModelProto:
        """Return the float model with further outputs: these values."""
        return observing(self.document, self._types, names)

    # --- writing -------------------------------------------------------------------------------------

    def write(self, ranges: Mapping[str, Range]) -> ModelProto:
        """Return the quantised model. ranges: those of `observed`."""
        document = self.document
        for name in self._selection.tensors:
            self._parameters(name, ranges)
        for layer in self.layers.found:
            self._layer(layer)
        self._constants()
        for node in document.top.nodes:
            plain = all(step == 1 for step in node.attribute("dilations", ()))
            if node.kind == "AveragePool" and plain and node.inputs[0] in self._selection.tensors:
                node.set_attribute("dilations", None)  # ONNX Runtime refuses the attribute between integers
        for node, maker in self._selection.absorbed.items():
            maker.outputs[maker.outputs.index(node.inputs[0])] = node.outputs[0]
        absorbed = set(self._selection.absorbed)
        document.top.nodes = [node for node in document.top.nodes if node not in absorbed]
        self._pairs()
        document.sweep()
        return document.written()

    def _dtype(self, name: str) -> np.dtype:
        found = self._types[name]
        assert isinstance(found, TensorType)
        return np.dtype(found.dtype.numpy)

    def _parameters(self, name: str, ranges: Mapping[str, Range]) -> tuple[Parameters, list[str]]:
        """Return scale and zero point of an activation, and the names of both."""
        root = self._selection.scale_of(name)
        if root not in self._scales:
            found = parameters(ranges[root], self._grid, self._dtype(root))
            add = self.document.add
            self._scales[root] = found, [add(found.scale, f"{root}_scale"), add(found.zero, f"{root}_zero_point")]
        return self._scales[root]

    def _layer(self, layer: Layer) -> None:
        """Quantise the weight and the bias of a layer."""
        node = layer.node
        of_x = self._scales[self._selection.scale_of(node.inputs[0])][0].scale
        axis = layer.axis if self._per_channel else None
        scale = weight_scales(layer.weight, axis)
        bias, factor = self._bias(layer), float(of_x) * self._alpha(layer)
        if bias is not None:
            fitting = fitting_bias(scale, bias, factor)
            if np.all(fitting * factor >= np.finfo(np.float32).tiny):
                scale = fitting
            else:
                bias = None
        key = (layer.name, axis, scale.tobytes())
        if key not in self._weights:
            made = self._editor.dequantised(layer.name, integers(layer.weight, scale, INT8, axis), scale, axis)
            place_before(layer.scope, node, [made])
            self._weights[key] = made.outputs[0]
            self.floats[made.inputs[0]] = FloatWeight(layer.name, layer.weight)
        node.inputs[1] = self._weights[key]
        if bias is not None:
            of_bias = (of_x * scale * np.float32(self._alpha(layer))).astype(np.float32)
            name = node.input(2)
            made = self._editor.dequantised(name, bias_integers(bias, of_bias), of_bias, 0, zero=False)
            place_before(layer.scope, node, [made])
            node.inputs[2] = made.outputs[0]
            if node.kind == "Gemm":
                node.set_attribute("beta", None)

    def _alpha(self, layer: Layer) -> float:
        return float(layer.node.attribute("alpha", 1.0)) if layer.node.kind == "Gemm" else 1.0

    def _bias(self, layer: Layer) -> np.ndarray | None:
        """Return the bias of a layer with one element for each channel; None if it stays in float.

        A bias in float16 stays, because the product of two scales may underflow. In float32, `_layer` tests this.
        """
        node = layer.node
        bias = self.document.array(node.input(2)) if node.input(2) else None
        if bias is None or layer.weight.dtype != np.float32 or not np.isfinite(bias).all():
            return None
        if node.kind == "Gemm":
            if bias.ndim == 2 and bias.shape[0] != 1:
                return None
            bias = bias * np.float32(node.attribute("beta", 1.0))
            if self._alpha(layer) <= 0:
                return None
        return np.broadcast_to(bias.reshape(-1), (layer.channels,))

    def _constants(self) -> None:
        """Quantise constant operands of sums and products. They are read by quantised nodes only through new names."""
        top = self.document.top
        names = self._selection.constants
        for node in list(top.nodes) if names else ():
            if node not in self._selection.between:
                continue
            for place, name in enumerate(node.inputs):
                array = self.document.array(name) if name in names else None
                if array is not None:
                    node.inputs[place] = self._constant(name, array, node)

    def _constant(self, name: str, array: np.ndarray, node: Node) -> str:
        key = (name, None, b"activation")
        if key not in self._weights:
            found = parameters(Range(float(array.min()), float(array.max())), self._grid, array.dtype)
            wide = array.astype(np.float32) / found.scale.astype(np.float32)
            numbers = np.clip(np.rint(wide) + float(found.zero), self._grid.least, self._grid.most)
            add = self.document.add
            operands = [
                add(numbers.astype(self._grid.dtype), f"{name}_quantized"),
                add(found.scale, f"{name}_scale"),
                add(found.zero, f"{name}_zero_point"),
            ]
            result = self.document.fresh(f"{name}_DequantizeLinear_Output")
            place_before(self.document.top, node, [self._editor.node("DequantizeLinear", operands, [result])])
            self._weights[key] = result
        return self._weights[key]

    def _pairs(self) -> None:
        """Put QuantizeLinear and DequantizeLinear after each quantised activation."""
        document, top = self.document, self.document.top
        after: dict[str, list[Node]] = {}
        for name in self._selection.tensors:
            operands = self._scales[self._selection.scale_of(name)][1]
            given, result = name, document.fresh(f"{name}_DequantizeLinear_Output")
            if name in top.outputs and all(info.name != name for info in top.inputs):
                given, result = document.fresh(f"{name}_QuantizeLinear_Input"), name
            numbers = document.fresh(f"{name}_QuantizeLinear_Output")
            after[name] = [
                self._editor.node("QuantizeLinear", [given, *operands], [numbers]),
                self._editor.node("DequantizeLinear", [numbers, *operands], [result]),
            ]
        self._rename({name: pair[1].outputs[0] for name, pair in after.items() if pair[1].outputs[0] != name})
        nodes = [node for info in top.inputs for node in after.get(info.name, ())]
        for node in top.nodes:
            nodes.append(node)
            for place, name in enumerate(node.outputs):
                if name in after:
                    node.outputs[place] = after[name][0].inputs[0]
                    nodes += after[name]
        top.nodes = nodes

    def _rename(self, table: Mapping[str, str]) -> None:
        """Let all readers read the dequantised values. Outputs of the model keep their names."""
        outputs = list(self.document.top.outputs)
        self.document.rename(table)
        self.document.top.outputs = outputs
