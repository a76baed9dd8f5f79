"""Operators that gradients of sequences and optionals use.

The gradient of such a value has the same structure: as many elements, of the same shapes, and for an optional, a value
if it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import INDICES, DType, OptionalType, SequenceType, TensorType, Type
from graphkit.ops._base import DOMAIN, F, Op, OptionalSample, Sample, SequenceSample, op
from graphkit.ops.axes import i64, zeros_like
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.sequence.elements import check_scalar, drawn, place, sequence_type
from graphkit.ops.sequence.map import sequence_map

_PAIR = SequenceSample((2, 3), (4, 3))


def _map_nested(function: Callable[..., Any], *values: Any) -> Any:
    """Apply `function` to the tensors at the same position in values of the same structure."""
    first = values[0]
    if isinstance(first, (list, tuple)):
        lengths = sorted({len(v) for v in values})
        if len(lengths) > 1:
            raise RuntimeFailure(f"sequences must have equal lengths, not {' and '.join(map(str, lengths))}")
        return [_map_nested(function, *items) for items in zip(*values, strict=True)]
    return None if first is None else function(*values)


def _if_there(first: Value, build: Callable[..., Any], *values: Value) -> Any:
    """Build an optional with the result of `build` for the contents of `values`; an empty one if `first` is empty."""
    inner = [Value(without_value(v.type), v.name) for v in values]
    then = Graph(inner, [F.optional(build(*(F.optional_get_element(v) for v in inner)))], name="held")
    other = [Value(v.type, v.name) for v in inner]
    empty = Graph(other, [F.identity(other[0])], name="empty")
    return F.if_(F.optional_has_element(first), *values, then_branch=then, else_branch=empty)


def _mapped(build: Callable[..., Any], *sequences: Value) -> Any:
    """Build the sequence of the results of `build` for the elements of `sequences`, which have equal lengths."""
    inner = [Value(drawn(sequence_type(v.type, "an operand").element), "item") for v in sequences]
    return sequence_map(Graph(inner, [build(*inner)], name="each"), sequences)[0]


@op
class ZerosLike(Op):
    """Zeros of the shape and type of x: a tensor, or a sequence or optional of tensors."""

    former_names = ("NestedZeros",)
    domain = DOMAIN
    inputs = ("x",)
    reference_in_float32 = False
    samples = lambda: (
        Sample((2, 3), grad=False),  # the result is always 0
        Sample(_PAIR, grad=False),
        Sample(OptionalSample((2,)), grad=False),
        Sample(OptionalSample(None), grad=False),
    )

    def infer(self, x: Type) -> Type:
        return without_value(x) if isinstance(x, TensorType) else x

    def reference(self, xp: Any, x: Any) -> Any:
        return _map_nested(xp.zeros_like, x)

    def grad(self, node: Node, dy: Any) -> Any:
        return None

    def expand(self, x: Any) -> Any:
        if isinstance(x.type, SequenceType):
            return _mapped(F.zeros_like, x)
        return _if_there(x, F.zeros_like, x) if isinstance(x.type, OptionalType) else zeros_like(x)


@op
class AddN(Op):
    """Elementwise sum of tensors of one shape, or of sequences or optionals of such tensors."""

    former_names = ("NestedSum",)
    domain = DOMAIN
    inputs = ("xs*",)
    reference_in_float32 = False
    samples = lambda: (
        Sample((2, 3), (2, 3), onnx=False),
        Sample(_PAIR, _PAIR, onnx=False),
        Sample(_PAIR, _PAIR, _PAIR, onnx=False),
        Sample(OptionalSample((2,)), OptionalSample((2,)), onnx=False),
    )

    def infer(self, *xs: Type) -> Type:
        if not xs:
            raise TypeMismatch("takes at least one operand")
        if any(type(x) is not type(xs[0]) for x in xs):
            raise TypeMismatch(f"all operands must be tensors, or all sequences, not {', '.join(map(str, xs))}")
        known = next((x for x in xs if isinstance(x, SequenceType) and x.length is not None), xs[0])
        return without_value(known) if isinstance(known, TensorType) else known

    def reference(self, xp: Any, *xs: Any) -> Any:
        def total(*arrays: Any) -> Any:
            found = arrays[0]
            for array in arrays[1:]:
                found = found + array
            return found

        return _map_nested(total, *xs)

    def grad(self, node: Node, dy: Any) -> Any:
        return (dy,) * len(node.inputs)

    def expand(self, *xs: Any) -> Any:
        first = xs[0]
        if len(xs) == 1:
            return F.identity(first)
        if isinstance(first.type, SequenceType):
            return _mapped(F.add_n, *xs)
        if isinstance(first.type, OptionalType):
            return _if_there(first, F.add_n, *xs)
        return F.sum(*xs) if first.dtype.is_float else reduce(F.add, xs)


@op
class SequenceAtGrad(Op):
    """Gradient of SequenceAt: zeros of the shapes of `sequence`, with dy at `position`."""

    domain = DOMAIN
    inputs = ("dy", "sequence", "position")
    types = {"position": INDICES}
    reference_in_float32 = False
    samples = lambda: (
        Sample((4, 3), _PAIR, np.array(1), onnx=False),
        Sample((2, 3), _PAIR, np.array(-2, np.int32), onnx=False),
    )

    def infer(self, dy: Type, sequence: Type, position: TensorType) -> Type:
        check_scalar(position, "position")
        return sequence_type(sequence, "the second operand")

    def reference(self, xp: Any, dy: Any, sequence: Any, position: Any) -> Any:
        chosen = place(position, len(sequence))
        return [dy if i == chosen else _map_nested(xp.zeros_like, x) for i, x in enumerate(sequence)]

    def grad(self, node: Node, ddy: Any) -> Any:
        _, _, position = node.operands
        return F.sequence_at(ddy, position), None, None

    def expand(self, dy: Any, sequence: Any, position: Any) -> Any:
        zero = np.array(0, position.dtype.numpy)
        length = F.cast(F.sequence_length(sequence), to=position.dtype)
        at = F.where(F.less(position, zero), F.add(position, length), position)
        return F.sequence_insert(F.sequence_erase(F.zeros_like(sequence), at), dy, at)


@op
class SequenceElementSizes(Op):
    """The sizes of a sequence's tensors along `axis`, as an int64 vector."""

    former_names = ("SizesOfElements",)
    axis: int = 0
    domain = DOMAIN
    inputs = ("sequence",)
    reference_in_float32 = False
    samples = lambda: (
        Sample(_PAIR, onnx=False),
        Sample(SequenceSample((2, 3), (2,)), axis=-1, onnx=False),
        Sample(SequenceSample(dtype="float32"), onnx=False),
    )

    def infer(self, sequence: Type) -> TensorType:
        kind = sequence_type(sequence, "the operand")
        if not isinstance(kind.element, TensorType):
            raise TypeMismatch(f"{kind} does not hold tensors")
        return TensorType(DType.INT64, [dims.fresh() if kind.length is None else kind.length])

    def reference(self, xp: Any, sequence: Any) -> Any:
        return xp.array([x.shape[self.axis] for x in sequence], dtype=np.int64)

    def expand(self, sequence: Any) -> Any:
        number, going = Value(TensorType(DType.INT64, ()), "number"), Value(TensorType(DType.BOOL, ()), "going")
        inner = Value(without_value(sequence.type), "items")
        size = F.gather(F.shape(F.sequence_at(inner, number)), i64(self.axis).reshape(()))
        body = Graph([number, going, inner], [F.constant(value=np.array(True)), size], name="sizes")
        return F.loop(F.sequence_length(sequence), None, sequence, body=body, captures=1)
