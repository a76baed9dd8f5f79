"""BatchNormalization over the samples of all processes, before differentiation.

Each process computes the moments of its own samples, AllReduceMoments merges them, and each normalises by the result.
The gradients go the same way back, so that they are those of one process with all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, operator
from graphkit.ops.internal.moments import AllReduce
from graphkit.ops.nn.norm import BatchNormalization
from graphkit.ops.nn.statistics import channel_axes, columns, known_rank, mean_over, per_channel
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.wide import converted, wide_type
from graphkit.passes.core.sweep import all_nodes, is_control, rewrite
from graphkit.passes.training.to_training import is_batch_norm


def synchronise(graph: Graph) -> Graph:
    """The graph with the statistics of every BatchNormalization in training mode over all processes.

    Each AllReduceMoments comes after the one before it: the order is the same in all processes. Raises UnsupportedError
    for one inside of an If, Loop or Scan, which processes need not run equally often, and for operands of unknown rank.
    """
    previous: Value | None = None
    number = 0

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        nonlocal previous, number
        if is_control(node):
            for body in node.op.subgraphs().values():
                if found := next(filter(_in_training, all_nodes(body)), None):
                    raise UnsupportedError(
                        f"{found.describe()} is inside of {node.describe()}, which ranks need not run equally "
                        "often; statistics over all ranks need a node outside of control flow"
                    )
        if not _in_training(node):
            return None
        with context.entered(context.current().bare()._replace(attrs=node.meta)):
            outputs, previous = _synchronised(node, operands, f"statistics {number:05}", previous)
        number += 1
        return outputs

    return rewrite(graph, rule)


def _in_training(node: Node) -> bool:
    return is_batch_norm(node) and operator(node, BatchNormalization).training_mode


def _synchronised(
    node: Node, operands: Sequence[Value | None], key: str, previous: Value | None
) -> tuple[Sequence[Value], Value]:
    """What stands for the node's outputs, and what the next AllReduceMoments comes after."""
    op = operator(node, BatchNormalization)
    x, scale, b, mean, var = operands
    assert x is not None and scale is not None and b is not None and mean is not None and var is not None  # noqa: PT018
    rank, wide = known_rank(node, x), wide_type(x.dtype)
    given = converted(x, wide)
    axes = channel_axes(rank)
    # Deviations from a number near the mean: neither the mean nor the variance loses digits to a large mean.
    near = F.stop_gradient(mean_over(given, axes))
    apart = F.sub(given, near)
    number = F.reduce_prod(F.gather(F.shape(given), np.asarray(axes, np.int64)), keepdims=False)
    count = F.cast(number, to="float64")
    shift = F.cast(F.reshape(near, np.array([-1])), to="float64")
    off = F.div(F.cast(per_channel(apart), to="float64"), count)
    own_mean = F.add(shift, off)
    squares = F.cast(per_channel(F.mul(apart, apart)), to="float64")
    own_deviations = F.sub(squares, F.mul(count, F.mul(off, off)))
    if previous is not None:
        own_mean = F.control_dependency(own_mean, previous)
    total, joint_mean, deviations = F.all_reduce_moments(number, own_mean, own_deviations, key=key, name=node.name)
    spread = F.div(deviations, F.cast(total, to="float64"))
    r = F.reciprocal(F.sqrt(F.add(spread, scalar_like(op.epsilon, spread))))
    factor = F.mul(converted(scale, wide), converted(r, wide))
    offset = converted(F.sub(joint_mean, shift), wide)
    normal = F.mul(F.sub(apart, columns(offset, rank)), columns(factor, rank))
    y = converted(F.add(normal, columns(converted(b, wide), rank)), x.dtype)
    return (y, _running(op, mean, joint_mean), _running(op, var, spread)), total


def _running(op: BatchNormalization, before: Value, current: Value) -> Value:
    kept = F.mul(before, scalar_like(op.momentum, before))
    new: Value = F.add(kept, F.mul(converted(current, before.dtype), scalar_like(1.0 - op.momentum, before)))
    return new


def chained(graph: Graph, first: Value) -> Graph:
    """The graph with each AllReduce after the one before it, and all after `first`, which depends on none of them."""
    previous = first

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        nonlocal previous
        if not isinstance(node.op, AllReduce):
            return None
        head, *others = operands
        assert head is not None, "every operand is there"
        outputs = Node(node.op, [F.control_dependency(head, previous), *others], node.name, node.meta).outputs
        previous = outputs[0]
        return outputs

    return rewrite(graph, rule, at=(AllReduce.__name__,))
