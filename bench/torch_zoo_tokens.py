"""Networks of tokens, and those of attention, as PyTorch modules: see torch_zoo.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_zoo_parts import network, stack


@network("text_cnn")
class _TextCNN(nn.Module):
    def __init__(self, vocab: int, width: int, windows: Sequence[int], maps: int, classes: int, static: bool = False):
        super().__init__()
        if static:
            raise ValueError("text_cnn is compared with an embedding that is trained: static is False")
        self.token = nn.Embedding(vocab, width)
        self.windows = nn.ModuleList(nn.Conv1d(width, maps, w, padding=w - 1) for w in windows)
        self.fc = nn.Linear(maps * len(windows), classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        sizes = lengths.clamp(max=x.shape[1])[:, None]
        words = (self.token(x) * (torch.arange(x.shape[1]) < sizes)[..., None]).mT
        pooled = []
        for convolution in self.windows:
            y = functional.relu(convolution(words))
            behind = torch.arange(y.shape[2]) >= sizes + convolution.kernel_size[0] - 1
            pooled.append(y.masked_fill(behind[:, None], -torch.inf).amax(2))
        return self.fc(torch.cat(pooled, 1))


@network("lstm_lm")
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


@network("transformer_lm")
class _GPT(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, length: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            feed = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)]
            self.blocks.append(nn.ModuleList([nn.LayerNorm(width), _Attention(width, heads), stack(feed)]))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        h = self.token(x) + self.position.weight[:tokens]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=h.device).tril()
        for norm, attention, feed in self.blocks:
            h = h + attention(norm(h), mask)
            h = h + feed(h)
        return self.norm(h) @ self.token.weight.T


@network("vit")
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
            parts = [nn.LayerNorm(width, eps=1e-6), _Attention(width, heads), stack(feed)]
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


@network("bert")
class _Bert(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, length: int, classes: int):
        super().__init__()

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(width, eps=1e-12)

        self.token, self.segment = nn.Embedding(vocab, width), nn.Embedding(2, width)
        self.position, self.norm = nn.Embedding(length, width), norm()
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            feed = stack(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.blocks.append(nn.ModuleList([_Attention(width, heads), norm(), feed, norm()]))
        self.pool, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(self.token(x) + self.segment(segments) + self.position.weight[: x.shape[1]])
        visible = (mask != 0)[:, None, None]
        for attention, norm1, feed, norm2 in self.blocks:
            h = norm1(h + attention(h, visible))
            h = norm2(h + feed(h))
        return self.classifier(torch.tanh(self.pool(h[:, 0])))
