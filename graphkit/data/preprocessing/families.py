"""Preprocessing of images by the name of the library that a network comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.model import PREPROCESSING, Model
from graphkit.signatures import typed

# The mean of ImageNet's pixels, red, green, blue, which MXNet's training scripts subtract.
_PIXEL_MEAN = (123.68, 116.779, 103.939)
# Nodes between an input and the arithmetic of a network on its pixels.
_PASSED = frozenset({"Identity", "StopGradient", "Cast"})
_Size: TypeAlias = tuple[int, int]


def _cropped(size: _Size | None, **fields: Any) -> Preprocess:
    return Preprocess.of_size(*(size or (224, 224)), **fields)


def _gluoncv(model: Model, size: _Size | None) -> Preprocess:
    return _cropped(size, mean=IMAGENET[0], std=IMAGENET[1])


def _gluoncv_detection(model: Model, size: _Size | None) -> Preprocess:
    return Preprocess(resize=size or 512, mean=IMAGENET[0], std=IMAGENET[1])


def _mxnet_imagenet(model: Model, size: _Size | None) -> Preprocess:
    return _cropped(size, scale=1.0, mean=_PIXEL_MEAN)


def _raw(model: Model, size: _Size | None) -> Preprocess:
    return _cropped(size, scale=1.0)


def _insightface(model: Model, size: _Size | None) -> Preprocess:
    resize = size or (112, 112)
    if _normalises(model):
        return Preprocess(resize=resize, scale=1.0)
    return Preprocess(resize=resize, scale=1.0, mean=(127.5,), std=(128.0,))


# Name -> function of the model and its image size that returns the preprocessing.
_FAMILIES: dict[str, Callable[[Model, _Size | None], Preprocess]] = {
    "gluoncv": _gluoncv,
    "gluoncv-detection": _gluoncv_detection,
    "insightface": _insightface,
    "mxnet-imagenet": _mxnet_imagenet,
    "raw": _raw,
}
NAMES = tuple(_FAMILIES)


@typed("gk.data.with_preprocessing")
def with_preprocessing(model: Model, preprocessing: str | Preprocess) -> Model:
    """Return the model with a preprocessing of images in its metadata, which commands and data sets use.

    Args:
        model: A model with one input of images.
        preprocessing: A Preprocess, or the name of a family of networks: "gluoncv" (classification and segmentation),
            "gluoncv-detection", "insightface", "mxnet-imagenet" or "raw" (docs/mxnet.md has a table). The size of the
            images is that of the model's input. If that varies, it is 224 x 224, 112 x 112 for "insightface", and a
            shorter side of 512 for "gluoncv-detection".

    Raises:
        UsageError: The name is unknown, or the model has no input of images with 3 channels.
    """
    if isinstance(preprocessing, Preprocess):
        made = preprocessing
    elif preprocessing in _FAMILIES:
        made = _FAMILIES[preprocessing](model, _image_size(model, preprocessing))
    else:
        raise UsageError(f"unknown preprocessing {preprocessing!r}{did_you_mean(preprocessing, _FAMILIES)}")
    meta = {**model.meta, PREPROCESSING: made.to_json()}
    return Model.from_graph(model.graph, model.params.entries(), meta=meta)


def _image_input(model: Model) -> Value | None:
    """Return the first input [N, 3, H, W]."""
    for value in model.data_inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if shape is not None and len(shape) == 4 and shape[1] == 3:
            return value
    return None


def _image_size(model: Model, name: str) -> _Size | None:
    """Return (height, width) of the input of images; None if they vary."""
    value = _image_input(model)
    if value is None:
        raise UsageError(
            f"preprocessing {name!r} needs an input of images, [N, 3, H, W]; the model {model.name!r} has none"
        )
    height, width = value.tensor.known_shape[2:]
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _normalises(model: Model) -> bool:
    """Return whether the first arithmetic on the images is a Sub, Mul or Div by a number."""
    value = _image_input(model)
    readers: dict[Value, list[Node]] = {}
    for node in model.graph.nodes:
        for operand in node.operands:
            readers.setdefault(operand, []).append(node)
    while value is not None and len(found := readers.get(value, [])) == 1 and found[0].op.name in _PASSED:
        value = found[0].outputs[0]
    first = [] if value is None else readers.get(value, [])
    others = [v for node in first if node.op.name in ("Sub", "Mul", "Div") for v in node.operands if v is not value]
    return any(v.tensor.known_shape in ((), (1,)) for v in others)
