"""Remove nodes that return one of their operands unchanged, and merge chains of reshapes and transposes.

There is one small rule per operator. It gets the node with its new operands, and returns the values that replace its
outputs, or None. A rule applies only if it is valid for all sizes: symbolic dimensions must be equal expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, Op, operator
from graphkit.ops._base import DOMAIN
from graphkit.ops.tensor.constants import ReduceToShapeOf
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import SharedConstants, array_of, first, is_op, permutation
from graphkit.passes.core.relevance import ARITHMETIC, RESHAPES
from graphkit.passes.core.sweep import map_branches, rewrite

Simplification: TypeAlias = Callable[[Node], Sequence[Value] | None]

# For each type, the types that represent all of its values exactly.
_WIDER = {
    DType.BFLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.FLOAT32: (DType.FLOAT64,),
    DType.BOOL: (DType.UINT8, DType.INT8, DType.INT32, DType.INT64),
    DType.INT32: (DType.INT64, DType.FLOAT64),
}

# The largest number of reshapes that a rule follows. Longer chains are already shorter, because their first nodes were
# merged.
_MAX_CHAIN = 8

_rules: dict[tuple[str, str], Simplification] = {}
# The operators for which the sweep calls a rule.
_operators = {"If", "ReduceToShapeOf"}
# The rule for ARITHMETIC applies only if an operand is the result of one of these operators.
_IDENTITY_ELEMENTS = ("Constant", "Expand")


# Markers for differentiation: they change gradients, and otherwise return an operand.
_MARKERS = {(DOMAIN, "StopGradient"), (DOMAIN, "StraightThrough")}


def _identity_left(graph: Graph) -> Node | None:
    return next((node for node in graph.nodes if (node.op.domain, node.op.name) in {("", "Identity"), *_MARKERS}), None)


def identity_left(graph: Graph) -> Node | None:
    """Return an Identity of the graph, or None. It is the check of `simplify` with keep_markers."""
    return next((node for node in graph.nodes if is_op(node, "Identity")), None)


def _rule(*names: str, domain: str = "") -> Callable[[Simplification], Simplification]:
    def install(function: Simplification) -> Simplification:
        _rules.update({(domain, name): function for name in names})
        _operators.update(names)
        return function

    return install


@_rule("Identity")
def _identity(node: Node) -> Sequence[Value] | None:
    return (first(node),)


@_rule("StopGradient", "StraightThrough", domain=DOMAIN)
def _gradient_marker(node: Node) -> Sequence[Value] | None:
    """Remove markers: graphs are differentiated before they are simplified, unless `keep_markers` is set."""
    value = node.inputs[-1]
    assert value is not None
    return (value,)


@_rule("CastLike", "Expand", "Squeeze", "Unsqueeze", "Flatten", "Tile")
def _same_type(node: Node) -> Sequence[Value] | None:
    """These operators return their operand if element type and shape are the same."""
    x = first(node)
    return (x,) if _equal_shapes(x, node.output) else None


class _Sums:
    """The rule for ReduceToShapeOf in one sweep. Nodes with operands of equal types share the axes of their sums."""

    def __init__(self) -> None:
        self._constants = SharedConstants()
        # For operands and a result of these types: a sum, and its axes.
        self._known: dict[tuple[int, int, int], tuple[Node, Value]] = {}

    def replaced(self, node: Node) -> Sequence[Value] | None:
        """Replace the node by the ReduceSum that known shapes determine, or by its operand if the shapes are equal."""
        x, like = node.operands
        kinds = x.tensor.number, like.tensor.number, node.output.tensor.number
        known = self._known.get(kinds)
        if known is not None:
            equal, axes = known
            return equal.with_types((x, axes), [equal.outputs[0].type]).outputs
        same = _same_type(node)
        if same is not None or not all(v.tensor.is_static for v in node.operands):
            return same
        # Usually the sum has the wanted shape. The operator's expansion would add a Reshape, which a later sweep
        # removes.
        if summed := operator(node, ReduceToShapeOf).summed_axes(x, like):
            axes = self._constants.ints(summed)
            total: Value = F.reduce_sum(x, axes, keepdims=False)
            if _equal_shapes(total, node.output):
                assert total.node is not None
                self._known[kinds] = total.node, axes
                return (total,)
        return (operator(node, Op).expand(x, like),)


@_rule("Cast")
def _cast(node: Node) -> Sequence[Value] | None:
    """Remove a cast to a wider type and back."""
    same = _same_type(node)
    if same is not None:
        return same
    x = first(node)
    if x.node is None or x.node.op.name != "Cast" or x.node.op.domain:
        return None
    source = first(x.node)
    return (source,) if _equal_shapes(source, node.output) and x.dtype in _WIDER.get(source.dtype, ()) else None


@_rule("Reshape")
def _reshape(node: Node) -> Sequence[Value] | None:
    source = first(node)
    for _ in range(_MAX_CHAIN):
        if _equal_shapes(source, node.output):
            return (source,)
        if source.node is None or source.node.op.domain or source.node.op.name not in RESHAPES:
            break
        source = first(source.node)
    # A 0 in the target copies a dimension of the operand, so the node cannot read another operand.
    target = node.inputs[1].tensor.constants if node.inputs[1] is not None else None
    if source is node.inputs[0] or target is None or 0 in target:
        return None
    return node.rebuilt([source, *node.inputs[1:]]).outputs


@_rule("Transpose")
def _transpose(node: Node) -> Sequence[Value] | None:
    x = first(node)
    outer = permutation(node)
    if outer is None:
        return None
    if x.node is not None and x.node.op.name == "Transpose" and x.node.op.domain == "":
        inner = permutation(x.node)
        if inner is not None:
            x, outer = first(x.node), tuple(inner[axis] for axis in outer)
    if outer == tuple(range(len(outer))):
        return (x,)
    if x is node.inputs[0]:
        return None
    return node.rebuilt([x], operator(node, Op).replace(perm=outer)).outputs


@_rule("Dropout")
def _dropout(node: Node) -> Sequence[Value] | None:
    """Replace y by x if the node is not in training mode. The mask output stays."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    training = None if mode is None else array_of(mode)
    if mode is not None and (training is None or bool(training)):
        return None
    return (first(node), *node.outputs[1:])


