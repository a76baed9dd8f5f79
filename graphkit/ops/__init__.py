"""The operators: one class each, one file per family, grouped in packages.

Operators are imported when they are first used: `registry` finds them in `graphkit.ops._index`, which
`python -P -m graphkit.checks.indexes` writes.
"""

from __future__ import annotations

from graphkit.ops import _overloads as _overloads  # operators of Python on values
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
