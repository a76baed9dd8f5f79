"""Samples: calls of an operator, from which the test suite, gradient check and comparisons derive their tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from graphkit.ir.types import DType


class Rand(NamedTuple):
    """Input of a `Sample`: random values in [low, high), or of the standard normal distribution.

    shape: of the array; dtype: None takes the dtype under test. `definite` makes symmetric positive definite matrices:
    x x^T + n for such values x.
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
    """Input of a `Sample`: an optional.

    item: The value of the optional, in any form that `Sample` takes (a shape, a `Rand`, an array, ...). None: the
    optional is empty.
    """

    item: Any


class Sample:
    """One call of an operator, from which the test suite derives its tests.

    Positional inputs: a shape (random normal values of the dtype under test), a `Rand`, an array used as it is, a
    `SequenceSample`, an `OptionalSample`, or None for an absent operand. Keywords are attributes. `grad=False` skips
    the gradient check (state why beside it); `onnx=False` skips the comparison with onnx's evaluator. `dtypes` limits
    the dtypes that are tested.
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
