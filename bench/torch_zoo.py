"""The zoo as PyTorch modules, from the papers and torchvision's definitions, without dropout.

Parameters and buffers are registered in the order in which our networks list theirs, so that the two are matched by
position and shape. `build(name, **options)` takes the options of `gk.models.build`; `slots(module)` has what both sides
hold, in the form of ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_zoo_parts import MODULES

for _part in ("images", "dense", "tables", "tokens"):
    importlib.import_module(f"torch_zoo_{_part}")


def build(name: str, **options: Any) -> nn.Module:
    return MODULES[name](**{k: v for k, v in options.items() if k not in ("dropout", "cache")})


@dataclass(frozen=True)
class Slot:
    """A parameter or running statistic. For an LSTM: joined tensors of one kind, with the gates in ONNX's order."""

    tensors: tuple[Tensor, ...]
    gates: bool = False

    @property
    def trained(self) -> bool:
        return isinstance(self.tensors[0], nn.Parameter)

    def read(self, of: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> np.ndarray:
        """Return graphkit's array for `of(tensor)`: the tensor itself, its gradient or its momentum."""
        parts = [of(tensor).detach().cpu().numpy() for tensor in self.tensors]
        if not self.gates:
            return parts[0].copy()
        return np.concatenate([_order_gates(part, (0, 3, 1, 2)) for part in parts])[None]

    def write(self, array: np.ndarray) -> None:
        """Copy an array of graphkit to the tensors. Raises ValueError for another shape."""
        parts = [array]
        if self.gates:
            parts = [_order_gates(part, (0, 2, 3, 1)) for part in np.split(array[0], len(self.tensors))]
        for tensor, part in zip(self.tensors, parts, strict=True):
            if tensor.shape != part.shape:
                raise ValueError(f"an array {part.shape} for a tensor {tuple(tensor.shape)}")
            with torch.no_grad():
                tensor.copy_(torch.tensor(part))


def slots(module: nn.Module) -> list[Slot]:
    """Return the parameters of a module in the order of `params` of the same network in graphkit."""
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
