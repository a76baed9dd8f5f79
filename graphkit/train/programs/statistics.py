"""Statistics of BatchNormalization over all processes, including processes without samples in a step."""

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


def over_processes(graph: Graph, kvstore: KVStore | None) -> Graph:
    """The training graph with such statistics over the processes of a store, where there are several.

    Raises UsageError for a store whose processes do not take the same steps.
    """
    if kvstore is None or kvstore.num_workers == 1:
        return graph
    if kvstore.type in REMOTE:
        raise UsageError(
            f"sync_batch_norm (--sync-batch-norm): the workers of {kvstore.type!r} take their steps independently, so "
            "statistics cannot be shared; use dist_sync"
        )
    return synchronise(graph)


@dataclass(frozen=True)
class Absence:
    """A part in the statistics of a step without samples.

    inputs: what is fed, zeros. updates: of the running statistics, from those of the others. last: what comes after all
    AllReduceMoments, None where there are none. sums: the operands of every AllReduce of the step, in their order.
    """

    inputs: tuple[Value, ...]
    updates: tuple[tuple[Value, Value], ...]
    states: tuple[Value, ...]
    last: Value | None
    sums: tuple[tuple[AllReduce, tuple[Value, ...]], ...]

    def before(self, value: Value) -> Value:
        """The value, after all AllReduceMoments."""
        found: Value = value if self.last is None else F.control_dependency(value, self.last)
        return found

    def after_sums(self, values: Sequence[Value], first: Value) -> list[Value]:
        """The values, after every AllReduce of the step, and these after `first`."""
        if not self.sums:
            return list(values)
        for op, (head, *others) in self.sums:
            first = Node(op, [F.control_dependency(head, first), *others]).outputs[0]
        return [F.control_dependency(v, first) for v in values]


def absence(graph: Graph, step: Graph) -> Absence:
    """That of `step`, the training program whose forward part is `graph`."""
    fed: list[Value] = []
    last: Value | None = None

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        nonlocal last
        if not isinstance(node.op, AllReduceMoments):
            return None
        nothing = _zeros(node, node.op.key)
        fed.extend(nothing)
        count, mean, deviations = nothing
        outputs = Node(node.op, [count, mean if last is None else F.control_dependency(mean, last), deviations]).outputs
        last = outputs[0]
        return outputs

    without = rewrite(graph, rule, extra_inputs=fed)
    updates = [(state, new) for state, new in without.updates if _is_known(new, fed)]
    sums = [(n.op, _zeros(n, n.op.key)) for n in step.nodes if isinstance(n.op, AllReduce)]
    read = {v for node in topological([new for _, new in updates]) for v in node.operands if v.node is None}
    states = [v for v in graph.inputs if v in read or v in {state for state, _ in updates}]
    fed += [v for _, values in sums for v in values]
    return Absence(tuple(fed), tuple(updates), tuple(states), last, tuple(sums))


def _zeros(node: Node, key: str) -> tuple[Value, ...]:
    """Inputs of the types of a node's operands."""
    kinds = [v.tensor for v in node.operands]
    for kind in kinds:
        if not kind.is_static:
            raise UnsupportedError(f"{node.describe()}: sync_batch_norm needs a known number of channels")
    return tuple(Value(TensorType(k.dtype, k.known_shape), f"{key}/{number}") for number, k in enumerate(kinds))


def _is_known(value: Value, fed: Sequence[Value]) -> bool:
    """Whether it depends on states, parameters and what is fed alone."""
    inputs = {v for node in topological([value]) for v in node.operands if v.node is None}
    return all(v in fed or v.role in ("state", "parameter") for v in inputs)
