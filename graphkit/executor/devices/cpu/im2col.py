"""Sliding blocks of an image, copied out or added up."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import constants, shape
from graphkit.ir.dims import evaluate
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.im2col import ColumnBlocks


@kernel("Col2Im")
def _col2im(node: Node, context: KernelContext) -> Kernel | None:
    return _blocks(node, context, shape(node.output), constants(node.inputs[2]), add=True)


@kernel("Im2Col", DOMAIN)
def _im2col(node: Node, context: KernelContext) -> Kernel | None:
    return _blocks(node, context, shape(node.inputs[0]), constants(node.inputs[1]), add=False)


def _blocks(
    node: Node, context: KernelContext, images: tuple[int, ...], block: tuple[int, ...] | None, *, add: bool
) -> Kernel | None:
    op = operator(node, ColumnBlocks)
    if block is None:
        return None
    window, positions = op.window(images[2:], block)
    return native.Im2Col(
        add=add,
        batch=images[0],
        channels=images[1],
        image=images[2:],
        block=block,
        positions=[evaluate(p, {}) for p in positions],
        strides=window.strides,
        dilations=window.dilations,
        begin=window.begin,
        dtype=node.output.dtype.value,
        threads=context.threads,
    )
