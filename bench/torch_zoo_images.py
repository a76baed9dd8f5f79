"""Classifiers of images as PyTorch modules: see torch_zoo.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_zoo_parts import conv_bn, network, norm_if, stack


def _dense(features: nn.Module, image: Sequence[int], hidden: int, classes: int) -> nn.Sequential:
    """`features`, then two hidden layers; their first width follows from the image."""
    width = features(torch.zeros(1, *image)).numel()
    layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return stack(features, nn.Flatten(), layers)


@network("lenet")
def _lenet(image: Sequence[int], classes: int = 10) -> nn.Module:
    pad = 0 if min(image[1:]) >= 16 else 2
    features = stack(
        nn.Conv2d(image[0], 20, 5, padding=pad), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5, padding=pad), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    width = features(torch.zeros(1, *image)).numel()
    return stack(features, nn.Linear(width, 500), nn.Tanh(), nn.Linear(500, classes))


@network("alexnet")
def _alexnet(image: Sequence[int], classes: int, hidden: int = 4096) -> nn.Module:
    features = stack(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
    )  # fmt: skip
    return _dense(features, image, hidden, classes)


@network("vgg")
def _vgg(layers: int, image: Sequence[int], classes: int, hidden: int = 4096, batch_norm: bool = False) -> nn.Module:
    depths = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[layers]
    parts: list[nn.Module] = []
    width = 3
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            outputs = min(64 << stage, 512)
            parts += [nn.Conv2d(width, outputs, 3, padding=1), *norm_if(outputs, batch_norm), nn.ReLU()]
            width = outputs
        parts.append(nn.MaxPool2d(2))
    return _dense(stack(parts).eval(), image, hidden, classes)


class _Residual(nn.Module):
    """activation(f(x) + shortcut(x))."""

    def __init__(self, body: list[nn.Module], shortcut: list[nn.Module], activation: bool):
        super().__init__()
        self.body, self.shortcut, self.activation = stack(body), stack(shortcut), activation

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x) + self.shortcut(x)
        return functional.relu(y) if self.activation else y


class _PreactivatedResidual(nn.Module):
    """f(y) + shortcut(y), y the activation of x; without a shortcut f(y) + x."""

    def __init__(self, activation: list[nn.Module], body: list[nn.Module], shortcut: list[nn.Module]):
        super().__init__()
        self.activation, self.body, self.shortcut = stack(activation), stack(body), stack(shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(x)
        return self.body(y) + (self.shortcut(y) if len(self.shortcut) else x)


def _preactivated_block(width: int, inner: int, outputs: int, stride: int) -> nn.Module:
    def activation(channels: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(channels), nn.ReLU()]

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)

    if inner == outputs:
        body = [conv(width, inner, 3, stride), *activation(inner), conv(inner, inner, 3)]
    else:
        body = [conv(width, inner, 1), *activation(inner), conv(inner, inner, 3, stride), *activation(inner)]
        body.append(conv(inner, outputs, 1))
    shortcut = [conv(width, outputs, 1, stride)] if stride != 1 or width != outputs else []
    return _PreactivatedResidual(activation(width), body, shortcut)


def _residual_block(width: int, inner: int, outputs: int, stride: int) -> nn.Module:
    if inner == outputs:
        body = [*conv_bn(width, inner, 3, stride), nn.ReLU(), *conv_bn(inner, outputs, 3)]
    else:
        body = [*conv_bn(width, inner, 1), nn.ReLU(), *conv_bn(inner, inner, 3, stride), nn.ReLU()]
        body += conv_bn(inner, outputs, 1)
    shortcut = conv_bn(width, outputs, 1, stride) if stride != 1 or width != outputs else []
    return _Residual(body, shortcut, activation=True)


class _Padded(nn.Module):
    """Every `stride`-th pixel, and channels of zeros behind."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(chosen, (0, 0, 0, 0, 0, self.channels - x.shape[1]))


