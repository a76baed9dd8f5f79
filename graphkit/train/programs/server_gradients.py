"""The programs of a worker that pushes gradients to servers. Gradients are outputs; those of tables are rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.train.programs import finite
from graphkit.train.programs.all_reduce import cast_like
from graphkit.train.programs.sparse import Rows, lookups
from graphkit.train.programs.step import (
    GRADIENT,
    GRADIENT_SUM,
    ROWS,
    UpdateRule,
    clip_by_global_norm,
    dense_of,
    gradients_of,
    guarded_updates,
    split_step,
    token_of,
)
from graphkit.train.programs.weights import TOTAL_WEIGHT, divisor
from graphkit.train.selection import TrainedParameter


def gradient_step(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> Graph:
    """`graph` plus backward; its last outputs are `<parameter>/gradient` of `trained`, in this order.

    Before that of a lazy table stands `<parameter>/rows`, int64 [K]: the rows that the batch has read, each once; the
    gradient has a row for each of them.
    """
    gradients = gradients_of(graph, graph.outputs[0], trained, rule)
    token = token_of(graph.outputs[0], gradients, rule)
    outputs = _leaving(trained, gradients, rule, token)
    return graph.replace(
        outputs=[*graph.outputs, *outputs.values()], output_names=[*graph.output_names, *outputs],
        updates=guarded_updates(graph, token),
    )  # fmt: skip


def split_gradients(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> tuple[Graph, Graph]:
    """The accumulating program of a `split_step`, and one that gives the mean gradients of what waits as outputs
    `<parameter>/gradient`, of its input `total_weight`, and resets the sums. Raises UsageError for lazy tables.
    """
    accumulate, _ = split_step(graph, trained, rule)
    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    states = {accumulate.name_of(v): v for v in accumulate.inputs if v.role == "state"}
    sums = [states[f"{t.name}/{GRADIENT_SUM}"] for t in trained]
    pairs = zip(sums, trained, strict=True)
    weight = divisor(total)
    means: list[Value | Rows] = [cast_like(F.div(s, cast_like(weight, s)), t.value) for s, t in pairs]
    outputs = _leaving(trained, means, rule, token_of(None, means, rule))
    reset = [(s, F.expand(scalar_like(0.0, s), F.shape(s))) for s in sums]
    return accumulate, Graph([total, *sums], outputs.values(), reset, f"{graph.name}_mean", output_names=outputs)


def _leaving(
    trained: Sequence[TrainedParameter], gradients: Sequence[Value | Rows], rule: UpdateRule, token: Value | None
) -> dict[str, Value]:
    """Outputs by name, after clipping, once `token` is known to be finite."""
    dense = dense_of(gradients)
    if rule.clip_norm is not None:
        dense = clip_by_global_norm(dense, rule.clip_norm)
    found: dict[str, Value] = {}
    for parameter, given, gradient in zip(trained, gradients, dense, strict=True):
        if isinstance(given, Rows):
            found[f"{parameter.name}/{ROWS}"], gradient = replace(given, gradient=gradient).compact()
        found[f"{parameter.name}/{GRADIENT}"] = finite.guarded(gradient, token)
    return found


def reads(graph: Graph, trained: Sequence[TrainedParameter]) -> Graph | None:
    """What tells, before a step, which rows of the lazy tables it reads: outputs `<parameter>/rows`, int64 [K], with
    repetitions. None where no table is lazy.

    Raises UsageError where that depends on rows of such a table.
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
                f"parameter {name!r} cannot have row-sparse updates on servers: the rows that a batch reads depend on "
                "the table itself; use dist_sync, where every process has the whole table"
            )
    inputs = [v for v in graph.inputs if v in needed]
    return Graph(inputs, outputs.values(), (), f"{graph.name}_reads", output_names=outputs)
