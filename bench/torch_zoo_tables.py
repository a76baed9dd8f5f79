"""Networks of tables, ratings and observations, as PyTorch modules: see torch_zoo.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_zoo_parts import network, stack


@network("mlp")
def _mlp(inputs: int, hidden: Sequence[int] = (128, 64), classes: int = 10) -> nn.Module:
    widths = [inputs, *hidden]
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in zip(widths[:-1], hidden, strict=True)]
    return stack(*layers, nn.Linear(widths[-1], classes))


@network("dqn")
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


@network("matrix_factorization")
class _MatrixFactorization(nn.Module):
    def __init__(self, users: int, items: int, factors: int):
        super().__init__()
        self.user, self.item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.mean = nn.ParameterList([torch.zeros(1)])  # in a module, so that it comes last

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = (self.user(user) * self.item(item)).sum(1)
        return product + (self.user_bias(user) + self.item_bias(item)).squeeze(1) + self.mean[0]


@network("wide_and_deep")
class _WideAndDeep(nn.Module):
    def __init__(
        self, numbers: int, sizes: Sequence[int], crosses: Sequence[int] | None, width: int, hidden: Sequence[int],
        classes: int = 1,
    ):  # fmt: skip
        super().__init__()
        crosses = (1, 3, 7, 3) if crosses is None else crosses  # of the default columns
        self.pairs, self.sizes = list(zip(crosses[::2], crosses[1::2], strict=True)), sizes
        self.embed = nn.ModuleList(nn.Embedding(rows, width) for rows in sizes)
        self.deep = _mlp(len(sizes) * width + numbers, hidden, classes)
        self.wide = nn.ModuleList(nn.Embedding(rows, classes) for rows in sizes)
        self.crosses = nn.ModuleList(nn.Embedding(sizes[i] * sizes[j], classes) for i, j in self.pairs)
        self.numbers = nn.Linear(numbers, classes, bias=False)

    def forward(self, x: Tensor, categories: Tensor) -> Tensor:
        columns = categories.unbind(1)
        features = [table(column) for table, column in zip(self.embed, columns, strict=True)]
        wide = [table(column) for table, column in zip(self.wide, columns, strict=True)]
        for table, (i, j) in zip(self.crosses, self.pairs, strict=True):
            wide.append(table(columns[i] * self.sizes[j] + columns[j]))
        return self.deep(torch.cat([*features, x], 1)) + sum(wide) + self.numbers(x)


@network("ncf")
class _NeuMF(nn.Module):
    def __init__(self, users: int, items: int, factors: int, hidden: Sequence[int]):
        super().__init__()
        self.gmf_user, self.gmf_item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.mlp_user, self.mlp_item = nn.Embedding(users, hidden[0] // 2), nn.Embedding(items, hidden[0] // 2)
        self.mlp = _mlp(hidden[0], hidden[1:-1], hidden[-1])
        self.predict = nn.Linear(factors + hidden[-1], 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        gmf = self.gmf_user(user) * self.gmf_item(item)
        mlp = functional.relu(self.mlp(torch.cat([self.mlp_user(user), self.mlp_item(item)], 1)))
        return self.predict(torch.cat([gmf, mlp], 1))


@network("dlrm")
class _DLRM(nn.Module):
    def __init__(
        self, numbers: int, sizes: Sequence[int], width: int, bottom: Sequence[int], top: Sequence[int],
        interaction: str = "dot",
    ):  # fmt: skip
        super().__init__()
        self.bottom = _mlp(numbers, bottom, width)
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in sizes)
        vectors = len(sizes) + 1
        self.pairs = torch.tril_indices(vectors, vectors, -1) if interaction == "dot" else None
        self.top = _mlp(vectors * width if self.pairs is None else width + self.pairs.shape[1], top, 1)

    def forward(self, x: Tensor, categories: Tensor) -> Tensor:
        first = functional.relu(self.bottom(x))
        vectors = [first, *(t(c) for t, c in zip(self.tables, categories.unbind(1), strict=True))]
        if self.pairs is None:
            return self.top(torch.cat(vectors, 1))
        z = torch.stack(vectors, 1)
        i, j = self.pairs
        return self.top(torch.cat([first, (z @ z.mT)[:, i, j]], 1))
