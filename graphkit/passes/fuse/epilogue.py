"""The operators that can be fused into convolutions and matrix products: activations, and the sum with a residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.ops.internal.fused import Epilogue
from graphkit.passes.core.match import is_op, operand_orders, same_type, scalar
from graphkit.passes.core.sweep import Readers, fused_node

# Activations without attributes, and those with attributes alpha and beta.
_PLAIN = frozenset({"Relu", "Sigmoid", "Tanh", "HardSwish"})
_WITH_ALPHA = frozenset({"LeakyRelu", "Elu", "HardSigmoid"})
_ACTIVATIONS = frozenset({*_PLAIN, *_WITH_ALPHA, "Gelu", "Swish", "Clip"})

# The operators that `absorb` may fuse into a product.
ABSORBED = frozenset({"Add", *_ACTIVATIONS})

Fused = TypeVar("Fused", bound=Epilogue)


class Product(NamedTuple, Generic[Fused]):
    """A product in fused form: the fused operator, its operands (two factors, bias, residual), and the node in the
    graph.
    """

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
    def is_plain(self) -> bool:
        """Whether the product has neither an activation nor a residual yet."""
        return not self.op.activation and self.residual is None

    def extended(
        self, last: Node, *, bias: Value | None = None, residual: Value | None = None, **changes: Any
    ) -> Value:
        """Return the output of the product with a further bias, residual or attributes.

        It replaces the output of `last`.
        """
        a, b, old_bias, old_residual = self.operands
        operands = (a, b, old_bias if bias is None else bias, old_residual if residual is None else residual)
        return fused_node(self.op.replace(**changes), operands, (self.node, last), keeps_type=True)


# Returns the product that computes a value, in fused form; None if no fused operator can express it.
Form: TypeAlias = Callable[[Value], Product[Fused] | None]


def activation_of(node: Node) -> dict[str, Any] | None:
    """Return the attributes of a fused operator for this activation; None if it does not support it."""
    if node.op.name not in _ACTIVATIONS or node.op.domain:
        return None
    name, given = node.op.name, node.op.attributes()
    if name in _PLAIN:
        return {"activation": name}
    if name in _WITH_ALPHA:
        return {"activation": name, "activation_alpha": given["alpha"], "activation_beta": given.get("beta", 0.0)}
    if name == "Gelu":
        return {"activation": "GeluTanh" if given["approximate"] == "tanh" else "Gelu"}
    if name == "Swish":
        return {"activation": "Silu"} if given["alpha"] == 1.0 else None
    bounds = [-math.inf, math.inf]
    for position, value in enumerate(node.inputs[1:]):
        bound = scalar(value)
        if value is not None and bound is None:
            return None
        bounds[position] = bounds[position] if bound is None else bound
    return {"activation": "Clip", "activation_alpha": bounds[0], "activation_beta": bounds[1]}


def absorb(
    node: Node, readers: Readers, form: Form[Fused], bias_of: Callable[[Product[Fused], Value], Value | None]
) -> Sequence[Value] | None:
    """Fuse an activation or a sum into the product before it. Return the new output, or None.

    bias_of: Returns the bias vector that has the same effect as adding a value to the product, or None.
    """
    if is_op(node, "Add"):
        return _absorb_sum(node, readers, form, bias_of)
    if node.op.name not in _ACTIVATIONS or node.op.domain:
        return None
    operand = node.inputs[0]
    if operand is None or operand.node is None or not readers.has_one_use(operand):
        return None
    function = activation_of(node)
    product = None if function is None else form(operand)
    if function is None or product is None or product.op.activation or product.op.residual_last:
        return None
    return (product.extended(node, **function),)


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
            return (product.extended(node, bias=total),)
        if product.residual is None and same_type(other, node.output):
            candidates.append((product, other))
    if not candidates:
        return None
    # If both operands are products, fuse into the later one: the result of the earlier one is then available as
    # residual.
    product, other = max(candidates, key=lambda c: c[0].node.serial)
    return (product.extended(node, residual=other, residual_last=bool(product.op.activation)),)


def is_single(value: Value) -> bool:
    """Return whether the value is float32, the only type of the fused kernels."""
    return value.tensor.dtype is DType.FLOAT32
