"""Matrix products and convolutions of quantised operands. C++ registers the elementwise ones (see `_declared`)."""

from __future__ import annotations

from typing import TypeAlias

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, Op, operator
from graphkit.ops.internal.channels_last import to_first
from graphkit.ops.internal.quantised import QGemm
from graphkit.ops.internal.weight_only import WeightOnlyMatMul
from graphkit.ops.nn.conv import Convolution

_Named: TypeAlias = tuple[str, tuple[int, ...], str]

# The native names of operands, in products and in convolutions.
_PARAMETERS = {
    "x_scale": "x_scale", "x_zero_point": "x_zero", "w_scale": "w_scale", "w_zero_point": "w_zero",
    "a_scale": "x_scale", "a_zero_point": "x_zero", "b_scale": "w_scale", "b_zero_point": "w_zero",
    "y_scale": "y_scale", "y_zero_point": "y_zero",
}  # fmt: skip
_OF_PRODUCT = {**_PARAMETERS, "a": "x", "b": "w", "c": "sum", "bias": "bias"}
_OF_CONVOLUTION = {**_PARAMETERS, "x": "x", "w": "w", "b": "sum"}


def _operands(node: Node, names: dict[str, str]) -> list[_Named | None]:
    """Return native name, shape and element type of each operand, in order; None for an absent one."""
    formals = operator(node, Op).formals
    return [
        None if value is None else (names[formal.name], value.tensor.static_shape, value.dtype.value)
        for formal, value in zip(formals, node.inputs, strict=False)
    ]


def _packs(node: Node, context: KernelContext, weights: str) -> bool:
    """Return whether the weights are constant, so that the kernel packs them. weights: name of the operand."""
    return [formal.name for formal in operator(node, Op).formals].index(weights) in context.constant_inputs


def _product(node: Node, context: KernelContext) -> Kernel | None:
    op = node.op if isinstance(node.op, QGemm) else None
    return native.IntegerProduct(
        _operands(node, _OF_PRODUCT),
        shape(node.output),
        node.output.dtype.value,
        transpose_a=op is not None and bool(op.transA),
        transpose_b=op is not None and bool(op.transB),
        alpha=1.0 if op is None else op.alpha,
        pack_weights=_packs(node, context, "b"),
        threads=context.threads,
    )


kernel("MatMulInteger")(_product)
kernel("QLinearMatMul")(_product)
for _name in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"):
    kernel(_name, DOMAIN)(_product)


def _convolution(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Convolution)
    last = op.name.startswith("ChannelsLast")
    named = dict(zip((formal.name for formal in op.formals), node.inputs, strict=False))
    x, w = shape(named["x"]), shape(named["w"])
    geometry = op.geometry(tuple(x[i] for i in to_first(len(x))) if last else x, w)
    return native.integer_convolution(
        _operands(node, _OF_CONVOLUTION),
        shape(node.output),
        node.output.dtype.value,
        geometry.strides,
        geometry.dilations,
        geometry.begin,
        geometry.group,
        channels_last=last,
        pack_weights=_packs(node, context, "w"),
        threads=context.threads,
    )


kernel("ConvInteger")(_convolution)
kernel("QLinearConv")(_convolution)
kernel("ChannelsLastConvInteger", DOMAIN)(_convolution)
kernel("ChannelsLastQLinearConv", DOMAIN)(_convolution)


@kernel("WeightOnlyMatMul", DOMAIN)
def _weight_only(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, WeightOnlyMatMul)
    zeros = operand(node, 3) is not None
    constant = {1, 2, *([3] if zeros else ())} <= context.constant_inputs.keys()
    return native.WeightOnlyProduct(
        shape(node.inputs[0]),
        shape(node.inputs[1]),
        dtype(node, 1),
        op.block_size,
        op.bits,
        zeros=zeros,
        packed=constant,
        threads=context.threads,
    )
