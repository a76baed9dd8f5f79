"""Random numbers, which are bit-identical to those of the references for any number of threads.

Nodes with a seed of their own are interpreted: they draw from numpy's generator.
"""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.executor.devices.randomness import draw, dropout_draw, linear
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN


def _described(value: Value | None) -> tuple[tuple[int, ...], str] | None:
    return None if value is None else (shape(value), value.dtype.value)


def _fill(node: Node, context: KernelContext, normal: bool, like: bool) -> Kernel | None:
    source = draw(node)
    if source is None:
        return None
    unread = _described(node.inputs[0]) if like else None
    y, origin = node.output, native.PhiloxSource(*source)
    return native.RandomFill(
        node.op.name, normal, *linear(node), unread, shape(y), y.dtype.value, origin, context.threads
    )


@kernel("RandomUniform")
def _random_uniform(node: Node, context: KernelContext) -> Kernel | None:
    return _fill(node, context, normal=False, like=False)


@kernel("RandomNormal")
def _random_normal(node: Node, context: KernelContext) -> Kernel | None:
    return _fill(node, context, normal=True, like=False)


@kernel("RandomUniformLike")
def _random_uniform_like(node: Node, context: KernelContext) -> Kernel | None:
    return _fill(node, context, normal=False, like=True)


@kernel("RandomNormalLike")
def _random_normal_like(node: Node, context: KernelContext) -> Kernel | None:
    return _fill(node, context, normal=True, like=True)


@kernel("Bernoulli")
def _bernoulli(node: Node, context: KernelContext) -> Kernel | None:
    x, source = node.inputs[0], draw(node)
    assert x is not None
    if source is None:
        return None
    origin = native.PhiloxSource(*source)
    return native.Bernoulli(shape(x), x.dtype.value, node.output.dtype.value, origin, context.threads)


@kernel("Dropout")
def _dropout(node: Node, context: KernelContext) -> Kernel | None:
    x, source = node.inputs[0], dropout_draw(node)
    assert x is not None
    if source is None:
        return None
    ratio, training = (_described(operand(node, position)) for position in (1, 2))
    origin = native.PhiloxSource(*source)
    return native.Dropout(shape(x), x.dtype.value, ratio, training, origin, context.threads)


@kernel("RngFoldIn", DOMAIN)
def _rng_fold_in(node: Node, context: KernelContext) -> Kernel | None:
    index = node.inputs[1]
    assert index is not None
    return native.RngFoldIn(shape(index), index.dtype.value)
