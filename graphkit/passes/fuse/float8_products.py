"""Matrix products of 8-bit floating point numbers, for devices that have them.

"FP8 Formats for Deep Learning", Micikevicius et al. 2022, arXiv:2209.05433.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from graphkit.ir import context
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, Op, operator
from graphkit.ops.internal.float8 import PADDED_TO, Float8MatMul
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import FixedValues, first, producer
from graphkit.passes.core.sweep import elements_read, map_bodies, rewrite
from graphkit.passes.fuse.epilogue import Product
from graphkit.passes.fuse.matmul import product_form

# Operators whose results have the elements of an operand: they make no gradient of what is none.
_MOVING = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze"}
)


class _Values(NamedTuple):
    """What is known of a graph's values. gradients: those that flow backward; fixed: those that no run changes.

    matrices: for what was reshaped, and a size of the last axis, the first such matrix that was an operand.
    """

    gradients: Collection[Value]
    fixed: FixedValues
    matrices: dict[tuple[Value, int], Value]


class _Factor(NamedTuple):
    """An operand in 8 bits, with the axis that is summed over last, and its scale."""

    elements: Value
    scale: Value


@graph_pass(requires=[Property.MATMULS_FUSED, Property.POINTWISE_APART], breaks=[Property.SIMPLIFIED])
def float8_products(graph: Graph) -> Graph:
    """Products of float32 matrices with operands of 8 bits, sums in float32 and a result of bfloat16, behind a cast.

    Each operand has one scale, by which its largest element is the format's largest number (see ScaledFloat8): an
    element is off by a relative 2^-4 at most in E4M3, 2^-3 in E5M2, and where it is small by 2^-18 and 2^-32 of that
    largest element. Gradients, as nodes tell that were made in the scope of `context.GRADIENT`, are E5M2, all else is
    E4M3. What a run computes is rounded to bfloat16 first, as it is between nodes that read bfloat16; what is fed and
    parameters are not. A product is one of many rows and a matrix, [..., m, k] and [k, n], with n a multiple of 16;
    the sum's size k is filled up to one by zeros, and is 16 at least where it is known. Others stay as they are.
    Linear.
    """
    values = _Values(_gradients(graph), FixedValues(graph), {})

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.name not in ("MatMul", "Gemm", "FusedMatMul"):
            return map_bodies(node, operands, float8_products).outputs
        form = product_form(node.rebuilt(operands))
        if form is None or not _fits(form):
            return None
        return _in_8_bits(node, form, values)

    return rewrite(graph, rule)


def _gradients(graph: Graph) -> set[Value]:
    found: set[Value] = set()
    for node in graph.nodes:
        read = elements_read(node)
        made = bool(read) and context.GRADIENT in node.meta and node.op.name not in _MOVING
        if made or not found.isdisjoint(read):
            found.update(node.outputs)
    return found


def _fits(form: Product[FusedMatMul]) -> bool:
    """Whether the library multiplies such operands."""
    a, b = form.operands[:2]
    assert a is not None
    assert b is not None
    if form.op.activation or any(v is not None and v.dtype is not DType.FLOAT32 for v in form.operands):
        return False
    if a.shape is None or b.shape is None or len(b.shape) != 2 or (form.op.transA and len(a.shape) != 2):
        return False
    n, k = b.shape if form.op.transB else b.shape[::-1]
    terms: tuple[Dim, Dim] = (k, a.shape[0 if form.op.transA else -1])
    short = any(isinstance(size, int) and size < PADDED_TO for size in terms)
    return isinstance(n, int) and n > 0 and n % PADDED_TO == 0 and not short


def _in_8_bits(node: Node, form: Product[FusedMatMul], values: _Values) -> Sequence[Value]:
    # No product has two operands of E5M2.
    factors = node.operands[:2]
    left, right = (v in values.gradients for v in factors)
    formats = [DType.FLOAT8E5M2 if flag else DType.FLOAT8E4M3FN for flag in (left, right and not left)]
    sides = zip(form.operands[:2], factors, formats, (form.op.transA, not form.op.transB), strict=True)
    a, b = (
        _factor(new, to, transposed, old not in values.fixed, values.matrices) for new, old, to, transposed in sides
    )
    added = [None if v is None else F.cast(v, to=DType.BFLOAT16) for v in form.operands[2:]]
    while added and added[-1] is None:
        added.pop()
    y = Node(Float8MatMul(alpha=form.op.alpha), (*a, *b, *added), node.name, node.meta).output
    # The value that others know is the one in float32.
    return Node(Cast(to=DType.FLOAT32), (y,), output_names=[node.output.name]).outputs


def _factor(
    x: Value | None, to: DType, transposed: bool, computed: bool, matrices: dict[tuple[Value, int], Value]
) -> _Factor:
    """An operand in a format. transposed: the axis that is summed over is not the last one of x. computed: in a run.

    What lies there in another shape is rounded as it lies there, so that all of its readers share that.
    """
    assert x is not None
    source, views = _as_it_lies(x, always=transposed)
    if (node := producer(source, "Reshape")) is not None and not views:
        size = source.tensor.known_shape[-1]
        known = matrices.setdefault((first(node), size), source) if isinstance(size, int) else source
        # Other rows and columns of the same elements have the same transpose.
        source = known if transposed else source
    if computed and source.node is not None:
        source = F.cast(source, to=DType.BFLOAT16)
    rows, columns, scale = F.scaled_float8(source, F.absolute_maxima(source), to=to)
    if transposed:
        return _Factor(columns, scale)
    for view in reversed(views):
        rows = Node(operator(view, Op), (rows, *view.inputs[1:])).output
    return _Factor(rows, scale)


def _as_it_lies(x: Value, always: bool) -> tuple[Value, list[Node]]:
    """What x is with other leading axes, and the nodes that give it these, the last one first.

    always: also where rows have zeros behind them, which these nodes do not know.
    """
    views: list[Node] = []
    while (node := producer(x, "Reshape", "Flatten")) is not None:
        source = first(node)
        if source.shape is None or x.shape is None or len(source.shape) < 2 or len(x.shape) < 2:
            break
        size, other = source.shape[-1], x.shape[-1]
        if not isinstance(size, int) or size != other or not (always or size % PADDED_TO == 0) or size == 0:
            break
        views.append(node)
        x = source
    return x, views
