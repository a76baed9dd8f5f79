"""Compute the weight of a batch before its step, from the data alone, on every rank of a placed model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit.errors import UsageError
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, topological
from graphkit.train.programs.weights import BATCH_WEIGHT


class Weigher:
    """Computes weights of batches. graph: the training graph without its output BATCH_WEIGHT.

    Raises UsageError where that depends on anything but inputs and targets.
    """

    def __init__(self, graph: Graph):
        self._executor: Executor | None = None
        self.graph = graph
        if BATCH_WEIGHT not in graph.output_names:
            return
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        weight = outputs.pop(BATCH_WEIGHT)
        read = {v for node in topological([weight]) for v in node.operands} | {weight}
        inputs = [v for v in graph.inputs if v in read]
        if odd := [graph.name_of(v) for v in inputs if v.role != "data"]:
            raise UsageError(
                f"groups= (--place): the weight of the loss depends on {odd[0]!r}, but with groups it must depend only "
                "on inputs and targets"
            )
        self.graph = graph.replace(outputs=outputs.values(), output_names=outputs)
        self._inputs = [graph.name_of(v) for v in inputs]
        self._executor = Executor(
            Graph(inputs, [weight], (), "weight", output_names=[BATCH_WEIGHT]), ParamStore({}), threads=1
        )

    def weight(self, feeds: Mapping[str, Any]) -> float | None:
        """The weight of a batch or micro-batch with these inputs and targets; None: its number of samples."""
        if self._executor is None:
            return None
        return float(self._executor.run({name: feeds[name] for name in self._inputs})[BATCH_WEIGHT])
