"""SequenceMap: a graph applied to each element of sequences, as the Loop by which the standard defines it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import DType, SequenceType, TensorType
from graphkit.ops._base import F, constant
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.sequence.elements import drawn, sequence_type, without_elements


def element_types(operands: Sequence[Value]) -> list[SequenceType | TensorType]:
    """Return the types of a body's inputs: of one element of each sequence, and of tensors."""
    kinds = [v.type.element if isinstance(v.type, SequenceType) else v.type for v in operands]
    return [drawn(without_value(kind)) for kind in kinds]  # type: ignore[misc]


def sequence_map(
    body: Graph, operands: Sequence[Value], captured: Sequence[Value] = (), name: str = ""
) -> tuple[Value, ...]:
    """Apply `body` to each element of sequences. Return, for each output of `body`, the sequence of its results.

    operands: a sequence, then sequences of the same length or tensors. A call of the body gets one element of each
    sequence, the tensors, and `captured` as its last inputs. Raises TypeMismatch if lengths differ.
    """
    first = operands[0]
    length = sequence_type(first.type, "the first operand").length
    for other in operands[1:]:
        if isinstance(other.type, SequenceType) and length is not None and other.type.length not in (None, length):
            raise TypeMismatch(f"sequences must have equal lengths, not {length} and {other.type.length}")
    if not all(isinstance(v.type, TensorType) for v in body.outputs):
        raise TypeMismatch("the body of SequenceMap must return tensors")
    number, going = Value(TensorType(DType.INT64, ()), "number"), Value(TensorType(DType.BOOL, ()), "going")
    states = [Value(SequenceType(without_elements(v.type)), f"{v.name or 'item'}s") for v in body.outputs]
    outer = [Value(without_value(v.type), v.name) for v in (*operands, *captured)]
    given = [F.sequence_at(v, number) if isinstance(v.type, SequenceType) else v for v in outer[: len(operands)]]
    results = inline(body, [*given, *outer[len(operands) :]])
    after = [F.sequence_insert(state, item) for state, item in zip(states, results, strict=True)]
    graph = Graph([number, going, *states, *outer], [constant(np.array(True)), *after], name=body.name)
    empty = [F.sequence_empty(dtype=v.dtype) for v in body.outputs]
    found = F.loop(
        F.sequence_length(first), None, *empty, *operands, *captured, body=graph, captures=len(outer), name=name
    )
    return found if isinstance(found, tuple) else (found,)
