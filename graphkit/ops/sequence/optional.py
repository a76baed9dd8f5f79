"""Optionals: a value, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir.graph import Node
from graphkit.ir.types import DType, OptionalType, TensorType, Type, join
from graphkit.ops._base import F, Onnx, Op, OptionalSample, Sample, SequenceSample, op
from graphkit.ops.sequence.elements import drawn, without_elements

_FLOATS = TensorType(DType.FLOAT32)


@op
class Optional(Op):
    """Wrap x in an optional value; without x, return an empty optional value of the given `type`."""

    type: Type | None = None
    inputs = ("x?",)
    onnx = Onnx("Optional", since=28)
    reference_in_float32 = False
    samples = lambda: (
        Sample((2, 3)),
        Sample(SequenceSample((2, 3), (4,))),
        Sample(np.array(["a"], object)),
        Sample(type=_FLOATS),
    )

    def infer(self, x: Type | None = None) -> OptionalType:
        if x is None:
            if self.type is None:
                raise TypeMismatch(
                    "without a value, the attribute 'type' is required: the type that the optional can hold"
                )
            return OptionalType(self.type)
        if isinstance(x, OptionalType):
            raise TypeMismatch(f"an optional cannot hold {x}")
        held = without_elements(x)
        if self.type is None:
            return OptionalType(held)
        try:
            join(held, self.type)
        except TypeMismatch:
            raise TypeMismatch(f"x is {x}, but attribute 'type' is {self.type}") from None
        return OptionalType(held)

    def reference(self, xp: Any, x: Any = None) -> Any:
        return x

    def grad(self, node: Node, dy: Any) -> Any:
        return F.optional_get_element(dy) if node.inputs else ()


@op
class OptionalHasElement(Op):
    """Whether an optional holds a value: a bool scalar, true for a tensor or sequence, false for an absent operand."""

    inputs = ("x?",)
    onnx = Onnx("OptionalHasElement", since=28)
    reference_in_float32 = False
    samples = lambda: (
        Sample(OptionalSample((2, 3))),
        Sample(OptionalSample(None)),
        Sample((2, 3)),
        Sample(SequenceSample((2,), (3,))),
        Sample(None),
    )

    def infer(self, x: Type | None = None) -> TensorType:
        known = None if isinstance(x, OptionalType) else (int(x is not None),)
        return TensorType(DType.BOOL, (), known)

    def reference(self, xp: Any, x: Any = None) -> Any:
        return xp.array(x is not None)


@op
class OptionalGetElement(Op):
    """The value that an optional holds; a tensor or a sequence is returned as it is.

    Reading an empty optional raises RuntimeFailure.
    """

    inputs = ("x",)
    onnx = Onnx("OptionalGetElement", since=28)
    reference_in_float32 = False
    samples = lambda: (
        Sample(OptionalSample((2, 3))),
        Sample(OptionalSample(SequenceSample((2, 3), (4,)))),
        Sample((2, 3)),
        Sample(SequenceSample((2,), (3,))),
    )

    def infer(self, x: Type) -> Type:
        return drawn(x.element) if isinstance(x, OptionalType) else x

    def reference(self, xp: Any, x: Any) -> Any:
        if x is None:
            raise RuntimeFailure("the optional is empty")
        return x

    def grad(self, node: Node, dy: Any) -> Any:
        return F.optional(dy) if isinstance(node.operands[0].type, OptionalType) else F.identity(dy)
