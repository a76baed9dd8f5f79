"""Fold what follows a convolution or matrix product into its weights: batch normalisation, factors, shifts."""

from __future__ import annotations

import numpy as np

from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.editing.document import Node, Scope
from graphkit.onnx_io.editing.rules import Round, loses_other_outputs

# In half precision the weights would lose digits that separate operators keep.
_DTYPES = (np.float32, np.float64)


class _Affine(NamedTuple):
    """A factor and a shift per channel, in double precision; None: 1 and 0."""

    factor: np.ndarray | None
    shift: np.ndarray | None


def affine_products(round: Round) -> None:
    """Fold BatchNormalization, and Mul, Add, Sub and Div with one constant per channel, into the product before."""
    if round.document.opset < 7:  # other rules of broadcasting
        return
    for scope in round.each_scope():
        scope.nodes = [node for node in scope.nodes if node.kind not in _READERS or not _folds(round, scope, node)]


_READERS = ("BatchNormalization", "Mul", "Add", "Sub", "Div")
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm")


def _folds(round: Round, scope: Scope, node: Node) -> bool:
    """Fold a node into the product that it reads. Returns whether that was possible."""
    for place in (0, 1) if node.kind in ("Mul", "Add") else (0,):
        data = round.input(node, place)
        product = round.producer(data, *_PRODUCTS)
        if product is None or not round.is_private(scope, data):
            continue
        weights = round.array(round.input(product, 1))
        bias = round.array(round.input(product, 2)) if product.input(2) else None
        if weights is None or weights.dtype not in _DTYPES or weights.ndim < 2 or (product.input(2) and bias is None):
            continue
        channels = _channels(product, weights)
        if bias is not None and bias.shape not in ((), (1,), (1, 1), (channels,), (1, channels)):
            continue
        affine = _affine(round, node, place, weights, channels, data)
        if affine is None or not _affordable(round, product, affine):
            continue
        _scale(round, product, weights, bias, channels, affine)
        return round.replace(scope, node.outputs[0], data)
    return False


def _channels(product: Node, weights: np.ndarray) -> int:
    if product.kind == "Conv":
        return int(weights.shape[0])
    if product.kind == "ConvTranspose":
        return int(weights.shape[1]) * int(product.attribute("group", 1))
    return int(weights.shape[0 if product.attribute("transB", 0) else 1])


def _affine(round: Round, node: Node, place: int, weights: np.ndarray, channels: int, data: str) -> _Affine | None:
    """Return the affine function that the node applies to each channel; None if it does not."""
    if node.kind == "BatchNormalization":
        return _batch_norm(round, node, channels, weights.dtype)
    other = round.input(node, 1 - place)
    array = round.array(other)
    if array is None or array.dtype != weights.dtype or not round.same(data, node.outputs[0]):
        return None
    # Aligned with the result, only the channel axis may have more than one element.
    shape = (1,) * (weights.ndim - array.ndim) + array.shape
    if len(shape) != weights.ndim or any(n != 1 for i, n in enumerate(shape) if i != 1):
        return None
    vector = np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))
    match node.kind:
        case "Mul":
            return _Affine(vector, None)
        case "Div":
            return _Affine(1 / vector, None) if np.all(vector) else None
        case "Sub":
            return _Affine(None, -vector)
    return _Affine(None, vector)


def _batch_norm(round: Round, node: Node, channels: int, dtype: np.dtype) -> _Affine | None:
    if node.attribute("training_mode", 0) or not node.attribute("spatial", 1):
        return None
    if loses_other_outputs(node, round.uses):
        return None
    vectors = [round.array(round.input(node, i)) for i in range(1, 5)]
    if any(v is None or v.shape != (channels,) or v.dtype != dtype for v in vectors):
        return None
    scale, shift, mean, var = (v.astype(np.float64) for v in vectors if v is not None)
    factor = scale / np.sqrt(var + node.attribute("epsilon", 1e-5))
    if not np.all(np.isfinite(factor)):
        return None
    return _Affine(factor, shift - mean * factor)


def _affordable(round: Round, product: Node, affine: _Affine) -> bool:
    """Whether the file does not grow too much: weights that other nodes read as well are stored twice."""
    document = round.document
    weights = round.input(product, 1)
    grows = affine.factor is not None and document.uses[weights] > 1
    return not grows or round.spend(document.nbytes(weights))


