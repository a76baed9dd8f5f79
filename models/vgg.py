"""VGG (Simonyan and Zisserman 2014), as torchvision defines it."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# layers -> 3x3 convolutions in each of the five stages (configurations A, B, D and E of the paper's table 1)
_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)
_SMALLEST = 32  # five poolings halve the image to 1


@network
def vgg(
    layers: int = 16,
    image: tuple[int, ...] = (3, 224, 224),
    classes: int = 1000,
    batch_norm: bool = False,
    hidden: int = 4096,
    dropout: float = 0.5,
) -> Model:
    """Stages of 3x3 convolutions with ReLU, each followed by 2x2 max pooling, then two layers of `hidden` units.

    Inputs: x is float32 [N, *image], at least 32 pixels per side.

    Outputs: logits is [N, classes].

    Options: `layers` is 11, 13, 16 or 19. With `batch_norm`, every convolution is normalised. `dropout` is the dropout
    ratio after each hidden layer, in training.

    Parameters: conv1_1_weight, conv1_1_bias, bn1_1_*, ..., fc1_weight, ..., fc3_bias. With 1,000 classes: 132,863,336,
    133,047,848, 138,357,544 and 143,667,240, in the order of `layers`; 138,365,992 for 16 layers with batch_norm.
    """
    if layers not in _DEPTHS:
        raise UsageError(f"vgg: layers must be one of {', '.join(map(str, _DEPTHS))}, not {layers!r}")
    channels, height, width = image_shape("vgg", image)
    positive("vgg", classes=classes, hidden=hidden)
    if min(height, width) < _SMALLEST:
        raise UsageError(f"vgg: images must have at least {_SMALLEST} pixels a side, not {height}x{width}")
    h = nn.input("x", ["N", channels, height, width])
    conv_init = {"type": "he_normal", "fan": "out"}
    for stage, (count, filters) in enumerate(zip(_DEPTHS[layers], _WIDTHS, strict=True), 1):
        for i in range(1, count + 1):
            h = nn.conv2d(h, filters, 3, pad=1, init=conv_init, bias_init="zeros", name=f"conv{stage}_{i}")
            if batch_norm:
                h = nn.batch_norm(h, name=f"bn{stage}_{i}")
            h = F.relu(h, name=f"relu{stage}_{i}")
        h = nn.max_pool2d(h, 2, name=f"pool{stage}")
    h = F.flatten(h, axis=1, name="flat")
    init = {"type": "normal", "std": 0.01}
    for i in (1, 2):
        h = F.relu(nn.linear(h, hidden, init=init, bias_init="zeros", name=f"fc{i}"), name=f"relu{i + 5}")
        if dropout:
            h = nn.dropout(h, dropout, name=f"drop{i}")
    logits = nn.linear(h, classes, init=init, bias_init="zeros", name="fc3")
    return Model({"logits": logits}, name=f"vgg{layers}{'_bn' * batch_norm}")
