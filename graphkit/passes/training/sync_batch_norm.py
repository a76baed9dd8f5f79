"""BatchNormalization over the samples of all processes. Applied before differentiation.

Each process computes the moments of its own samples, AllReduceMoments merges them, and each process normalises by the
result. The gradients are all-reduced, too, so they equal those of one process with all samples.
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
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.sweep import all_nodes, is_control, rewrite
from graphkit.passes.training.to_training import follows_pytorch, is_batch_norm, unbiased_running


def synchronise(graph: Graph) -> Graph:
    """Return the graph whose BatchNormalizations in training mode compute statistics over all processes.

    A ControlDependency puts each AllReduceMoments after the one before it, so all processes use the same order. Raises
    UnsupportedError for a BatchNormalization of unknown rank, or inside of an If, Loop or Scan: processes may run those
    a different number of times.
    """
    previous: Value | None = None
    number, unbiased = 0, follows_pytorch(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        nonlocal previous, number
        if is_control(node):
            for body in node.op.subgraphs().values():
                if found := next(filter(_in_training, all_nodes(body)), None):
                    raise UnsupportedError(
                        f"{found.describe()} is inside of {node.describe()}, which ranks may run a different number "
                        "of times; statistics over all ranks need a node outside of If, Loop and Scan"
                    )
        if not _in_training(node):
            return None
        with context.entered(context.current().bare()._replace(attrs=node.meta)):
            outputs, previous = _synchronised(node, operands, f"statistics {number:05}", previous, unbiased)
        number += 1
        return outputs

    return rewrite(graph, rule)


def _in_training(node: Node) -> bool:
    return is_batch_norm(node) and operator(node, BatchNormalization).training_mode


def _synchronised(
    node: Node, operands: Sequence[Value | None], key: str, previous: Value | None, unbiased: bool
) -> tuple[Sequence[Value], Value]:
    """Return values that replace the node's outputs, and the value on which the next AllReduceMoments must depend."""
    op = operator(node, BatchNormalization)
    x, scale, b, mean, var = operands
    assert x is not None and scale is not None and b is not None and mean is not None and var is not None  # noqa: PT018
    rank, wide = known_rank(node, x), wide_type(x.dtype)
    given = converted(x, wide)
    axes = channel_axes(rank)
    # Subtract a value near the mean first. Otherwise, mean and variance would be inaccurate for a large mean.
    pivot = F.stop_gradient(mean_over(given, axes))
    centred = F.sub(given, pivot)
    number = F.reduce_prod(F.gather(F.shape(given), np.asarray(axes, np.int64)), keepdims=False)
    count = F.cast(number, to="float64")
    shift = F.cast(F.reshape(pivot, np.array([-1])), to="float64")
    mean_offset = F.div(F.cast(per_channel(centred), to="float64"), count)
    own_mean = F.add(shift, mean_offset)
    squares = F.cast(per_channel(F.mul(centred, centred)), to="float64")
    own_deviations = F.sub(squares, F.mul(count, F.mul(mean_offset, mean_offset)))
    if previous is not None:
        own_mean = F.control_dependency(own_mean, previous)
    total, joint_mean, deviations = F.all_reduce_moments(number, own_mean, own_deviations, key=key, name=node.name)
    spread = F.div(deviations, F.cast(total, to="float64"))
    r = F.reciprocal(F.sqrt(F.add(spread, scalar_like(op.epsilon, spread))))
    factor = F.mul(converted(scale, wide), converted(r, wide))
    offset = converted(F.sub(joint_mean, shift), wide)
    normal = F.mul(F.sub(centred, columns(offset, rank)), columns(factor, rank))
    y = converted(F.add(normal, columns(converted(b, wide), rank)), x.dtype)
    running_var = _running(op, var, spread)
    if unbiased:
        running_var = unbiased_running(running_var, var, total, op.momentum)
    return (y, _running(op, mean, joint_mean), running_var), total


def _running(op: BatchNormalization, before: Value, current: Value) -> Value:
    kept = F.mul(before, scalar_like(op.momentum, before))
    new: Value = F.add(kept, F.mul(converted(current, before.dtype), scalar_like(1.0 - op.momentum, before)))
    return new


def chained(graph: Graph, first: Value) -> Graph:
    """Return the graph in which each AllReduce depends on the one before it, and the first one on the value `first`."""
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
