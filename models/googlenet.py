"""GoogLeNet (Szegedy et al. 2014) without the auxiliary classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F

# Table 1 of the paper: widths of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection.
_MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


@network
def googlenet(
    image: tuple[int, ...] = (3, 224, 224), classes: int = 1000, batch_norm: bool = True, dropout: float = 0.2
) -> Model:
    """Nine inception modules: four parallel branches of convolutions and pooling, concatenated along the channels.

    Inputs: x is float32 [N, *image].

    Outputs: logits is [N, classes].

    Options: With `batch_norm`, the network is that of torchvision. Every convolution is normalised and has no bias. The
    kernel of the third branch is 3x3. Without `batch_norm`, the network is that of the paper: biases, 5x5 kernels, and
    local response normalisation around the second and third convolution. `dropout` is the dropout ratio before the last
    layer, in training.

    Parameters: conv1_weight, ..., inception3a/1x1_weight, inception3a/3x3_reduce_weight, ..., fc_bias. With 1,000
    classes: 6,624,904 with `batch_norm`, 6,998,552 without.
    """
    channels, height, width = image_shape("googlenet", image)
    positive("googlenet", classes=classes)
    conv = _Conv(batch_norm)
    h = conv(nn.input("x", ["N", channels, height, width]), 64, 7, "conv1", stride=2)
    h = nn.max_pool2d(h, 3, stride=2, ceil_mode=True, name="pool1")
    h = h if batch_norm else _response_norm(h, "lrn1")
    h = conv(conv(h, 64, 1, "conv2_reduce"), 192, 3, "conv2")
    h = h if batch_norm else _response_norm(h, "lrn2")
    h = nn.max_pool2d(h, 3, stride=2, ceil_mode=True, name="pool2")
    for name, widths in _MODULES.items():
        if name == "4a":
            h = nn.max_pool2d(h, 3, stride=2, ceil_mode=True, name="pool3")
        if name == "5a":
            h = nn.max_pool2d(h, 2 if batch_norm else 3, stride=2, ceil_mode=True, name="pool4")
        with name_scope(f"inception{name}"):
            h = _inception(h, widths, conv)
    h = F.flatten(nn.global_avg_pool(h, name="pool5"), axis=1, name="flat")
    if dropout:
        h = nn.dropout(h, dropout, name="drop")
    return Model({"logits": nn.linear(h, classes, name="fc")}, name="googlenet")


@dataclass(frozen=True)
class _Conv:
    """Convolution that keeps the image size, optional batch normalisation, and ReLU."""

    batch_norm: bool

    def __call__(self, x: Value, filters: int, kernel: int, name: str, *, stride: int = 1) -> Value:
        h = nn.conv2d(
            x, filters, kernel, stride=stride, pad=kernel // 2, bias=not self.batch_norm, init="xavier_uniform",
            bias_init="zeros", name=name,
        )  # fmt: skip
        if self.batch_norm:
            h = nn.batch_norm(h, epsilon=1e-3, name=f"{name}_bn")
        return F.relu(h, name=f"{name}_relu")


def _response_norm(x: Value, name: str) -> Value:
    return F.lrn(x, size=5, alpha=1e-4, beta=0.75, name=name)


def _inception(x: Value, widths: tuple[int, ...], conv: _Conv) -> Value:
    direct, reduce3, width3, reduce5, width5, projection = widths
    branches = [
        conv(x, direct, 1, "1x1"),
        conv(conv(x, reduce3, 1, "3x3_reduce"), width3, 3, "3x3"),
        conv(conv(x, reduce5, 1, "5x5_reduce"), width5, 3 if conv.batch_norm else 5, "5x5"),
        conv(nn.max_pool2d(x, 3, stride=1, pad=1, ceil_mode=conv.batch_norm, name="pool"), projection, 1, "project"),
    ]
    return F.concat(*branches, axis=1, name="join")
