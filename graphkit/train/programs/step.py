"""The training step as graphs: forward, loss, backward, clipping and the optimizer's updates.

- `fused_step`: the whole step as one program.
- `shared_step`: the same for one of several ranks, with all-reduces.
- `split_step`: two programs: one accumulates gradients over several batches, the other updates.
- `stage_update`: the update of one stage of a pipeline.
- `whole_gradients`, `placed_step`: forward pass, backward pass and update, with the nodes divided among ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from graphkit.autodiff.reverse_mode import gradient
from graphkit.autodiff.templates import Templates
from graphkit.errors import UsageError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Value, next_serial, topological
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.internal.moments import AllReduceMoments
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.training.sync_batch_norm import chained
from graphkit.train import states
from graphkit.train.average import AVERAGE, EMA
from graphkit.train.optim import Optimizer
from graphkit.train.programs import all_reduce, finite, loss_scale, sharded
from graphkit.train.programs.all_reduce import Buckets
from graphkit.train.programs.expressions import after, cast_like, sum_of
from graphkit.train.programs.masks import masked
from graphkit.train.programs.sparse import Rows, lookups
from graphkit.train.programs.statistics import IdleStatistics, idle_statistics
from graphkit.train.programs.weights import BATCH_WEIGHT, TOTAL_WEIGHT, divisor, weight_of
from graphkit.train.selection import TrainedParameter

LEARNING_RATE = "learning_rate"
STEP = "optimizer_step"
GRADIENT = "gradient"
GRADIENT_SUM = "gradient_sum"
ROWS = "rows"
LOSS_SUM = "loss_sum"
SCALE = "gradient_scale"
FINITE = "finite"
# Names of inputs, states and outputs that programs add. A model cannot use them.
RESERVED_NAMES = frozenset({LEARNING_RATE, BATCH_WEIGHT, TOTAL_WEIGHT, STEP, SCALE, FINITE})


@dataclass(frozen=True)
class UpdateRule:
    """How gradients become updates.

    Attributes:
        on_nonfinite: "raise": the program raises NotFinite if the loss is not finite. "skip": it raises NotFinite if
            the loss or a gradient is not finite. "ignore": it never raises NotFinite.
        scale: The state with the loss scale, or None. With a scale, gradients that are not finite always raise
            NotFinite: the Stepper then lowers the scale.
    """

    optimizer: Optimizer
    clip_norm: float | None = None
    ema: EMA | None = None
    on_nonfinite: str = "ignore"
    scale: Value | None = None

    @property
    def checks_gradients(self) -> bool:
        return self.on_nonfinite == "skip" or self.scale is not None


def clip_by_global_norm(gradients: Sequence[Value], max_norm: float) -> list[Value]:
    """Scale gradients by min(1, max_norm / norm). norm: the 2-norm of all gradients together (Pascanu et al., 2013)."""
    squares = [F.reduce_sum_square(g, keepdims=False) for g in gradients]
    return _clipped(gradients, F.sqrt(sum_of(squares)), max_norm)


def _clipped(gradients: Sequence[Value], norm: Value, max_norm: float) -> list[Value]:
    limit = scalar_like(max_norm, norm)
    # For small gradients, and for the norm 0, the factor is 1.
    scale = F.div(limit, F.max(norm, limit))
    return [F.mul(g, cast_like(scale, g)) for g in gradients]


def _updates(
    trained: Sequence[TrainedParameter], gradients: Sequence[Value | Rows], rule: UpdateRule, guard: Value | None
) -> tuple[list[Value], list[tuple[Value, Value]]]:
    """Return new graph inputs (learning rate, step count, slots, averages, loss scale), and the updates.

    The updates of running statistics are not among them.

    guard: see `finite.guarded`.
    """
    dense = [states.widened(g) for g in dense_of(gradients)]
    if rule.clip_norm is not None:
        dense = clip_by_global_norm(dense, rule.clip_norm)
    optimizer = rule.optimizer
    fed = Value(TensorType(DType.FLOAT32, ()), LEARNING_RATE)
    count = Value(TensorType(DType.INT64, ()), STEP, role="state")
    # Every update reads the learning rate or the step count. If both are guarded, all updates are.
    rate = finite.guarded(fed, guard)
    step = F.add(finite.guarded(count, guard), F.constant(value=np.asarray(1, np.int64)))
    inputs, updates = [fed, count], [(count, step)]
    templates = Templates() if _depends_on_types(optimizer) else None
    for parameter, found, grad in zip(trained, gradients, dense, strict=True):
        weight = parameter.value
        slots = states.inputs(optimizer, parameter.name, weight.tensor)
        mask = parameter.mask
        lr = rate if parameter.lr_mult == 1.0 else F.mul(rate, scalar_like(parameter.lr_mult, rate))
        kept = [weight, *slots]
        with context.made_by(f"{optimizer.kind}'s update of {parameter.name!r}"):
            if isinstance(found, Rows):
                rows = [found.take(s) for s in kept]
                made = states.update(
                    optimizer, rows[0], found.at_every_position(grad), rows[1:], lr, step, parameter.decay_mult
                )
                new = [found.put(s, r) for s, r in zip(kept, (made.weight, *made.states), strict=True)]
                unrounded = states.widened(new[0])
            else:
                made = _updated(templates, optimizer, weight, grad, slots, lr, step, parameter.decay_mult)
                new, unrounded = [masked(made.weight, mask), *made.states], masked(made.unrounded, mask)
        inputs += slots if mask is None else [*slots, mask.value]
        updates += list(zip(kept, new, strict=True))
        if rule.ema is not None:
            state, update = _average_update(parameter, unrounded, rule.ema, step)
            inputs.append(state)
            updates.append((state, update))
    if rule.scale is not None:
        inputs.append(rule.scale)
        updates.append((rule.scale, finite.guarded(loss_scale.next_state(rule.scale), guard)))
    return inputs, updates


def _updated(
    templates: Templates | None,
    optimizer: Optimizer,
    weight: Value,
    grad: Value,
    slots: Sequence[Value],
    lr: Value,
    step: Value,
    decay: float,
) -> states.Updated:
    """Do the same as `states.update`. With `templates`, nodes of parameters of equal types are copied."""
    boundary = (weight, grad, *slots, lr, step)
    parts = None if templates is None else templates.parts(boundary)
    if templates is None or parts is None:
        return states.update(optimizer, weight, grad, slots, lr, step, decay)
    key = (decay, *parts)
    template = templates.find(key)
    if template is not None:
        new, *changed, unrounded = template.copied(boundary)
        return states.Updated(cast(Value, new), cast("list[Value]", changed), cast(Value, unrounded))
    first = next_serial()
    made = states.update(optimizer, weight, grad, slots, lr, step, decay)
    templates.add(key, boundary, (made.weight, *made.states, made.unrounded), first)
    return made


def _depends_on_types(optimizer: Optimizer) -> bool:
    """Whether the types of the operands determine the nodes of an update. User code may read more, such as names."""
    sources = (type(optimizer), optimizer.update)
    return all(getattr(source, "__module__", "").startswith("graphkit.") for source in sources)


def _joined(*parts: Sequence[Value]) -> list[Value]:
    return list(dict.fromkeys(value for part in parts for value in part))


def _average_update(parameter: TrainedParameter, new: Value, ema: EMA, step: Value) -> tuple[Value, Value]:
    average = Value(states.state_type(parameter.value.tensor), f"{parameter.name}/{AVERAGE}", role="state")
    return average, ema.update(average, new, step)


def dense_of(gradients: Sequence[Value | Rows]) -> list[Value]:
    return [g.gradient if isinstance(g, Rows) else g for g in gradients]


def guard_of(loss: Value | None, gradients: Sequence[Value | Rows], rule: UpdateRule) -> Value | None:
    """Return a value that is finite if the loss, and with `checks_gradients` all gradients, are finite.

    None if the rule checks nothing. See `finite.guarded`.
    """
    if not rule.checks_gradients:
        return loss if rule.on_nonfinite == "raise" else None
    return finite.loss_and_gradient_guard(loss, finite.zero_if_finite(dense_of(gradients)))


def guarded_updates(updates: Sequence[tuple[Value, Value]], guard: Value | None) -> list[tuple[Value, Value]]:
    return [(state, finite.guarded(new, guard)) for state, new in updates]


def gradients_of(
    graph: Graph, loss: Value, trained: Sequence[TrainedParameter], rule: UpdateRule
) -> list[Value | Rows]:
    tables = {t.name: lookups(graph, t.value, t.name) for t in trained if t.lazy}
    if tables and not rule.optimizer.elementwise:
        raise UsageError(
            f"{rule.optimizer.kind} takes norms of whole parameters, so it cannot be used with row-sparse updates "
            f"(lazy=, --sparse-update) of {', '.join(tables)}; choose another optimizer"
        )
    wanted = [tables[t.name].outputs if t.lazy else [t.value] for t in trained]
    flat = iter(loss_scale.gradients(loss, [v for values in wanted for v in values], rule.scale))
    grouped = [[next(flat) for _ in values] for values in wanted]
    return [tables[t.name].rows(group) if t.lazy else group[0] for t, group in zip(trained, grouped, strict=True)]


def fused_step(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> Graph:
    """Return one program: `graph`, whose first output is the loss, the backward pass, and all updates."""
    gradients = gradients_of(graph, graph.outputs[0], trained, rule)
    guard = guard_of(graph.outputs[0], gradients, rule)
    inputs, updates = _updates(trained, gradients, rule, guard)
    statistics = guarded_updates(graph.updates, guard)
    return graph.replace(inputs=_joined(graph.inputs, inputs), updates=[*statistics, *updates])


def whole_gradients(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> Graph:
    """Return `graph` with the backward pass, to be divided among ranks.

    Added outputs: the (clipped) `<parameter>/gradient` for each of `trained`, and FINITE, the guard of the step, if it
    has one. Tables must not be lazy.
    """
    gradients = gradient([graph.outputs[0]], [t.value for t in trained])
    guard = guard_of(graph.outputs[0], gradients, rule)
    if rule.clip_norm is not None:
        gradients = clip_by_global_norm(gradients, rule.clip_norm)
    further = {f"{t.name}/{GRADIENT}": g for t, g in zip(trained, gradients, strict=True)}
    further |= {} if guard is None else {FINITE: guard}
    return graph.replace(outputs=[*graph.outputs, *further.values()], output_names=[*graph.output_names, *further])


def placed_step(part: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, last: Value) -> Graph:
    """Return the program of one rank: its part of `whole_gradients`, and the updates of its parameters.

    Args:
        part: This rank's nodes of the graph from `whole_gradients`. Gradients are outputs of `part`, not of the result.
        last: A value that is available when all values are exchanged. NotFinite is raised only then.
    """
    outputs = dict(zip(part.output_names, part.outputs, strict=True))
    stored = {part.name_of(v): v for v in part.inputs}
    gradients = [outputs.pop(f"{t.name}/{GRADIENT}") for t in trained]
    guard = outputs.pop(FINITE, None)
    if guard is not None:
        guard = after(guard, [last])
    own = [replace(t, value=stored[t.name]) for t in trained]
    inputs, updates = _updates(own, gradients, replace(rule, clip_norm=None), guard)
    return part.replace(
        inputs=[*part.inputs, *inputs], outputs=outputs.values(), output_names=outputs,
        updates=[*guarded_updates(part.updates, guard), *updates],
    )  # fmt: skip


def split_step(
    graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, buckets: Buckets | None = None
) -> tuple[Graph, Graph]:
    """Return two programs: one accumulates the gradients of a batch, the other updates the parameters.

    They share the accumulators, the states `<parameter>/gradient_sum`, which the second program resets. The first
    program is fed with `batch_weight` (float32 scalar, the number of samples), unless this is an output of the graph.
    The second program is fed with `total_weight` (float32 scalar, the sum of the weights) and `learning_rate`.

    With `buckets`, the second program all-reduces the gradients. The loss of the first program is then the mean over
    all ranks, and its last output is the weight of all ranks.

    Raises UsageError for row-sparse updates.
    """
    refuse_lazy(trained, "need one batch per update: leave out accumulate= (--accumulate)")
    weight, fed = weight_of(graph)
    sums = [gradient_sum(t) for t in trained]
    outputs, names, loss = list(graph.outputs), list(graph.output_names), graph.outputs[0]
    if buckets is not None:
        loss, total = all_reduce.mean_loss(graph.outputs[0], weight)
        outputs, names = [loss, *outputs[1:], total], [*names, TOTAL_WEIGHT]
    guard = None if rule.on_nonfinite == "ignore" else loss
    if guard is None and buckets is not None:
        guard = all_reduce.zero_after(total)
    wanted = [t.value for t in trained]
    added, guard = _accumulated(graph.outputs[0], wanted, sums, weight, guard, rule.scale, shared=buckets is not None)
    updates = [*guarded_updates(graph.updates, guard), *added]
    accumulate = graph.replace(
        inputs=[*graph.inputs, *fed, *sums, *([] if rule.scale is None else [rule.scale])], outputs=outputs,
        output_names=names, updates=updates,
    )  # fmt: skip
    if buckets is not None:
        accumulate = chained(accumulate, total)
    return accumulate, _update(graph.name, trained, rule, sums, buckets)


def gradient_sum(parameter: TrainedParameter) -> Value:
    return Value(states.state_type(parameter.value.tensor), f"{parameter.name}/{GRADIENT_SUM}", role="state")


def mean_of_sums(sums: Sequence[Value], total: Value) -> list[Value]:
    weight = divisor(total)
    return [F.div(s, cast_like(weight, s)) for s in sums]


def resets(sums: Sequence[Value]) -> list[tuple[Value, Value]]:
    return [(s, F.expand(scalar_like(0.0, s), F.shape(s))) for s in sums]


def _accumulated(
    loss: Value,
    wanted: Sequence[Value],
    sums: Sequence[Value],
    weight: Value,
    guard: Value | None,
    scale: Value | None,
    *,
    shared: bool,
) -> tuple[list[tuple[Value, Value]], Value | None]:
    """Return the updates of the accumulators `sums` by weight * gradient, and the guard of the step.

    shared: whether there are several ranks. If these share statistics of BatchNormalization, gradients of one rank's
    loss flow through other ranks: the loss must be multiplied by the weight before the backward pass.
    """
    if not shared or not any(isinstance(node.op, AllReduceMoments) for node in topological([loss])):
        factor = finite.guarded(weight, guard)
        gradients = loss_scale.gradients(loss, wanted, scale)
        wide = map(states.widened, gradients)
        return [(s, F.add(s, F.mul(g, cast_like(factor, g)))) for s, g in zip(sums, wide, strict=True)], guard
    gradients = loss_scale.gradients(F.mul(loss, cast_like(weight, loss)), wanted, scale)
    if guard is not None:
        guard = after(guard, gradients)  # a rank must not fail while others wait for it
    wide = map(states.widened, gradients)
    return [(s, F.add(finite.guarded(s, guard), g)) for s, g in zip(sums, wide, strict=True)], guard


def _update(
    name: str, trained: Sequence[TrainedParameter], rule: UpdateRule, sums: Sequence[Value], buckets: Buckets | None
) -> Graph:
    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    if buckets is None:
        means = mean_of_sums(sums, total)
        inputs, updates = _updates(trained, means, rule, guard_of(None, means, rule))
    else:
        inputs, updates, _ = _shared_updates(trained, rule, sums, None, total, buckets)
    return Graph(
        [total, *inputs, *(t.value for t in trained), *sums], [inputs[1]], [*updates, *resets(sums)],
        f"{name}_update", output_names=["previous_step"],
    )  # fmt: skip


def stage_update(name: str, trained: Sequence[TrainedParameter], rule: UpdateRule) -> tuple[Graph, Graph]:
    """Return two programs that update one stage by accumulated gradients. Both have the input `total_weight`.

    The first program has the outputs `squares`, the sum of the squared mean gradients, and `finite`, 0 or NaN. The
    ranks sum both, and decide together whether to run the second program, which updates and resets the accumulators. To
    clip gradients, it multiplies them by its input `gradient_scale`. Tables must not be lazy.
    """
    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    scale = Value(TensorType(DType.FLOAT32, ()), SCALE)
    sums = [gradient_sum(t) for t in trained]
    means = mean_of_sums(sums, total)
    squares = [F.cast(F.reduce_sum_square(m, keepdims=False), to="float32") for m in means]
    outputs = {"squares": sum_of(squares), "finite": finite.zero_if_finite(means)}
    measure = Graph([total, *sums], outputs.values(), (), f"{name}_measure", output_names=outputs)
    clips = rule.clip_norm is not None
    scaled = [F.mul(m, cast_like(scale, m)) for m in means] if clips else means
    inputs, updates = _updates(trained, scaled, replace(rule, clip_norm=None), None)
    update = Graph(
        [total, *([scale] if clips else ()), *inputs, *(t.value for t in trained), *sums], [inputs[1]],
        [*updates, *resets(sums)], f"{name}_update", output_names=["previous_step"],
    )  # fmt: skip
    return measure, update


def shared_step(
    graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, buckets: Buckets
) -> tuple[Graph, Graph]:
    """Return two programs for data parallelism: for a rank with samples, and for a rank without samples.

    Gradients are all-reduced during the backward pass. A rank without samples sends zeros, and updates like the others.
    The last output of both programs is the weight of all ranks.

    The first program has the input `batch_weight` as in `split_step`. Feed zeros to these inputs of the second program:
    `loss_sum`, `<parameter>/gradient_sum`, for lazy tables `<parameter>/rows` (without elements), and the inputs of
    `IdleStatistics`.
    """
    weight, fed = weight_of(graph)
    loss, total = all_reduce.mean_loss(graph.outputs[0], weight)
    weighted = F.mul(graph.outputs[0], cast_like(weight, graph.outputs[0]))
    gradients = gradients_of(graph, weighted, trained, rule)
    inputs, updates, guard = _shared_updates(trained, rule, gradients, loss, total, buckets)
    step = graph.replace(
        inputs=_joined(graph.inputs, fed, inputs), outputs=[loss, *graph.outputs[1:], total],
        output_names=[*graph.output_names, TOTAL_WEIGHT], updates=[*guarded_updates(graph.updates, guard), *updates],
    )  # fmt: skip
    step = chained(step, total)
    return step, _idle_step(graph, trained, rule, buckets, idle_statistics(graph, step))


def _idle_step(
    graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, buckets: Buckets, idle: IdleStatistics
) -> Graph:
    loss_sum, loss, total = _idle_loss(graph, idle)
    fed = _zero_gradients(trained)
    gradients = _as_gradients(trained, idle.after_sums(fed, total))
    inputs, updates, guard = _shared_updates(trained, rule, gradients, loss, total, buckets)
    updated = [t.value for t in trained]
    others = [v for v in idle.states if v not in set(updated)]
    return Graph(
        _joined([loss_sum, *fed], idle.inputs, inputs, updated, others), [loss, total],
        [*guarded_updates(idle.updates, guard), *updates], f"{graph.name}_idle",
        output_names=[graph.output_names[0], TOTAL_WEIGHT],
    )  # fmt: skip


def split_idle_step(graph: Graph, accumulate: Graph, rule: UpdateRule, always: bool = False) -> Graph | None:
    """Return the program that a rank without samples runs instead of `accumulate`.

    Args:
        always: Return a program, not None, even if it only all-reduces the loss.
    """
    idle = idle_statistics(graph, accumulate)
    if idle.last is None and not always:
        return None
    loss_sum, loss, total = _idle_loss(graph, idle)
    (total,) = idle.after_sums([total], total)
    guard = all_reduce.zero_after(total) if rule.on_nonfinite == "ignore" else after(loss, [total])
    return Graph(
        [loss_sum, *idle.inputs, *idle.states], [loss, total], guarded_updates(idle.updates, guard),
        f"{graph.name}_idle", output_names=[graph.output_names[0], TOTAL_WEIGHT],
    )  # fmt: skip


def _idle_loss(graph: Graph, idle: IdleStatistics) -> tuple[Value, Value, Value]:
    """Return the input LOSS_SUM of a rank without samples (fed with zeros), mean loss, and weight of all ranks."""
    loss_sum = Value(TensorType(DType.FLOAT64, (2,)), LOSS_SUM)
    return loss_sum, *all_reduce.mean_of_pair(idle.after_moments(loss_sum), graph.outputs[0].dtype)


def _zero_gradients(trained: Sequence[TrainedParameter]) -> list[Value]:
    """Return the inputs for the gradients of a rank without samples. A lazy table has two inputs, without rows."""
    fed: list[Value] = []
    for t in trained:
        kind = t.value.tensor
        if t.lazy:
            fed.append(Value(TensorType(DType.INT64, (0,)), f"{t.name}/{ROWS}"))
            kind = TensorType(kind.dtype, (0, *kind.known_shape[1:]))
        fed.append(Value(kind, f"{t.name}/{GRADIENT_SUM}"))
    return fed


def _as_gradients(trained: Sequence[TrainedParameter], fed: Sequence[Value]) -> list[Value | Rows]:
    values = iter(fed)
    return [Rows(t.value, next(values), None, next(values)) if t.lazy else next(values) for t in trained]


def _shared_updates(
    trained: Sequence[TrainedParameter],
    rule: UpdateRule,
    gradients: Sequence[Value | Rows],
    loss: Value | None,
    total: Value,
    buckets: Buckets,
) -> tuple[list[Value], list[tuple[Value, Value]], Value | None]:
    """All-reduce the weighted gradients of this rank, and update.

    Returns:
        The graph inputs to add, the updates (except those of running statistics), and the guard of the step.
    """
    if buckets.place is not None:
        return _sharded_updates(trained, rule, gradients, loss, total, buckets)
    means, done = all_reduce.mean_gradients(gradients, total, buckets)
    guard = _guard_after(guard_of(loss, means, rule), loss, total, done)
    inputs, updates = _updates(trained, means, rule, guard)
    return inputs, updates, guard


def _guard_after(guard: Value | None, loss: Value | None, total: Value, done: Sequence[Value]) -> Value | None:
    """Return the guard of a step of several ranks, which waits for the values `done`.

    A rank must not fail while others wait for it. Without `guard`, a step with a loss still gets one: if the all-reduce
    of `total` fails, no update runs.
    """
    if guard is None and loss is not None:
        guard = all_reduce.zero_after(total)
    return None if guard is None else after(guard, done)


def _sharded_updates(
    trained: Sequence[TrainedParameter],
    rule: UpdateRule,
    gradients: Sequence[Value | Rows],
    loss: Value | None,
    total: Value,
    buckets: Buckets,
) -> tuple[list[Value], list[tuple[Value, Value]], Value | None]:
    """Do the same as `_shared_updates` for sharded states: update this rank's slices, gather the others."""
    values = [t.value for t in trained]
    own, done = sharded.reduce_scatter(values, dense_of(gradients), total, buckets)
    means, guard = [piece.gradient for piece in own], loss if rule.on_nonfinite == "raise" else None
    if rule.clip_norm is not None or rule.checks_gradients:
        squares, zero, complete = sharded.square_norm(means, done)
        done.append(complete)
        if rule.checks_gradients:
            guard = finite.loss_and_gradient_guard(loss, zero)
        if rule.clip_norm is not None:
            means = _clipped(means, F.sqrt(squares), rule.clip_norm)
    guard = _guard_after(guard, loss, total, done)
    slices = [replace(trained[piece.position], value=piece.weight, mask=None) for piece in own]
    inputs, found = _updates(slices, means, replace(rule, clip_norm=None, ema=None), guard)
    weights = {piece.weight for piece in own}
    new = [result for state, result in found if state in weights]
    updates = [(state, result) for state, result in found if state not in weights]
    step = updates[0][1]
    for parameter, joined in zip(trained, sharded.all_gather(values, own, new, guard, done, buckets), strict=True):
        whole = masked(joined, parameter.mask)
        inputs += [] if parameter.mask is None else [parameter.mask.value]
        updates.append((parameter.value, whole))
        if rule.ema is not None:
            average, update = _average_update(parameter, states.widened(whole), rule.ema, step)
            inputs.append(average)
            updates.append((average, update))
    return inputs, updates, guard


