"""Vision Transformer (Dosovitskiy et al. 2020; the smaller sizes of Touvron et al. 2020), as torchvision defines it."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.models._transformer import attention, drop, feed_forward
from graphkit.ops import F

# size -> (width, heads, layers)
_SIZES = {"tiny": (192, 3, 12), "small": (384, 6, 12), "base": (768, 12, 12), "large": (1024, 16, 24)}
_EPSILON = 1e-6
_INIT = {"type": "truncated_normal", "std": 0.02}


@network
def vit(
    size: str = "base", patch: int = 16, image: tuple[int, ...] = (3, 224, 224), classes: int = 1000,
    dropout: float = 0.0, layers: int | None = None,
) -> Model:  # fmt: skip
    """An encoder of pre-norm attention and feed-forward layers over image patches, and a classifier on the class token.

    Inputs: x is float32 [N, *image], height and width divisible by `patch`.

    Outputs: logits is [N, classes].

    Options: `size` is "tiny", "small", "base" or "large". `layers` sets another number of layers. `dropout` is the
    dropout ratio after embedding, attention and feed-forward layer, in training.

    Parameters: patch_weight, patch_bias, class_token, position, block0/norm1_weight, block0/qkv_weight, ..., norm_*,
    fc_*. With 1,000 classes and patches of 16 pixels: 5,717,416, 22,050,664, 86,567,656 and 304,326,632, in the order
    of `size`.
    """
    if size not in _SIZES:
        raise UsageError(f"vit: unknown size {size!r}{did_you_mean(size, _SIZES)}")
    channels, rows, columns = image_shape("vit", image)
    width, heads, usual = _SIZES[size]
    layers = usual if layers is None else layers
    positive("vit", patch=patch, classes=classes, layers=layers)
    if rows % patch or columns % patch:
        raise UsageError(f"vit: an image of {rows}x{columns} pixels does not divide into patches of {patch}x{patch}")
    x = nn.input("x", ["N", channels, rows, columns])
    token = nn.parameter("class_token", (1, 1, width), _INIT)
    h = _joined(token, _patches(x, width, patch))
    position = nn.parameter("position", (1, rows * columns // patch**2 + 1, width), _INIT)
    h = drop(F.add(h, position, name="embedded"), dropout)
    for layer in range(layers):
        with name_scope(f"block{layer}"):
            h = _block(h, heads, dropout)
    first = F.gather(nn.layer_norm(h, epsilon=_EPSILON, name="norm"), np.int64(0), axis=1, name="first")
    logits = nn.linear(first, classes, init=_INIT, bias_init="zeros", name="fc")
    return Model({"logits": logits}, name=f"vit_{size}_{patch}")


def _patches(x: Value, width: int, patch: int) -> Value:
    """Return the T patches of an image, row by row, projected to [N, T, width]."""
    h = nn.conv2d(x, width, patch, stride=patch, init=_INIT, bias_init="zeros", name="patch")
    return F.transpose(F.reshape(h, np.array([0, width, -1])), perm=(0, 2, 1), name="patches")


def _joined(token: Value, h: Value) -> Value:
    """Prepend the class token [1, 1, width] to the T patches: [N, T + 1, width]."""
    batch = F.slice(F.shape(h), np.array([0]), np.array([1]))
    tokens = F.expand(token, F.concat(batch, np.array([1, 1]), axis=0), name="class_tokens")
    return F.concat(tokens, h, axis=1, name="tokens")


def _block(h: Value, heads: int, dropout: float) -> Value:
    mixed = attention(nn.layer_norm(h, epsilon=_EPSILON, name="norm1"), heads, init=_INIT, project_init=_INIT)
    h = F.add(h, drop(mixed, dropout), name="sum1")
    width = h.tensor.known_shape[-1]
    assert isinstance(width, int)
    normed = nn.layer_norm(h, epsilon=_EPSILON, name="norm2")
    expanded = feed_forward(normed, 4 * width, approximate="none", init=_INIT, project_init=_INIT)
    return F.add(h, drop(expanded, dropout), name="sum2")
