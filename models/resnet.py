"""ResNet (He et al. 2015) as torchvision defines it, and with preactivation (He et al. 2016) as MXNet does.

The stride of a bottleneck is on its 3x3 convolution. Networks for small images are those of section 4.2 of the paper.
"""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import HE_NORMAL, channels_of, conv_bn, image_shape, positive
from graphkit.models._registry import network
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F


class _Form(NamedTuple):
    """blocks: number of blocks in each stage. small: for small images, with shortcuts that have no parameters."""

    blocks: tuple[int, ...]
    bottleneck: bool = False
    small: bool = False

    def width(self, stage: int) -> int:
        return (16 if self.small else 64) << stage


_FORMS = {
    18: _Form((2, 2, 2, 2)),
    34: _Form((3, 4, 6, 3)),
    50: _Form((3, 4, 6, 3), bottleneck=True),
    101: _Form((3, 4, 23, 3), bottleneck=True),
    152: _Form((3, 8, 36, 3), bottleneck=True),
    **{6 * n + 2: _Form((n, n, n), small=True) for n in (3, 5, 7, 9, 18)},
}
_EXPANSION = 4  # output channels of a bottleneck, as a multiple of its width


@network
def resnet(
    layers: int = 50, image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, preactivation: bool = False
) -> Model:
    """Residual network with 18, 34 (basic blocks), 50, 101 or 152 (bottlenecks) layers; 20 to 110 for small images.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Options: With 20, 32, 44, 56 or 110 `layers`, you get the paper's networks for CIFAR-10. They begin with a 3x3
    convolution, halve the image twice, and have widths of 16, 32 and 64. A shortcut takes every second pixel, and adds
    channels of zeros. With `preactivation` (ResNet v2), batch normalisation and ReLU come before each convolution of a
    block, and not after the sum. After the last block, there is one more batch normalisation (bn2) with ReLU.

    Parameters: conv1_weight, bn1_weight, layer1/0/conv1_weight, layer2/0/downsample_weight, ..., fc_bias. Convolutions
    have no biases, and are initialised as in He et al. (Kaiming normal, fan_out). With 1,000 classes: 11,689,512,
    21,797,672, 25,557,032, 44,549,160 and 60,192,808, in the order of `layers`. With `preactivation`: 11,687,848,
    21,796,008, 25,549,480, 44,541,608 and 60,185,256. For small RGB images and 10 classes: 269,722, 464,154, 658,586,
    853,018 and 1,727,962.
    """
    if layers not in _FORMS:
        raise UsageError(f"resnet: layers must be one of {', '.join(map(str, _FORMS))}, not {layers!r}")
    channels, height, width = image_shape("resnet", image)
    positive("resnet", classes=classes)
    form = _FORMS[layers]
    block_of = _preactivation_block if preactivation else _block
    x = nn.input("x", ["N", channels, height, width])
    kernel, stride = (3, 1) if form.small else (7, 2)
    h = F.relu(conv_bn(x, form.width(0), kernel, stride=stride, conv="conv1", norm="bn1"), name="relu1")
    if not form.small:
        h = nn.max_pool2d(h, 3, stride=2, pad=1, name="pool1")
    for stage, blocks in enumerate(form.blocks):
        for block in range(blocks):
            with name_scope(f"layer{stage + 1}"), name_scope(str(block)):
                h = block_of(h, form.width(stage), stride=2 if stage and not block else 1, form=form)
    if preactivation:
        h = _activated(h, 2)
    h = F.flatten(nn.global_avg_pool(h, name="pool2"), axis=1, name="flat")
    return Model({"logits": nn.linear(h, classes, name="fc")}, name=f"resnet{layers}{'_v2' * preactivation}")


def _block(x: Value, width: int, *, stride: int, form: _Form) -> Value:
    """Return relu(x + f(x)). If the shape changes, the shortcut is a 1x1 convolution, or for small images `_padded`."""
    if form.bottleneck:
        channels = width * _EXPANSION
        h = F.relu(conv_bn(x, width, 1, conv="conv1", norm="bn1"), name="relu1")
        h = F.relu(conv_bn(h, width, 3, stride=stride, conv="conv2", norm="bn2"), name="relu2")
        h = conv_bn(h, channels, 1, conv="conv3", norm="bn3")
    else:
        channels = width
        h = F.relu(conv_bn(x, width, 3, stride=stride, conv="conv1", norm="bn1"), name="relu1")
        h = conv_bn(h, width, 3, conv="conv2", norm="bn2")
    if stride != 1 or channels_of(x) != channels:
        if form.small:
            x = _padded(x, channels, stride)
        else:
            x = conv_bn(x, channels, 1, stride=stride, conv="downsample", norm="downsample_bn")
    return F.relu(F.add(h, x, name="sum"), name="relu")


def _preactivation_block(x: Value, width: int, *, stride: int, form: _Form) -> Value:
    """Return x + f(x). If the shape changes, the shortcut is a convolution of the same operand as f's first one."""
    channels = width * _EXPANSION if form.bottleneck else width
    active = _activated(x, 1)
    if form.bottleneck:
        h = _conv(_activated(_conv(active, width, 1, "conv1"), 2), width, 3, "conv2", stride=stride)
        h = _conv(_activated(h, 3), channels, 1, "conv3")
    else:
        h = _conv(active, width, 3, "conv1", stride=stride)
        h = _conv(_activated(h, 2), width, 3, "conv2")
    if stride != 1 or channels_of(x) != channels:
        x = _padded(active, channels, stride) if form.small else _conv(active, channels, 1, "downsample", stride=stride)
    return F.add(h, x, name="sum")


def _activated(x: Value, number: int) -> Value:
    return F.relu(nn.batch_norm(x, name=f"bn{number}"), name=f"relu{number}")


def _conv(x: Value, channels: int, kernel: int, name: str, *, stride: int = 1) -> Value:
    return nn.conv2d(x, channels, kernel, stride=stride, pad=kernel // 2, bias=False, init=HE_NORMAL, name=name)


def _padded(x: Value, channels: int, stride: int) -> Value:
    """Return every `stride`-th pixel, padded with channels of zeros (option A of the paper)."""
    end, step = np.iinfo(np.int64).max, np.array([stride, stride])
    chosen = F.slice(x, np.array([0, 0]), np.array([end, end]), np.array([2, 3]), step, name="downsample")
    return F.pad(chosen, np.array([0, 0, 0, 0, 0, channels - channels_of(x), 0, 0]), name="widened")
