"""Quantisation of one layer after the other, in all scopes of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from onnx import ModelProto

from graphkit.onnx_io.editing.constants import Evaluate
from graphkit.onnx_io.quantise.editing import FOLDS, Editor, prepared
from graphkit.onnx_io.quantise.layers import Choice, FloatWeight, Kept, Layer, Layers, find_layers, name_of


class LayerwiseQuantiser(ABC):
    """A quantiser that replaces each layer by itself. A subclass says which layers, and what replaces them.

    Args:
        model: The model.
        evaluate: Computes the outputs of a model without inputs.
        choice: Which layers to quantise.
        per_channel: Whether each output channel of a weight has a scale.
        label: Name of the file, for errors.
        folds: Whether batch normalisations and biases are folded into layers first.

    Attributes:
        layers: The layers that are quantised, and those that are not.
        floats: After `write`: the float weight of each initialiser of quantised weights, by the initialiser's name.
            Weights of MatMulNBits are not included.
    """

    def __init__(
        self,
        model: ModelProto,
        evaluate: Evaluate,
        choice: Choice,
        *,
        per_channel: bool,
        label: str,
        folds: bool = True,
    ):
        self.document, types = prepared(model, evaluate, label, folds=FOLDS if folds else ())
        self._editor = Editor(self.document)
        self._per_channel = per_channel
        self.layers: Layers = find_layers(self.document, types, choice)
        self.layers.keep_products()
        self.floats: dict[str, FloatWeight] = {}

    def write(self) -> ModelProto:
        """Return the quantised model. `layers.found` are the layers that were quantised."""
        found, self.layers.found = self.layers.found, []
        for layer in found:
            if reason := self._reason(layer):
                self.layers.kept.append(Kept(name_of(layer.node), layer.node.kind, reason))
                continue
            self.layers.found.append(layer)
            self._quantise(layer)
        self.document.sweep()
        return self.document.written()

    @abstractmethod
    def _reason(self, layer: Layer) -> str:
        """Return why a layer cannot be quantised; "" if it can."""

    @abstractmethod
    def _quantise(self, layer: Layer) -> None:
        """Replace a layer in its scope."""
