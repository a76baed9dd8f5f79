"""Common parts of networks for images."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value

# Initialiser of convolutions that are followed by ReLU (He et al. 2015).
HE_NORMAL = {"type": "he_normal", "fan": "out"}


def image_shape(network: str, image: Sequence[int]) -> tuple[int, int, int]:
    """Return (channels, height, width). Raises UsageError if `image` is not three positive integers."""
    sizes = tuple(image) if isinstance(image, Sequence) and not isinstance(image, str) else (image,)
    if len(sizes) != 3 or any(not isinstance(d, int) or d < 1 for d in sizes):
        raise UsageError(f"{network}: image must be (channels, height, width), not {image!r}")
    return sizes


def positive(network: str, **options: int) -> None:
    """Raise UsageError for an option that is not a positive integer."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{network}: {name} must be a positive integer, not {value!r}")


def conv_bn(
    x: Value, channels: int, kernel: int, *, conv: str, norm: str, stride: int = 1, groups: int = 1,
    momentum: float = 0.9, epsilon: float = 1e-5,
) -> Value:  # fmt: skip
    """Convolution without bias, from He's normal distribution by fan out, then batch normalisation.

    `kernel` is odd; with a stride of 1 the image keeps its size. `conv`, `norm`: the names of both layers.
    """
    h = nn.conv2d(
        x, channels, kernel, stride=stride, pad=kernel // 2, groups=groups, bias=False, init=HE_NORMAL, name=conv
    )  # fmt: skip
    return nn.batch_norm(h, momentum=momentum, epsilon=epsilon, name=norm)


def channels_of(x: Value) -> int:
    """Return C of [N, C, ...]."""
    channels = x.tensor.known_shape[1]
    assert isinstance(channels, int)
    return channels
