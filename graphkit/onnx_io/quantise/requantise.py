"""Write trained floats into a quantised ONNX model: integers of weights and biases, scales, and float initialisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from graphkit.errors import UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.editing import constants
from graphkit.onnx_io.editing.document import Document
from graphkit.onnx_io.editing.rules import Round, producers_of
from graphkit.onnx_io.quantise.editing import prepared
from graphkit.onnx_io.quantise.layers import PRODUCTS, name_of
from graphkit.onnx_io.quantise.scales import bias_integers, fitting_bias
from graphkit.ops.quant.rounding import bounds


@dataclass(frozen=True)
class StoredWeight:
    """The integers of a weight or bias in a file.

    Attributes:
        numbers: Name of the initialiser of the integers.
        scale: Name of the initialiser of the scale.
        zero: Name of the initialiser of the zero point, or None.
        axis: Axis of the scale, if the scale is not a scalar.
        block: Number of elements along `axis` that share a scale; 0 without blocks.
    """

    numbers: str
    scale: str
    zero: str | None
    axis: int
    block: int


def with_initializers(model: ModelProto, evaluate: constants.Evaluate, label: str) -> ModelProto:
    """Return the model with initialisers for Constant nodes and for what depends only on constants.

    Every initialiser is in the top-level graph. Dequantised weights are not computed.
    """
    document, _ = prepared(model, evaluate, label, folds=())
    return document.written()


class Requantiser:
    """Replaces the initialisers of a model that `with_initializers` returned.

    Args:
        model: The model. It is not changed.
        weights: The quantised weights, by the name of their integers. Biases of int32 are not among them.
        biases: The biases of int32, in the same form.
    """

    def __init__(self, model: ModelProto, weights: Mapping[str, StoredWeight], biases: Mapping[str, StoredWeight]):
        self._document = Document(model)
        self._weights, self._biases = weights, biases
        self._scales: dict[str, np.ndarray] = {}

    def write(
        self, floats: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
    ) -> ModelProto:
        """Return the model with new initialisers.

        If the scale of an operand of a layer changes, the scale of its bias becomes the product of both scales. If the
        integers of a bias would not fit into int32, the scale of the weight is raised.

        Args:
            floats: Weights and biases by the name of their integers.
            scales: New scales by the name of their initialiser.
            others: Float initialisers by name.
        """
        document = self._document
        self._scales = {name: np.asarray(array) for name, array in scales.items()}
        layers = self._layers_of_biases()
        before = {weight.scale: self._scale(weight.scale) for _, weight, _ in layers.values()}
        for name, (x, weight, alpha) in layers.items():
            factor = float(self._scale(x).reshape(())) * alpha
            scale = self._scale(weight.scale)
            if scale.size == 1:
                fitting = fitting_bias(scale.reshape(()), floats[name].reshape(-1), factor)
                self._scales[weight.scale] = fitting.reshape(scale.shape)
            elif scale.shape == floats[name].shape:
                self._scales[weight.scale] = fitting_bias(scale, floats[name], factor)
        new: dict[str, np.ndarray] = {}
        for name, (x, weight, alpha) in layers.items():
            scale, old = self._scale(weight.scale), self._biases[name].scale
            if x not in scales and weight.scale not in scales and np.array_equal(scale, before[weight.scale]):
                product = self._scale(old)
            else:
                product = (self._scale(x).reshape(()) * scale * np.float32(alpha)).astype(np.float32)
                product = product.reshape(self._scale(old).shape)
            if not np.array_equal(new.setdefault(old, product), product):
                raise UnsupportedError(
                    f"the scale {old!r} belongs to several biases, so it cannot be computed anew; use fixed scales"
                )
        self._scales |= new
        for name, weight in self._weights.items():
            document.put(self._integers(weight, floats[name]), name)
        for name, bias in self._biases.items():
            document.put(bias_integers(floats[name], self._spread(bias, floats[name].shape)), name)
        for name, array in {**self._scales, **others}.items():
            document.put(array, name)
        return document.written()

    def _scale(self, name: str) -> np.ndarray:
        found = self._scales.get(name)
        if found is None:
            found = self._document.array(name)
        assert found is not None, "the caller has checked that scales are initialisers"
        return found

    def _layers_of_biases(self) -> dict[str, tuple[str, StoredWeight, float]]:
        """Return, by bias: the name of the scale of the layer's input, its weight, and its alpha.

        Raises UnsupportedError if a bias cannot get the scale that a runtime expects.
        """
        makers = producers_of(self._document.top)
        found: dict[str, tuple[str, StoredWeight, float]] = {}
        for node in self._document.top.nodes:
            maker = makers.get(node.input(2)) if node.kind in ("Conv", "ConvTranspose", "Gemm") else None
            if maker is None or maker.kind != "DequantizeLinear" or maker.inputs[0] not in self._biases:
                continue
            operands = [makers.get(name) for name in node.inputs[:2]]
            given, weight = (o if o is not None and o.kind == "DequantizeLinear" else None for o in operands)
            stored = None if weight is None else self._weights.get(weight.inputs[0])
            if given is None or stored is None:
                continue
            of_x = self._document.array(given.inputs[1])
            sizes = [self._scale(found.scale).size for found in (stored, self._biases[maker.inputs[0]])]
            if of_x is None or of_x.size != 1 or sizes[0] != sizes[1]:
                continue
            alpha = float(node.attribute("alpha", 1.0)) if node.kind == "Gemm" else 1.0
            entry = (given.inputs[1], stored, alpha)
            if found.setdefault(maker.inputs[0], entry) != entry:
                raise UnsupportedError(
                    f"bias {maker.inputs[0]!r} is read by several layers with different scales, so its integers cannot "
                    f"be computed anew (node {node.proto.name!r})"
                )
        return found

    def _spread(self, weight: StoredWeight, shape: Sequence[int]) -> np.ndarray:
        return spread(self._scale(weight.scale), weight, shape)

    def _integers(self, weight: StoredWeight, array: np.ndarray) -> np.ndarray:
        """Return the integers of a weight, as QuantizeLinear computes them."""
        old = self._document.array(weight.numbers)
        assert old is not None
        wide = np.float32 if array.dtype == np.float16 else array.dtype
        zero = None if weight.zero is None else self._document.array(weight.zero)
        shift = np.float32(0) if zero is None else spread(zero, weight, array.shape).astype(np.float32)
        ratio = array.astype(wide) / self._spread(weight, array.shape).astype(wide)
        least, most = bounds(DType.of(old.dtype))
        found: np.ndarray = np.clip(np.rint(ratio) + shift, least, most).astype(old.dtype)
        return found


def spread(parameter: np.ndarray, weight: StoredWeight, shape: Sequence[int]) -> np.ndarray:
    """Return a scale or zero point in a shape that broadcasts to that of its tensor."""
    if parameter.ndim == 0 or parameter.size == 1:
        return parameter.reshape(())
    axis = weight.axis % len(shape)
    if weight.block:
        repeated = np.repeat(parameter, weight.block, axis)
        return np.take(repeated, np.arange(shape[axis]), axis)
    return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def quantised_layers(model: ModelProto) -> list[tuple[str, str]]:
    """Return name and operator of the layers whose weight is a constant that DequantizeLinear dequantises."""
    document = Document(model)
    constants.constant_nodes(Round(document, {}))
    found = []
    for scope in document.scopes:
        makers = producers_of(document.top) | producers_of(scope)
        for node in scope.nodes:
            maker = makers.get(node.input(1)) if node.kind in PRODUCTS else None
            if maker is not None and maker.kind == "DequantizeLinear" and maker.inputs[0] in document.initializers:
                found.append((name_of(node), node.kind))
    return found
