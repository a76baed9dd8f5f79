"""Comparisons, logic and bits, with broadcasting. None of them has a gradient: their results are not floats."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.dims import Dim, is_static
from graphkit.ir.graph import Node
from graphkit.ir.types import BOOLS, INTEGERS, NUMERIC, DType, TensorType, broadcast_shapes
from graphkit.ops._base import Onnx, Op, Sample, op
from graphkit.ops.known_elements import decide_equal, decide_less, decided


def _ordered() -> tuple[Sample, ...]:
    return (
        Sample((2, 3), (2, 3)),
        Sample((2, 1, 3), (4, 1)),
        Sample((0, 3), (1, 3)),
        Sample((), (2,)),
        Sample(np.array([1, 2, 3, -4]), np.array([3, 2, 1, -5])),
        Sample(np.array([np.nan, 1.0, np.inf], np.float32), np.array([np.nan, np.nan, np.inf], np.float32)),
    )


class _Comparison(Op):
    """Base of predicates of two operands of the same dtype."""

    inputs = ("a", "b")
    types = {"a": NUMERIC, "b": "a"}
    pointwise = True
    symbolic_inference = True
    samples: ClassVar[Any] = _ordered
    # Function of two known elements, for shape arithmetic: 1, 0, or None if the result depends on the symbols' values.
    known: ClassVar[Any]

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return TensorType(DType.BOOL, broadcast_shapes([a.shape, b.shape]), decided(type(self).known, [a, b]))

    def grad(self, node: Node, dy: Any) -> Any:
        return None, None


@op
class Equal(_Comparison):
    """a == b with broadcasting, as bool. Operands may also be booleans or strings. NaN is equal to nothing."""

    types = {"a": NUMERIC | {DType.BOOL, DType.STRING}, "b": "a"}
    onnx = Onnx("Equal", since=19)
    known = staticmethod(decide_equal)
    samples = lambda: (
        *_ordered(),
        Sample(np.array([True, False]), np.array([True, True])),
        Sample(np.array(["a", "b"], object), np.array(["a", "c"], object)),
    )

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.equal(a, b)


@op
class Less(_Comparison):
    """a < b with broadcasting, as bool."""

    onnx = Onnx("Less", since=13)
    known = staticmethod(decide_less)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.less(a, b)


@op
class LessOrEqual(_Comparison):
    """a <= b with broadcasting, as bool."""

    onnx = Onnx("LessOrEqual", since=16)
    known = staticmethod(lambda a, b: _not(decide_less(b, a)))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.less_equal(a, b)


@op
class Greater(_Comparison):
    """a > b with broadcasting, as bool."""

    onnx = Onnx("Greater", since=13)
    known = staticmethod(lambda a, b: decide_less(b, a))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.greater(a, b)


@op
class GreaterOrEqual(_Comparison):
    """a >= b with broadcasting, as bool."""

    onnx = Onnx("GreaterOrEqual", since=16)
    known = staticmethod(lambda a, b: _not(decide_less(a, b)))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.greater_equal(a, b)


def _not(known: Dim | None) -> int | None:
    return int(not known) if known is not None and is_static(known) else None


class _Logical(_Comparison):
    """Base of functions of two booleans."""

    types = {"a": BOOLS, "b": BOOLS}
    inplace = ((0, 0), (1, 0))
    samples = lambda: (
        Sample(np.array([True, True, False, False]), np.array([True, False, True, False])),
        Sample(np.array([[True], [False]]), np.array([True, False])),
        Sample(np.array(True), np.zeros((0, 2), bool)),
    )


@op
class And(_Logical):
    """Logical and of two bool tensors, with broadcasting."""

    onnx = Onnx("And", since=7)
    known = staticmethod(lambda a, b: int(a and b) if is_static(a) and is_static(b) else None)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.logical_and(a, b)


@op
class Or(_Logical):
    """Logical or of two bool tensors, with broadcasting."""

    onnx = Onnx("Or", since=7)
    known = staticmethod(lambda a, b: int(bool(a or b)) if is_static(a) and is_static(b) else None)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.logical_or(a, b)


@op
class Xor(_Logical):
    """Logical exclusive or of two bool tensors, with broadcasting."""

    onnx = Onnx("Xor", since=7)
    known = staticmethod(lambda a, b: int(bool(a) != bool(b)) if is_static(a) and is_static(b) else None)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.logical_xor(a, b)


@op
class Not(Op):
    """Logical negation of a bool tensor."""

    inputs = ("x",)
    types = {"x": BOOLS}
    pointwise = True
    symbolic_inference = True
    inplace = ((0, 0),)
    onnx = Onnx("Not", since=1)
    samples = lambda: (Sample(np.array([[True], [False]])), Sample(np.array(True)), Sample(np.zeros((0, 2), bool)))

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(DType.BOOL, x.shape, decided(_not, [x]))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.logical_not(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


class _Bits(Op):
    """Base of functions of the bits of two integers of the same dtype."""

    inputs = ("a", "b")
    types = {"a": INTEGERS, "b": "a"}
    pointwise = True
    symbolic_inference = True
    inplace = ((0, 0), (1, 0))
    samples: ClassVar[Any] = lambda: (
        Sample(np.array([5, -3, 12, 0]), np.array([3, 6, -1, 9])),
        Sample(np.array([[1], [200]], np.uint8), np.array([7, 255], np.uint8)),
        Sample(np.array(6, np.int32), np.zeros((0, 2), np.int32)),
    )

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return TensorType(a.dtype, broadcast_shapes([a.shape, b.shape]))

    def grad(self, node: Node, dy: Any) -> Any:
        return None, None


@op
class BitwiseAnd(_Bits):
    """a & b, bit by bit, for integers of one type, with broadcasting."""

    onnx = Onnx("BitwiseAnd", since=18)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.bitwise_and(a, b)


@op
class BitwiseOr(_Bits):
    """a | b, bit by bit, for integers of one type, with broadcasting."""

    onnx = Onnx("BitwiseOr", since=18)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.bitwise_or(a, b)


@op
class BitwiseXor(_Bits):
    """a ^ b, bit by bit, for integers of one type, with broadcasting."""

    onnx = Onnx("BitwiseXor", since=18)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.bitwise_xor(a, b)


@op
class BitwiseNot(Op):
    """~x: invert every bit of integers."""

    inputs = ("x",)
    types = {"x": INTEGERS}
    pointwise = True
    symbolic_inference = True
    inplace = ((0, 0),)
    onnx = Onnx("BitwiseNot", since=18)
    samples = lambda: (
        Sample(np.array([5, -3, 0])),
        Sample(np.array(200, np.uint8)),
        Sample(np.zeros((0, 2), np.int32)),
    )

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.invert(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class BitShift(_Bits):
    """a shifted by b bits; `direction` is "LEFT" or "RIGHT" (arithmetic for signed types).

    A shift that is negative, or at least the number of bits, gives 0; a negative a shifted right gives -1.
    """

    direction: str
    onnx = Onnx("BitShift", since=28)
    samples = lambda: (
        Sample(np.array([16, 4, 1], np.uint8), np.array([1, 2, 3], np.uint8), direction="RIGHT"),
        Sample(np.array([16, 200, 1], np.uint8), np.array([1, 2, 8], np.uint8), direction="LEFT"),
        Sample(np.array([[1], [5]], np.uint64), np.array([3, 64, 0], np.uint64), direction="LEFT"),
        Sample(np.array([-9, 9, -9, -1], np.int32), np.array([1, 40, 32, -2], np.int32), direction="RIGHT"),
        Sample(np.array([-9, 9, -9, 1 << 30], np.int32), np.array([1, 40, -1, 2], np.int32), direction="LEFT"),
    )

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if self.direction not in ("LEFT", "RIGHT"):
            raise UsageError(f"direction must be 'LEFT' or 'RIGHT', not {self.direction!r}")
        return super().infer(a, b)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        width = a.dtype.itemsize * 8
        outside = (b < 0) | (b >= width)
        bits = xp.where(outside, xp.asarray(0, b.dtype), b)
        zero = xp.asarray(0, a.dtype)
        if self.direction == "LEFT":
            return xp.where(outside, zero, xp.left_shift(a, bits))
        sign = zero if a.dtype.kind == "u" else xp.where(a < 0, xp.asarray(-1, a.dtype), zero)
        return xp.where(outside, sign, xp.right_shift(a, bits))
