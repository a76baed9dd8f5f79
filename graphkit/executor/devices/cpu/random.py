"""Random numbers: the same bits as the references draw, for any number of threads.

Nodes with a seed of their own are interpreted: they draw from numpy's generator.
"""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.math.random import Normal, RandomOp, Uniform
from graphkit.ops.xp import numpy_xp


def _source(node: Node) -> native.PhiloxSource | None:
    """Where the node draws: from its operand `rng`, or at its beginning; None for a seed of its own."""
    op = operator(node, RandomOp)
    if op.own_seed is not None:
        return None
    if op.named_inputs(node.inputs)["rng"] is not None:
        return native.PhiloxSource(0, 0, op.stream, True)
    seed, step = op.state(numpy_xp, None).tolist()
    return native.PhiloxSource(seed, step, op.stream, False)


def _described(value: Value | None) -> tuple[tuple[int, ...], str] | None:
    return None if value is None else (shape(value), value.dtype.value)


def _moments(node: Node) -> tuple[float, float]:
    op = operator(node, Normal)
    return op.mean, op.scale


def _range(node: Node) -> tuple[float, float]:
    op = operator(node, Uniform)
    return op.low, op.high - op.low


def _fill(node: Node, context: KernelContext, normal: bool, like: bool) -> Kernel | None:
    source = _source(node)
    if source is None:
        return None
    first, second = _moments(node) if normal else _range(node)
    unread = _described(node.inputs[0]) if like else None
    y = node.output
    return native.RandomFill(
        node.op.name, normal, first, second, unread, shape(y), y.dtype.value, source, context.threads
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
    x, source = node.inputs[0], _source(node)
    assert x is not None
    if source is None:
        return None
    return native.Bernoulli(shape(x), x.dtype.value, node.output.dtype.value, source, context.threads)


@kernel("Dropout")
def _dropout(node: Node, context: KernelContext) -> Kernel | None:
    x, source = node.inputs[0], _source(node)
    assert x is not None
    mode = operand(node, 2)
    if source is None and (mode is None or mode.tensor.constants == (0,)):
        source = native.PhiloxSource(0, 0, 0, False)  # nothing is drawn
    if source is None:
        return None
    ratio, training = (_described(operand(node, position)) for position in (1, 2))
    return native.Dropout(shape(x), x.dtype.value, ratio, training, source, context.threads)


@kernel("RngFoldIn", DOMAIN)
def _rng_fold_in(node: Node, context: KernelContext) -> Kernel | None:
    index = node.inputs[1]
    assert index is not None
    return native.RngFoldIn(shape(index), index.dtype.value)
