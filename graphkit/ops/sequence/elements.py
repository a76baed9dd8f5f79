"""Helpers of the operators on sequences and optionals: types of elements, and positions at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.types import MapType, OptionalType, SequenceType, TensorType, Type, join


def sequence_type(kind: Type | None, what: str) -> SequenceType:
    """Return the type of an operand. Raises TypeMismatch if it is not a sequence."""
    if not isinstance(kind, SequenceType):
        raise TypeMismatch(f"{what} must be a sequence, not {kind}")
    return kind


def without_elements(kind: Type) -> Type:
    """Return the type without known elements, so that it holds for all values in a sequence."""
    if isinstance(kind, TensorType):
        return kind if kind.value is None and kind.floats is None else TensorType(kind.dtype, kind.shape)
    return kind.with_element(without_elements(kind.element))


def drawn(kind: Type) -> Type:
    """Return the type of one element of a sequence, with new symbols for dimensions that differ between elements."""
    if not isinstance(kind, TensorType):
        return kind.with_element(drawn(kind.element))
    if kind.shape is None:
        return TensorType(kind.dtype)
    return TensorType(kind.dtype, [dims.fresh() if is_unnamed(d) else d for d in kind.shape])


def with_own_sizes(kind: Type) -> Type:
    """Return the type of an input with new symbols inside sequences and optionals, where names bind no other size."""
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
    """Return whether a dimension has anonymous symbols: it may differ between the elements of a sequence."""
    return isinstance(dim, DimExpr) and any(name.startswith("?") for name in dim.symbols)


def joint(kinds: Iterable[Type]) -> Type:
    """Return the type that covers elements of these types (at least one). Raises TypeMismatch if dtypes differ."""
    return reduce(join, map(without_elements, kinds))


def with_one_more(sequence: SequenceType, element: Type) -> SequenceType:
    """Return the type of a sequence after an element is inserted. Raises TypeMismatch if the element types differ."""
    try:
        wide = join(sequence.element, without_elements(element))
    except TypeMismatch:
        raise TypeMismatch(f"{element} does not fit into {sequence}") from None
    if sequence.length == 0:
        wide = without_elements(element)
    return SequenceType(wide, None if sequence.length is None else sequence.length + 1)


def check_scalar(kind: TensorType | None, what: str) -> None:
    """Raise TypeMismatch if the operand is given and does not have one element."""
    if kind is not None and kind.shape is not None and not dims.may_equal(dims.product(kind.shape), 1):
        raise TypeMismatch(f"{what} must be a scalar, not {kind}")


def place(position: Any, length: int, *, past_end: bool = False) -> int:
    """Return a position counted from the front (None: the last one). Raises RuntimeFailure if it does not exist.

    past_end: the position is for an insertion, so it may be `length`, which is then the default.
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
    """Return whether the innermost values are maps."""
    while isinstance(kind, (SequenceType, OptionalType)):
        kind = kind.element
    return isinstance(kind, MapType)


def holds_floats(kind: Type) -> bool:
    """Return whether the innermost values are float tensors. Maps have no gradient."""
    while isinstance(kind, (SequenceType, OptionalType)):
        kind = kind.element
    return isinstance(kind, TensorType) and kind.dtype.is_float
