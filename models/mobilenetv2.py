"""MobileNetV2 (Sandler et al. 2018), as torchvision defines it."""

from __future__ import annotations

from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import channels_of, conv_bn, image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# Table 2 of the paper: expansion, output channels, blocks, stride of the first block.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


@network
def mobilenetv2(image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, dropout: float = 0.2) -> Model:
    """Seventeen inverted residuals: a 1x1 expansion, a 3x3 depthwise convolution, a 1x1 projection without activation.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Options: `dropout` is the dropout ratio before the last layer, in training.

    Parameters: conv1_weight, bn1_weight, block1/depthwise_weight, block2/expand_weight, ..., fc_bias. 3,504,872 with
    1,000 classes.
    """
    channels, height, width = image_shape("mobilenetv2", image)
    positive("mobilenetv2", classes=classes)
    h = conv_bn(nn.input("x", ["N", channels, height, width]), 32, 3, stride=2, conv="conv1", norm="bn1")
    h = _relu6(h, "relu1")
    number = 0
    for expansion, filters, blocks, stride in _STAGES:
        for block in range(blocks):
            number += 1
            with name_scope(f"block{number}"):
                h = _inverted_residual(h, expansion, filters, stride if block == 0 else 1)
    h = _relu6(conv_bn(h, 1280, 1, conv="conv2", norm="bn2"), "relu2")
    h = F.flatten(nn.global_avg_pool(h, name="pool"), axis=1, name="flat")
    if dropout:
        h = nn.dropout(h, dropout, name="drop")
    logits = nn.linear(h, classes, init={"type": "normal", "std": 0.01}, bias_init="zeros", name="fc")
    return Model({"logits": logits}, name="mobilenetv2")


def _relu6(x: Value, name: str) -> Value:
    return F.clip(x, 0.0, 6.0, name=name)


def _inverted_residual(x: Value, expansion: int, filters: int, stride: int) -> Value:
    inputs = channels_of(x)
    h, width = x, inputs * expansion
    if expansion != 1:
        h = _relu6(conv_bn(h, width, 1, conv="expand", norm="expand_bn"), "expand_relu")
    h = conv_bn(h, width, 3, stride=stride, groups=width, conv="depthwise", norm="depthwise_bn")
    h = conv_bn(_relu6(h, "depthwise_relu"), filters, 1, conv="project", norm="project_bn")
    return F.add(x, h, name="sum") if stride == 1 and inputs == filters else h
