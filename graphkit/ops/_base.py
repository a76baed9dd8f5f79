"""The names that an operator's file imports. Each operator is one class, which `@op` registers.

Samples are calls of an operator, from which the test suite, gradient check and comparisons derive their tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._op import DOMAIN, Onnx, Op, declared, examples_align, operator
from graphkit.ops._registry import F, OpFunction, apply, as_value, constant, op, registry

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


class Rand(NamedTuple):
    """Input of a `Sample`: random values in [low, high), or of the standard normal distribution.

    Args:
        shape: Shape of the array.
        low: Lower bound; None: standard normal distribution.
        high: Upper bound.
        dtype: Element type; None: the dtype under test (see Sample).
        definite: Make symmetric positive definite matrices, x x^T + n I from random matrices x [..., n, n].
    """

    shape: tuple[int, ...]
    low: float | None = None  # None: standard normal
    high: float = 1.0
    dtype: str | None = None
    definite: bool = False


class SequenceSample:
    """Input of a `Sample`: a sequence.

    Args:
        items: The values of the sequence, in any form that `Sample` takes (a shape, a `Rand`, an array, ...).
        dtype: Element type of an empty sequence.
    """

    __slots__ = ("items", "dtype")

    def __init__(self, *items: Any, dtype: str | None = None):
        self.items = items
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"SequenceSample{self.items}"


class OptionalSample(NamedTuple):
    """Input of a `Sample`: a value of optional type (see OptionalType).

    item: The value of the optional, in any form that `Sample` takes (a shape, a `Rand`, an array, ...). None: the
    optional is empty.
    """

    item: Any


class Sample:
    """One call of an operator, from which the test suite derives its tests.

    Tests repeat the call for several element types. The "dtype under test" is the type of the current repetition. Each
    positional input is a shape (random normal values of the dtype under test), a `Rand`, an array that is used as it
    is, a `SequenceSample`, an `OptionalSample`, or None for an absent operand.

    Args:
        inputs: The operands.
        grad: False skips the gradient check. Give the reason in a comment.
        onnx: False skips the comparison with the evaluator of the onnx package.
        dtypes: Limits the tests to these dtypes.
        attrs: Attributes of the operator.
    """

    __slots__ = ("inputs", "attrs", "grad", "onnx", "dtypes")

    def __init__(
        self,
        *inputs: Any,
        grad: bool = True,
        onnx: bool = True,
        dtypes: Iterable[DType] | None = None,
        **attrs: Any,
    ):
        self.inputs = inputs
        self.attrs = attrs
        self.grad = grad
        self.onnx = onnx
        self.dtypes = None if dtypes is None else frozenset(dtypes)

    def __repr__(self) -> str:
        shown = [str(i.shape) if hasattr(i, "shape") else str(i) for i in self.inputs]
        return f"Sample({', '.join(shown + [f'{k}={v}' for k, v in self.attrs.items()])})"
