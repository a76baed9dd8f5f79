"""U-Net (Ronneberger, Fischer and Brox 2015)."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F


@network
def unet(
    image: tuple[int, ...] = (1, 256, 256),
    classes: int = 2,
    width: int = 64,
    depth: int = 4,
    batch_norm: bool = False,
) -> Model:
    """Segmentation: the image is halved `depth` times and doubled again, with a shortcut at each scale.

    Inputs: x is float32 [N, *image], sides divisible by 2^depth.

    Outputs: logits is [N, classes, height, width]. The class axis is the second one, as ONNX's losses require. Unlike
    in the paper, convolutions are padded, so the logits have the size of the image.

    Options: `width` is the number of channels at the finest scale. It doubles at each coarser one. With `batch_norm`,
    every convolution is normalised and has no bias.

    Parameters: down1/conv1_weight, ..., bottom/conv1_weight, up4/up_weight, ..., up1/conv2_bias, head_weight,
    head_bias. 31,030,658 with the default options; 7,763,041 for three channels, one class, width=32 and batch_norm.
    """
    channels, height, breadth = image_shape("unet", image)
    positive("unet", classes=classes, width=width, depth=depth)
    if height % (1 << depth) or breadth % (1 << depth):
        raise UsageError(
            f"unet: the sides of images must be divisible by {1 << depth} (2^depth), not {height}x{breadth}"
        )
    h = nn.input("x", ["N", channels, height, breadth])
    shortcuts = []
    for level in range(depth):
        with name_scope(f"down{level + 1}"):
            h = _two_convolutions(h, width << level, batch_norm)
            shortcuts.append(h)
            h = nn.max_pool2d(h, 2, name="pool")
    with name_scope("bottom"):
        h = _two_convolutions(h, width << depth, batch_norm)
    for level in reversed(range(depth)):
        with name_scope(f"up{level + 1}"):
            h = nn.conv_transpose2d(h, width << level, 2, stride=2, name="up")
            h = F.concat(shortcuts[level], h, axis=1, name="join")
            h = _two_convolutions(h, width << level, batch_norm)
    return Model({"logits": nn.conv2d(h, classes, 1, name="head")}, name="unet")


def _two_convolutions(x: Value, channels: int, batch_norm: bool) -> Value:
    for i in (1, 2):
        x = nn.conv2d(
            x, channels, 3, pad=1, bias=not batch_norm, init="he_normal", bias_init="zeros", name=f"conv{i}"
        )  # fmt: skip
        if batch_norm:
            x = nn.batch_norm(x, name=f"bn{i}")
        x = F.relu(x, name=f"relu{i}")
    return x
