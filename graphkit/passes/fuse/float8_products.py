"""Run matrix products with 8-bit floating-point operands, on devices that support them.

"FP8 Formats for Deep Learning", Micikevicius et al. 2022, arXiv:2209.05433.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphkit.ir import context
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, Op, operator
from graphkit.ops.internal.float8 import PADDED_TO, Float8MatMul
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import FixedValues, first, producer
from graphkit.passes.core.sweep import elements_read, map_bodies, rewrite
from graphkit.passes.fuse.epilogue import Product
from graphkit.passes.fuse.matmul import product_form

# Data movement. If no operand is a gradient, the result is none, even if the node is part of the backward pass.
_DATA_MOVEMENT = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze"}
)


class _Values(NamedTuple):
    """Properties of a graph's values.

    Attributes:
        gradients: The values that are gradients.
        fixed: The values that do not change between runs.
        matrices: For each (value, size): the first operand that is this value, reshaped to a last axis of this size.
    """

    gradients: Collection[Value]
    fixed: FixedValues
    matrices: dict[tuple[Value, int], Value]


class _Factor(NamedTuple):
    """An 8-bit operand, whose last axis is the one that the product sums over, and its scale."""

    elements: Value
    scale: Value


@graph_pass(requires=[Property.MATMULS_FUSED, Property.POINTWISE_APART], breaks=[Property.SIMPLIFIED])
def float8_products(graph: Graph) -> Graph:
    """Run float32 matrix products with 8-bit operands, float32 sums, and a bfloat16 result that is cast to float32.

    Each operand has one scale, which maps its largest element to the largest number of the format (see ScaledFloat8).
    Gradients use the format E5M2, all other operands E4M3. Nodes in the scope of `context.GRADIENT` compute gradients.
    The relative error of an element is at most 2^-4 in E4M3, and 2^-3 in E5M2. Small elements have an absolute error of
    at most 2^-18 (E4M3) or 2^-32 (E5M2) of the largest element.

    Computed operands are rounded to bfloat16 first, because their other readers read bfloat16. Inputs and parameters
    are not.

    A product has the form [..., m, k] times [k, n], with n a multiple of 16. k is padded with zeros to a multiple of
    16, and must be at least 16 if it is known. Other products are kept. Takes linear time.
    """
    values = _Values(_gradients(graph), FixedValues(graph), {})

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.name not in ("MatMul", "Gemm", "FusedMatMul"):
            return map_bodies(node, operands, float8_products).outputs
        form = product_form(node.rebuilt(operands))
        if form is None or not _is_supported(form):
            return None
        return _float8_matmul(node, form, values)

    return rewrite(graph, rule)


def _gradients(graph: Graph) -> set[Value]:
    found: set[Value] = set()
    for node in graph.nodes:
        read = elements_read(node)
        made = bool(read) and context.GRADIENT in node.meta and node.op.name not in _DATA_MOVEMENT
        if made or not found.isdisjoint(read):
            found.update(node.outputs)
    return found


def _is_supported(form: Product[FusedMatMul]) -> bool:
    """Return whether the library supports a product with such operands."""
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


def _float8_matmul(node: Node, form: Product[FusedMatMul], values: _Values) -> Sequence[Value]:
    # The library supports no product of two E5M2 operands.
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
    # Other nodes read the float32 value, which keeps the name.
    return Node(Cast(to=DType.FLOAT32), (y,), output_names=[node.output.name]).outputs


def _factor(
    x: Value | None, to: DType, transposed: bool, computed: bool, matrices: dict[tuple[Value, int], Value]
) -> _Factor:
    """Return an operand in the format `to`.

    If x is a reshaped value, the original value is rounded, so that all readers of it share the result.

    transposed: Whether the product sums over another axis of x than the last one. computed: Whether each run computes
    x.
    """
    assert x is not None
    source, views = _before_reshapes(x, always=transposed)
    if (node := producer(source, "Reshape")) is not None and not views:
        size = source.tensor.known_shape[-1]
        known = matrices.setdefault((first(node), size), source) if isinstance(size, int) else source
        # The transposed copy does not depend on how the leading axes are grouped, so matrices of the same elements
        # share it.
        source = known if transposed else source
    if computed and source.node is not None:
        source = F.cast(source, to=DType.BFLOAT16)
    rows, columns, scale = F.scaled_float8(source, F.absolute_maxima(source), to=to)
    if transposed:
        return _Factor(columns, scale)
    for view in reversed(views):
        rows = Node(operator(view, Op), (rows, *view.inputs[1:])).output
    return _Factor(rows, scale)


def _before_reshapes(x: Value, always: bool) -> tuple[Value, list[Node]]:
    """Return the value before reshapes that only change leading axes, and these reshapes, the last one first.

    always: Follow reshapes also if the last axis will be padded. They cannot be applied to padded rows.
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
