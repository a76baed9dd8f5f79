"""Generator and discriminator of a DCGAN (Radford, Metz and Chintala 2016)."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

_PARTS = ("generator", "discriminator")
_START = {"type": "normal", "std": 0.02}
_SMALLEST = 4  # side of the generator's first feature map


@network
def gan(part: str = "generator", image: tuple[int, ...] = (3, 64, 64), latent: int = 100, width: int = 64) -> Model:
    """One of two networks that are trained against each other.

    Inputs and outputs: The generator maps noise, float32 [N, latent], standard normal, to image, [N, *image] in (-1,
    1). The discriminator maps x, float32 [N, *image], to logits, [N, 1], the logit of the probability that x is real.

    Options: `part` is "generator" or "discriminator". Images are squares. Their side is a power of two, at least 8.
    `width` is the number of channels of the generator's last hidden layer and of the discriminator's first. It doubles
    each time the side halves.

    Layers: The generator has transposed convolutions that double the side, from 4. The discriminator has convolutions
    that halve it. Kernels are 4x4. Batch normalisation follows, except next to the image and the logits. The generator
    has ReLU. The discriminator has leaky ReLU with slope 0.2.

    Training: A step with two losses, as in examples/gan (`gk.StepBuilder`).

    Parameters: generator/up<n>_weight, generator/norm<n>_*, discriminator/down<n>_weight, discriminator/norm<n>_*,
    discriminator/judge_weight, as in PyTorch's example. 3,576,704 with the default options, and 2,765,568 for the
    discriminator. Scales of normalisations start at 1.
    """
    channels, side, breadth = image_shape("gan", image)
    positive("gan", latent=latent, width=width)
    if part not in _PARTS:
        raise UsageError(f"gan: part must be {' or '.join(_PARTS)}, not {part!r}")
    if side != breadth or side < 2 * _SMALLEST or side & (side - 1):
        raise UsageError(f"gan: images must be square, and the side a power of two, 8 or more, not {side}x{breadth}")
    halvings = (side // _SMALLEST).bit_length() - 1
    widths = [width << level for level in range(halvings)]
    data = nn.input("noise", ["N", latent]) if part == "generator" else nn.input("x", ["N", channels, side, side])
    with name_scope(part):
        if part == "generator":
            return Model({"image": _generate(data, widths, channels, latent)}, name="gan")
        return Model({"logits": _judge(data, widths)}, name="gan")


def _generate(noise: Value, widths: list[int], channels: int, latent: int) -> Value:
    h = F.reshape(noise, np.array([-1, latent, 1, 1]))
    for i, outputs in enumerate([*reversed(widths), channels], 1):
        stride, pad = (1, 0) if i == 1 else (2, 1)
        h = nn.conv_transpose2d(h, outputs, 4, stride=stride, pad=pad, bias=False, init=_START, name=f"up{i}")
        if i <= len(widths):
            h = F.relu(nn.batch_norm(h, name=f"norm{i}"), name=f"relu{i}")
    return F.tanh(h, name="image")


def _judge(x: Value, widths: list[int]) -> Value:
    for i, outputs in enumerate(widths, 1):
        x = nn.conv2d(x, outputs, 4, stride=2, pad=1, bias=False, init=_START, name=f"down{i}")
        x = F.leaky_relu(x if i == 1 else nn.batch_norm(x, name=f"norm{i}"), alpha=0.2, name=f"relu{i}")
    return F.flatten(nn.conv2d(x, 1, 4, bias=False, init=_START, name="judge"), axis=1, name="logits")
