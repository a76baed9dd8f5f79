"""Transposition and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, MAX_KNOWN_ELEMENTS, TensorType, broadcast_shapes
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, contiguous, fresh_shape, i64, length_of, shape_text
from graphkit.ops.known_elements import known_array, moved
from graphkit.ops.pointwise import unbroadcast


@op
class Transpose(Op):
    """Permute the axes of x to the order `perm`; reverse their order when `perm` is absent."""

    perm: tuple[int, ...] | None = None
    inputs = ("x",)
    types = {"x": ANY}
    onnx = Onnx("Transpose", since=25)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3)),
        Sample((2, 3, 4), perm=(1, 2, 0)),
        Sample((2, 3, 4, 5), perm=(0, 3, 1, 2)),
        Sample((2, 0, 3), perm=(2, 0, 1)),
        Sample(()),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return batched[0] and self.perm is not None and self.perm[:1] == (0,)

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(x.dtype, None if self.perm is None else fresh_shape(len(self.perm)))
        rank = len(x.shape)
        perm = tuple(reversed(range(rank))) if self.perm is None else self.perm
        if sorted(perm) != list(range(rank)):
            raise TypeMismatch(f"perm {list(perm)} is not a permutation of the {rank} axes of {shape_text(x.shape)}")
        return TensorType(x.dtype, [x.shape[axis] for axis in perm], moved(self.reference, known_array(x)))

    def reference(self, xp: Any, x: Any) -> Any:
        return contiguous(xp, xp.transpose(x, self.perm))

    def grad(self, node: Node, dy: Any) -> Any:
        return F.transpose(dy, perm=None if self.perm is None else [self.perm.index(i) for i in range(len(self.perm))])


@op
class Expand(Op):
    """Broadcast x to `shape`, an int64 vector, by numpy's rules; an axis where `shape` has 1 keeps its size."""

    inputs = ("x", "shape")
    types = {"x": ANY, "shape": INT64}
    symbolic_inference = True
    onnx = Onnx("Expand", since=13)
    samples = lambda: (
        Sample((3, 1), i64(3, 4)),
        Sample((3, 1), i64(2, 1, 6)),
        Sample((2, 3), i64(1)),
        Sample((), i64(2, 2)),
        Sample((1, 2), i64(0, 2)),
        Sample((2,), np.zeros(0, np.int64)),
    )

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        if shape.value is not None:
            target: tuple[Dim, ...] | None = shape.value
        else:
            target = fresh_shape(length_of(shape))
        joint = broadcast_shapes([x.shape, target])
        kind, source = TensorType(x.dtype, joint), known_array(x)
        if source is None or not kind.is_static or math.prod(kind.static_shape) > MAX_KNOWN_ELEMENTS:
            return kind
        return kind.with_value(np.broadcast_to(source, kind.static_shape).reshape(-1).tolist())

    def reference(self, xp: Any, x: Any, shape: Any) -> Any:
        joint = np.broadcast_shapes(x.shape, tuple(shape.tolist()))
        return contiguous(xp, xp.broadcast_to(x, joint))

    def grad(self, node: Node, dy: Any) -> Any:
        return unbroadcast(dy, node.operands[0]), None
