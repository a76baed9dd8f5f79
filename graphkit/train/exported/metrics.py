"""Metrics of a batch as outputs of an exported step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphkit.errors import UnsupportedError, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Value
from graphkit.ops import F
from graphkit.train.targets import Targets


def with_metrics(graph: Graph, metrics: Sequence[str], output: str, targets: Targets) -> Graph:
    """Return the graph with one output for each metric: its mean over the batch, a float32 scalar.

    Raises:
        UsageError: A metric is unknown, or has the name of an output of the model.
        UnsupportedError: A metric does not fit the target, or the step has no target.
    """
    if not metrics:
        return graph
    named = dict(zip(graph.output_names, graph.outputs, strict=True))
    target = targets.program_input(targets.name_for(output)) if targets.names else None
    value = next((v for v in graph.inputs if graph.name_of(v) == target), None)
    if value is None:
        raise UnsupportedError(f"metrics {', '.join(metrics)}: the step has no target to compare with")
    found = dict(named)
    for name in metrics:
        if name not in _METRICS:
            raise UsageError(f"to_onnx: unknown metric {name!r}{did_you_mean(name, _METRICS)}")
        if name in found:
            raise UsageError(f"to_onnx: the metric {name!r} has the name of an output of the model: rename the output")
        found[name] = _METRICS[name](named[output], value)
    return graph.replace(outputs=found.values(), output_names=found)


def _mean(value: Value) -> Value:
    found: Value = F.reduce_mean(F.cast(value, to="float32"), keepdims=False)
    return found


def _accuracy(output: Value, target: Value) -> Value:
    if not target.dtype.is_integer or output.rank is None or target.rank != output.rank - 1:
        raise UnsupportedError(
            f"metric accuracy: it compares class numbers with one score for each class, not {target.type} with "
            f"{output.type}"
        )
    return _mean(F.equal(F.cast(F.arg_max(output, axis=-1, keepdims=False), to=target.dtype), target))


def _difference(name: str, output: Value, target: Value) -> Value:
    if target.dtype is not output.dtype:
        raise UnsupportedError(f"metric {name}: it compares numbers of one type, not {target.type} with {output.type}")
    found: Value = F.sub(output, target)
    return found


def _mse(output: Value, target: Value) -> Value:
    difference = _difference("mse", output, target)
    return _mean(F.mul(difference, difference))


def _mae(output: Value, target: Value) -> Value:
    return _mean(F.abs(_difference("mae", output, target)))


_METRICS: dict[str, Callable[[Value, Value], Value]] = {"accuracy": _accuracy, "mse": _mse, "mae": _mae}
