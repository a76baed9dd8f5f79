"""Sequences and their elements: construct, read, insert, erase, count."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import INDICES, DType, SequenceType, TensorType, Type
from graphkit.ops import held
from graphkit.ops._base import F, Onnx, Op, Sample, SequenceSample, op
from graphkit.ops.axes import i64, zeros_like
from graphkit.ops.sequence.elements import (
    check_scalar,
    drawn,
    joint,
    place,
    sequence_type,
    with_one_more,
)

_PAIR = SequenceSample((2, 3), (4, 3))
_TEXTS = SequenceSample(np.array(["a", "b"], object), np.array(["c"], object))


@op
class SequenceConstruct(Op):
    """A sequence of the operands. They have one element type; their shapes may differ."""

    inputs = ("xs*",)
    onnx = Onnx("SequenceConstruct", since=11)
    reference_in_float32 = False
    samples = lambda: (
        Sample((2, 3), (2, 3)),
        Sample((2, 3), (4,), ()),
        Sample((0, 2)),
        Sample(np.array(["a", "b"], object), np.array(["c"], object)),
    )

    def infer(self, *xs: Type) -> SequenceType:
        if not xs:
            raise TypeMismatch("takes at least one operand; SequenceEmpty makes a sequence of none")
        try:
            return SequenceType(joint(xs), len(xs))
        except TypeMismatch as error:
            raise TypeMismatch(f"all elements of a sequence must have one element type: {error}") from None

    def reference(self, xp: Any, *xs: Any) -> Any:
        return list(xs)

    def grad(self, node: Node, dy: Any) -> Any:
        return tuple(F.sequence_at(dy, i64(i).reshape(())) for i in range(len(node.inputs)))


@op
class SequenceEmpty(Op):
    """An empty sequence of tensors of one element type."""

    dtype: DType = DType.FLOAT32
    inputs = ()
    onnx = Onnx("SequenceEmpty", since=11)
    reference_in_float32 = False
    samples = lambda: (Sample(), Sample(dtype=DType.STRING), Sample(dtype=DType.INT64))

    def infer(self) -> SequenceType:
        return SequenceType(TensorType(self.dtype), 0)

    def reference(self, xp: Any) -> Any:
        return []


@op
class SequenceAt(Op):
    """One element of a sequence. position: integer scalar; a negative one counts from the back."""

    inputs = ("sequence", "position")
    types = {"position": INDICES}
    onnx = Onnx("SequenceAt", since=11)
    reference_in_float32 = False
    samples = lambda: (
        Sample(_PAIR, i64(1).reshape(())),
        Sample(_PAIR, np.array(-2, np.int32)),
        Sample(SequenceSample(()), i64(0).reshape(())),
        Sample(_TEXTS, i64(-1).reshape(())),
    )

    def infer(self, sequence: Type, position: TensorType) -> Type:
        check_scalar(position, "position")
        return drawn(sequence_type(sequence, "the first operand").element)

    def reference(self, xp: Any, sequence: Any, position: Any) -> Any:
        return sequence[place(position, len(sequence))]

    def grad(self, node: Node, dy: Any) -> Any:
        sequence, position = node.operands
        return F.sequence_at_grad(dy, sequence, position), None


@op
class SequenceInsert(Op):
    """Insert an element into a sequence before `position`; without `position`, append it.

    A negative position counts from the back.
    """

    inputs = ("sequence", "x", "position?")
    types = {"position": INDICES}
    onnx = Onnx("SequenceInsert", since=11)
    reference_in_float32 = False
    samples = lambda: (
        Sample(_PAIR, (1, 3)),
        Sample(_PAIR, (1, 3), i64(0).reshape(())),
        Sample(_PAIR, (2, 3), np.array(-1, np.int32)),
        Sample(_PAIR, (2,), i64(2).reshape(())),
        Sample(_TEXTS, np.array(["d"], object)),
    )

    def infer(self, sequence: Type, x: Type, position: TensorType | None = None) -> Type:
        check_scalar(position, "position")
        return with_one_more(sequence_type(sequence, "the first operand"), x)

    def reference(self, xp: Any, sequence: Any, x: Any, position: Any = None) -> Any:
        index = place(position, len(sequence), past_end=True)
        return held.with_one_more(sequence, index, x)

    def grad(self, node: Node, dy: Any) -> Any:
        # A negative position p counts from the end before the insertion. In the result, the new element is at p - 1.
        at = i64(-1).reshape(()) if len(node.inputs) < 3 else _shifted(node.operands[2])
        return (F.sequence_erase(dy, at), F.sequence_at(dy, at), None)[: len(node.inputs)]


def _shifted(position: Value) -> Any:
    """Return position - 1 if it is negative, else position."""
    zero = np.array(0, position.dtype.numpy)
    return F.sub(position, F.cast(F.less(position, zero), to=position.dtype))


@op
class SequenceErase(Op):
    """Remove the element at `position` from a sequence; without `position`, remove the last one."""

    inputs = ("sequence", "position?")
    types = {"position": INDICES}
    onnx = Onnx("SequenceErase", since=11)
    reference_in_float32 = False
    samples = lambda: (
        Sample(SequenceSample((2, 3), (4,), ())),
        Sample(SequenceSample((2, 3), (4,), ()), i64(0).reshape(())),
        Sample(SequenceSample((2, 3), (4,), ()), np.array(-1, np.int32)),
        Sample(_TEXTS, i64(-2).reshape(())),
    )

    def infer(self, sequence: Type, position: TensorType | None = None) -> Type:
        check_scalar(position, "position")
        kind = sequence_type(sequence, "the first operand")
        known = isinstance(kind.length, int) and kind.length > 0
        return SequenceType(kind.element, kind.length - 1 if known and kind.length is not None else None)

    def reference(self, xp: Any, sequence: Any, position: Any = None) -> Any:
        index = place(position, len(sequence))
        return held.Elements([*sequence[:index], *sequence[index + 1 :]], held.bytes_of(sequence))

    def grad(self, node: Node, dy: Any) -> Any:
        sequence = node.operands[0]
        if len(node.inputs) == 1:
            return F.sequence_insert(dy, zeros_like(F.sequence_at(sequence, i64(-1).reshape(()))))
        position = node.operands[1]
        zero = np.array(0, position.dtype.numpy)
        length = F.cast(F.sequence_length(sequence), to=position.dtype)
        at = F.where(F.less(position, zero), F.add(position, length), position)
        return F.sequence_insert(dy, zeros_like(F.sequence_at(sequence, position)), at), None


@op
class SequenceLength(Op):
    """The number of elements of a sequence, an int64 scalar."""

    inputs = ("sequence",)
    onnx = Onnx("SequenceLength", since=11)
    reference_in_float32 = False
    samples = lambda: (Sample(_PAIR), Sample(SequenceSample(dtype="float32")), Sample(_TEXTS))

    def infer(self, sequence: Type) -> TensorType:
        length = sequence_type(sequence, "the operand").length
        return TensorType(DType.INT64, (), None if length is None else (length,))

    def reference(self, xp: Any, sequence: Any) -> Any:
        return xp.array(len(sequence), dtype=np.int64)