def _scale(
    round: Round, product: Node, weights: np.ndarray, bias: np.ndarray | None, channels: int, affine: _Affine
) -> None:
    """Give the product new weights and a new bias."""
    document = round.document
    beta = product.attribute("beta", 1.0)
    if affine.factor is not None:
        scaled = _scaled(product, weights, affine.factor).astype(weights.dtype)
        product.inputs[1] = document.add(scaled, product.inputs[1])
    shift = np.zeros(channels) if bias is None else bias.astype(np.float64) * beta
    shift = np.broadcast_to(shift.reshape(-1), (channels,))
    shift = shift * (1 if affine.factor is None else affine.factor) + (0 if affine.shift is None else affine.shift)
    if bias is None and affine.shift is None:
        return
    hint = product.input(2) or f"{product.outputs[0]}_bias"
    product.inputs = [*product.inputs[:2], document.add(shift.astype(weights.dtype), hint)]
    if product.kind == "Gemm" and beta != 1:
        product.set_attribute("beta", 1.0)


def _scaled(product: Node, weights: np.ndarray, factor: np.ndarray) -> np.ndarray:
    wide: np.ndarray = weights.astype(np.float64)
    scaled: np.ndarray
    if product.kind == "Conv" or (product.kind == "Gemm" and product.attribute("transB", 0)):
        scaled = wide * factor.reshape(-1, *[1] * (weights.ndim - 1))
    elif product.kind == "Gemm":
        scaled = wide * factor
    else:
        groups = int(product.attribute("group", 1))
        shape = (groups, weights.shape[0] // groups, *weights.shape[1:])
        columns = factor.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))
        scaled = (wide.reshape(shape) * columns).reshape(weights.shape)
    return scaled


def pads(round: Round) -> None:
    """Fold a constant Pad with zeros into the convolution that reads it."""
    for scope in round.each_scope():
        for node in scope.nodes:
            pad = round.producer(node.inputs[0], "Pad") if node.kind == "Conv" else None
            if pad is not None and round.is_private(scope, pad.outputs[0]) and _absorbs(round, pad, node):
                round.changes += 1


def _absorbs(round: Round, pad: Node, conv: Node) -> bool:
    if pad.attribute("mode", b"constant") != b"constant" or pad.input(3):
        return False
    added = round.ints(pad.inputs[1]) if pad.input(1) else pad.attribute("pads")
    value = round.array(pad.inputs[2]) if pad.input(2) else np.array(pad.attribute("value", 0.0))
    if added is None or value is None or np.any(value != 0):
        return False
    rank = len(added) // 2
    outer = [*added[:2], *added[rank : rank + 2]]
    inner = [*added[2:rank], *added[rank + 2 :]]
    if any(outer) or any(n < 0 for n in inner) or conv.attribute("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    own = list(conv.attribute("pads", [0] * len(inner)))
    if conv.attribute("auto_pad", b"NOTSET") == b"VALID":
        conv.set_attribute("auto_pad", None)
        own = [0] * len(inner)
    conv.set_attribute("pads", [a + b for a, b in zip(own, inner, strict=True)])
    conv.inputs[0] = pad.inputs[0]
    return True


def biased_products(round: Round) -> None:
    """Turn a product of matrices and the sum with a bias after it into one Gemm."""
    if round.document.opset < 7:
        return
    for scope in round.each_scope():
        kept = []
        for node in scope.nodes:
            product = _product(round, scope, node) if node.kind == "Add" else None
            if product is None:
                kept.append(node)
                continue
            place = int(round.input(node, 0) != product.outputs[0])
            # The Gemm is at the place of the sum, because the bias may be computed after the product.
            node.inputs = [*product.inputs, round.input(node, 1 - place)]
            node.proto.op_type = node.kind = "Gemm"
            kept.remove(product)
            kept.append(node)
            round.changes += 1
        scope.nodes = kept


def _product(round: Round, scope: Scope, node: Node) -> Node | None:
    """The product of two matrices whose sum with a bias a Gemm can compute."""
    for place in (0, 1):
        data, bias = round.input(node, place), round.type(round.input(node, 1 - place))
        product = round.producer(data, "MatMul")
        if product is None or not round.is_private(scope, data):
            continue
        kinds = [round.type(round.input(product, i)) for i in (0, 1)]
        out = round.type(data)
        if bias is None or out is None or any(k is None or len(k.known_shape) != 2 for k in kinds):
            continue
        if out.dtype.numpy not in _DTYPES or len(bias.known_shape) > 2 or not round.same(data, node.outputs[0]):
            continue
        return product
    return None
