"""Random numbers, which are bit-identical to those of the references for any number of threads.

Nodes with a seed of their own are interpreted: they draw from numpy's generator.
"""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native, prepared_kernel
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.executor.devices.randomness import draw, dropout_draw, linear
from graphkit.executor.devices.registry import SizedFactory
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN


def _fill(node: Node, context: KernelContext, normal: bool, like: bool) -> SizedFactory | None:
    source = draw(node)
    if source is None:
        return None
    unread = _dtype_of(node.inputs[0]) if like else None
    origin, dtype = native.PhiloxSource(*source), node.output.dtype.value
    return native.RandomFillFactory(node.op.name, normal, *linear(node), unread, dtype, origin, context.threads)


def _dtype_of(value: Value | None) -> str | None:
    return None if value is None else value.dtype.value


@prepared_kernel("RandomUniform")
def _random_uniform(node: Node, context: KernelContext) -> SizedFactory | None:
    return _fill(node, context, normal=False, like=False)


@prepared_kernel("RandomNormal")
def _random_normal(node: Node, context: KernelContext) -> SizedFactory | None:
    return _fill(node, context, normal=True, like=False)


@prepared_kernel("RandomUniformLike")
def _random_uniform_like(node: Node, context: KernelContext) -> SizedFactory | None:
    return _fill(node, context, normal=False, like=True)


@prepared_kernel("RandomNormalLike")
def _random_normal_like(node: Node, context: KernelContext) -> SizedFactory | None:
    return _fill(node, context, normal=True, like=True)


@prepared_kernel("Bernoulli")
def _bernoulli(node: Node, context: KernelContext) -> SizedFactory | None:
    x, source = node.inputs[0], draw(node)
    assert x is not None
    if source is None:
        return None
    origin = native.PhiloxSource(*source)
    return native.BernoulliFactory(x.dtype.value, node.output.dtype.value, origin, context.threads)


@prepared_kernel("Dropout")
def _dropout(node: Node, context: KernelContext) -> SizedFactory | None:
    x, source = node.inputs[0], dropout_draw(node)
    assert x is not None
    if source is None:
        return None
    ratio, training = (_dtype_of(operand(node, position)) for position in (1, 2))
    return native.DropoutFactory(x.dtype.value, ratio, training, native.PhiloxSource(*source), context.threads)


@kernel("RngFoldIn", DOMAIN)
def _rng_fold_in(node: Node, context: KernelContext) -> Kernel | None:
    index = node.inputs[1]
    assert index is not None
    return native.RngFoldIn(shape(index), index.dtype.value)
