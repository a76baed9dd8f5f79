"""Switch a graph between inference and training: BatchNormalization statistics, Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, Op
from graphkit.passes._base import rewrite


def to_training(graph: Graph) -> Graph:
    """BatchNormalization normalises by its batch and updates its running statistics; Dropout drops.

    Running statistics that are graph inputs (role "state") get an entry in `updates`. A BatchNormalization whose
    statistics are computed inside the graph keeps its inference form. Raises InvalidModel when two nodes update
    one statistic.
    """
    updates: dict[Value, Value] = {}

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        operator: Any = node.op
        if operator.name == "BatchNormalization" and not operator.domain and not operator.training_mode:
            mean, var = node.inputs[3:5]
            if mean is None or var is None or not (mean.is_input and var.is_input):
                return None
            trained = Node(operator.replace(training_mode=True), operands, node.name, node.meta)
            for state, new in zip((mean, var), trained.outputs[1:], strict=True):
                if state in updates:
                    raise InvalidModel(f"{node.describe()}: the statistic {state} is updated by another node already")
                updates[state] = new
            return trained.outputs[:1]
        if operator.name == "Dropout" and not operator.domain:
            return _dropout(node, operator, operands, training=True)
        return None

    trained = rewrite(graph, rule)
    return trained.replace(updates=[*trained.updates, *updates.items()]) if updates else trained


def to_inference(graph: Graph) -> Graph:
    """BatchNormalization uses its running statistics, Dropout passes through; updates are dropped."""

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        operator: Any = node.op
        if operator.name == "BatchNormalization" and not operator.domain and operator.training_mode:
            inference = Node(operator.replace(training_mode=False), operands, node.name, node.meta)
            return [*inference.outputs, *(v for v in operands[3:5] if v is not None)]
        if operator.name == "Dropout" and not operator.domain:
            return _dropout(node, operator, operands, training=False)
        return None

    return rewrite(graph.replace(updates=()), rule)


def _dropout(node: Node, operator: Op, operands: list[Value | None], training: bool) -> Sequence[Value]:
    data, ratio, _, *rng = [*operands, None, None][: max(3, len(operands))]
    mode = F.constant(value=np.asarray(training))
    return Node(operator, [data, ratio, mode, *rng], node.name, node.meta).outputs
