"""Tensors made from a few numbers."""

from __future__ import annotations

import numpy as np

from graphkit.executor.devices.cpu._base import data_dependent, kernel, native, present, sized_kernel
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.executor.devices.registry import Shapes
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.fill import ConstantOfShape, EyeLike, OneHot


@kernel("OneHot")
def _one_hot(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, OneHot)
    y = shape(node.output)
    indices, depth, _ = (shape(v) for v in node.inputs)
    size = y[op.axis]
    return native.OneHot(indices, depth, size, op.axis, dtype(node, 2), dtype(node), dtype(node, 1), context.threads)


@kernel("EyeLike")
def _eye_like(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, EyeLike)
    one = np.ones((), node.output.dtype.numpy).tobytes()
    return native.EyeLike(shape(node.inputs[0]), dtype(node), op.k, one, node.output.dtype.value, context.threads)


@sized_kernel("ConstantOfShape")
def _constant_of_shape(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    op = operator(node, ConstantOfShape)
    element = np.zeros((), np.float32) if op.value is None else op.value.array
    return native.Fill(present(outputs[0]), element.tobytes(), node.output.dtype.value, context.threads)


@sized_kernel("Range")
def _range(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    return native.Range([present(s) for s in inputs], present(outputs[0])[0], dtype(node), context.threads)


@data_dependent("Range")
def _sized_range(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.SizedRange(dtype(node), context.threads)


@data_dependent("OneHot")
def _sized_one_hot(node: Node, context: KernelContext) -> DataDependentKernel:
    op = operator(node, OneHot)
    return native.SizedOneHot(op.axis, dtype(node, 2), dtype(node), dtype(node, 1), context.threads)
