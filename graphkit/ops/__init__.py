"""The operators, one class each, one file per family. `load()` registers them all."""

from __future__ import annotations

import importlib
import pkgutil

from graphkit.ops._base import (
    DOMAIN,
    F,
    Onnx,
    Op,
    OpFunction,
    Rand,
    Sample,
    apply,
    as_value,
    constant,
    op,
    registry,
)

__all__ = [
    "DOMAIN",
    "F",
    "Onnx",
    "Op",
    "OpFunction",
    "Rand",
    "Sample",
    "apply",
    "as_value",
    "constant",
    "op",
    "registry",
]

_NOT_FAMILIES = {"_base", "xp", "evaluate"}

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _NOT_FAMILIES:
        importlib.import_module(f"{__name__}.{_module.name}")
