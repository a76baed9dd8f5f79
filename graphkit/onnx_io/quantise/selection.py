"""Which tensors of a graph become integers in QDQ form: those of layers, and of the operators between layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from graphkit.ir.types import DType, TensorType, Type
from graphkit.onnx_io.editing.document import Document, Node
from graphkit.onnx_io.editing.rules import producers_of
from graphkit.onnx_io.quantise.layers import Choice, Layers, name_of

# The results have the elements of the first operand, so they have its scale.
_MOVES = frozenset(
    {
        "DepthToSpace", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Reshape", "Resize", "Slice", "SpaceToDepth",
        "Split", "Squeeze", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
# Operators that get a scale of their own if their operands are quantised.
_COMPUTED = frozenset(
    {"Add", "AveragePool", "Concat", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Sigmoid"}
)
_BOUNDS = frozenset({"Clip", "Relu"})
# All operands are tensors to quantise. Those of other operators after the first one are shapes, axes and bounds.
_ALL_OPERANDS = frozenset({"Add", "Concat", "Mul"})
# x * f(x) with such a function f is rounded once.
_GATES = frozenset({"HardSigmoid", "Sigmoid"})


class Selection:
    """The tensors of the top-level graph that are quantised.

    Attributes:
        tensors: Their names, in the order of the graph. Constants are not among them.
        constants: Initialisers that are operands of quantised sums and products.
        source: Results of data movement, and the tensor whose scale they have.
        between: The nodes between layers that run on integers.
        absorbed: Relu and Clip nodes whose bounds the range of their result implies, and the node before them.
    """

    def __init__(self, document: Document, types: Mapping[str, Type], layers: Layers, choice: Choice, folds: bool):
        self._document, self._types, self._choice = document, types, choice
        self._nodes = document.top.nodes
        self._uses: Counter[str] = document.uses
        self._makers = producers_of(document.top)
        self._layers = {layer.node for layer in layers.found} | set(layers.products)
        self._folds = folds
        inside = self._propagated(layers)
        self.between = self._needed(inside)
        self.absorbed = self._absorbed()
        self._added = {name for node in self._nodes if node.kind == "Add" for name in node.inputs}
        self.source: dict[str, str] = {}
        self.tensors: dict[str, None] = {}
        self.constants: dict[str, None] = {}
        self._collect(layers)

    # --- which nodes --------------------------------------------------------------------------------

    def _propagated(self, layers: Layers) -> set[Node]:
        """Return the nodes whose operands are all quantised if the results of layers and of such nodes are."""
        known = {layer.node.inputs[0] for layer in layers.found}
        known.update(name for node in layers.products for name in node.inputs[:2])
        found: set[Node] = set()
        for node in self._nodes:
            if node in self._layers:
                known.add(node.outputs[0])
            elif self._may_follow(node) and all(name in known for name in self._operands(node)):
                found.add(node)
                known.update(filter(None, node.outputs))
        return found

    def _may_follow(self, node: Node) -> bool:
        if node.kind not in _MOVES | _COMPUTED | _BOUNDS or self._choice.excludes(node) or not self._operands(node):
            return False
        if not all(self._is_float(name) for name in (*self._tensors_of(node), node.outputs[0])):
            return False
        match node.kind:
            case "AveragePool":
                # ONNX Runtime has no AveragePool of integers with dilations.
                return all(step == 1 for step in node.attribute("dilations", ()))
            case "Resize":
                tiling = node.attribute("coordinate_transformation_mode", b"half_pixel")
                return bool(node.attribute("mode", b"nearest") == b"nearest" and tiling != b"tf_crop_and_resize")
            case "Pad":
                fill = self._document.array(node.input(2)) if node.input(2) else np.zeros(1)
                return bool(node.attribute("mode", b"constant") != b"constant" or (fill is not None and not fill.any()))
            case "Add":
                # The bias of a product of more than two axes is added to floats, which costs no precision.
                return not self._constants(node) or all(
                    (maker := self._makers.get(name)) is None or maker.kind != "MatMul" for name in self._operands(node)
                )
            case "Clip" | "Relu":
                return _bounds(self._document, node) is not None
        return True

    def _is_float(self, name: str) -> bool:
        found = self._types.get(name)
        array = self._document.array(name)
        if array is not None:
            return array.dtype in (np.float32, np.float16) and bool(np.isfinite(array).all()) and array.size > 0
        return isinstance(found, TensorType) and found.dtype in (DType.FLOAT32, DType.FLOAT16)

    def _tensors_of(self, node: Node) -> list[str]:
        return node.inputs if node.kind in _ALL_OPERANDS else node.inputs[:1]

    def _operands(self, node: Node) -> list[str]:
        """Return the operands that nodes or inputs provide."""
        return [name for name in self._tensors_of(node) if name not in self._document.initializers]

    def _constants(self, node: Node) -> list[str]:
        return [name for name in self._tensors_of(node) if name in self._document.initializers]

    def _needed(self, inside: set[Node]) -> set[Node]:
        """Return the nodes among `inside` whose results layers read, directly or through other such nodes."""
        wanted: set[str] = set()
        found: set[Node] = set()
        for node in reversed(self._nodes):
            if node in self._layers:
                wanted.update(node.inputs[:2])
            elif node in inside and not wanted.isdisjoint(node.outputs):
                found.add(node)
                wanted.update(self._operands(node))
        return found

    def _absorbed(self) -> dict[Node, Node]:
        """Return Relu and Clip nodes that quantisation of their result makes superfluous, and their producers."""
        found = {}
        for node in self._nodes if self._folds else ():
            if node.kind not in _BOUNDS or self._choice.excludes(node) or not self._is_float(node.outputs[0]):
                continue
            maker = self._makers.get(node.inputs[0])
            if maker is None or not self._is_private(node.inputs[0]) or _bounds(self._document, node) is None:
                continue
            if node in self.between:
                fits = maker in self._layers or (maker in self.between and maker.kind in _COMPUTED)
            else:
                fits = maker in self._layers and maker.kind == "Conv"
            if fits:
                found[node] = maker
        return found

    def _is_private(self, name: str) -> bool:
        return self._uses[name] == 1 and name not in self._document.top.outputs

    # --- which tensors ------------------------------------------------------------------------------

    def _collect(self, layers: Layers) -> None:
        read: dict[str, None] = {layer.node.inputs[0]: None for layer in layers.found}
        read.update(dict.fromkeys(name for node in layers.products for name in node.inputs[:2]))
        for node in self._nodes:
            if node in self.between:
                read.update(dict.fromkeys(self._operands(node)))
                self.constants.update(dict.fromkeys(self._constants(node)))
        inner = {node.inputs[0] for node in self.absorbed} | self._inner()
        every = {info.name: None for info in self._document.top.inputs if info.name in read}
        for node in self._nodes:
            if node.kind in _MOVES and node.inputs[0] in every and self._may_follow(node):
                # It moves integers in any case, and ONNX Runtime need not insert a second quantisation after it.
                self.between.add(node)
            written = node in self.between or node in self.absorbed or self._is_always_quantised(node)
            for name in filter(None, node.outputs):
                if name in inner or not (written or name in read) or not self._is_float(name):
                    continue
                every[name] = None
                if node in self.between and node.kind in _MOVES:
                    self.source[name] = node.inputs[0]
        constants = self._document.initializers
        self.tensors = {name: None for name in every if name not in constants}

    def _is_always_quantised(self, node: Node) -> bool:
        """Return whether the result of a layer is quantised even if no quantised node reads it.

        A Conv on integers needs the scale of its result. ONNX Runtime 1.32 turns a MatMul and a sum after it into
        Reshape and Gemm, and then writes an invalid QuantizeLinear for int8, unless the result of the MatMul is
        quantised.
        """
        if node not in self._layers or node.kind == "Conv":
            return node in self._layers
        return not self._folds and node.kind == "MatMul" and node.outputs[0] in self._added

    def _inner(self) -> set[str]:
        """Return results that stay floats between two operators that run as one: x * Sigmoid(x), a layer and Relu."""
        found = set()
        for node in self.between:
            if node.kind == "Mul":
                for gate, other in (node.inputs, node.inputs[::-1]):
                    maker = self._makers.get(gate)
                    if maker in self.between and maker.kind in _GATES and maker.inputs[0] == other:
                        found.update([gate] if self._is_private(gate) else [])
            elif node.kind in _BOUNDS and node not in self.absorbed:
                maker = self._makers.get(node.inputs[0])
                if maker in self._layers and self._is_private(node.inputs[0]):
                    found.add(node.inputs[0])
        return found

    def scale_of(self, name: str) -> str:
        """Return the tensor whose scale a tensor has."""
        while name in self.source:
            name = self.source[name]
        return name

    def names_of_nodes(self) -> list[str]:
        """Return the names of the nodes between layers that run on integers."""
        return [name_of(node) for node in self._nodes if node in self.between]


def _bounds(document: Document, node: Node) -> tuple[float, float] | None:
    """Return the bounds of a Relu or Clip if they are constants, and 0 is within them; else None."""
    if node.kind == "Relu":
        return 0.0, np.inf
    low, high = node.attribute("min", -np.inf), node.attribute("max", np.inf)
    for place in (1, 2):
        if name := node.input(place):
            array = document.array(name)
            if array is None or array.size != 1:
                return None
            low, high = (float(array.reshape(())), high) if place == 1 else (low, float(array.reshape(())))
    return (low, high) if low <= 0 <= high else None
