from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.train.programs import finite
from graphkit.train.programs.expressions import cast_like
from graphkit.train.programs.sparse import Rows, lookups
from graphkit.train.programs.step import (
    GRADIENT,
    GRADIENT_SUM,
    ROWS,
    UpdateRule,
    clip_by_global_norm,
    dense_of,
    gradients_of,
    guard_of,
    guarded_updates,
    mean_of_sums,
    resets,
    split_step,
)
from graphkit.train.programs.weights import TOTAL_WEIGHT
from graphkit.train.selection import TrainedParameter


def gradient_step(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> Graph:
    """Return `graph` with the backward pass. Its last outputs are `<parameter>/gradient`, in the order of `trained`.

    A lazy table has two outputs. The first one, `<parameter>/rows`, int64 [K], contains the index of each row that the
    batch has read, without repetitions. The second one contains the gradients of these rows.
    """
    gradients = gradients_of(graph, graph.outputs[0], trained, rule)
    guard = guard_of(graph.outputs[0], gradients, rule)
    outputs = _gradient_outputs(trained, gradients, rule, guard)
    return graph.replace(
        outputs=[*graph.outputs, *outputs.values()], output_names=[*graph.output_names, *outputs],
        updates=guarded_updates(graph.updates, guard),
    )  # fmt: skip


def split_gradients(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> tuple[Graph, Graph]:
    """Return the first program of `split_step`, which accumulates, and a program that returns mean gradients.

    The second program has the input `total_weight` and the outputs `<parameter>/gradient`, and resets the accumulators.
    Raises UsageError for lazy tables.
    """
    accumulate, _ = split_step(graph, trained, rule)
    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    states = {accumulate.name_of(v): v for v in accumulate.inputs if v.role == "state"}
    sums = [states[f"{t.name}/{GRADIENT_SUM}"] for t in trained]
    pairs = zip(mean_of_sums(sums, total), trained, strict=True)
    means: list[Value | Rows] = [cast_like(mean, t.value) for mean, t in pairs]
    outputs = _gradient_outputs(trained, means, rule, guard_of(None, means, rule))
    name = f"{graph.name}_mean"
    return accumulate, Graph([total, *sums], outputs.values(), resets(sums), name, output_names=outputs)


def _gradient_outputs(
    trained: Sequence[TrainedParameter], gradients: Sequence[Value | Rows], rule: UpdateRule, guard: Value | None
) -> dict[str, Value]:
    dense = dense_of(gradients)
    if rule.clip_norm is not None:
        dense = clip_by_global_norm(dense, rule.clip_norm)
    found: dict[str, Value] = {}
    for parameter, given, gradient in zip(trained, gradients, dense, strict=True):
        if isinstance(given, Rows):
            found[f"{parameter.name}/{ROWS}"], gradient = replace(given, gradient=gradient).compact()
        found[f"{parameter.name}/{GRADIENT}"] = finite.guarded(gradient, guard)
    return found


def row_reads(graph: Graph, trained: Sequence[TrainedParameter]) -> Graph | None:
    """Return a program that computes which rows of the lazy tables a step will read, with repetitions. None without
    lazy tables.

    Raises UsageError if the indices depend on rows of such a table.
    """
    tables = {t.name: t.value for t in trained if t.lazy}
    if not tables:
        return None
    outputs = {f"{name}/{ROWS}": lookups(graph, value, name).indices for name, value in tables.items()}
    nodes = topological(outputs.values())
    needed = {v for node in nodes for v in node.inputs} | set(outputs.values())
    for name, value in tables.items():
        if value in needed:
            raise UsageError(
                f"parameter {name!r} cannot have row-sparse updates on servers (lazy=, --sparse-update): the rows that "
                "a batch reads depend on the table itself. Use the kvstore dist_sync, where every process has the "
                "whole table"
            )
    inputs = [v for v in graph.inputs if v in needed]
    return Graph(inputs, outputs.values(), (), f"{graph.name}_reads", output_names=outputs)
