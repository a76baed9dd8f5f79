"""Sliding blocks of an image, copied out or added up."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import constants, kernel, native, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@kernel("Col2Im")
def _col2im(node: Node, context: KernelContext) -> Any:
    return _blocks(node, context, shape(node.output), constants(node.inputs[2]), add=True)


@kernel("Im2Col", DOMAIN)
def _im2col(node: Node, context: KernelContext) -> Any:
    return _blocks(node, context, shape(node.inputs[0]), constants(node.inputs[1]), add=False)


def _blocks(
    node: Node, context: KernelContext, images: tuple[int, ...], block: tuple[int, ...] | None, *, add: bool
) -> Any:
    op: Any = node.op
    if block is None:
        return None
    window, positions = op.window(images[2:], block)
    return native.Im2Col(
        add=add,
        batch=images[0],
        channels=images[1],
        image=images[2:],
        block=block,
        positions=positions,
        strides=window.strides,
        dilations=window.dilations,
        begin=window.begin,
        dtype=node.output.dtype.value,
        threads=context.threads,
    )
