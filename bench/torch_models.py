"""The networks of `networks.py` as PyTorch modules, with the weights of the ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from networks import MOBILE_STAGES, RESNETS
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x)))))


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.fc1, self.fc2 = nn.Linear(800, 500), nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.max_pool2d(torch.tanh(self.conv1(x)), 2)
        h = functional.max_pool2d(torch.tanh(self.conv2(h)), 2)
        return self.fc2(torch.tanh(self.fc1(h.flatten(1))))


class Pointwise(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(functional.gelu(x * y + 1, approximate="tanh")) * y - x


class Block(nn.Module):
    """A basic block or a bottleneck of ResNet."""

    def __init__(self, width: int, inner: int, outer: int, stride: int, bottleneck: bool):
        super().__init__()
        sizes = [(width, inner, 1, 1), (inner, inner, 3, stride), (inner, outer, 1, 1)]
        if not bottleneck:
            sizes = [(width, inner, 3, stride), (inner, outer, 3, 1)]
        for number, (inputs, outputs, kernel, step) in enumerate(sizes, 1):
            setattr(self, f"conv{number}", nn.Conv2d(inputs, outputs, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))
        self.depth = len(sizes)
        self.downsample = None
        if stride != 1 or width != outer:
            self.downsample = nn.Sequential(nn.Conv2d(width, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for number in range(1, self.depth + 1):
            h = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(h))
            h = functional.relu(h, inplace=True) if number < self.depth else h
        return functional.relu(h + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        stages, bottleneck = RESNETS[layers]
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        width = 64
        for stage, count in enumerate(stages):
            inner = 64 << stage
            outer = inner * 4 if bottleneck else inner
            blocks = []
            for block in range(count):
                blocks.append(Block(width, inner, outer, 2 if stage and not block else 1, bottleneck))
                width = outer
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(functional.adaptive_avg_pool2d(h, 1).flatten(1))


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=group, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class Inverted(nn.Module):
    """An inverted residual block of MobileNetV2."""

    def __init__(self, width: int, channels: int, expansion: int, stride: int):
        super().__init__()
        inner = width * expansion
        parts = [] if expansion == 1 else [_unit(width, inner, 1)]
        parts += [_unit(inner, inner, 3, stride, inner), nn.Conv2d(inner, channels, 1, bias=False)]
        self.conv = nn.Sequential(*parts, nn.BatchNorm2d(channels))
        self.residual = stride == 1 and width == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [_unit(3, 32, 3, 2)]
        width = 32
        for expansion, channels, blocks, first in MOBILE_STAGES:
            for block in range(blocks):
                parts.append(Inverted(width, channels, expansion, 1 if block else first))
                width = channels
        self.features = nn.Sequential(*parts, _unit(width, 1280, 1))
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def _heads(x: Tensor, size: int) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


class Encoder(nn.Module):
    """One layer of BERT."""

    def __init__(self, width: int):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (_heads(layer(x), 64) for layer in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        x = self.norm1(self.out(y) + x)
        return self.norm2(self.down(functional.gelu(self.up(x))) + x)


class Bert(nn.Module):
    def __init__(self, layers: int = 12, width: int = 768, vocabulary: int = 30522):
        super().__init__()
        self.words, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Encoder(width) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor, attend: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        places = self.positions(torch.arange(ids.shape[1])[None])
        h = self.norm(self.words(ids) + self.kinds(kinds) + places)
        mask = (1.0 - attend[:, None, None].float()) * torch.finfo(torch.float32).min
        for layer in self.layers:
            h = layer(h, mask)
        return h, torch.tanh(self.pooler(h[:, 0]))


class Decoder(nn.Module):
    """One layer of the causal transformer."""

    def __init__(self, width: int):
        super().__init__()
        self.size = width // 4
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(part, self.size) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, tokens: int = 128, layers: int = 4, width: int = 256, vocabulary: int = 8192):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Decoder(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids) + self.positions.weight
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


class LSTM(nn.Module):
    def __init__(self, layers: int = 2, width: int = 256, vocabulary: int = 10_000):
        super().__init__()
        self.words, self.lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, width, layers)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder(self.lstm(self.words(ids))[0])


MODULES: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP, "lenet": LeNet, "pointwise": Pointwise, "resnet": ResNet, "mobilenetv2": MobileNetV2, "bert": Bert,
    "transformer": Transformer, "lstm": LSTM,
}  # fmt: skip


def load(network: str, options: dict[str, Any], path: str) -> nn.Module:
    """The module of a network in evaluation mode, with the initialisers of an ONNX file; raises for any left over."""
    module = MODULES[network](**options)
    state: dict[str, np.ndarray] = {}
    for tensor in onnx.load(path).graph.initializer:
        if not tensor.name.startswith("constant_"):
            state |= _parameters(tensor.name, numpy_helper.to_array(tensor))
    counts = {n: t.numpy() for n, t in module.state_dict().items() if n.endswith("num_batches_tracked")}
    module.load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in (state | counts).items()})
    return module.eval()


def _parameters(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """An initialiser under the name and in the form of PyTorch's."""
    path, _, form = name.partition("/")
    if form == "T":
        return {path: array.T}
    if form != "iofc":
        return {path: array}
    if "bias" not in path:
        return {path: _gates(array[0])}
    first, second = np.split(array[0], 2)
    return {path.replace("bias", "bias_ih"): _gates(first), path.replace("bias", "bias_hh"): _gates(second)}


def _gates(array: np.ndarray) -> np.ndarray:
    """Input, output, forget, cell (ONNX) to input, forget, cell, output (PyTorch)."""
    i, o, f, c = np.split(array, 4)
    return np.concatenate([i, f, c, o])
