"""Networks that make images or predict for every place of one, as PyTorch modules: see torch_zoo.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_zoo_parts import network, norm_if, stack


@network("unet")
class _UNet(nn.Module):
    def __init__(self, image: Sequence[int], classes: int, width: int, depth: int, batch_norm: bool = False):
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Sequential:
            widths = [(inputs, outputs), (outputs, outputs)]
            layers = [
                [nn.Conv2d(a, b, 3, padding=1, bias=not batch_norm), *norm_if(b, batch_norm), nn.ReLU()]
                for a, b in widths
            ]
            return stack(*layers)

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


@network("ssd")
class _SSD(nn.Module):
    def __init__(self, image: Sequence[int], classes: int, width: int = 64, detections: int = 0):
        super().__init__()
        if detections:
            raise ValueError("ssd is compared by its raw outputs: detections is 0")

        def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, kernel, **options), nn.ReLU()]

        parts: list[Any] = []
        channels = image[0]
        for stage, (count, outputs) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8))):
            parts += [nn.MaxPool2d(2, ceil_mode=stage == 3)] if stage else []
            for _ in range(count):
                parts.append(conv(channels, outputs * width, padding=1))
                channels = outputs * width
        self.first, self.scale = stack(*parts), nn.ParameterList([torch.full((channels,), 20.0)])
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
        pairs = [nn.ModuleList([stack(block), head]) for block, head in zip(blocks, heads[1:], strict=True)]
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


@network("vae")
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


@network("gan")
def _dcgan(part: str, image: Sequence[int], latent: int, width: int) -> nn.Module:
    channels, side, _ = image
    widths = [width << level for level in range(int(math.log2(side)) - 2)]
    if part == "generator":
        layers = [nn.ConvTranspose2d(latent, widths[-1], 4, bias=False), nn.BatchNorm2d(widths[-1]), nn.ReLU()]
        for a, b in itertools.pairwise(widths[::-1]):
            layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        layers += [nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False), nn.Tanh()]
        return stack(nn.Unflatten(1, (latent, 1, 1)), layers)
    layers = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return stack(layers, nn.Conv2d(widths[-1], 1, 4, bias=False), nn.Flatten())