def _small_resnet(layers: int, classes: int, preactivation: bool) -> nn.Module:
    """Of 6n + 2 layers, for small images (He et al. 2015, section 4.2)."""
    block_of = _preactivated_block if preactivation else _residual_block
    parts, width = [stack(conv_bn(3, 16, 3)), nn.ReLU()], 16
    for outputs in (16, 32, 64):
        for block in range((layers - 2) // 6):
            stride = 2 if outputs > 16 and not block else 1
            made = block_of(width, outputs, outputs, stride)
            if len(made.shortcut):
                made.shortcut = stack(_Padded(outputs, stride))
            parts.append(made)
            width = outputs
    last = [nn.BatchNorm2d(width), nn.ReLU()] if preactivation else []
    return stack(parts, last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@network("resnet")
def _resnet(layers: int, image: Sequence[int], classes: int, preactivation: bool = False) -> nn.Module:
    if layers % 6 == 2 and layers != 50:
        return _small_resnet(layers, classes, preactivation)
    depths = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[layers]
    block_of = _preactivated_block if preactivation else _residual_block
    parts = [stack(conv_bn(3, 64, 7, 2)), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for stage, depth in enumerate(depths):
        inner = 64 << stage
        outputs = inner if layers < 50 else 4 * inner
        for block in range(depth):
            parts.append(block_of(width, inner, outputs, 2 if stage and not block else 1))
            width = outputs
    last = [nn.BatchNorm2d(width), nn.ReLU()] if preactivation else []
    return stack(parts, last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@network("mobilenetv2")
def _mobilenetv2(image: Sequence[int], classes: int) -> nn.Module:
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    parts, width = [*conv_bn(3, 32, 3, 2), nn.ReLU6()], 32
    for expansion, outputs, blocks, first in stages:
        for block in range(blocks):
            inner, stride = width * expansion, 1 if block else first
            body = [] if expansion == 1 else [*conv_bn(width, inner, 1), nn.ReLU6()]
            body += [*conv_bn(inner, inner, 3, stride, inner), nn.ReLU6(), *conv_bn(inner, outputs, 1)]
            same = stride == 1 and width == outputs
            parts.append(_Residual(body, [], activation=False) if same else stack(body))
            width = outputs
    head = [*conv_bn(width, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return stack(parts, head)


class _SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        layers = [nn.Conv2d(channels, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, channels, 1)]
        self.gate = stack(nn.AdaptiveAvgPool2d(1), layers)

    def forward(self, x: Tensor) -> Tensor:
        # The gradient of PyTorch's own hardsigmoid takes a sixth in single precision, in float64 as well.
        return x * (functional.relu6(self.gate(x) + 3) / 6)


@network("mobilenetv3")
def _mobilenetv3(size: str, image: Sequence[int], classes: int, width: float = 1.0) -> nn.Module:
    def scaled(channels: float) -> int:
        rounded = max(8, math.floor(channels / 8 + 0.5) * 8)
        return rounded + 8 if rounded < 0.9 * channels else rounded

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        convolution, norm = conv_bn(inputs, outputs, kernel, stride, groups, eps=1e-3)
        norm.momentum = 0.01
        return [convolution, norm]

    # kernels, expansions, outputs, strides; the blocks with an excitation, and the first one of hard swish
    rows, excited, first_swish, hidden = {
        "large": (
            (
                (3, 16, 16, 1), (3, 64, 24, 2), (3, 72, 24, 1), (5, 72, 40, 2), (5, 120, 40, 1), (5, 120, 40, 1),
                (3, 240, 80, 2), (3, 200, 80, 1), (3, 184, 80, 1), (3, 184, 80, 1), (3, 480, 112, 1),
                (3, 672, 112, 1), (5, 672, 160, 2), (5, 960, 160, 1), (5, 960, 160, 1),
            ),
            {3, 4, 5, 10, 11, 12, 13, 14}, 6, 1280,
        ),
        "small": (
            (
                (3, 16, 16, 2), (3, 72, 24, 2), (3, 88, 24, 1), (5, 96, 40, 2), (5, 240, 40, 1), (5, 240, 40, 1),
                (5, 120, 48, 1), (5, 144, 48, 1), (5, 288, 96, 2), (5, 576, 96, 1), (5, 576, 96, 1),
            ),
            {0, 3, 4, 5, 6, 7, 8, 9, 10}, 3, 1024,
        ),
    }[size]  # fmt: skip
    inputs = scaled(16 * width)
    parts: list[Any] = [*conv(3, inputs, 3, 2), nn.Hardswish()]
    for i, (kernel, expansion, channels, stride) in enumerate(rows):
        inner, outputs = scaled(expansion * width), scaled(channels * width)
        activation = nn.Hardswish if i >= first_swish else nn.ReLU
        body = [] if inner == inputs else [*conv(inputs, inner, 1), activation()]
        body += [*conv(inner, inner, kernel, stride, inner), activation()]
        body += [_SqueezeExcitation(inner, scaled(inner / 4))] if i in excited else []
        body += conv(inner, outputs, 1)
        same = stride == 1 and inputs == outputs
        parts.append(_Residual(body, [], activation=False) if same else stack(body))
        inputs = outputs
    parts += [*conv(inputs, 6 * inputs, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    top = scaled(hidden * width)
    return stack(parts, nn.Linear(6 * inputs, top), nn.Hardswish(), nn.Linear(top, classes))


class _Grown(nn.Module):
    """x and what the body makes of it, joined along the channels."""

    def __init__(self, body: list[nn.Module]):
        super().__init__()
        self.body = stack(body)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


@network("densenet")
def _densenet(layers: int, image: Sequence[int], classes: int, growth: int | None = None) -> nn.Module:
    depths = {121: (6, 12, 24, 16), 161: (6, 12, 36, 24), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}[layers]
    added = growth or (48 if layers == 161 else 32)

    def activated(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
        norm, convolution = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return [norm, nn.ReLU(), convolution]

    width = 2 * added
    parts = [*conv_bn(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for block, depth in enumerate(depths):
        if block:
            parts += [*activated(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(depth):
            parts.append(_Grown([*activated(width, 4 * added, 1), *activated(4 * added, added, 3)]))
            width += added
    head = [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return stack(parts, head)


class _Branches(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, *branches: list[nn.Module]):
        super().__init__()
        self.branches = nn.ModuleList(stack(branch) for branch in branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


@network("googlenet")
def _googlenet(image: Sequence[int], classes: int, batch_norm: bool = True) -> nn.Module:
    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        if batch_norm:
            return [*conv_bn(inputs, outputs, kernel, stride, eps=1e-3), nn.ReLU()]
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU()]

    def norm() -> list[nn.Module]:
        return [] if batch_norm else [nn.LocalResponseNorm(5)]

    stages = [
        [(64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)],
        [
            (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
        ],
        [(256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)],
    ]  # fmt: skip
    parts = [
        *conv(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *norm(),
        *conv(64, 64, 1),
        *conv(64, 192, 3),
        *norm(),
    ]
    width = 192
    for number, stage in enumerate(stages):
        window = 2 if batch_norm and number == 2 else 3  # the last pooling of torchvision's differs from the paper's
        parts.append(nn.MaxPool2d(window, 2, ceil_mode=True))
        for direct, reduce3, width3, reduce5, width5, projection in stage:
            parts.append(
                _Branches(
                    conv(width, direct, 1),
                    [*conv(width, reduce3, 1), *conv(reduce3, width3, 3)],
                    [*conv(width, reduce5, 1), *conv(reduce5, width5, 3 if batch_norm else 5)],
                    [nn.MaxPool2d(3, 1, 1), *conv(width, projection, 1)],
                )
            )
            width = direct + width3 + width5 + projection
    return stack(parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@network("inception_bn")
def _inception_bn(image: Sequence[int], classes: int) -> nn.Module:
    def conv(inputs: int, *layers: tuple[int, int, int]) -> list[nn.Module]:
        """Layers of (filters, kernel, stride), one after another."""
        parts: list[nn.Module] = []
        for filters, kernel, stride in layers:
            parts += [nn.Conv2d(inputs, filters, kernel, stride, kernel // 2), nn.BatchNorm2d(filters), nn.ReLU()]
            inputs = filters
        return parts

    parts = [*conv(3, (64, 7, 2)), nn.MaxPool2d(3, 2, ceil_mode=True), *conv(64, (64, 1, 1), (192, 3, 1))]
    parts.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    width = 192
    # direct, 3x3 reduce, 3x3, double reduce, double, projection; without the first and the last: half the size
    for row in (
        (64, 64, 64, 64, 96, 32), (64, 64, 96, 64, 96, 64), (128, 160, 64, 96),
        (224, 64, 96, 96, 128, 128), (192, 96, 128, 96, 128, 128), (160, 128, 160, 128, 160, 128),
        (96, 128, 192, 160, 192, 128), (128, 192, 192, 256),
        (352, 192, 320, 160, 224, 128), (352, 192, 320, 192, 224, 128),
    ):  # fmt: skip
        if len(row) == 4:
            a, b, c, d = row
            branches = [conv(width, (a, 1, 1), (b, 3, 2)), conv(width, (c, 1, 1), (d, 3, 1), (d, 3, 2))]
            parts.append(_Branches(*branches, [nn.MaxPool2d(3, 2, 1)]))
            width += b + d
            continue
        direct, a, b, c, d, projection = row
        pooling = nn.MaxPool2d(3, 1, 1) if (width, c) == (1024, 192) else nn.AvgPool2d(3, 1, 1)
        branches = [conv(width, (direct, 1, 1)), conv(width, (a, 1, 1), (b, 3, 1))]
        branches += [conv(width, (c, 1, 1), (d, 3, 1), (d, 3, 1)), [pooling, *conv(width, (projection, 1, 1))]]
        parts.append(_Branches(*branches))
        width = direct + b + d + projection
    return stack(parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