@_rule("Concat", "Sum", "Max", "Min", "Mean")
def _single_operand(node: Node) -> Sequence[Value] | None:
    return (first(node),) if len(node.inputs) == 1 else None


# Constants with at most this many elements are compared with the identity element.
_SEARCHED = 1 << 16


@_rule(*ARITHMETIC)
def _identity_element(node: Node) -> Sequence[Value] | None:
    """x * 1, x / 1, x + -0.0 and x - 0, with x on either side of Mul and Add. x + 0.0 would turn -0.0 to 0.0."""
    commutative = node.op.name in ("Mul", "Add")
    x, other = node.operands
    for kept, constant in ((x, other), (other, x)) if commutative else ((x, other),):
        made = constant.node
        if made is None or made.op.name not in _IDENTITY_ELEMENTS:
            continue
        if _is_identity(node.op.name, constant) and _equal_shapes(kept, node.output):
            return (kept,)
    return None


def _is_identity(operator_name: str, value: Value) -> bool:
    """Whether every element of a constant, which may be expanded, leaves the other operand as it is."""
    while value.node is not None and not value.node.op.domain and value.node.op.name == "Expand":
        value = first(value.node)
    array = array_of(value)
    if array is None or not 0 < array.size <= _SEARCHED or not (value.dtype.is_float or value.dtype.is_integer):
        return False
    is_factor = operator_name in ("Mul", "Div")
    if array.size == 1 and array.item() != is_factor:
        return False
    if is_factor:
        return bool((array == 1).all())
    if (array != 0).any():
        return False
    return value.dtype.is_integer or bool((np.signbit(array.astype(np.float64)) == (operator_name == "Add")).all())


@_rule("Pad")
def _pad(node: Node) -> Sequence[Value] | None:
    pads = array_of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return (first(node),) if pads is not None and not pads.any() else None


@_rule("Slice")
def _slice(node: Node) -> Sequence[Value] | None:
    """A slice returns its operand if its steps are 1 and all sizes stay the same."""
    x = first(node)
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    strides = (1,) if steps is None else steps.tensor.constants
    forward = strides is not None and all(s == 1 for s in strides)
    return (x,) if forward and _equal_shapes(x, node.output) else None


@_rule("Where")
def _where(node: Node) -> Sequence[Value] | None:
    """Return the chosen operand if the condition is constant and all of its elements are equal."""
    condition, *choices = node.operands
    array = array_of(condition)
    if array is None or array.size == 0 or array.min() != array.max():
        return None
    chosen = choices[0 if array.flat[0] else 1]
    return (chosen,) if _equal_shapes(chosen, node.output) else None


@_rule("And", "Or")
def _logical(node: Node) -> Sequence[Value] | None:
    """Return x for `x And true` and `x Or false`."""
    for x, other in (node.operands, node.operands[::-1]):
        array = array_of(other)
        if array is not None and array.size == 1 and bool(array.all()) is (node.op.name == "And"):
            return (x,) if _equal_shapes(x, node.output) else None
    return None


def _equal_shapes(x: Value, y: Value) -> bool:
    """Whether both are tensors of one element type and provably one shape."""
    return isinstance(x.type, TensorType) and x.type.shape is not None and x.type == y.type


# All rules are above, so the operators that they look for are known.
@graph_pass(ensures=[Property.SIMPLIFIED], check=_identity_left, at=(_operators - ARITHMETIC).union(_IDENTITY_ELEMENTS))
def simplify(graph: Graph, *, keep_markers: bool = False) -> Graph:
    """Apply every rule in one sweep, in the branches of an If as well. Linear.

    keep_markers: Keep StopGradient and StraightThrough, because the graph is differentiated later.
    """
    inner = partial(simplify, keep_markers=keep_markers)
    rules = {**_rules, (DOMAIN, "ReduceToShapeOf"): _Sums().replaced}
    if keep_markers:
        rules = {kind: found for kind, found in rules.items() if kind not in _MARKERS}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        found = rules.get((node.op.domain, node.op.name))
        if found is None:
            return map_branches(node, operands, inner).outputs
        rebuilt = node if operands is node.inputs else node.rebuilt(operands)
        return found(rebuilt) or rebuilt.outputs

    return rewrite(graph, rule, at=_operators - ARITHMETIC, after=_IDENTITY_ELEMENTS, among=ARITHMETIC)
