"""Modules of PyTorch that the tests of this folder export."""

from __future__ import annotations

import torch
from torch import nn


class ConvNet(nn.Module):
    """Convolutions with batch normalisation. Dropout with a ratio of 0 keeps the losses of both sides equal."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer = nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU())
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        h = self.layer(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(self.drop(h.mean((2, 3))))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.out = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])


class TiedTransformer(nn.Module):
    """A block of attention and feed-forward layer, whose last layer has the weights of the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.encoder(self.embedding(tokens)))


class Buffers(nn.Module):
    """Buffers of integers and floats, one that is not in the state_dict, and a parameter that nothing reads."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("passing", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("again", self.passing, persistent=False)

    def forward(self, x):
        return self.fc(x)[:, self.order] * self.scale + self.passing + self.again


class Detached(nn.Module):
    """Gradients reach `a` only by the plain product: not by detach(), and not by the block of no_grad."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            frozen = torch.tanh(self.b(x)) * 2
        return self.a(x) * self.a(x).detach() + frozen * self.c(x)


class Several(nn.Module):
    """Two inputs and a keyword; outputs in a dict and a tuple, one of them an input."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, y, *, scale):
        return {"sum": self.fc(x) + y, "parts": (x, y * scale)}


class Counting(nn.Module):
    """Changes a buffer that is not a running statistic."""

    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(4))

    def forward(self, x):
        self.level.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        return x - self.level


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class OneName(nn.Module):
    """A parameter with the name of the argument."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.x
