"""The training step as graphs: forward, loss, backward, clipping and the optimizer's updates.

`fused_step` is the whole step in one program. `split_step` is two programs around a gradient sum: the first adds
gradient * weight into accumulators, the second divides by the total weight and updates. The sum over several
micro-batches or processes lies between.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.autodiff import gradient
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops._pointwise import scalar_like
from graphkit.train.optim import Optimizer

LEARNING_RATE = "learning_rate"
BATCH_WEIGHT = "batch_weight"
TOTAL_WEIGHT = "total_weight"
STEP = "optimizer_step"
GRADIENT_SUM = "gradient_sum"


@dataclass(frozen=True)
class Trainee:
    """One parameter under training: its Value, the name that slots derive from, its multipliers."""

    value: Value
    name: str
    lr_mult: float
    decay_mult: float


def select_trainees(graph: Graph, freeze: Sequence[str]) -> list[Trainee]:
    """Parameters to update, without those that match a `freeze` pattern (shell wildcards).

    Raises UsageError when a pattern matches nothing, or everything is frozen.
    """
    names = {graph.name_of(v): v for v in graph.inputs if v.role == "parameter" and v.dtype.is_float}
    for pattern in freeze:
        if not fnmatch.filter(names, pattern):
            raise UsageError(f"freeze pattern {pattern!r} matches no parameter; there are {', '.join(names)}")
    chosen = [
        Trainee(v, n, float(v.attrs.get("lr_mult", 1.0)), float(v.attrs.get("wd_mult", 1.0)))
        for n, v in names.items()
        if v.attrs.get("trainable", True) and not any(fnmatch.fnmatch(n, p) for p in freeze)
    ]
    if not chosen:
        raise UsageError("there is no parameter to train: the model has none, or all are frozen")
    return chosen


def clip_by_global_norm(gradients: Sequence[Value], max_norm: float) -> list[Value]:
    """Scale all gradients by min(1, max_norm / norm), norm the 2-norm of all together (Pascanu et al., 2013)."""
    squares = [F.reduce_sum_square(g, keepdims=False) for g in gradients]
    norm = F.sqrt(squares[0] if len(squares) == 1 else F.sum(*squares))
    limit = scalar_like(max_norm, norm)
    # max(norm, limit) keeps the quotient at 1 for small gradients, and free of 0 / 0.
    scale = F.div(limit, F.max(norm, limit))
    return [F.mul(g, scale) for g in gradients]


def _updates(
    trainees: Sequence[Trainee], gradients: Sequence[Value], optimizer: Optimizer, clip_norm: float | None
) -> tuple[list[Value], list[tuple[Value, Value]]]:
    """New state inputs (slots and step count) plus the learning rate, and the updates of everything."""
    if clip_norm is not None:
        gradients = clip_by_global_norm(gradients, clip_norm)
    rate = Value(TensorType(DType.FLOAT32, ()), LEARNING_RATE)
    count = Value(TensorType(DType.INT64, ()), STEP, role="state")
    step = F.add(count, F.constant(value=np.asarray(1, np.int64)))
    inputs, updates = [rate, count], [(count, step)]
    for trainee, grad in zip(trainees, gradients, strict=True):
        weight = trainee.value
        slots = [Value(weight.type, f"{trainee.name}/{slot}", role="state") for slot in optimizer.slots]
        lr = rate if trainee.lr_mult == 1.0 else F.mul(rate, scalar_like(trainee.lr_mult, rate))
        new = optimizer.update(weight, grad, slots, lr, step, trainee.decay_mult)
        inputs += slots
        updates += list(zip([weight, *slots], new, strict=True))
    return inputs, updates


def fused_step(
    graph: Graph, trainees: Sequence[Trainee], optimizer: Optimizer, clip_norm: float | None = None
) -> Graph:
    """`graph` (first output: the loss) plus backward and the update of parameters and slots, in one program."""
    gradients = gradient([graph.outputs[0]], [t.value for t in trainees])
    inputs, updates = _updates(trainees, gradients, optimizer, clip_norm)
    return graph.replace(inputs=[*graph.inputs, *inputs], updates=[*graph.updates, *updates])


def split_step(
    graph: Graph, trainees: Sequence[Trainee], optimizer: Optimizer, clip_norm: float | None = None
) -> tuple[Graph, Graph]:
    """The accumulating program and the updating one; they share the states `<parameter>/gradient_sum`.

    Inputs beside the data: `batch_weight` (float32 scalar, the number of samples) of the first; `total_weight`, the
    sum of the weights, and `learning_rate` of the second, which resets the sums.
    """
    weight = Value(TensorType(DType.FLOAT32, ()), BATCH_WEIGHT)
    sums = [Value(t.value.type, f"{t.name}/{GRADIENT_SUM}", role="state") for t in trainees]
    gradients = gradient([graph.outputs[0]], [t.value for t in trainees])
    added = [(s, F.add(s, F.mul(g, _as(weight, g)))) for s, g in zip(sums, gradients, strict=True)]
    accumulate = graph.replace(inputs=[*graph.inputs, weight, *sums], updates=[*graph.updates, *added])

    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    means = [F.div(s, _as(total, s)) for s in sums]
    inputs, updates = _updates(trainees, means, optimizer, clip_norm)
    reset = [(s, F.expand(scalar_like(0.0, s), F.shape(s))) for s in sums]
    update = Graph(
        [total, *inputs, *(t.value for t in trainees), *sums], [inputs[1]], [*updates, *reset], f"{graph.name}_update",
        output_names=["previous_step"],
    )  # fmt: skip
    return accumulate, update


def _as(scalar: Value, like: Value) -> Value:
    cast: Value = scalar if scalar.dtype is like.dtype else F.cast(scalar, to=like.dtype)
    return cast
