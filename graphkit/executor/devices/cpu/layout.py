"""The elements of an operand in another order, which is known when the kernel is made but for reversed sequences."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.cpu._base import constants, dtype, kernel, native, operand, row_major, shape
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.layout import DepthToSpace, ReverseSequence, SpaceToDepth, Transpose


def view(
    node: Node, context: KernelContext, sizes: Sequence[int], strides: Sequence[int], offset: int = 0
) -> Kernel | None:
    """The kernel whose output has the elements of a regular view of input 0, in row-major order."""
    x, y = shape(node.inputs[0]), shape(node.output)
    return native.StridedView(node.op.name, x, y, sizes, strides, offset, dtype(node), context.threads)


@kernel("Transpose")
def _transpose(node: Node, context: KernelContext) -> Kernel | None:
    x, op = shape(node.inputs[0]), operator(node, Transpose)
    perm = tuple(reversed(range(len(x)))) if op.perm is None else op.perm
    strides = row_major(x)
    return view(node, context, [x[axis] for axis in perm], [strides[axis] for axis in perm])


@kernel("Expand")
def _expand(node: Node, context: KernelContext) -> Kernel | None:
    x, y = shape(node.inputs[0]), shape(node.output)
    strides = [0 if size == 1 else stride for size, stride in zip(x, row_major(x), strict=True)]
    return view(node, context, y, [0] * (len(y) - len(x)) + strides)


@kernel("Tile")
def _tile(node: Node, context: KernelContext) -> Kernel | None:
    x = shape(node.inputs[0])
    repeats = constants(operand(node, 1))
    if repeats is None:
        return None
    sizes = [size for pair in zip(repeats, x, strict=True) for size in pair]
    strides = [stride for pair in zip([0] * len(x), row_major(x), strict=True) for stride in pair]
    return view(node, context, sizes, strides)


def _blocks(node: Node, context: KernelContext, split: Sequence[int], order: Sequence[int]) -> Kernel | None:
    """x reshaped to `split` and transposed to `order`."""
    strides = row_major(split)
    return view(node, context, [split[axis] for axis in order], [strides[axis] for axis in order])


@kernel("DepthToSpace")
def _depth_to_space(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, DepthToSpace)
    (n, c, h, w), b = shape(node.inputs[0]), op.blocksize
    if op.mode == "DCR":
        return _blocks(node, context, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))
    return _blocks(node, context, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))


@kernel("SpaceToDepth")
def _space_to_depth(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, SpaceToDepth)
    (n, c, h, w), b = shape(node.inputs[0]), op.blocksize
    order = (0, 3, 5, 1, 2, 4) if op.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return _blocks(node, context, (n, c, h // b, b, w // b, b), order)


@kernel("ReverseSequence")
def _reverse_sequence(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, ReverseSequence)
    return native.ReverseSequence(shape(node.inputs[0]), op.batch_axis == 0, dtype(node), context.threads)