def refuse_lazy(trained: Sequence[TrainedParameter], reason: str) -> None:
    if lazy := [t.name for t in trained if t.lazy]:
        raise UsageError(f"row-sparse updates (lazy=, --sparse-update) of {', '.join(lazy)} {reason}")


def adapt_gradient_sums(
    arrays: dict[str, np.ndarray], trained: Sequence[str], states: Mapping[str, np.ndarray], accumulated: int, rank: int
) -> None:
    """Replace the accumulated gradients of a checkpoint by those that this rank restores.

    The checkpoint may have another number of processes, or another `accumulate`. Ranks sum their accumulated gradients:
    rank 0 restores them, and the other ranks start at 0.

    Args:
        arrays: The arrays of the checkpoint, changed in place.
        accumulated: Number of accumulated batches in the checkpoint.

    Raises:
        UsageError: There are accumulated gradients, but this trainer does not accumulate.
    """
    for key in (f"{name}/{GRADIENT_SUM}" for name in trained):
        if key in states and (rank > 0 or not accumulated):
            arrays[key] = np.zeros_like(states[key])
        elif key not in states and key in arrays:
            if accumulated:
                raise UsageError(
                    f"the checkpoint contains accumulated gradients of {accumulated} batches, but this trainer updates "
                    f"after every batch: resume with accumulate={accumulated + 1} (--accumulate), or more"
                )
            del arrays[key]
