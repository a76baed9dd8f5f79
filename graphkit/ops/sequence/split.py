"""From a tensor to the sequence of its parts, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import MissingGradient, RuntimeFailure, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.limits import require_memory
from graphkit.ir.types import INDICES, SequenceType, TensorType, Type
from graphkit.ops._base import F, Onnx, Op, Sample, SequenceSample, op
from graphkit.ops.axes import contiguous, i64, length_of, normal_axis, zeros_like
from graphkit.ops.held import PER_ARRAY
from graphkit.ops.sequence.elements import is_unnamed, sequence_type, shapes_text

# Most results of a Split that replaces a SplitToSequence.
MOST_PARTS = 1024


@op
class SplitToSequence(Op):
    """Split x along `axis` into a sequence of parts.

    split: a vector gives the size of each part; a scalar, such as 3, is the size of every part; the last part is
    smaller if the length of the axis is not a multiple of it; without `split`, parts have size 1. If `keepdims` is 0,
    parts of size 1 lose the axis, but only when `split` is absent or the scalar 1. This is the behaviour of ONNX
    Runtime, and PyTorch relies on it when it exports `unbind`; the ONNX standard mentions only an absent `split`. In
    all other cases keepdims has no effect.
    """

    axis: int = 0
    keepdims: bool = True
    inputs = ("x", "split?")
    types = {"split": INDICES}
    onnx = Onnx("SplitToSequence", since=24)
    reference_in_float32 = False
    samples = lambda: (
        Sample((3, 2)),
        Sample((3, 2), keepdims=False, axis=-1),
        Sample((5, 2), np.array(2)),
        Sample((2, 6), np.array([1, 3, 2], np.int32), axis=1),
        Sample((4, 2), np.array(2, np.int32), keepdims=False),
        Sample((2, 3), np.array(1), axis=1, keepdims=False, onnx=False),  # onnx=False: onnx's evaluator keeps the axis
        Sample(np.array(["a", "b", "c"], object), keepdims=False),
    )

    def infer(self, x: Type, split: TensorType | None = None) -> SequenceType:
        if not isinstance(x, TensorType):
            raise TypeMismatch(f"x must be a tensor, not {x}")
        if split is not None and split.rank not in (None, 0, 1):
            raise TypeMismatch(f"split must be a scalar or a vector, not {split}")
        if x.shape is None:
            return SequenceType(TensorType(x.dtype), _count(None, split))
        axis = normal_axis(self.axis, len(x.shape))
        before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        drops = self.drops_axis(split)
        if drops is None:
            return SequenceType(TensorType(x.dtype), _count(size, split))
        if drops:
            return SequenceType(TensorType(x.dtype, [*before, *after]), size)
        part = _part(size, split)
        return SequenceType(TensorType(x.dtype, [*before, part, *after]), _count(size, split))

    def reference(self, xp: Any, x: Any, split: Any = None) -> Any:
        axis = self.axis % x.ndim
        before = (slice(None),) * axis
        if not self.keepdims and (split is None or (split.ndim == 0 and int(split) == 1)):
            require_memory(x.nbytes + PER_ARRAY * x.shape[axis], "the parts")
            return [contiguous(xp, x[(*before, i)]) for i in range(x.shape[axis])]
        ends = np.cumsum([0, *_sizes(x.shape[axis], split)]).tolist()
        require_memory(x.nbytes + PER_ARRAY * len(ends), "the parts")
        return [contiguous(xp, x[(*before, slice(a, b))]) for a, b in itertools.pairwise(ends)]

    def drops_axis(self, split: TensorType | None) -> bool | None:
        """Whether the parts lack the axis; None if it is known only at run time."""
        if self.keepdims or (split is not None and split.rank == 1):
            return False
        if split is None:
            return True
        return None if split.rank is None or split.value is None else split.value == (1,)

    def grad(self, node: Node, dy: Any) -> Any:
        x, split = (*node.inputs, None)[:2]
        assert x is not None
        stacked = self.drops_axis(None if split is None else split.tensor)
        if stacked is None:
            raise MissingGradient(
                f"{node.describe()}: the gradient needs a constant `split`, or keepdims=1. With keepdims=0, the parts "
                "lack the axis only if `split` is 1, and this value is not known before the run"
            )
        size = None if x.shape is None else x.shape[self.axis]
        if not stacked and not (isinstance(size, int) and size > 0):
            # There may be no parts, but ConcatFromSequence needs at least one: add an empty one.
            nothing = zeros_like(F.slice(x, i64(0), i64(0), i64(self.axis)))
            dy = F.sequence_insert(dy, nothing, np.array(0))
        dx = F.concat_from_sequence(dy, axis=self.axis, new_axis=stacked)
        return (dx, None)[: len(node.inputs)]


def _count(size: Dim | None, split: TensorType | None) -> Dim | None:
    """Return the number of parts; None if it is unknown."""
    if split is None:
        return size
    if split.rank == 1:
        return length_of(split)
    if split.value is None or size is None:
        return None
    (chunk,) = split.value
    return dims.ceildiv(size, chunk) if isinstance(chunk, int) and chunk > 0 else None


def _part(size: Dim, split: TensorType | None) -> Dim:
    """Return the size that all parts have; a new symbol if sizes may differ."""
    if split is None:
        return 1
    if split.value is None:
        return dims.fresh()
    if split.rank == 1:
        return split.value[0] if len(set(split.value)) == 1 else dims.fresh()
    (chunk,) = split.value
    if not isinstance(size, int) or not isinstance(chunk, int) or chunk < 1:
        return dims.fresh()
    return min(chunk, size) if size % chunk == 0 or size < chunk else dims.fresh()


def _sizes(size: int, split: Any) -> list[int]:
    """Return the sizes of the parts of an axis of `size`. Raises RuntimeFailure if they do not fit."""
    if split is None:
        return [1] * size
    if split.ndim == 0:
        chunk = int(split)
        if chunk < 1:
            raise RuntimeFailure(f"the size of a part must be at least 1, not {chunk}")
        return [min(chunk, size - start) for start in range(0, size, chunk)]
    sizes: list[int] = split.tolist()
    if any(n < 0 for n in sizes) or sum(sizes) != size:
        raise RuntimeFailure(f"parts {sizes} do not add up to {size}")
    return sizes


@op
class ConcatFromSequence(Op):
    """Concatenate the elements of a sequence along `axis`; with `new_axis`, stack them along a new axis.

    The sequence has at least one element. With `new_axis` all elements have one shape.
    """

    axis: int
    new_axis: bool = False
    inputs = ("sequence",)
    onnx = Onnx("ConcatFromSequence", since=11)
    reference_in_float32 = False
    samples = lambda: (
        Sample(SequenceSample((2, 3), (4, 3)), axis=0),
        Sample(SequenceSample((2, 3), (2, 0), (2, 1)), axis=-1),
        Sample(SequenceSample((2, 3), (2, 3)), axis=1, new_axis=True),
        Sample(SequenceSample((2, 3), (2, 3)), axis=-1, new_axis=True),
        Sample(SequenceSample(()), axis=0, new_axis=True),
        Sample(SequenceSample(np.array(["a", "b"], object), np.array(["c"], object)), axis=0),
    )

    def infer(self, sequence: Type) -> TensorType:
        kind = sequence_type(sequence, "the operand")
        element, length = kind.element, kind.length
        if not isinstance(element, TensorType):
            raise TypeMismatch(f"only tensors are joined, not {element}")
        if element.shape is None:
            return TensorType(element.dtype)
        # All elements have the same shape, except along the joined axis.
        shape = [dims.fresh() if is_unnamed(d) else d for d in element.shape]
        if self.new_axis:
            shape.insert(normal_axis(self.axis, len(shape) + 1), dims.fresh() if length is None else length)
            return TensorType(element.dtype, shape)
        axis = normal_axis(self.axis, len(shape))
        known = length is not None and not is_unnamed(element.shape[axis])
        shape[axis] = shape[axis] * length if known and length is not None else dims.fresh()
        return TensorType(element.dtype, shape)

    def reference(self, xp: Any, sequence: Any) -> Any:
        if not sequence:
            raise RuntimeFailure("an empty sequence has nothing to join")
        rank = sequence[0].ndim + self.new_axis
        axis = normal_axis(self.axis, rank)
        kept = {(x.ndim, *(d for i, d in enumerate(x.shape) if self.new_axis or i != axis)) for x in sequence}
        if len(kept) > 1:
            where = "" if self.new_axis else f" except on axis {axis}"
            raise RuntimeFailure(f"the shapes {shapes_text(sequence)} must be equal{where}")
        require_memory(sum(x.nbytes for x in sequence), "the elements, joined")
        return xp.stack(sequence, axis=axis) if self.new_axis else xp.concatenate(sequence, axis=axis)

    def grad(self, node: Node, dy: Any) -> Any:
        sequence = node.operands[0]
        if self.new_axis:
            return F.split_to_sequence(dy, axis=self.axis, keepdims=False)
        return F.split_to_sequence(dy, F.sequence_element_sizes(sequence, axis=self.axis), axis=self.axis)


def parts(op: SplitToSequence, x: Value, split: Value | None = None) -> Sequence[Value] | None:
    """Build the elements of a SplitToSequence by Split; None if their number is unknown or above MOST_PARTS."""
    kind = None if split is None else split.tensor
    drops, axis = op.drops_axis(kind), op.axis
    size = None if x.shape is None else x.shape[normal_axis(axis, len(x.shape))]
    count = _count(size, kind)
    if drops is None or not isinstance(count, int) or not 0 < count <= MOST_PARTS:
        return None
    if split is not None and split.rank == 1:
        found = F.split(x, F.cast(split, to=np.int64), axis=axis)
    elif isinstance(size, int):
        chunk = None if kind is None or kind.value is None else np.asarray(kind.value[0])
        found = F.split(x, np.asarray(_sizes(size, chunk), np.int64), axis=axis)
    else:
        return None
    items = found if isinstance(found, tuple) else (found,)
    if drops:
        items = tuple(F.squeeze(item, i64(axis)) for item in items)
    return items
