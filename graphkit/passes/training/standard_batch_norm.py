"""Write BatchNormalization in training mode as means, products and sums.

Some runtimes implement BatchNormalization only for inference. ONNX Runtime's kernel for training overwrites the running
statistics that it reads, even if the caller or another node reads them, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.ops.nn.norm import BatchNormalization, BatchNormGrad
from graphkit.ops.nn.statistics import channel_axes, columns, known_rank, mean_over, standardised
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.sweep import map_subgraphs, rewrite


def standard_batch_norm(graph: Graph) -> Graph:
    """Return the graph without BatchNormalization in training mode and its gradient, subgraphs included.

    Raises UnsupportedError if the rank of an operand is unknown.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.subgraphs():
            return map_subgraphs(node, operands, standard_batch_norm).outputs
        given = [v for v in operands if v is not None]
        if isinstance(node.op, BatchNormGrad):
            # Expanded here, so that it shares the mean and variance with the forward pass.
            gradients: Sequence[Value] = node.op.expand(*given)
            return gradients
        if isinstance(node.op, BatchNormalization) and node.op.training_mode:
            return _in_training(node, node.op, given)
        return None

    return rewrite(graph, rule)


def _in_training(node: Node, op: BatchNormalization, operands: Sequence[Value]) -> Sequence[Value]:
    x, scale, b, mean, var = operands
    rank, wide = known_rank(node, x), wide_type(x.dtype)
    axes, given = channel_axes(rank), converted(x, wide)
    normal, _ = standardised(given, axes, op.epsilon)
    scaled = F.mul(normal, columns(converted(scale, wide), rank))
    y = converted(F.add(scaled, columns(converted(b, wide), rank)), x.dtype)
    current = mean_over(given, axes)
    centred = F.sub(given, current)
    spread = mean_over(F.mul(centred, centred), axes)
    return y, _running(op, mean, current), _running(op, var, spread)


def _running(op: BatchNormalization, before: Value, current: Value) -> Value:
    flat = converted(F.reshape(current, np.array([-1])), before.dtype)
    kept = F.mul(before, scalar_like(op.momentum, before))
    new: Value = F.add(kept, F.mul(flat, scalar_like(1.0 - op.momentum, before)))
    return new
