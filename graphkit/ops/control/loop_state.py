"""Types through subgraphs: inference on other operand types, and the fixed point of what a loop carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Value, same_type
from graphkit.ir.types import OptionalType, SequenceType, TensorType, Type
from graphkit.ops.axes import normal_axis


def output_types(graph: Graph, inputs: Sequence[Type]) -> tuple[Type, ...]:
    """The types of the graph's outputs when its inputs have these types. Raises TypeMismatch, naming the node."""
    check_operands(graph, inputs)
    table: dict[Value, Type] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        operands = [None if v is None else table[v] for v in node.inputs]
        if all(v is None or same_type(v.type, table[v]) for v in node.inputs):
            found: Sequence[Type] = [v.type for v in node.outputs]
        else:
            try:
                found = node.op.infer_types(operands)
            except TypeMismatch as error:
                raise TypeMismatch(f"{node.describe()}, in a subgraph: {error}") from None
        table.update(zip(node.outputs, found, strict=True))
    return tuple(table[v] for v in graph.outputs)


def check_operands(graph: Graph, inputs: Sequence[Type]) -> None:
    """Raises TypeMismatch for another number of operands, or other kinds and element types, than the graph takes."""
    if len(inputs) != len(graph.inputs):
        raise TypeMismatch(f"subgraph {graph.name!r} takes {len(graph.inputs)} operands, {len(inputs)} given")
    for value, given in zip(graph.inputs, inputs, strict=True):
        if not _compatible(value.type, given):
            raise TypeMismatch(f"operand {given} does not fit the subgraph's input {value}")


def _compatible(declared: Type, given: Type) -> bool:
    """Whether a value of one type may enter an input of the other: element types and kinds, not shapes."""
    if isinstance(declared, TensorType) and isinstance(given, TensorType):
        return declared.dtype is given.dtype
    if isinstance(declared, OptionalType):
        return _compatible(declared.element, given.element if isinstance(given, OptionalType) else given)
    if isinstance(declared, SequenceType) and isinstance(given, SequenceType):
        return _compatible(declared.element, given.element)
    return False


def without_value(kind: Type) -> Type:
    return TensorType(kind.dtype, kind.shape) if isinstance(kind, TensorType) else kind


def carried_types(initial: Sequence[Type], step: Callable[[Sequence[Type]], Sequence[Type]]) -> tuple[Type, ...]:
    """The least types of carried values that one iteration keeps: a dimension that changes becomes unknown.

    `step` gives the types after an iteration. Terminates: each turn makes a dimension or a rank unknown, or is the
    last.
    """
    carried = tuple(without_value(t) for t in initial)
    unknown: set[Dim] = set()
    while True:
        after = step(carried)
        widened = tuple(_widen(a, b, unknown) for a, b in zip(carried, after, strict=True))
        if widened == carried:
            return carried
        carried = widened


def _widen(before: Type, after: Type, unknown: set[Dim]) -> Type:
    """A type that covers both; dimensions in `unknown` cover anything already."""
    if isinstance(before, TensorType) and isinstance(after, TensorType):
        if before.dtype is not after.dtype:
            raise TypeMismatch(f"a carried value starts as {before} and becomes {after}")
        if before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
            return TensorType(before.dtype)
        shape: list[Dim] = []
        for a, b in zip(before.shape, after.shape, strict=True):
            if a != b and a not in unknown:
                a = dims.fresh()
                unknown.add(a)
            shape.append(a)
        return TensorType(before.dtype, shape)
    if isinstance(before, SequenceType) and isinstance(after, SequenceType):
        return SequenceType(_widen(before.element, after.element, unknown))
    if isinstance(before, OptionalType) or isinstance(after, OptionalType):
        held, given = (t.element if isinstance(t, OptionalType) else t for t in (before, after))
        return OptionalType(_widen(held, given, unknown))
    raise TypeMismatch(f"a carried value starts as {before} and becomes {after}")


def after_loop(carried: Sequence[Type], initial: Sequence[Type]) -> tuple[Type, ...]:
    """Types of the final values. Unknown dimensions get other names than they have inside an iteration."""
    known = {d for t in initial for d in _dims_of(t)}
    renamed: dict[str, Dim] = {}
    for kind in carried:
        for dim in _dims_of(kind):
            if dim not in known and isinstance(dim, dims.DimExpr):
                renamed.update((s, dims.fresh()) for s in dim.symbols if s.startswith("?") and s not in renamed)
    return tuple(_substituted(t, renamed) for t in carried)


def _dims_of(kind: Type) -> tuple[Dim, ...]:
    return kind.shape or () if isinstance(kind, TensorType) else _dims_of(kind.element)


def _substituted(kind: Type, bindings: dict[str, Dim]) -> Type:
    if isinstance(kind, TensorType):
        return kind.substitute(bindings) if bindings else kind
    return type(kind)(_substituted(kind.element, bindings))


def stacked_type(kind: Type, axis: int, count: Dim) -> TensorType:
    """The type of one scan output: `count` tensors of type `kind` along a new axis."""
    if not isinstance(kind, TensorType):
        raise TypeMismatch(f"only tensors can be stacked, not {kind}")
    if kind.shape is None:
        return TensorType(kind.dtype)
    place = normal_axis(axis, len(kind.shape) + 1)
    return TensorType(kind.dtype, (*kind.shape[:place], count, *kind.shape[place:]))
