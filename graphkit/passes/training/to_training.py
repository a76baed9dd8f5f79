"""Switch a graph between inference and training mode: BatchNormalization and Dropout, also in subgraphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, operator
from graphkit.ops.nn.norm import BatchNormalization
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.captures import captured, drop_unused_captures, lift_updates
from graphkit.passes.core.sweep import all_nodes, is_control, rewrite

# Key of a graph's metadata for the rule by which a training step updates running statistics. PYTORCH is its only value:
# the variance is unbiased, and a state `num_batches_tracked` counts the batches. Without it, the rule is ONNX's.
RUNNING_STATISTICS, PYTORCH = "running_statistics", "pytorch"


def follows_pytorch(graph: Graph) -> bool:
    """Return whether a training step of the graph updates running statistics by PyTorch's rule."""
    return graph.meta.get(RUNNING_STATISTICS) == PYTORCH


def to_training(
    graph: Graph, frozen: Collection[Value] = (), *, batch_statistics: bool = True, synchronised: bool = False
) -> Graph:
    """Return the graph in training mode: BatchNormalization uses batch statistics, and Dropout drops elements.

    Running statistics that are graph inputs (role "state") get an entry in `updates`. If an If, Loop or Scan captures a
    statistic, its update becomes a result of the node: a loop updates it in every iteration, and a branch only if it is
    taken.

    A BatchNormalization stays in inference mode if its statistics are computed inside the graph, if its scale and
    offset are both in `frozen`, or if `batch_statistics` is False. Raises InvalidModel if two nodes update the same
    statistic.

    If the graph follows PyTorch's rule (see RUNNING_STATISTICS), running variances are updated with unbiased variances,
    and a state P.num_batches_tracked is increased by 1 with P.running_var. `synchronised`: the pass sync_batch_norm
    follows, which computes the unbiased variances itself.
    """
    unbiased = follows_pytorch(graph)
    trained = _in_training(graph, set(graph.inputs), set(frozen), batch_statistics, unbiased and not synchronised)
    return _counting_batches(trained) if unbiased else trained


def _in_training(
    graph: Graph, stored: Collection[Value], frozen: Collection[Value], batch_statistics: bool, unbiased: bool
) -> Graph:
    """Return the graph in training mode. Only statistics in `stored`, which are inputs of the graph, are updated."""
    updates: dict[Value, Value] = {}
    known = {state for state, _ in graph.updates}

    def record(node: Node, pairs: Sequence[tuple[Value, Value]]) -> None:
        for state, new in pairs:
            if state in updates:
                raise InvalidModel(f"{node.describe()}: the statistic {state} is updated by another node already")
            if state not in known:
                updates[state] = new

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_batch_norm(node):
            op = operator(node, BatchNormalization)
            scale, offset, mean, var = node.inputs[1:5]
            if not batch_statistics or (scale in frozen and offset in frozen):
                return _inference_norm(node, op, operands) if op.training_mode else None
            if mean is None or var is None or mean not in stored or var not in stored:
                return None
            training = op if op.training_mode else op.replace(training_mode=True)
            trained = Node(training, operands, node.name, node.meta, output_names=[v.name for v in node.outputs])
            spread = trained.outputs[2]
            if unbiased and operands[0] is not None:
                number = F.div(F.size(operands[0]), F.size(var))
                spread = unbiased_running(spread, var, number, training.momentum)
            record(node, [(mean, trained.outputs[1]), (var, spread)])
            return trained.outputs[: len(node.outputs)]
        if is_dropout(node):
            return _dropout(node, operands, training=True)
        if bodies := _bodies_with_modes(node):
            for key, body in bodies.items():
                pairs = captured(node, body)
                bodies[key] = _in_training(
                    body,
                    {i for o, i in pairs if o in stored},
                    {i for o, i in pairs if o in frozen},
                    batch_statistics,
                    unbiased,
                )
            outputs, lifted = lift_updates(node, operands, bodies)
            record(node, lifted)
            return outputs
        return None

    trained = rewrite(graph, rule)
    return trained.replace(updates=[*trained.updates, *updates.items()]) if updates else trained


