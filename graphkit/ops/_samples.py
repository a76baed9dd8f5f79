"""Samples: uses of an operator, from which the suite, the gradient check and the comparisons derive their tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from graphkit.ir.types import DType


class Rand(NamedTuple):
    """A sample input: random values of `shape` in [low, high), of `dtype` (None: the dtype under test).

    `definite`: x x^T + n of such values, symmetric and positive definite matrices.
    """

    shape: tuple[int, ...]
    low: float | None = None  # None: standard normal
    high: float = 1.0
    dtype: str | None = None
    definite: bool = False


class Items:
    """A sample input: a sequence, of tensors that are given as sample inputs are; `dtype` of an empty one."""

    __slots__ = ("items", "dtype")

    def __init__(self, *items: Any, dtype: str | None = None):
        self.items = items
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Items{self.items}"


class Perhaps(NamedTuple):
    """A sample input: an optional, of what is given as a sample input is, or empty (None)."""

    item: Any


class Sample:
    """One use of an operator, from which the suite derives its tests.

    Positional inputs: a shape (random normal values of the dtype under test), a `Rand`, an array used as it is,
    `Items` for a sequence, `Perhaps` for an optional, or None for an absent operand. Keywords are attributes.
    `grad=False` leaves the gradient check out (state why beside it); `onnx=False` leaves out the comparison with
    onnx's evaluator.
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
