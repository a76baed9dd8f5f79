"""The names that an operator's file imports. Each operator is one class, which `@op` registers."""

from __future__ import annotations

from graphkit.ops._op import DOMAIN, Onnx, Op, declared, examples_align, operator
from graphkit.ops._registry import F, OpFunction, apply, as_value, constant, op, registry
from graphkit.ops._samples import OptionalSample, Rand, Sample, SequenceSample

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
    "declared",
    "examples_align",
    "op",
    "operator",
    "registry",
]
