"""Losses by name: scalar graphs of a model's outputs and the targets, averaged over the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like

LossFunction: TypeAlias = Callable[..., Value]


@dataclass(frozen=True)
class Loss:
    """A named loss: `build(output, target)` gives a scalar; `target_type(output type)` what the target must be."""

    name: str
    build: LossFunction
    target_type: Callable[[TensorType], TensorType]
    # The operator from logits to what they stand for: a graph that ends in it is compared before it.
    of_logits: str = ""
    # What targets are beside numbers: numbers of classes, or probabilities.
    classes: bool = False
    probabilities: bool = False

    def largest(self, output: TensorType) -> int | None:
        """The largest target that there is, 0 being the smallest; None where any number is one."""
        if self.classes:
            count = output.known_shape[-1]
            return count - 1 if isinstance(count, int) else None
        return 1 if self.probabilities else None

    def wants(self, output: TensorType) -> str:
        """What targets for an output are, in words."""
        kind = self.target_type(output)
        if self.classes:
            return f"class numbers from 0 to {self.largest(output)}, {kind}"
        return f"targets from 0 to 1, {kind}" if self.probabilities else f"targets of its shape, {kind}"


def _classes(logits: TensorType) -> TensorType:
    return TensorType(DType.INT64, logits.known_shape[:-1])


def _same(output: TensorType) -> TensorType:
    return TensorType(output.dtype, output.shape)


def softmax_cross_entropy(logits: Value, target: Value) -> Value:
    """Mean of -log softmax(logits)[target]. logits: [..., classes]; target: int64 [...]."""
    classes = logits.tensor.known_shape[-1]
    if not isinstance(classes, int):
        raise UsageError(f"softmax_cross_entropy needs a fixed number of classes, not {logits}")
    if classes == 1:
        raise UsageError(
            f"softmax_cross_entropy of one class is always 0, and {logits} has one: for a number use loss='mse' "
            "(--loss mse), for yes or no loss='sigmoid_binary_cross_entropy'"
        )
    if logits.rank != 2:
        logits = F.reshape(logits, np.array([-1, classes], np.int64))
        target = F.reshape(target, np.array([-1], np.int64))
    loss: Value = F.softmax_cross_entropy_loss(logits, target, reduction="mean")[0]
    return loss


def mse(output: Value, target: Value) -> Value:
    """Mean of (output - target)^2 over all elements."""
    difference = F.sub(output, target)
    return _mean(F.mul(difference, difference))


def l1(output: Value, target: Value) -> Value:
    """Mean of |output - target| over all elements."""
    return _mean(F.abs(F.sub(output, target)))


def huber(output: Value, target: Value) -> Value:
    """Mean of d^2/2 where |d| <= 1, |d| - 1/2 elsewhere, d = output - target (Huber, 1964)."""
    distance = F.abs(F.sub(output, target))
    inside = F.clip(distance, None, scalar_like(1.0, output))
    half = scalar_like(0.5, output)
    return _mean(F.add(F.mul(half, F.mul(inside, inside)), F.sub(distance, inside)))


def sigmoid_binary_cross_entropy(logits: Value, target: Value) -> Value:
    """Mean of -t log s(x) - (1-t) log(1-s(x)), s the logistic function, as max(x,0) - x t + log(1+exp(-|x|))."""
    positive = F.relu(logits)
    return _mean(F.add(F.sub(positive, F.mul(logits, target)), F.softplus(F.neg(F.abs(logits)))))


def _mean(value: Value) -> Value:
    mean: Value = F.reduce_mean(value, keepdims=False)
    return mean


# What other libraries call them.
_ELSEWHERE = {
    "mae": "l1",
    "smooth_l1": "huber",
    "cross_entropy": "softmax_cross_entropy",
    "sparse_categorical_crossentropy": "softmax_cross_entropy",
    "binary_crossentropy": "sigmoid_binary_cross_entropy",
    "binary_cross_entropy": "sigmoid_binary_cross_entropy",
    "bce_with_logits": "sigmoid_binary_cross_entropy",
}

_LOSSES = {
    loss.name: loss
    for loss in (
        Loss("softmax_cross_entropy", softmax_cross_entropy, _classes, "Softmax", classes=True),
        Loss("mse", mse, _same),
        Loss("l1", l1, _same),
        Loss("huber", huber, _same),
        Loss("sigmoid_binary_cross_entropy", sigmoid_binary_cross_entropy, _same, "Sigmoid", probabilities=True),
    )
}


def names() -> list[str]:
    return list(_LOSSES)


def get(name: str) -> Loss:
    if name not in _LOSSES:
        raise UsageError(f"unknown loss {name!r}{did_you_mean(_ELSEWHERE.get(name, name), _LOSSES)}")
    return _LOSSES[name]


def attach(
    graph: Graph,
    loss: str | LossFunction,
    targets: Mapping[str, TensorType] | None = None,
    output: str | None = None,
) -> Graph:
    """The graph with target inputs and a first output `loss`, followed by its own outputs.

    A named loss compares `output` (needed when there are several) with one input `target`, whose type follows from it;
    those of logits take the operand of a Softmax (over the last axis) or Sigmoid that the output comes from. A function
    is called with all outputs, or `output` alone, and the target Values, in the order of `targets` (name to type,
    required).
    """
    outputs = list(graph.outputs)
    if output is not None and output not in graph.output_names:
        raise UsageError(f"the model has no output {output!r}{did_you_mean(output, graph.output_names)}")
    chosen = outputs if output is None else [outputs[graph.output_names.index(output)]]
    if isinstance(loss, str):
        _check_floats(graph, chosen)
        named = get(loss)
        if targets is None:
            if len(chosen) != 1:
                raise UsageError(
                    f"loss {loss!r} takes one output; say which (output=...): {', '.join(graph.output_names)}"
                )
            targets = {"target": named.target_type(chosen[0].tensor)}
        build: LossFunction = named.build
        compared = [_logits(v, named.of_logits) for v in chosen]
    else:
        build, compared = loss, chosen
        if targets is None:
            raise UsageError("a loss that is a function needs targets={name: TensorType}")
    placeholders = [Value(t, n) for n, t in targets.items()]
    value = build(*compared, *placeholders)
    if not isinstance(value, Value) or not value.dtype.is_float or value.rank not in (0, None):
        raise UsageError(f"a loss is a float scalar, not {value}")
    position = 1 + max((i for i, v in enumerate(graph.inputs) if v.role == "data"), default=-1)
    inputs = [*graph.inputs[:position], *placeholders, *graph.inputs[position:]]
    return Graph(
        inputs,
        [value, *outputs],
        graph.updates,
        graph.name,
        output_names=_unique_loss(graph.output_names),
        meta=graph.meta,
    )


def _check_floats(graph: Graph, chosen: Sequence[Value]) -> None:
    """Raise UsageError for outputs that have no gradient, naming where in the graph the last value is that has one."""
    for value in chosen:
        if isinstance(value.type, TensorType) and value.dtype.is_float:
            return
    value = chosen[0]
    message = f"{value} is not floating-point, so that no loss of it has a gradient"
    if (last := float_behind(value)) is not None:
        message += f"; the last value before it that is one is {last}: make it the output, as gk.Model(net.value(NAME))"
    raise UsageError(message)


def float_behind(value: Value) -> Value | None:
    """The nearest floating-point tensor that `value` is computed from along first operands; None when there is none."""
    while not (isinstance(value.type, TensorType) and value.dtype.is_float):
        if value.node is None or not value.node.operands:
            return None
        value = value.node.operands[0]
    return value


def _logits(output: Value, operator: str) -> Value:
    """The operand of `operator` when the output is what it gives (a Softmax over the last axis), else the output."""
    node = output.node
    if node is None or node.op.domain or not operator or node.op.name != operator:
        return output
    if operator == "Softmax" and node.op.attributes()["axis"] not in (-1, (output.rank or 0) - 1):
        return output
    return node.operands[0]


def are_probabilities(output: Value) -> bool:
    """Whether an output is what a Softmax or a Sigmoid gives."""
    return output.node is not None and not output.node.op.domain and output.node.op.name in ("Softmax", "Sigmoid")


def _unique_loss(names: Sequence[str]) -> list[str]:
    if "loss" in names:
        raise UsageError("the model already has an output called 'loss'; rename it to train this model")
    return ["loss", *names]


def with_loss(
    model: Model,
    loss: str | LossFunction,
    targets: Mapping[str, TensorType] | None = None,
    output: str | None = None,
) -> Model:
    """A model whose first output is the scalar `loss`, with the same parameters and one more input per target.

    targets, output: as a Trainer takes them.
    """
    return Model.from_graph(attach(model.graph, loss, targets, output), model.params.entries())
