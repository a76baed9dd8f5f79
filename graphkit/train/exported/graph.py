"""One graph for a training step: forward, backward, update, learning rate, random numbers and counters.

A Trainer keeps the learning rate, random state, count of accumulated batches, and the choice to skip a step in Python.
Here, they are nodes and states: each run of the graph is a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.internal.guard import FiniteGuard
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import rewrite, run_passes
from graphkit.passes.simplify.cse import cse
from graphkit.passes.training.standard_batch_norm import standard_batch_norm
from graphkit.passes.training.standard_random import standard_random
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exported.rates import rate_value
from graphkit.train.programs import loss_scale
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import BATCH_WEIGHT, TOTAL_WEIGHT, weight_of
from graphkit.train.schedules import Schedule

RANDOM = "random_state"
BATCHES = "accumulated_batches"
WEIGHT = "accumulated_weight"
FLUSH = "flush"

Updates = list[tuple[Value, Value]]


@dataclass(frozen=True)
class Rate:
    """How a step gets its learning rate.

    Attributes:
        schedule: The schedule that the graph computes; None: the rate is the input `learning_rate`.
    """

    schedule: Schedule | None
    scale: float = 1.0
    offset: int = 0


def standalone_step(spec: StepSpec, rate: Rate) -> Graph:
    """Return one graph that contains the whole training step.

    Inputs: data, targets, parameters and states. The updates of the graph are the new states. If `spec` accumulates
    gradients, every `spec.accumulate`-th run updates, and also a run whose input `flush` is True.

    If a Trainer would raise NotFinite or skip the update, parameters and optimizer states keep their values.
    Accumulated gradients are then dropped, and a loss scale is lowered as in a Trainer.

    Raises:
        UnsupportedError: Standard operators cannot express the random numbers or the learning rate.
        UsageError: An input or output of the model has a name that the step uses.
    """
    _check_names(spec)
    if spec.accumulate > 1:
        graph = _accumulating_step(spec, rate)
    else:
        fused = _with_random_state(steps.fused_step(spec.graph, spec.trained, spec.rule))
        graph = _selecting(_with_rate(fused, rate), spec.rule.scale)
    plain = run_passes(_without_guards(graph), CLEANUP)
    return cse(standard_random(standard_batch_norm(plain)))


def _check_names(spec: StepSpec) -> None:
    own, graph = {RANDOM, BATCHES, WEIGHT, FLUSH}, spec.graph
    if spec.rule.scale is not None:
        own.add(loss_scale.NAME)
    if taken := own.intersection([*(graph.name_of(v) for v in graph.inputs), *graph.output_names]):
        raise UsageError(
            f"the model has an input, parameter or output {min(taken)!r}, a name that the file of a training step uses "
            "itself: rename it to export the step"
        )


# --- states that a Trainer keeps in Python ----------------------------------------------------------


def _input(graph: Graph, name: str) -> Value | None:
    return next((v for v in graph.inputs if graph.name_of(v) == name), None)


def _replaced(graph: Graph, table: Mapping[Value, Value], read: Iterable[Value] = ()) -> Graph:
    """Replace inputs of a graph by the values in `table`.

    The values in `table` become inputs of the result. If nodes compute such a value, the caller must remove it from the
    inputs.

    read: graph inputs from which nodes compute the new values.
    """
    kept = set(graph.inputs).difference(table)
    more = [v for v in dict.fromkeys(read) if v not in kept]
    return rewrite(graph, lambda _node, _operands: None, inputs=table, extra_inputs=more)


def _joined(inputs: Iterable[Value], more: Iterable[Value], leave_out: Iterable[Value] = ()) -> list[Value]:
    dropped = set(leave_out)
    return [v for v in dict.fromkeys([*inputs, *more]) if v not in dropped]


def _with_rate(graph: Graph, rate: Rate) -> Graph:
    fed, count = _input(graph, steps.LEARNING_RATE), _input(graph, steps.STEP)
    assert fed is not None, "every update has a rate"
    assert count is not None, "every update has a count"
    if rate.schedule is None:
        return graph
    updates = F.cast(F.add(count, F.constant(value=np.asarray(rate.offset, np.int64))), to="float64")
    found = F.mul(rate_value(rate.schedule, updates), F.constant(value=np.asarray(rate.scale, np.float64)))
    value = F.cast(found, to="float32")
    replaced = _replaced(graph, {fed: value})
    return replaced.replace(inputs=_joined(replaced.inputs, (), [value]))


def _with_random_state(graph: Graph) -> Graph:
    """Make the seed and the step of random numbers a state, int64 [2]. Each run adds 1 to the step."""
    fed = next((v for v in graph.inputs if v.role == "rng"), None)
    if fed is None:
        return graph
    state = Value(TensorType(DType.INT64, (2,)), RANDOM, role="state")
    value = F.cast(state, to="uint64")
    replaced = _replaced(graph, {fed: value}, [state])
    following = F.add(state, F.constant(value=np.array([0, 1], np.int64)))
    return replaced.replace(
        inputs=_joined(replaced.inputs, [state], [value]), updates=[*replaced.updates, (state, following)]
    )


# --- values that are not finite ---------------------------------------------------------------------


def _guard(graph: Graph) -> Value | None:
    found = {node.operands[1] for node in graph.nodes if isinstance(node.op, FiniteGuard)}
    assert len(found) <= 1, "a step has one guard"
    return next(iter(found), None)


def _is_finite(guard: Value | None) -> Value | None:
    if guard is None:
        return None
    wide = F.reshape(F.cast(guard, to="float32"), np.zeros(0, np.int64))
    found: Value = F.not_(F.or_(F.is_nan(wide), F.is_inf(wide)))
    return found


def _without_guards(graph: Graph) -> Graph:
    """Remove all FiniteGuards: the updates select the old states instead."""
    return rewrite(graph, lambda node, operands: [operands[0]] if isinstance(node.op, FiniteGuard) else None)  # type: ignore[list-item]


def _where(condition: Value | None, new: Value, old: Value) -> Value:
    if condition is None:
        return new
    found: Value = F.where(condition, new, old)
    return found


def _selecting(graph: Graph, scale: Value | None) -> Graph:
    """Return the step with a condition: if its guard is not finite, it keeps its states, and lowers the loss scale."""
    is_finite = _is_finite(_guard(graph))
    kept = {s: loss_scale.lowered_state(s) if s is scale else s for s, _ in graph.updates}
    return graph.replace(updates=[(state, _where(is_finite, new, kept[state])) for state, new in graph.updates])


# --- accumulated gradients --------------------------------------------------------------------------


def _accumulating_step(spec: StepSpec, rate: Rate) -> Graph:
    """Join the two programs of `split_step`: each run adds gradients, and every `accumulate`-th run updates."""
    accumulate, update = steps.split_step(spec.graph, spec.trained, spec.rule)
    accumulate = _with_random_state(accumulate)
    batches = Value(TensorType(DType.INT64, ()), BATCHES, role="state")
    weight_sum = Value(TensorType(DType.FLOAT32, ()), WEIGHT, role="state")
    flush = Value(TensorType(DType.BOOL, ()), FLUSH)
    accumulate, weight = _with_batch_weight(accumulate, spec.graph)
    is_finite = _is_finite(_guard(accumulate))
    accumulate = _without_guards(accumulate)
    sums = {s: new for s, new in accumulate.updates if _is_gradient_sum(accumulate, s)}
    others = [(s, _where(is_finite, new, s)) for s, new in accumulate.updates if s not in sums]
    # A batch that is not finite has the weight NaN: the sum of weights is then NaN, and the update is skipped.
    weight = _where(is_finite, weight, F.constant(value=np.float32(np.nan)))
    count, total = F.add(batches, F.constant(value=np.asarray(1, np.int64))), F.add(weight_sum, weight)
    due = F.or_(flush, F.greater_or_equal(count, F.constant(value=np.asarray(spec.accumulate, np.int64))))
    found = {s: _where(is_finite, new, s) for s, new in sums.items()}
    fed = _input(update, TOTAL_WEIGHT)
    assert fed is not None, "split_step makes it"
    read = [*accumulate.inputs, weight_sum, flush]
    placed = _replaced(_with_rate(update, rate), {**found, fed: total}, read)
    changed = _selected_updates(update, placed, sums, due, total, spec)
    zero = F.constant(value=np.float32(0))
    counters: Updates = [
        (batches, F.where(due, F.constant(value=np.asarray(0, np.int64)), count)),
        (weight_sum, F.where(due, zero, total)),
    ]
    resets: Updates = [
        (s, F.where(due, F.constant(value=np.zeros((), s.dtype.numpy)), new)) for s, new in found.items()
    ]
    inputs = _joined(
        [*accumulate.inputs, *(v for v in placed.inputs if v.node is None)], [batches, weight_sum, flush],
    )  # fmt: skip
    return accumulate.replace(inputs=inputs, updates=[*others, *changed, *resets, *counters])


def _selected_updates(
    update: Graph, placed: Graph, sums: Mapping[Value, Value], due: Value, total: Value, spec: StepSpec
) -> Updates:
    """Return the updates of all states except gradient sums. States change only if an update is due and finite.

    update: the second program of `split_step`. placed: a copy of `update` that reads the new gradient sums.
    """
    of_gradients = _is_finite(_guard(placed))
    of_losses = None if spec.rule.on_nonfinite == "ignore" else _is_finite(total)
    makes = due
    for condition in (of_gradients, of_losses):
        makes = makes if condition is None else F.and_(makes, condition)
    scale = spec.rule.scale
    found: Updates = []
    for (state, _), (_, new) in zip(update.updates, placed.updates, strict=True):
        if state in sums:
            continue
        kept = state
        if state is scale:
            assert of_gradients is not None, "a loss scale needs finite gradients"
            overflowed = F.and_(due, F.not_(of_gradients))
            if of_losses is not None:
                overflowed = F.and_(overflowed, of_losses)
            kept = F.where(overflowed, loss_scale.lowered_state(state), state)
        found.append((state, F.where(makes, new, kept)))
    return found


def _is_gradient_sum(graph: Graph, state: Value) -> bool:
    return graph.name_of(state).endswith(f"/{steps.GRADIENT_SUM}")


def _with_batch_weight(accumulate: Graph, graph: Graph) -> tuple[Graph, Value]:
    """Let the graph compute the weight of its batch. Return the graph and the weight."""
    weight, fed = weight_of(graph)
    if not fed:
        return accumulate, accumulate.outputs[accumulate.output_names.index(BATCH_WEIGHT)]
    given = _input(accumulate, BATCH_WEIGHT)
    assert given is not None, "split_step makes it"
    data = [v for v in graph.inputs if v.role == "data" and isinstance(v.type, TensorType) and v.rank]
    if not data:
        raise UnsupportedError("the number of samples of a batch is unknown, because no input of the model has an axis")
    samples = F.slice(F.shape(data[0]), *(F.constant(value=np.array([n], np.int64)) for n in (0, 1, 0)))
    weight = F.cast(F.reshape(samples, np.zeros(0, np.int64)), to="float32")
    replaced = _replaced(accumulate, {given: weight})
    return replaced.replace(inputs=_joined(replaced.inputs, (), [weight])), weight


def state_values(graph: Graph) -> Sequence[Value]:
    updated = {state for state, _ in graph.updates}
    return [v for v in graph.inputs if v in updated]
