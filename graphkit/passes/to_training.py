"""Switch a graph between inference and training: BatchNormalization statistics, Dropout."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, Op
from graphkit.passes._base import rewrite


def to_training(graph: Graph, frozen: Collection[Value] = ()) -> Graph:
    """BatchNormalization normalises by its batch and updates its running statistics; Dropout drops.

    Running statistics that are graph inputs (role "state") get an entry in `updates`. A BatchNormalization whose
    statistics are computed inside the graph, or whose scale and offset are both in `frozen`, has its inference form.
    Raises InvalidModel when two nodes update one statistic.
    """
    updates: dict[Value, Value] = {}
    known = {state for state, _ in graph.updates}

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        operator: Any = node.op
        if is_batch_norm(node):
            scale, offset, mean, var = node.inputs[1:5]
            if scale in frozen and offset in frozen:
                return _inference_norm(node, operator, operands) if operator.training_mode else None
            if mean is None or var is None or not (mean.is_input and var.is_input):
                return None
            training = operator if operator.training_mode else operator.replace(training_mode=True)
            trained = Node(training, operands, node.name, node.meta, output_names=[v.name for v in node.outputs])
            for state, new in zip((mean, var), trained.outputs[1:], strict=True):
                if state in updates:
                    raise InvalidModel(f"{node.describe()}: the statistic {state} is updated by another node already")
                if state not in known:
                    updates[state] = new
            return trained.outputs[: len(node.outputs)]
        if is_dropout(node):
            return _dropout(node, operator, operands, training=True)
        return None

    trained = rewrite(graph, rule)
    return trained.replace(updates=[*trained.updates, *updates.items()]) if updates else trained


def to_inference(graph: Graph) -> Graph:
    """BatchNormalization uses its running statistics, Dropout passes through; updates are dropped.

    An `rng` input that nothing reads any more is dropped too.
    """

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        operator: Any = node.op
        if is_batch_norm(node) and operator.training_mode:
            return _inference_norm(node, operator, operands)
        if is_dropout(node):
            return _dropout(node, operator, operands[:3], training=False)
        return None

    names = graph.output_names
    plain = rewrite(graph.replace(updates=()), rule)
    read = {v for node in plain.nodes for v in node.inputs} | set(plain.outputs)
    kept = [v for v in plain.inputs if v.role != "rng" or v in read]
    return plain.replace(inputs=kept, output_names=names)


def is_in_training(graph: Graph) -> bool:
    """Whether a BatchNormalization is in training mode, or a Dropout may be."""
    return any(
        (is_batch_norm(node) and node.op.training_mode)  # type: ignore[attr-defined]
        or (is_dropout(node) and len(node.inputs) > 2 and _may_be_true(node.inputs[2]))
        for node in graph.nodes
    )


def is_batch_norm(node: Node) -> bool:
    return node.op.name == "BatchNormalization" and not node.op.domain


def is_dropout(node: Node) -> bool:
    return node.op.name == "Dropout" and not node.op.domain


def _may_be_true(mode: Value | None) -> bool:
    return mode is not None and mode.tensor.constants != (0,)


def _inference_norm(node: Node, operator: Op, operands: list[Value | None]) -> Sequence[Value]:
    inference = operator.replace(training_mode=False)
    y = Node(inference, operands, node.name, node.meta, output_names=[node.outputs[0].name]).output
    return [y, *(v for v in operands[3:5] if v is not None)]


def _dropout(node: Node, operator: Op, operands: list[Value | None], training: bool) -> Sequence[Value]:
    data, ratio, _, *rng = [*operands, None, None][: max(3, len(operands))]
    mode = F.constant(value=np.asarray(training))
    names = [v.name for v in node.outputs]
    return Node(operator, [data, ratio, mode, *rng], node.name, node.meta, output_names=names).outputs
