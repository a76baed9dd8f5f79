"""The operators that fused convolutions and matrix products absorb: an activation, the sum with a residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.ops.internal.fused import Epilogue
from graphkit.ops.nn.activation import Clip, Elu, Gelu, HardSigmoid, HardSwish, LeakyRelu, Relu, Sigmoid, Swish, Tanh
from graphkit.passes.core.match import is_op, operand_orders, same_type, scalar
from graphkit.passes.core.sweep import Readers, fused_node

# Operators that are an activation without attributes, and those with attributes alpha and beta.
_PLAIN = (Relu, Sigmoid, Tanh, HardSwish)
_WITH_ALPHA = (LeakyRelu, Elu, HardSigmoid)
_ACTIVATIONS = (*_PLAIN, *_WITH_ALPHA, Gelu, Swish, Clip)

# The operators that `absorb` may find a product in front of.
ABSORBED = frozenset({"Add", *(op.name for op in _ACTIVATIONS)})

Fused = TypeVar("Fused", bound=Epilogue)


class Product(NamedTuple, Generic[Fused]):
    """A product in fused form: the operator and its operands (two factors, bias, residual), and the node it is now."""

    op: Fused
    operands: tuple[Value | None, ...]
    node: Node

    @property
    def bias(self) -> Value | None:
        return self.operands[2]

    @property
    def residual(self) -> Value | None:
        return self.operands[3]

    @property
    def open(self) -> bool:
        """Whether what is added now is added to the plain product."""
        return not self.op.activation and self.residual is None

    def node_with(
        self, last: Node, *, bias: Value | None = None, residual: Value | None = None, **changes: Any
    ) -> Value:
        """The product's output with more in it, in place of the output of `last`."""
        a, b, old_bias, old_residual = self.operands
        operands = (a, b, old_bias if bias is None else bias, old_residual if residual is None else residual)
        return fused_node(self.op.replace(**changes), operands, (self.node, last))


# The product that computes a value in fused form, when it is one that a fused operator can stand for.
Form: TypeAlias = Callable[[Value], Product[Fused] | None]


def activation_of(node: Node) -> dict[str, Any] | None:
    """The attributes by which a fused operator applies this node's function; None when it cannot."""
    op = node.op
    if isinstance(op, _PLAIN):
        return {"activation": op.name}
    if isinstance(op, _WITH_ALPHA):
        beta = op.beta if isinstance(op, HardSigmoid) else 0.0
        return {"activation": op.name, "activation_alpha": op.alpha, "activation_beta": beta}
    if isinstance(op, Gelu):
        return {"activation": "GeluTanh" if op.approximate == "tanh" else "Gelu"}
    if isinstance(op, Swish) and op.alpha == 1.0:
        return {"activation": "Silu"}
    if isinstance(op, Clip):
        bounds = [-math.inf, math.inf]
        for position, value in enumerate(node.inputs[1:]):
            bound = scalar(value)
            if value is not None and bound is None:
                return None
            bounds[position] = bounds[position] if bound is None else bound
        return {"activation": "Clip", "activation_alpha": bounds[0], "activation_beta": bounds[1]}
    return None


def absorb(
    node: Node, readers: Readers, form: Form[Fused], bias_of: Callable[[Product[Fused], Value], Value | None]
) -> Sequence[Value] | None:
    """The output of a product with `node`'s function in it, when it is an activation or a sum behind one.

    `bias_of` gives the vector by which adding a value is adding a bias to the product, or None.
    """
    if is_op(node, "Add"):
        return _absorb_sum(node, readers, form, bias_of)
    if not isinstance(node.op, _ACTIVATIONS):
        return None
    operand = node.inputs[0]
    if operand is None or operand.node is None or not readers.has_one_use(operand):
        return None
    function = activation_of(node)
    product = None if function is None else form(operand)
    if function is None or product is None or product.op.activation or product.op.residual_last:
        return None
    return (product.node_with(node, **function),)


def _absorb_sum(
    node: Node, readers: Readers, form: Form[Fused], bias_of: Callable[[Product[Fused], Value], Value | None]
) -> Sequence[Value] | None:
    candidates = []
    for y, other in operand_orders(node):
        product = form(y) if y.node is not None and readers.has_one_use(y) else None
        if product is None or not same_type(y, node.output):
            continue
        bias = None if product.op.activation else bias_of(product, other)
        if bias is not None:
            total = bias if product.bias is None else F.add(product.bias, bias)
            return (product.node_with(node, bias=total),)
        if product.residual is None and same_type(other, node.output):
            candidates.append((product, other))
    if not candidates:
        return None
    # The later of two products takes the other's result as its residual: that one is there by then.
    product, other = max(candidates, key=lambda c: c[0].node.serial)
    return (product.node_with(node, residual=other, residual_last=bool(product.op.activation)),)


def is_single(value: Value) -> bool:
    """Whether a fused kernel takes the value's element type."""
    return value.tensor.dtype is DType.FLOAT32
