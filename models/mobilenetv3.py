"""MobileNetV3 (Howard et al. 2019), as torchvision defines it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import HE_NORMAL, channels_of, conv_bn, image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F


@dataclass(frozen=True)
class _Block:
    """A row of tables 1 and 2 of the paper."""

    kernel: int
    expanded: int
    channels: int
    squeeze: bool
    hard_swish: bool
    stride: int


# size -> (blocks, width of the hidden layer of the classifier)
_SIZES = {
    "large": (
        (
            _Block(3, 16, 16, False, False, 1),
            _Block(3, 64, 24, False, False, 2),
            _Block(3, 72, 24, False, False, 1),
            _Block(5, 72, 40, True, False, 2),
            _Block(5, 120, 40, True, False, 1),
            _Block(5, 120, 40, True, False, 1),
            _Block(3, 240, 80, False, True, 2),
            _Block(3, 200, 80, False, True, 1),
            _Block(3, 184, 80, False, True, 1),
            _Block(3, 184, 80, False, True, 1),
            _Block(3, 480, 112, True, True, 1),
            _Block(3, 672, 112, True, True, 1),
            _Block(5, 672, 160, True, True, 2),
            _Block(5, 960, 160, True, True, 1),
            _Block(5, 960, 160, True, True, 1),
        ),
        1280,
    ),
    "small": (
        (
            _Block(3, 16, 16, True, False, 2),
            _Block(3, 72, 24, False, False, 2),
            _Block(3, 88, 24, False, False, 1),
            _Block(5, 96, 40, True, True, 2),
            _Block(5, 240, 40, True, True, 1),
            _Block(5, 240, 40, True, True, 1),
            _Block(5, 120, 48, True, True, 1),
            _Block(5, 144, 48, True, True, 1),
            _Block(5, 288, 96, True, True, 2),
            _Block(5, 576, 96, True, True, 1),
            _Block(5, 576, 96, True, True, 1),
        ),
        1024,
    ),
}
_DIVISOR = 8  # all numbers of channels are multiples of this

_conv_bn = functools.partial(conv_bn, momentum=0.99, epsilon=1e-3)


@network
def mobilenetv3(
    size: str = "large", image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, width: float = 1.0,
    dropout: float = 0.2,
) -> Model:  # fmt: skip
    """Inverted residuals with squeeze and excitation, ReLU in the first ones and hard swish in the others.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Options: `size` is "large" or "small". `width` multiplies all numbers of channels, rounded to a multiple of 8.
    `dropout` is the dropout ratio before the last layer, in training.

    Parameters: conv1_weight, bn1_weight, block1/depthwise_weight, block4/squeeze_weight, ..., fc2_bias. With 1,000
    classes: 5,483,032 (large) and 2,542,856 (small).
    """
    if size not in _SIZES:
        raise UsageError(f"mobilenetv3: size must be 'large' or 'small', not {size!r}")
    channels, rows, columns = image_shape("mobilenetv3", image)
    positive("mobilenetv3", classes=classes)
    if not width > 0:
        raise UsageError(f"mobilenetv3: width must be a positive number, not {width!r}")
    blocks, hidden = _SIZES[size]
    x = nn.input("x", ["N", channels, rows, columns])
    h = F.hard_swish(_conv_bn(x, _scaled(16, width), 3, stride=2, conv="conv1", norm="bn1"), name="hswish1")
    for number, block in enumerate(blocks, 1):
        with name_scope(f"block{number}"):
            h = _inverted_residual(h, block, width)
    h = _conv_bn(h, 6 * channels_of(h), 1, conv="conv2", norm="bn2")
    h = F.flatten(nn.global_avg_pool(F.hard_swish(h, name="hswish2"), name="pool"), axis=1, name="flat")
    init = {"type": "normal", "std": 0.01}
    h = nn.linear(h, _scaled(hidden, width), init=init, bias_init="zeros", name="fc1")
    h = F.hard_swish(h, name="hswish3")
    if dropout:
        h = nn.dropout(h, dropout, name="drop")
    return Model(
        {"logits": nn.linear(h, classes, init=init, bias_init="zeros", name="fc2")}, name=f"mobilenetv3_{size}"
    )


def _scaled(channels: int, width: float) -> int:
    """Round width * channels to the nearest multiple of 8, or to the next one above if that is less than 90% of it."""
    wanted = channels * width
    nearest = max(_DIVISOR, int(wanted + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return nearest if nearest >= 0.9 * wanted else nearest + _DIVISOR


def _inverted_residual(x: Value, block: _Block, width: float) -> Value:
    inputs, filters, expanded = channels_of(x), _scaled(block.channels, width), _scaled(block.expanded, width)
    activation = F.hard_swish if block.hard_swish else F.relu
    h = x
    if expanded != inputs:
        h = activation(_conv_bn(h, expanded, 1, conv="expand", norm="expand_bn"), name="expand_act")
    h = _conv_bn(
        h, expanded, block.kernel, stride=block.stride, groups=expanded, conv="depthwise", norm="depthwise_bn"
    )  # fmt: skip
    h = activation(h, name="depthwise_act")
    if block.squeeze:
        h = _squeeze_and_excite(h)
    h = _conv_bn(h, filters, 1, conv="project", norm="project_bn")
    return F.add(x, h, name="sum") if block.stride == 1 and inputs == filters else h


def _squeeze_and_excite(x: Value) -> Value:
    """Multiply each channel of x by a factor in [0, 1], which two layers compute from the channel means (Hu et al.)."""
    channels = channels_of(x)
    h = nn.global_avg_pool(x, name="squeeze_pool")
    h = nn.conv2d(h, _scaled(channels, 0.25), 1, init=HE_NORMAL, bias_init="zeros", name="squeeze")
    h = nn.conv2d(F.relu(h, name="squeeze_relu"), channels, 1, init=HE_NORMAL, bias_init="zeros", name="excite")
    return F.mul(x, F.hard_sigmoid(h, alpha=1 / 6, beta=0.5, name="excite_gate"), name="excited")
