"""LeNet, as the MXNet examples define it for MNIST (after LeCun et al. 1998)."""

from __future__ import annotations

from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# With smaller sides and no padding, the second pooling would have no window: 16 -> 12 -> 6 -> 2 -> 1.
_SMALLEST_UNPADDED = 16


@network
def lenet(image: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Model:
    """Two 5x5 convolutions (20 and 50 channels), each with tanh and 2x2 max pooling, then 500 tanh units.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Padding: For images of at least 16 pixels per side, the convolutions have no padding. For smaller ones, such as 8x8
    digits, they are padded by 2.

    Parameters: conv1_weight, conv1_bias, conv2_*, fc1_*, fc2_*. 431,080 for 1x28x28 and 10 classes.
    """
    channels, height, width = image_shape("lenet", image)
    positive("lenet", classes=classes)
    pad = 0 if min(height, width) >= _SMALLEST_UNPADDED else 2
    h = nn.input("x", ["N", channels, height, width])
    for i, filters in enumerate((20, 50), 1):
        h = nn.conv2d(h, filters, 5, pad=pad, init="xavier_uniform", bias_init="zeros", name=f"conv{i}")
        h = nn.max_pool2d(F.tanh(h, name=f"tanh{i}"), 2, name=f"pool{i}")
    h = F.flatten(h, axis=1, name="flat")
    h = F.tanh(nn.linear(h, 500, init="xavier_uniform", bias_init="zeros", name="fc1"), name="tanh3")
    logits = nn.linear(h, classes, init="xavier_uniform", bias_init="zeros", name="fc2")
    return Model({"logits": logits}, name="lenet")
