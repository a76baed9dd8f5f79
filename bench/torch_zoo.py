"""The zoo as PyTorch modules, from the papers and torchvision's definitions, without dropout.

Parameters and buffers are registered in the order in which our networks list theirs, so that the two are matched by
position and shape. `build(name, **options)` takes the options of `gk.models.build`; `slots(module)` has what both sides
hold, in the form of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

_MODULES: dict[str, Callable[..., nn.Module]] = {}


def build(name: str, **options: Any) -> nn.Module:
    return _MODULES[name](**{k: v for k, v in options.items() if k != "dropout"})


@dataclass(frozen=True)
class Slot:
    """A parameter or running statistic. Of an LSTM: tensors of one kind, joined, with the gates in ONNX's order."""

    tensors: tuple[Tensor, ...]
    gates: bool = False

    @property
    def trained(self) -> bool:
        return isinstance(self.tensors[0], nn.Parameter)

    def read(self, of: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> np.ndarray:
        """The array of ours that stands for `of` each tensor: the tensor itself, its gradient, its momentum."""
        parts = [of(tensor).detach().numpy() for tensor in self.tensors]
        if not self.gates:
            return parts[0].copy()
        return np.concatenate([_order_gates(part, (0, 3, 1, 2)) for part in parts])[None]

    def write(self, array: np.ndarray) -> None:
        """Take over an array of ours; raises ValueError for another shape."""
        parts = [array]
        if self.gates:
            parts = [_order_gates(part, (0, 2, 3, 1)) for part in np.split(array[0], len(self.tensors))]
        for tensor, part in zip(self.tensors, parts, strict=True):
            if tensor.shape != part.shape:
                raise ValueError(f"an array {part.shape} for a tensor {tuple(tensor.shape)}")
            with torch.no_grad():
                tensor.copy_(torch.tensor(part))


def slots(module: nn.Module) -> list[Slot]:
    """What `params` of the same network of ours lists, in its order."""
    return [slot for part in module.modules() for slot in _slots_of(part)]


def _slots_of(part: nn.Module) -> Iterator[Slot]:
    if isinstance(part, nn.LSTM):
        for layer in range(part.num_layers):
            for kinds in (("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh")):
                yield Slot(tuple(getattr(part, f"{kind}_l{layer}") for kind in kinds), gates=True)
        return
    for tensor in part.parameters(recurse=False):
        yield Slot((tensor,))
    for name, tensor in part.named_buffers(recurse=False):
        if name != "num_batches_tracked":
            yield Slot((tensor,))


def _order_gates(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Input, forget, cell, output is PyTorch's order; input, output, forget, cell is ONNX's."""
    return np.concatenate([np.split(array, len(order))[gate] for gate in order])


def _network(name: str) -> Callable[[Any], Any]:
    def register(factory: Any) -> Any:
        _MODULES[name] = factory
        return factory

    return register


def _stack(*parts: Any) -> nn.Sequential:
    """Modules one after another; lists are flattened."""
    flat: list[nn.Module] = []
    for part in parts:
        flat += part if isinstance(part, list) else [part]
    return nn.Sequential(*flat)


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, eps: float = 1e-5) -> list[Any]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=eps)]


def _norm(channels: int, batch_norm: bool) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels)] if batch_norm else []


def _dense(features: nn.Module, image: Sequence[int], hidden: int, classes: int) -> nn.Sequential:
    """`features`, then two hidden layers; their first width follows from the image."""
    width = features(torch.zeros(1, *image)).numel()
    layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return _stack(features, nn.Flatten(), layers)


# --- images -----------------------------------------------------------------------------------------


@_network("mlp")
def _mlp(inputs: int, hidden: Sequence[int] = (128, 64), classes: int = 10) -> nn.Module:
    widths = [inputs, *hidden]
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in zip(widths[:-1], hidden, strict=True)]
    return _stack(*layers, nn.Linear(widths[-1], classes))


@_network("dqn")
class _QNetwork(nn.Module):
    def __init__(self, observations: int, actions: int, hidden: Sequence[int], dueling: bool = False):
        super().__init__()
        self.features = _mlp(observations, hidden[:-1], hidden[-1])
        self.value = nn.Linear(hidden[-1], 1) if dueling else None
        self.advantage = nn.Linear(hidden[-1], actions)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.features(x))
        advantage = self.advantage(h)
        if self.value is None:
            return advantage
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


@_network("lenet")
def _lenet(image: Sequence[int], classes: int = 10) -> nn.Module:
    pad = 0 if min(image[1:]) >= 16 else 2
    features = _stack(
        nn.Conv2d(image[0], 20, 5, padding=pad), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5, padding=pad), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    width = features(torch.zeros(1, *image)).numel()
    return _stack(features, nn.Linear(width, 500), nn.Tanh(), nn.Linear(500, classes))


@_network("alexnet")
def _alexnet(image: Sequence[int], classes: int, hidden: int = 4096) -> nn.Module:
    features = _stack(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
    )  # fmt: skip
    return _dense(features, image, hidden, classes)


@_network("vgg")
def _vgg(layers: int, image: Sequence[int], classes: int, hidden: int = 4096, batch_norm: bool = False) -> nn.Module:
    depths = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[layers]
    parts: list[nn.Module] = []
    width = 3
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            outputs = min(64 << stage, 512)
            parts += [nn.Conv2d(width, outputs, 3, padding=1), *_norm(outputs, batch_norm), nn.ReLU()]
            width = outputs
        parts.append(nn.MaxPool2d(2))
    return _dense(_stack(parts).eval(), image, hidden, classes)


class _Residual(nn.Module):
    """activation(f(x) + shortcut(x))."""

    def __init__(self, body: list[nn.Module], shortcut: list[nn.Module], activation: bool):
        super().__init__()
        self.body, self.shortcut, self.activation = _stack(body), _stack(shortcut), activation

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x) + self.shortcut(x)
        return functional.relu(y) if self.activation else y


class _PreactivatedResidual(nn.Module):
    """f(y) + shortcut(y), y the activation of x; without a shortcut f(y) + x."""

    def __init__(self, activation: list[nn.Module], body: list[nn.Module], shortcut: list[nn.Module]):
        super().__init__()
        self.activation, self.body, self.shortcut = _stack(activation), _stack(body), _stack(shortcut)

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
        body = [*_conv_bn(width, inner, 3, stride), nn.ReLU(), *_conv_bn(inner, outputs, 3)]
    else:
        body = [*_conv_bn(width, inner, 1), nn.ReLU(), *_conv_bn(inner, inner, 3, stride), nn.ReLU()]
        body += _conv_bn(inner, outputs, 1)
    shortcut = _conv_bn(width, outputs, 1, stride) if stride != 1 or width != outputs else []
    return _Residual(body, shortcut, activation=True)


@_network("resnet")
def _resnet(layers: int, image: Sequence[int], classes: int, preactivation: bool = False) -> nn.Module:
    depths = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[layers]
    block_of = _preactivated_block if preactivation else _residual_block
    parts = [_stack(_conv_bn(3, 64, 7, 2)), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for stage, depth in enumerate(depths):
        inner = 64 << stage
        outputs = inner if layers < 50 else 4 * inner
        for block in range(depth):
            parts.append(block_of(width, inner, outputs, 2 if stage and not block else 1))
            width = outputs
    last = [nn.BatchNorm2d(width), nn.ReLU()] if preactivation else []
    return _stack(parts, last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@_network("mobilenetv2")
def _mobilenetv2(image: Sequence[int], classes: int) -> nn.Module:
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    parts, width = [*_conv_bn(3, 32, 3, 2), nn.ReLU6()], 32
    for expansion, outputs, blocks, first in stages:
        for block in range(blocks):
            inner, stride = width * expansion, 1 if block else first
            body = [] if expansion == 1 else [*_conv_bn(width, inner, 1), nn.ReLU6()]
            body += [*_conv_bn(inner, inner, 3, stride, inner), nn.ReLU6(), *_conv_bn(inner, outputs, 1)]
            same = stride == 1 and width == outputs
            parts.append(_Residual(body, [], activation=False) if same else _stack(body))
            width = outputs
    head = [*_conv_bn(width, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return _stack(parts, head)


class _SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        layers = [nn.Conv2d(channels, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, channels, 1)]
        self.gate = _stack(nn.AdaptiveAvgPool2d(1), layers)

    def forward(self, x: Tensor) -> Tensor:
        # The gradient of PyTorch's own hardsigmoid takes a sixth in single precision, in float64 as well.
        return x * (functional.relu6(self.gate(x) + 3) / 6)


@_network("mobilenetv3")
def _mobilenetv3(size: str, image: Sequence[int], classes: int, width: float = 1.0) -> nn.Module:
    def scaled(channels: float) -> int:
        rounded = max(8, math.floor(channels / 8 + 0.5) * 8)
        return rounded + 8 if rounded < 0.9 * channels else rounded

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        convolution, norm = _conv_bn(inputs, outputs, kernel, stride, groups, eps=1e-3)
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
        parts.append(_Residual(body, [], activation=False) if same else _stack(body))
        inputs = outputs
    parts += [*conv(inputs, 6 * inputs, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    top = scaled(hidden * width)
    return _stack(parts, nn.Linear(6 * inputs, top), nn.Hardswish(), nn.Linear(top, classes))


class _Grown(nn.Module):
    """x and what the body makes of it, joined along the channels."""

    def __init__(self, body: list[nn.Module]):
        super().__init__()
        self.body = _stack(body)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


@_network("densenet")
def _densenet(layers: int, image: Sequence[int], classes: int, growth: int | None = None) -> nn.Module:
    depths = {121: (6, 12, 24, 16), 161: (6, 12, 36, 24), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}[layers]
    added = growth or (48 if layers == 161 else 32)

    def activated(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
        norm, convolution = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return [norm, nn.ReLU(), convolution]

    width = 2 * added
    parts = [*_conv_bn(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for block, depth in enumerate(depths):
        if block:
            parts += [*activated(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(depth):
            parts.append(_Grown([*activated(width, 4 * added, 1), *activated(4 * added, added, 3)]))
            width += added
    head = [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return _stack(parts, head)


class _Branches(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, *branches: list[nn.Module]):
        super().__init__()
        self.branches = nn.ModuleList(_stack(branch) for branch in branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


@_network("googlenet")
def _googlenet(image: Sequence[int], classes: int, batch_norm: bool = True) -> nn.Module:
    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        if batch_norm:
            return [*_conv_bn(inputs, outputs, kernel, stride, eps=1e-3), nn.ReLU()]
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
    return _stack(parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@_network("inception_bn")
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
    return _stack(parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@_network("unet")
class _UNet(nn.Module):
    def __init__(self, image: Sequence[int], classes: int, width: int, depth: int, batch_norm: bool = False):
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Sequential:
            widths = [(inputs, outputs), (outputs, outputs)]
            layers = [
                [nn.Conv2d(a, b, 3, padding=1, bias=not batch_norm), *_norm(b, batch_norm), nn.ReLU()]
                for a, b in widths
            ]
            return _stack(*layers)

        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(map(double, [image[0], *widths[:-1]], widths))
        pairs = [(widths[level + 1], widths[level]) for level in reversed(range(depth))]
        self.up = nn.ModuleList(nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2), double(a, b)]) for a, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        scales: list[Tensor] = []
        for block in self.down:
            scales.append(block(functional.max_pool2d(scales[-1], 2) if scales else x))
        h = scales.pop()
        for enlarge, block in self.up:
            h = block(torch.cat([scales.pop(), enlarge(h)], dim=1))
        return self.head(h)


@_network("ssd")
class _SSD(nn.Module):
    def __init__(self, image: Sequence[int], classes: int, width: int = 64):
        super().__init__()

        def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, kernel, **options), nn.ReLU()]

        parts: list[Any] = []
        channels = image[0]
        for stage, (count, outputs) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8))):
            parts += [nn.MaxPool2d(2, ceil_mode=stage == 3)] if stage else []
            for _ in range(count):
                parts.append(conv(channels, outputs * width, padding=1))
                channels = outputs * width
        self.first, self.scale = _stack(*parts), nn.ParameterList([torch.full((channels,), 20.0)])
        blocks = [[nn.MaxPool2d(2)], [nn.MaxPool2d(3, 1, 1), *conv(8 * width, 16 * width, padding=6, dilation=6)]]
        blocks[0] += [part for _ in range(3) for part in conv(8 * width, 8 * width, padding=1)]
        blocks = [[*blocks[0], *blocks[1], *conv(16 * width, 16 * width, 1)]]
        widths = [8 * width, 16 * width]
        for inner, options in ((4, {"stride": 2, "padding": 1}), (2, {"stride": 2, "padding": 1}), (2, {}), (2, {})):
            blocks.append([*conv(widths[-1], inner * width, 1), *conv(inner * width, 2 * inner * width, **options)])
            widths.append(2 * inner * width)
        counts = (4, 6, 6, 6, 4, 4)
        heads = [nn.Conv2d(w, count * classes, 3, padding=1) for w, count in zip(widths, counts, strict=True)]
        self.scores, self.classes = heads[0], classes
        pairs = [nn.ModuleList([_stack(block), head]) for block, head in zip(blocks, heads[1:], strict=True)]
        self.blocks = nn.ModuleList(pairs)
        self.offsets = nn.ModuleList(nn.Conv2d(w, n * 4, 3, padding=1) for w, n in zip(widths, counts, strict=True))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def boxes(h: Tensor, each: int) -> Tensor:
            return h.permute(0, 2, 3, 1).reshape(len(h), -1, each)

        h = self.first(x)
        maps = [functional.normalize(h) * self.scale[0][:, None, None]]
        logits = [boxes(self.scores(maps[0]), self.classes)]
        for block, scores in self.blocks:
            h = block(h)
            maps.append(h)
            logits.append(boxes(scores(h), self.classes))
        offsets = [boxes(head(h), 4) for head, h in zip(self.offsets, maps, strict=True)]
        return torch.cat(logits, 1), torch.cat(offsets, 1)


@_network("vae")
class _VAE(nn.Module):
    def __init__(self, image: Sequence[int], hidden: int, latent: int):
        super().__init__()
        pixels = math.prod(image)
        self.encode = nn.Linear(pixels, hidden)
        self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decode1, self.decode2 = nn.Linear(latent, hidden), nn.Linear(hidden, pixels)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = functional.relu(self.encode(x.flatten(1)))
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + noise * torch.exp(log_variance / 2)
        return self.decode2(functional.relu(self.decode1(z))).reshape(x.shape), mean, log_variance


# --- tables and tokens ------------------------------------------------------------------------------


@_network("matrix_factorization")
class _MatrixFactorization(nn.Module):
    def __init__(self, users: int, items: int, factors: int):
        super().__init__()
        self.user, self.item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.mean = nn.ParameterList([torch.zeros(1)])  # in a module, so that it comes last

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = (self.user(user) * self.item(item)).sum(1)
        return product + (self.user_bias(user) + self.item_bias(item)).squeeze(1) + self.mean[0]


@_network("lstm_lm")
class _RecurrentModel(nn.Module):
    def __init__(
        self, vocab: int, hidden: int, layers: int, embedding: int | None, tied: bool = False, stateful: bool = False
    ):
        super().__init__()
        if tied or stateful:
            raise ValueError("lstm_lm is compared with separate tables and without state: tied and stateful are False")
        width = hidden if embedding is None else embedding
        self.token, self.lstm = nn.Embedding(vocab, width), nn.LSTM(width, hidden, layers)
        self.fc = nn.Linear(hidden, vocab)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.token(x))[0])


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.qkv, self.project, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.project(functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


@_network("transformer_lm")
class _GPT(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, length: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            feed = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)]
            self.blocks.append(nn.ModuleList([nn.LayerNorm(width), _Attention(width, heads), _stack(feed)]))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        h = self.token(x) + self.position.weight[:tokens]
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        for norm, attention, feed in self.blocks:
            h = h + attention(norm(h), mask)
            h = h + feed(h)
        return self.norm(h) @ self.token.weight.T


@_network("vit")
class _VisionTransformer(nn.Module):
    def __init__(self, size: str, patch: int, image: Sequence[int], classes: int, layers: int | None = None):
        super().__init__()
        width, heads, usual = {"tiny": (192, 3, 12), "small": (384, 6, 12), "base": (768, 12, 12)}[size]
        self.patches = nn.Conv2d(image[0], width, patch, patch)
        tokens = image[1] * image[2] // patch**2 + 1
        # In a module, so that they come after the convolution.
        self.embedding = nn.ParameterList([torch.zeros(1, 1, width), torch.randn(1, tokens, width)])
        self.blocks = nn.ModuleList()
        for _ in range(usual if layers is None else layers):
            feed = [nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
            parts = [nn.LayerNorm(width, eps=1e-6), _Attention(width, heads), _stack(feed)]
            self.blocks.append(nn.ModuleList(parts))
        self.norm, self.classifier = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        token, position = self.embedding
        h = torch.cat([token.expand(len(h), -1, -1), h], dim=1) + position
        for norm, attention, feed in self.blocks:
            h = h + attention(norm(h))
            h = h + feed(h)
        return self.classifier(self.norm(h)[:, 0])


@_network("bert")
class _Bert(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, length: int, classes: int):
        super().__init__()

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(width, eps=1e-12)

        self.token, self.segment = nn.Embedding(vocab, width), nn.Embedding(2, width)
        self.position, self.norm = nn.Embedding(length, width), norm()
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            feed = _stack(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.blocks.append(nn.ModuleList([_Attention(width, heads), norm(), feed, norm()]))
        self.pool, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(self.token(x) + self.segment(segments) + self.position.weight[: x.shape[1]])
        visible = (mask != 0)[:, None, None]
        for attention, norm1, feed, norm2 in self.blocks:
            h = norm1(h + attention(h, visible))
            h = norm2(h + feed(h))
        return self.classifier(torch.tanh(self.pool(h[:, 0])))
