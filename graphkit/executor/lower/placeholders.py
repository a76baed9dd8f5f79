"""Placeholders: numbers that lowering assumes for run-time sizes and elements.

If a kernel exists for the placeholders, kernels for all valid operands are expected. If a run finds no kernel, it
interprets the node. Invalid operands raise an error in the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, DType, TensorType
from graphkit.ops.image.resize import Resizing

_PLACEHOLDER = 16


# --- operands whose elements determine shapes ---------------------------------------------------------


def deciding_operands(node: Node) -> frozenset[int]:
    """Return the positions of operands with unknown elements that a kernel may need."""
    floats = _deciding_floats(node)
    return frozenset(
        i for i, v in enumerate(node.inputs) if v is not None and _may_decide(v.tensor, floats=i in floats)
    )


def _may_decide(kind: TensorType, *, floats: bool) -> bool:
    """Whether an operand has unknown elements that may determine shapes or the kernel.

    Such an operand is a scalar or a short vector. floats: of float32 instead of integers.
    """
    small = not kind.is_static or kind.nbytes <= MAX_KNOWN_ELEMENTS * kind.dtype.itemsize
    decide = kind.dtype is DType.FLOAT32 if floats else kind.dtype in (DType.INT64, DType.INT32)
    known = kind.constants is not None or kind.floats is not None
    return decide and kind.shape is not None and len(kind.shape) <= 1 and small and not known


def _deciding_floats(node: Node) -> tuple[int, ...]:
    op = node.op
    if not isinstance(op, Resizing):
        return ()
    names = [formal.name for formal in op.formals]
    return tuple(names.index(name) for name in ("scales", *(("roi",) if op.reads_roi else ())))


_Elements: TypeAlias = Callable[[Node, "dict[str, Dim]", int], Sequence[int]]


def _all(element: int) -> _Elements:
    return lambda node, sizes, count: [element] * count


def _axes(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    return range(count)


def _rest(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    """Return a target shape of Reshape for any number of elements: [1, ..., 1, -1]."""
    return [*[1] * (count - 1), -1][:count]


def _sizes_of_first(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    shape = _first_shape(node, sizes)
    return [shape[axis] for axis in getattr(node.op, "axes", None) or range(count)]


def _short_axes(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    return [axis for axis, size in enumerate(_first_shape(node, sizes)) if size == 1][:count]


def _parts(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    return [*[0] * (count - 1), _first_shape(node, sizes)[getattr(node.op, "axis", 0)]]


def _padded_axes(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    """Return the axes along which the first two operands differ, then the other axes."""
    padded, plain = _first_shapes(node, sizes)
    return sorted(range(len(padded)), key=lambda axis: padded[axis] == plain[axis])[:count]


def _padding(node: Node, sizes: dict[str, Dim], count: int) -> Sequence[int]:
    named = node.inputs[3].tensor.constants if len(node.inputs) > 3 and node.inputs[3] is not None else None
    padded, plain = _first_shapes(node, sizes)
    more = [padded[axis] - plain[axis] for axis in named or _padded_axes(node, sizes, count // 2)]
    return [*(size // 2 for size in more), *(size - size // 2 for size in more)]


def _first_shapes(node: Node, sizes: dict[str, Dim]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first, second = (v.tensor.substitute(sizes).static_shape for v in node.operands[:2])
    return first, second


def _first_shape(node: Node, sizes: dict[str, Dim]) -> tuple[int, ...]:
    return node.operands[0].tensor.substitute(sizes).static_shape


_ZERO, _ONE = _all(0), _all(1)
_BEYOND = _all(1 << 30)
_ELEMENTS: dict[str, tuple[_Elements, ...]] = {
    "Slice": (_ZERO, _ZERO, _BEYOND, _axes, _ONE),
    "SliceGrad": (_ZERO, _ZERO, _ZERO, _BEYOND, _axes, _ONE),
    "Reshape": (_ZERO, _rest),
    "Expand": (_ZERO, _ONE),
    "ConstantOfShape": (_ONE,),
    "Tile": (_ZERO, _ONE),
    "Pad": (_ZERO, _ZERO, _ZERO, _axes),
    "PadGrad": (_ZERO, _ZERO, _padding, _padded_axes),
    "Split": (_ZERO, _parts),
    "Squeeze": (_ZERO, _short_axes),
    "TopK": (_ZERO, _ONE),
    "DFT": (_ZERO, _ONE, _all(-2)),
    "Resize": (_ZERO, _ZERO, _ONE, _sizes_of_first),
    "ResizeGrad": (_ZERO, _ZERO, _ZERO, _ONE, _sizes_of_first),
}
_OTHERS = (_ZERO, _axes)


def placeholder_types(node: Node, sizes: dict[str, Dim], by_value: frozenset[int]) -> list[TensorType | None]:
    """Return the operands' types, with placeholders for unknown sizes, and for elements of `by_value`.

    by_value: Positions of operands whose elements are needed. Raises TypeMismatch if elements depend on a shape of
    unknown rank.
    """
    return [
        None if v is None else _placeholder_type(node, i, v.tensor, sizes, i in by_value)
        for i, v in enumerate(node.inputs)
    ]


def _placeholder_type(node: Node, position: int, kind: TensorType, sizes: dict[str, Dim], by_value: bool) -> TensorType:
    sized = kind.substitute(sizes)
    if not by_value or sized.constants is not None:
        keep = by_value or kind.constants is not None
        return sized if keep else TensorType(sized.dtype, sized.shape, None, sized.floats)
    elements = _ELEMENTS.get(node.op.name, _OTHERS)
    if position >= len(elements) or not kind.is_static:
        return sized
    value = elements[position](node, sizes, int(np.prod(kind.static_shape)))
    if kind.dtype is DType.FLOAT32:
        return TensorType(kind.dtype, kind.shape, None, value)
    return TensorType(kind.dtype, kind.shape, value)


# --- sizes -------------------------------------------------------------------------------------------


def assumed_sizes(node: Node) -> Iterator[dict[str, Dim]]:
    """Yield placeholders for the unknown sizes of a node, in the order of trials.

    1. The same number for all sizes, except the channels of a convolution, which follow from its weights.
    2. Sizes that fit the operand, or the result, of a Reshape.
    3. Sizes that fit the other operand of a matrix product.
    4. For broadcasting: the size that another operand has along the same axis, counted from the end. The first try
       ignores axes of size 1; the second one includes them.
    5. If a dimension is an expression such as a + b: 0 for all symbols of the expression but one.
    6. 1 for all sizes.
    """
    shapes = [v.tensor.shape or () for v in node.operands if isinstance(v.type, TensorType)]
    mentioned = [d for v in node.operands for d in (*(v.tensor.shape or ()), *(v.tensor.value or ()))]
    unknown = {symbol for d in mentioned if isinstance(d, DimExpr) for symbol in d.symbols}
    same: dict[str, Dim] = {**dict.fromkeys(unknown, _PLACEHOLDER), **_channels(node)}
    yield same
    if (reshaped := _reshaped(node, same)) is not None:
        yield same | reshaped
    if (given := _given_to_reshape(node, unknown)) is not None:
        yield given
    if multiplied := _multiplied(node):
        yield same | multiplied
    for one in (False, True):
        aligned: dict[str, Dim] = {}
        for dims in zip_longest(*(shape[::-1] for shape in shapes)):
            size = next((d for d in dims if isinstance(d, int) and (one or d != 1)), None)
            if size is not None:
                aligned.update((symbol, size) for d in dims if isinstance(d, DimExpr) for symbol in d.symbols)
        if aligned:
            yield same | aligned
    rest = [name for d in mentioned if isinstance(d, DimExpr) for name in sorted(d.symbols)[1:]]
    if rest:
        yield same | dict.fromkeys(rest, 0)
    yield dict.fromkeys(unknown, 1)  # broadcast to any shape, as in Expand


def _reshaped(node: Node, sizes: dict[str, Dim]) -> dict[str, Dim] | None:
    """Return placeholders for those sizes of a Reshape's result that do not occur in its operand, or None.

    One of them is chosen so that result and operand have equally many elements, and the others are 1. With -1 in the
    target shape, all are 1. sizes: the placeholders of the operand.
    """
    if node.op.name != "Reshape" or node.operands[0].tensor.shape is None:
        return None
    x = node.operands[0].tensor.substitute(sizes)
    wanted = node.operands[1].tensor.value or ()
    of_x = {symbol for d in node.operands[0].tensor.known_shape if isinstance(d, DimExpr) for symbol in d.symbols}
    free = [str(d) for d in wanted if isinstance(d, DimExpr) and d.symbols == {str(d)} and str(d) not in of_x]
    if not free or not x.is_static or 0 in wanted:
        return None
    ones: dict[str, Dim] = dict.fromkeys(free, 1)
    if -1 in wanted:
        return ones
    found = TensorType(x.dtype, wanted).substitute(sizes | ones)
    if not found.is_static or not found.nbytes or x.nbytes % found.nbytes:
        return None
    return ones | {free[0]: x.nbytes // found.nbytes}


def _given_to_reshape(node: Node, unknown: Set[str]) -> dict[str, Dim] | None:
    """Return placeholders for sizes of a Reshape's operand from the known size of its result, or None.

    One of them is chosen so that operand and result have equally many elements, and the others are 1.
    """
    x = node.operands[0].tensor
    if node.op.name != "Reshape" or x.shape is None or not node.outputs[0].tensor.is_static or not unknown:
        return None
    count = math.prod(node.outputs[0].tensor.static_shape)
    ones: dict[str, Dim] = dict.fromkeys(unknown, 1)
    for symbol in sorted(unknown):
        known = math.prod(x.substitute(ones).static_shape)
        sizes = ones | {symbol: count // max(known, 1)}
        if math.prod(x.substitute(sizes).static_shape) == count:
            return sizes
    return None


def _multiplied(node: Node) -> dict[str, Dim]:
    """Return unknown sizes of a matrix product that must equal a known size of the other operand.

    These are the columns of a, the rows of b, and the leading axes.
    """
    if node.op.name not in ("MatMul", "FusedMatMul"):
        return {}
    a, b = (tuple(v.tensor.shape or ()) for v in node.operands[:2])
    if len(a) < 2 or len(b) < 2:
        return {}
    columns, rows = -2 if getattr(node.op, "transA", False) else -1, -1 if getattr(node.op, "transB", False) else -2
    pairs = [(a[columns], b[rows]), *zip(a[-3::-1], b[-3::-1], strict=False)]
    found: dict[str, Dim] = {}
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        if isinstance(one, DimExpr) and isinstance(other, int):
            found.update(dict.fromkeys(one.symbols, other))
    return found


def _channels(node: Node) -> dict[str, Dim]:
    group = getattr(node.op, "group", None)
    if group is None or len(node.operands) < 2:
        return {}
    x, w = (v.tensor.shape for v in node.operands[:2])
    each = -1 if getattr(node.op, "filters_last", False) else 1
    if not x or len(x) < 2 or not w or not isinstance(w[0], int) or not isinstance(w[each], int):
        return {}
    channels = x[-1 if node.op.name.startswith("ChannelsLast") else 1]
    taken = w[0] if "Transpose" in node.op.name else w[each] * group
    return {str(channels): taken} if isinstance(channels, DimExpr) and len(channels.symbols) == 1 else {}
