"""Joining tensors along an axis, and taking them apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import (
    INT64,
    contiguous,
    fresh_shape,
    i64,
    length_of,
    merged,
    normal_axis,
    shape_text,
    zeros_like,
)
from graphkit.ops.known_elements import known_array, known_value, moved


@op
class Concat(Op):
    """Concatenate the operands along `axis`; all other dimensions must be equal."""

    axis: int
    inputs = ("xs*",)
    types = {"xs": ANY}
    onnx = Onnx("Concat", since=13)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3), (2, 1), axis=1),
        Sample((2, 3), (1, 3), (4, 3), axis=-2),
        Sample((3,), axis=0),
        Sample((2, 0, 2), (2, 3, 2), axis=1),
        Sample((0,), (0,), axis=-1),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return all(batched) and self.axis % len(inputs[0].known_shape) != 0

    def infer(self, *xs: TensorType) -> TensorType:
        if not xs:
            raise TypeMismatch("at least one operand is needed")
        if any(x.dtype is not xs[0].dtype for x in xs):
            raise TypeMismatch(f"all operands must have one dtype, not {', '.join(map(str, xs))}")
        shapes = [x.shape for x in xs if x.shape is not None]
        if not shapes:
            return TensorType(xs[0].dtype, None)
        rank = len(shapes[0])
        axis = normal_axis(self.axis, rank)
        joint = list(shapes[0])
        for shape in shapes[1:]:
            if len(shape) != rank:
                raise TypeMismatch(f"shapes {' and '.join(map(shape_text, shapes))} have different ranks")
            extended = _extended(joint, shape, axis)
            if extended is None:
                raise TypeMismatch(
                    f"shapes {' and '.join(map(shape_text, shapes))} must be equal except on axis {axis}"
                )
            joint = extended
        if len(shapes) < len(xs):
            joint[axis] = dims.fresh()
        return TensorType(xs[0].dtype, joint, moved(self.reference, *map(known_array, xs)))

    def reference(self, xp: Any, *xs: Any) -> Any:
        return xp.concatenate(xs, axis=self.axis)

    def grad(self, node: Node, dy: Any) -> Any:
        if len(node.inputs) == 1:
            return dy
        sizes = [F.gather(F.shape(x), i64(self.axis)) for x in node.operands]
        return F.split(dy, F.concat(*sizes, axis=0), axis=self.axis)


def _extended(joint: Sequence[Dim], shape: Sequence[Dim], axis: int) -> list[Dim] | None:
    """Return the dimensions after one more operand is joined; None if its shape does not fit."""
    if len(shape) != len(joint):
        return None
    result: list[Dim] = []
    for i, (a, b) in enumerate(zip(joint, shape, strict=True)):
        size = a + b if i == axis else merged(a, b)
        if size is None:
            return None
        result.append(size)
    return result


@op
class Split(Op):
    """Split x along `axis` into parts: of the sizes in `split`, or into `num_outputs` parts of one size.

    `split` is an int64 vector of known length. If the size is not divisible by `num_outputs`, the last part is smaller.
    """

    axis: int = 0
    num_outputs: int | None = None
    inputs = ("x", "split?")
    outputs = ("ys*",)
    types = {"x": ANY, "split": INT64}
    onnx = Onnx("Split", since=18)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 6), i64(1, 3, 2), axis=1),
        Sample((6, 2), num_outputs=3),
        Sample((2, 5), num_outputs=2, axis=-1),
        Sample((4,), i64(0, 4)),
        Sample((3, 2), num_outputs=1),
        Sample((2, 0), i64(0, 0), axis=1),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return self._has_examples(("x",), inputs, batched) and self.axis % len(inputs[0].known_shape) != 0

    def infer(self, x: TensorType, split: TensorType | None = None) -> tuple[TensorType, ...]:
        if (split is None) == (self.num_outputs is None):
            raise TypeMismatch("Split takes either the input `split` or the attribute num_outputs")
        count = self.num_outputs if split is None else length_of(split)
        if count is None or count < 1:
            raise TypeMismatch(f"the number of parts of Split is not known: {split}")
        if count > _MOST_PARTS:
            raise TypeMismatch(f"Split into {count} parts; at most {_MOST_PARTS} are allowed")
        if x.shape is None:
            return (TensorType(x.dtype, None),) * count
        axis = normal_axis(self.axis, len(x.shape))
        sizes: tuple[Dim, ...]
        if split is None:
            sizes = _even(x.shape[axis], count)
        elif split.value is None:
            sizes = fresh_shape(count) or ()
        else:
            sizes = split.value
            if not dims.may_equal(sum(sizes), x.shape[axis]):
                raise TypeMismatch(f"parts {shape_text(sizes)} do not add up to axis {axis} of {shape_text(x.shape)}")
        types = [TensorType(x.dtype, [*x.shape[:axis], size, *x.shape[axis + 1 :]]) for size in sizes]
        source = known_array(x)
        lengths = [size for size in sizes if dims.is_static(size)]
        if source is not None and len(lengths) == count:
            parts = np.split(source, np.cumsum(lengths)[:-1], axis=axis)
            types = [t.with_value(known_value(part)) for t, part in zip(types, parts, strict=True)]
        return tuple(types)

    def reference(self, xp: Any, x: Any, split: Any = None) -> tuple[Any, ...]:
        axis = self.axis % x.ndim
        sizes = _even(x.shape[axis], self.num_outputs or 1) if split is None else split.tolist()
        if sum(sizes) != x.shape[axis]:
            raise TypeMismatch(f"parts {list(sizes)} do not add up to axis {axis} of {list(x.shape)}")
        ends = np.cumsum([0, *sizes]).tolist()
        before = (slice(None),) * axis
        return tuple(contiguous(xp, x[(*before, slice(a, b))]) for a, b in itertools.pairwise(ends))

    def grad(self, node: Node, *dys: Any) -> Any:
        parts = [zeros_like(y) if dy is None else dy for y, dy in zip(node.outputs, dys, strict=True)]
        return (F.concat(*parts, axis=self.axis), None)[: len(node.inputs)]


# Most results of Split; each is a value in the graph.
_MOST_PARTS = 1 << 20


def _even(size: Dim, count: int) -> tuple[Dim, ...]:
    """Return `count` sizes: ceil(size / count), then the rest, then 0."""
    from graphkit.ir.bounds import at_least_zero, lesser  # here, because few files need it

    chunk = dims.ceildiv(size, count)
    return tuple(at_least_zero(lesser(chunk, size - i * chunk)) if i else chunk for i in range(count))
