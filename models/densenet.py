"""DenseNet (Huang et al. 2016) with bottlenecks and compression (DenseNet-BC), as torchvision defines it."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import channels_of, image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# layers -> (dense layers in each of the four blocks, growth rate): table 1 of the paper.
_DEPTHS = {
    121: ((6, 12, 24, 16), 32),
    161: ((6, 12, 36, 24), 48),
    169: ((6, 12, 32, 32), 32),
    201: ((6, 12, 48, 32), 32),
}
_BOTTLENECK = 4  # channels before a 3x3 convolution, as a multiple of the growth rate


@network
def densenet(
    layers: int = 121, image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, growth: int | None = None,
    dropout: float = 0.0,
) -> Model:  # fmt: skip
    """Four blocks. Each layer reads the channels of all earlier layers. Between blocks, channels and sides halve.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Options: `layers` is 121, 161, 169 or 201. `growth` is the number of channels that each layer adds. Its default is
    32, or 48 with 161 layers. The first convolution has twice as many channels. `dropout` is the dropout ratio after
    each layer, in training.

    Parameters: conv1_weight, bn1_weight, block1/layer1/bn1_weight, transition1/conv_weight, ..., fc_bias. With 1,000
    classes: 7,978,856, 28,681,000, 14,149,480 and 20,013,928, in the order of `layers`.
    """
    if layers not in _DEPTHS:
        raise UsageError(f"densenet: layers must be one of {', '.join(map(str, _DEPTHS))}, not {layers!r}")
    channels, height, width = image_shape("densenet", image)
    depths, usual = _DEPTHS[layers]
    growth = usual if growth is None else growth
    positive("densenet", classes=classes, growth=growth)
    h = _conv(nn.input("x", ["N", channels, height, width]), 2 * growth, 7, "conv1", stride=2)
    h = nn.max_pool2d(_activated(h, "bn1", "relu1"), 3, stride=2, pad=1, name="pool1")
    for block, depth in enumerate(depths, 1):
        if block > 1:
            with name_scope(f"transition{block - 1}"):
                h = _transition(h)
        for layer in range(1, depth + 1):
            with name_scope(f"block{block}"), name_scope(f"layer{layer}"):
                h = _dense_layer(h, growth, dropout)
    h = _activated(h, "bn2", "relu2")
    h = F.flatten(nn.global_avg_pool(h, name="pool2"), axis=1, name="flat")
    return Model({"logits": nn.linear(h, classes, bias_init="zeros", name="fc")}, name=f"densenet{layers}")


def _conv(x: Value, channels: int, kernel: int, name: str, *, stride: int = 1) -> Value:
    return nn.conv2d(x, channels, kernel, stride=stride, pad=kernel // 2, bias=False, init="he_normal", name=name)


def _activated(x: Value, norm: str, relu: str) -> Value:
    return F.relu(nn.batch_norm(x, name=norm), name=relu)


def _dense_layer(x: Value, growth: int, dropout: float) -> Value:
    """Return x with `growth` more channels."""
    h = _conv(_activated(x, "bn1", "relu1"), _BOTTLENECK * growth, 1, "conv1")
    h = _conv(_activated(h, "bn2", "relu2"), growth, 3, "conv2")
    if dropout:
        h = nn.dropout(h, dropout, name="drop")
    return F.concat(x, h, axis=1, name="joined")


def _transition(x: Value) -> Value:
    h = _conv(_activated(x, "bn", "relu"), channels_of(x) // 2, 1, "conv")
    return nn.avg_pool2d(h, 2, name="pool")
