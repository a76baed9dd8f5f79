"""The registry of the networks of torch_zoo.py, and their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

MODULES: dict[str, Callable[..., nn.Module]] = {}


def network(name: str) -> Callable[[Any], Any]:
    def register(factory: Any) -> Any:
        MODULES[name] = factory
        return factory

    return register


def stack(*parts: Any) -> nn.Sequential:
    """Modules one after another; lists are flattened."""
    flat: list[nn.Module] = []
    for part in parts:
        flat += part if isinstance(part, list) else [part]
    return nn.Sequential(*flat)


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, eps: float = 1e-5) -> list[Any]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=eps)]


def norm_if(channels: int, batch_norm: bool) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels)] if batch_norm else []
