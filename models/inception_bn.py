"""Inception with batch normalisation (Ioffe and Szegedy 2015), as the symbols of MXNet's examples define it."""

from __future__ import annotations

from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# Widths of 1x1, 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool projection. 3c and 4e halve the image instead:
# their first branch is missing, and their pooling is not projected.
_MODULES = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}
_MAXIMUM = {"5b"}  # modules of full size with max pooling; all others have average pooling


@network
def inception_bn(image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, dropout: float = 0.0) -> Model:
    """Ten inception modules in which two 3x3 convolutions replace each 5x5 one. Every convolution is normalised.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Options: `dropout` is the dropout ratio before the last layer, in training.

    Sizes: The first two poolings round sizes up (ceil_mode). This gives the sizes of the paper: 112, 56, 28, 14 and 7
    pixels per side. Convolutions have biases, as in the published weights. The gradient of these biases is 0 in
    training.

    Parameters: conv1_weight, conv1_bn_weight, inception3a/1x1_weight, inception3a/double_3x3_reduce_weight, ...,
    fc_bias. 11,295,240 with 1,000 classes.
    """
    channels, height, width = image_shape("inception_bn", image)
    positive("inception_bn", classes=classes)
    h = _conv(nn.input("x", ["N", channels, height, width]), 64, 7, "conv1", stride=2)
    h = nn.max_pool2d(h, 3, stride=2, ceil_mode=True, name="pool1")
    h = _conv(_conv(h, 64, 1, "conv2_reduce"), 192, 3, "conv2")
    h = nn.max_pool2d(h, 3, stride=2, ceil_mode=True, name="pool2")
    for name, widths in _MODULES.items():
        with name_scope(f"inception{name}"):
            h = _inception(h, widths, maximum=name in _MAXIMUM) if widths[0] else _reduction(h, *widths[1:5])
    h = F.flatten(nn.global_avg_pool(h, name="pool3"), axis=1, name="flat")
    if dropout:
        h = nn.dropout(h, dropout, name="drop")
    return Model({"logits": nn.linear(h, classes, name="fc")}, name="inception_bn")


def _conv(x: Value, filters: int, kernel: int, name: str, *, stride: int = 1) -> Value:
    h = nn.conv2d(
        x, filters, kernel, stride=stride, pad=kernel // 2, init="xavier_uniform", bias_init="zeros", name=name
    )
    return F.relu(nn.batch_norm(h, name=f"{name}_bn"), name=f"{name}_relu")


def _inception(x: Value, widths: tuple[int, ...], *, maximum: bool) -> Value:
    direct, reduce3, width3, reduce_double, double, projection = widths
    if maximum:
        pooled = nn.max_pool2d(x, 3, stride=1, pad=1, name="pool")
    else:
        pooled = nn.avg_pool2d(x, 3, stride=1, pad=1, count_include_pad=True, name="pool")
    branches = [
        _conv(x, direct, 1, "1x1"),
        _conv(_conv(x, reduce3, 1, "3x3_reduce"), width3, 3, "3x3"),
        _double(x, reduce_double, double),
        _conv(pooled, projection, 1, "project"),
    ]
    return F.concat(*branches, axis=1, name="joined")


def _reduction(x: Value, reduce3: int, width3: int, reduce_double: int, double: int) -> Value:
    """Return a module that halves the sides. Its output has the channels of x and of two branches."""
    branches = [
        _conv(_conv(x, reduce3, 1, "3x3_reduce"), width3, 3, "3x3", stride=2),
        _double(x, reduce_double, double, stride=2),
        nn.max_pool2d(x, 3, stride=2, pad=1, name="pool"),
    ]
    return F.concat(*branches, axis=1, name="joined")


def _double(x: Value, reduce: int, width: int, *, stride: int = 1) -> Value:
    h = _conv(_conv(x, reduce, 1, "double_3x3_reduce"), width, 3, "double_3x3_1")
    return _conv(h, width, 3, "double_3x3_2", stride=stride)
