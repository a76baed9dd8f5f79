"""Shared by the operators on sequences and optionals: the types of elements, and positions at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.types import MapType, OptionalType, SequenceType, TensorType, Type, join


def sequence_type(kind: Type | None, what: str) -> SequenceType:
    """The type of an operand that must be a sequence; raises TypeMismatch."""
    if not isinstance(kind, SequenceType):
        raise TypeMismatch(f"{what} must be a sequence, not {kind}")
    return kind


def without_elements(kind: Type) -> Type:
    """A type that says nothing of single elements: what one value of several may have."""
    if isinstance(kind, TensorType):
        return kind if kind.value is None and kind.floats is None else TensorType(kind.dtype, kind.shape)
    return kind.with_element(without_elements(kind.element))


def drawn(kind: Type) -> Type:
    """The type of one element of a sequence, whose unnamed dimensions are its own."""
    if not isinstance(kind, TensorType):
        return kind.with_element(drawn(kind.element))
    if kind.shape is None:
        return TensorType(kind.dtype)
    return TensorType(kind.dtype, [dims.fresh() if is_unnamed(d) else d for d in kind.shape])


def with_own_sizes(kind: Type) -> Type:
    """The type of what is fed: names of dimensions inside a sequence or an optional bind no others."""
    if isinstance(kind, TensorType):
        return kind
    return kind.with_element(_unnamed(kind.element))


def _unnamed(kind: Type) -> Type:
    if not isinstance(kind, TensorType):
        return kind.with_element(_unnamed(kind.element))
    if kind.shape is None:
        return kind
    return TensorType(kind.dtype, [dims.fresh() if isinstance(d, DimExpr) else d for d in kind.shape])


def is_unnamed(dim: Dim) -> bool:
    """Whether a dimension may differ from one element of a sequence to the next."""
    return isinstance(dim, DimExpr) and any(name.startswith("?") for name in dim.symbols)


def joint(kinds: Iterable[Type]) -> Type:
    """The type that covers elements of these types, at least one; raises TypeMismatch for other element types."""
    return reduce(join, map(without_elements, kinds))


def with_one_more(sequence: SequenceType, element: Type) -> SequenceType:
    """The type of a sequence that gets one more element. Raises TypeMismatch for one of another element type."""
    try:
        wide = join(sequence.element, without_elements(element))
    except TypeMismatch:
        raise TypeMismatch(f"{element} does not fit into {sequence}") from None
    if sequence.length == 0:
        wide = without_elements(element)
    return SequenceType(wide, None if sequence.length is None else sequence.length + 1)


def check_scalar(kind: TensorType | None, what: str) -> None:
    """Raises TypeMismatch unless the operand, when it is there, has one element."""
    if kind is not None and kind.shape is not None and not dims.may_equal(dims.product(kind.shape), 1):
        raise TypeMismatch(f"{what} must be a scalar, not {kind}")


def place(position: Any, length: int, *, past_end: bool = False) -> int:
    """A position, the last one when absent, counted from the front; raises RuntimeFailure outside of the sequence.

    past_end: of what is inserted, which may stand behind all others, as it does when absent.
    """
    most = length if past_end else length - 1
    index = most if position is None else int(position.reshape(()))
    if not -length <= index <= most:
        if most < 0:
            raise RuntimeFailure("the sequence is empty")
        raise RuntimeFailure(f"position {index} is outside of [{-length}, {most}]")
    return index + length if index < 0 else index


def shapes_text(items: Sequence[Any]) -> str:
    shown = ", ".join(str(list(x.shape)) for x in items[:5])
    return shown + (", ..." if len(items) > 5 else "")


def holds_maps(kind: Type) -> bool:
    """Whether the values inside are maps."""
    while isinstance(kind, (SequenceType, OptionalType)):
        kind = kind.element
    return isinstance(kind, MapType)


def holds_floats(kind: Type) -> bool:
    """Whether the tensors inside are of floating-point numbers; maps are not differentiated."""
    while isinstance(kind, (SequenceType, OptionalType)):
        kind = kind.element
    return isinstance(kind, TensorType) and kind.dtype.is_float
