"""Kernels that read indices at run time, running sums, and tensors made from a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import constants, kernel, native, operand, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


def _dtype(node: Node, position: int = 0) -> str:
    value = node.inputs[position]
    assert value is not None
    return value.dtype.value


@kernel("Gather")
def _gather(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices = (shape(v) for v in node.inputs)
    return native.Gather(x, indices, op.axis, _dtype(node), _dtype(node, 1), context.threads)


@kernel("GatherElements")
def _gather_elements(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices = (shape(v) for v in node.inputs)
    return native.GatherElements(x, indices, op.axis, _dtype(node), _dtype(node, 1), context.threads)


@kernel("GatherND")
def _gather_nd(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices = (shape(v) for v in node.inputs)
    return native.GatherND(x, indices, op.batch_dims, _dtype(node), context.threads)


@kernel("GatherGrad", DOMAIN)
def _gather_grad(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    _, x, indices = (shape(v) for v in node.inputs)
    return native.GatherGrad(x, _dtype(node, 1), indices, op.axis, _dtype(node), _dtype(node, 2), context.threads)


@kernel("ScatterElements")
def _scatter_elements(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices, updates = (shape(v) for v in node.inputs)
    if indices != updates:
        return None
    return native.ScatterElements(x, indices, op.axis, op.reduction, _dtype(node), _dtype(node, 1), context.threads)


@kernel("ScatterND")
def _scatter_nd(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices, updates = (shape(v) for v in node.inputs)
    depth = indices[-1]
    if updates != (*indices[:-1], *x[depth:]):
        return None
    return native.ScatterND(x, indices, op.reduction, _dtype(node), context.threads)


@kernel("ReverseSequence")
def _reverse_sequence(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    return native.ReverseSequence(shape(node.inputs[0]), op.batch_axis == 0, _dtype(node), context.threads)


@kernel("LinearRecurrence", DOMAIN)
def _linear_recurrence(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    return native.LinearRecurrence(shape(node.inputs[0]), op.axis, op.reverse, _dtype(node), context.threads)


@kernel("CumSum")
@kernel("CumProd")
def _cumulative(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    axis = constants(operand(node, 1))
    if axis is None:
        return None
    x = shape(node.inputs[0])
    product = op.name == "CumProd"
    return native.Cumulative(x, axis[0], product, op.exclusive, op.reverse, _dtype(node), context.threads)


@kernel("OneHot")
def _one_hot(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    y = shape(node.output)
    indices, depth, _ = (shape(v) for v in node.inputs)
    size = y[op.axis]
    return native.OneHot(indices, depth, size, op.axis, _dtype(node, 2), _dtype(node), _dtype(node, 1), context.threads)


@kernel("Trilu")
def _trilu(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    k = operand(node, 1)
    return native.Trilu(shape(node.inputs[0]), op.upper, None if k is None else shape(k), _dtype(node), context.threads)


@kernel("EyeLike")
def _eye_like(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    one = np.ones((), node.output.dtype.numpy).tobytes()
    return native.EyeLike(shape(node.inputs[0]), _dtype(node), op.k, one, node.output.dtype.value, context.threads)


@kernel("ConstantOfShape")
def _constant_of_shape(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    element = np.zeros((), np.float32) if op.value is None else op.value.array
    return native.Fill(shape(node.output), element.tobytes(), node.output.dtype.value, context.threads)


@kernel("FiniteGuard", DOMAIN)
def _finite_guard(node: Node, context: KernelContext) -> Any:
    x, token = (shape(v) for v in node.inputs)
    return native.FiniteGuard(x, _dtype(node), token, _dtype(node, 1))


@kernel("Range")
def _range(node: Node, context: KernelContext) -> Any:
    shapes = [shape(v) for v in node.inputs]
    return native.Range(shapes, shape(node.output)[0], _dtype(node), context.threads)
