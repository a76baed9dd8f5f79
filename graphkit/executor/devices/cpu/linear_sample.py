"""Images at coordinates between their elements."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import native, prepared_kernel, present
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import Shapes, SizedFactory
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.linear_sample import LinearSample


def _is_float(node: Node) -> bool:
    return node.operands[0].rank == 4 and all(v.dtype is DType.FLOAT32 for v in node.operands)


@prepared_kernel("LinearSample", DOMAIN, covers=_is_float)
def _linear_sample(node: Node, context: KernelContext) -> SizedFactory | None:
    if not _is_float(node):
        return None
    border = operator(node, LinearSample).border

    def make(inputs: Shapes, outputs: Shapes) -> Kernel | None:
        x, row, column = map(present, inputs)
        if row != column:
            return None
        return native.LinearSample(x, row, border=border, threads=context.threads)

    return make