def unbiased_running(new: Value, old: Value, number: Value, momentum: float) -> Value:
    """Return the running variance with the unbiased variance of a batch, from the one with the biased variance.

    Args:
        new: old * momentum + biased * (1 - momentum).
        old: The running variance before the step.
        number: int64 scalar, the number of elements of each channel. PyTorch refuses 1; then the variance stays 0.
        momentum: ONNX's momentum, the factor of `old`.
    """
    # unbiased = biased + biased / (number - 1). Adding the small difference is accurate in float16, too.
    share = F.reciprocal(F.cast(F.max(F.sub(number, np.int64(1)), np.int64(1)), to=new.dtype))
    return F.add(new, F.mul(F.sub(new, F.mul(old, scalar_like(momentum, old))), share))


def _counting_batches(graph: Graph) -> Graph:
    """Return the graph in which each update of P.running_var comes with one of P.num_batches_tracked, if it exists."""
    counts = {graph.name_of(v): v for v in graph.inputs if v.role == "state" and v.dtype is DType.INT64}
    known = {state for state, _ in graph.updates}
    added = []
    for state, _ in graph.updates:
        prefix, found, _ = graph.name_of(state).rpartition("running_var")
        count = counts.get(f"{prefix}num_batches_tracked") if found else None
        if count is not None and count not in known:
            added.append((count, F.add(count, np.int64(1))))
    return graph.replace(updates=[*graph.updates, *added]) if added else graph


def batch_norms(graph: Graph) -> int:
    """Return the number of BatchNormalization nodes in training mode."""
    return sum(isinstance(node.op, BatchNormalization) and node.op.training_mode for node in all_nodes(graph))


def to_inference(graph: Graph) -> Graph:
    """Return the graph in inference mode, without updates: BatchNormalization uses running statistics, Dropout is the
    identity.

    An `rng` input that is no longer read is removed.
    """
    names = graph.output_names
    plain = _in_inference(graph.replace(updates=()))
    read = {v for node in plain.nodes for v in node.inputs} | set(plain.outputs)
    kept = [v for v in plain.inputs if v.role != "rng" or v in read]
    return plain.replace(inputs=kept, output_names=names)


def _in_inference(graph: Graph) -> Graph:
    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if isinstance(node.op, BatchNormalization) and node.op.training_mode:
            return _inference_norm(node, node.op, operands)
        if is_dropout(node):
            return _dropout(node, operands[:3], training=False)
        if bodies := _bodies_with_modes(node):
            plain = {key: _in_inference(body) for key, body in bodies.items()}
            return drop_unused_captures(node, operands, plain).outputs
        return None

    return rewrite(graph, rule)


def is_in_training(graph: Graph) -> bool:
    """Return whether a BatchNormalization is in training mode, or a Dropout may be, also in subgraphs."""
    return any(
        (isinstance(node.op, BatchNormalization) and node.op.training_mode)
        or (is_dropout(node) and len(node.inputs) > 2 and _may_be_true(node.inputs[2]))
        for node in all_nodes(graph)
    )


def _bodies_with_modes(node: Node) -> dict[str, Graph]:
    """Return the subgraphs of an If, Loop or Scan if they contain a BatchNormalization or Dropout; else an empty
    dictionary.
    """
    bodies: Mapping[str, Graph] = node.op.subgraphs() if is_control(node) else {}
    switched = any(is_batch_norm(n) or is_dropout(n) for body in bodies.values() for n in all_nodes(body))
    return dict(bodies) if switched else {}


def is_batch_norm(node: Node) -> bool:
    return node.op.name == "BatchNormalization" and not node.op.domain


def is_dropout(node: Node) -> bool:
    return node.op.name == "Dropout" and not node.op.domain


def _may_be_true(mode: Value | None) -> bool:
    return mode is not None and mode.tensor.constants != (0,)


def _inference_norm(node: Node, op: BatchNormalization, operands: Sequence[Value | None]) -> Sequence[Value]:
    inference = op.replace(training_mode=False)
    y = Node(inference, operands, node.name, node.meta, output_names=[node.outputs[0].name]).output
    return [y, *(v for v in operands[3:5] if v is not None)]


def _dropout(node: Node, operands: Sequence[Value | None], training: bool) -> Sequence[Value]:
    data, ratio, _, *rng = [*operands, None, None][: max(3, len(operands))]
    mode = F.constant(value=np.asarray(training))
    names = [v.name for v in node.outputs]
    return Node(node.op, [data, ratio, mode, *rng], node.name, node.meta, output_names=names).outputs
