"""Statistics of BatchNormalization over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.dist.kvstore import REMOTE, KVStore
from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.internal.moments import AllReduce, AllReduceMoments
from graphkit.passes.core.sweep import rewrite
from graphkit.passes.training.sync_batch_norm import synchronise
from graphkit.train.programs.expressions import after


def synchronises(kvstore: KVStore | None) -> bool:
    return kvstore is not None and kvstore.num_workers > 1


def sync_statistics(graph: Graph, kvstore: KVStore | None) -> Graph:
    """Return the training graph with statistics over the samples of all processes of a store.

    Raises UsageError if the processes take steps independently.
    """
    if kvstore is None or not synchronises(kvstore):
        return graph
    if kvstore.type in REMOTE:
        raise UsageError(
            f"sync_batch_norm (--sync-batch-norm): the workers of {kvstore.type!r} take their steps independently, so "
            "statistics cannot be shared; use dist_sync"
        )
    return synchronise(graph)


@dataclass(frozen=True)
class IdleStatistics:
    """A rank without samples contributes zeros, and updates its running statistics from those of the other ranks.

    Attributes:
        inputs: Graph inputs that must be fed with zeros.
        last: Output of the last AllReduceMoments, or None.
        sums: The operator and operands of each AllReduce, in order.
    """

    inputs: tuple[Value, ...]
    updates: tuple[tuple[Value, Value], ...]
    states: tuple[Value, ...]
    last: Value | None
    sums: tuple[tuple[AllReduce, tuple[Value, ...]], ...]

    def after_moments(self, value: Value) -> Value:
        """Return `value`, which becomes available after all AllReduceMoments."""
        return after(value, () if self.last is None else [self.last])

    def after_sums(self, values: Sequence[Value], before: Value) -> list[Value]:
        """Return `values`, which become available after the last AllReduce.

        The AllReduces run one after another, the first one after `before`.
        """
        if not self.sums:
            return list(values)
        for op, (head, *others) in self.sums:
            before = Node(op, [F.control_dependency(head, before), *others]).outputs[0]
        return [F.control_dependency(v, before) for v in values]


def idle_statistics(graph: Graph, step: Graph) -> IdleStatistics:
    fed: list[Value] = []
    last: Value | None = None

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        nonlocal last
        if not isinstance(node.op, AllReduceMoments):
            return None
        count, mean, deviations = zeros = _inputs_like(node, node.op.key)
        fed.extend(zeros)
        outputs = Node(node.op, [count, mean if last is None else F.control_dependency(mean, last), deviations]).outputs
        last = outputs[0]
        return outputs

    without = rewrite(graph, rule, extra_inputs=fed)
    updates = [(state, new) for state, new in without.updates if _needs_no_samples(new, fed)]
    sums = [(n.op, _inputs_like(n, n.op.key)) for n in step.nodes if isinstance(n.op, AllReduce)]
    read = {v for node in topological([new for _, new in updates]) for v in node.operands if v.node is None}
    states = [v for v in graph.inputs if v in read or v in {state for state, _ in updates}]
    fed += [v for _, values in sums for v in values]
    return IdleStatistics(tuple(fed), tuple(updates), tuple(states), last, tuple(sums))


def _inputs_like(node: Node, key: str) -> tuple[Value, ...]:
    kinds = [v.tensor for v in node.operands]
    for kind in kinds:
        if not kind.is_static:
            raise UnsupportedError(f"{node.describe()}: sync_batch_norm needs a known number of channels")
    return tuple(Value(TensorType(k.dtype, k.known_shape), f"{key}/{number}") for number, k in enumerate(kinds))


def _needs_no_samples(value: Value, fed: Sequence[Value]) -> bool:
    inputs = {v for node in topological([value]) for v in node.operands if v.node is None}
    return all(v in fed or v.role in ("state", "parameter") for v in inputs)
