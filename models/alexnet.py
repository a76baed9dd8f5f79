"""AlexNet in the single-column form of Krizhevsky 2014 (one weird trick), as torchvision defines it."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# With smaller sides, the third pooling would not have a whole window: 63 -> 15 -> 7 -> 3 -> 1.
_SMALLEST = 63


@network
def alexnet(
    image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, hidden: int = 4096, dropout: float = 0.5
) -> Model:
    """Five convolutions with ReLU, three of them with 3x3 max pooling of stride 2, then two layers of `hidden` units.

    Inputs: x is float32 [N, *image], at least 63 pixels per side.

    Outputs: logits is [N, classes].

    Options: `dropout` is the dropout ratio before each of the two hidden layers, in training.

    Parameters: conv1_weight, conv1_bias, ..., fc1_weight, ..., fc3_bias. 61,100,840 with the default options.
    """
    channels, height, width = image_shape("alexnet", image)
    positive("alexnet", classes=classes, hidden=hidden)
    if min(height, width) < _SMALLEST:
        raise UsageError(f"alexnet: images must have at least {_SMALLEST} pixels a side, not {height}x{width}")
    h = nn.input("x", ["N", channels, height, width])
    h = F.relu(nn.conv2d(h, 64, 11, stride=4, pad=2, name="conv1"), name="relu1")
    h = nn.max_pool2d(h, 3, stride=2, name="pool1")
    h = F.relu(nn.conv2d(h, 192, 5, pad=2, name="conv2"), name="relu2")
    h = nn.max_pool2d(h, 3, stride=2, name="pool2")
    for i, filters in ((3, 384), (4, 256), (5, 256)):
        h = F.relu(nn.conv2d(h, filters, 3, pad=1, name=f"conv{i}"), name=f"relu{i}")
    h = F.flatten(nn.max_pool2d(h, 3, stride=2, name="pool5"), axis=1, name="flat")
    for i in (1, 2):
        if dropout:
            h = nn.dropout(h, dropout, name=f"drop{i}")
        h = F.relu(nn.linear(h, hidden, name=f"fc{i}"), name=f"relu{i + 5}")
    return Model({"logits": nn.linear(h, classes, name="fc3")}, name="alexnet")
