"""The operators: one class each, one file per family, grouped in packages. Importing this registers them all."""

from __future__ import annotations

import importlib
import pkgutil

from graphkit.ops._base import (
    DOMAIN,
    F,
    Onnx,
    Op,
    OpFunction,
    OptionalSample,
    Rand,
    Sample,
    SequenceSample,
    apply,
    as_value,
    constant,
    op,
    operator,
    registry,
)

__all__ = [
    "DOMAIN",
    "F",
    "Onnx",
    "Op",
    "OpFunction",
    "OptionalSample",
    "Rand",
    "Sample",
    "SequenceSample",
    "apply",
    "as_value",
    "constant",
    "op",
    "operator",
    "registry",
]

_NOT_FAMILIES = {f"{__name__}.evaluate", f"{__name__}.xp"}

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    if _module.name not in _NOT_FAMILIES:
        importlib.import_module(_module.name)
