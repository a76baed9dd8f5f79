"""The names that an operator's file imports. Each operator is one class, which `@op` registers."""

from __future__ import annotations

from graphkit.ops._op import DOMAIN, Onnx, Op, declared, examples_align, operator
from graphkit.ops._registry import F, OpFunction, apply, as_value, constant, op, registry
from graphkit.ops._samples import Items, Perhaps, Rand, Sample

__all__ = [
    "DOMAIN",
    "F",
    "Items",
    "Onnx",
    "Op",
    "OpFunction",
    "Perhaps",
    "Rand",
    "Sample",
    "apply",
    "as_value",
    "constant",
    "declared",
    "examples_align",
    "op",
    "operator",
    "registry",
]
