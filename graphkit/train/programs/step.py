"""The training step as graphs: forward, loss, backward, clipping and the optimizer's updates.

`fused_step` is the whole step in one program, `shared_step` that of one of several processes. `split_step` is two
programs around the gradients of several batches: the first adds gradient * weight into accumulators, the second
divides by the total weight and updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import UsageError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.internal.moments import AllReduceMoments
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.training.sync_batch_norm import chained
from graphkit.train import states
from graphkit.train.average import AVERAGE, EMA
from graphkit.train.optim import Optimizer
from graphkit.train.programs import all_reduce, finite, loss_scale, sharded
from graphkit.train.programs.all_reduce import Buckets, cast_like
from graphkit.train.programs.sparse import Rows, lookups
from graphkit.train.programs.statistics import Absence, absence
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
# What inputs, states and outputs of the programs are called that no parameter is part of the name of.
NAMES = frozenset({LEARNING_RATE, BATCH_WEIGHT, TOTAL_WEIGHT, STEP, SCALE, FINITE})


@dataclass(frozen=True)
class UpdateRule:
    """How gradients become updates: the optimizer, the limit on their global norm, the average that is kept."""

    optimizer: Optimizer
    clip_norm: float | None = None
    ema: EMA | None = None
    # "raise": nothing is written when the loss is not finite; "skip": nor when a gradient is not; "ignore".
    on_nonfinite: str = "ignore"
    # What losses are multiplied by before the backward pass, see `loss_scale`.
    scale: Value | None = None

    @property
    def looks_at_gradients(self) -> bool:
        """Whether nothing is written when a gradient is not finite."""
        return self.on_nonfinite == "skip" or self.scale is not None


def clip_by_global_norm(gradients: Sequence[Value], max_norm: float) -> list[Value]:
    """Scale all gradients by min(1, max_norm / norm), norm the 2-norm of all together (Pascanu et al., 2013)."""
    squares = [F.reduce_sum_square(g, keepdims=False) for g in gradients]
    return _clipped(gradients, F.sqrt(squares[0] if len(squares) == 1 else F.sum(*squares)), max_norm)


def _clipped(gradients: Sequence[Value], norm: Value, max_norm: float) -> list[Value]:
    limit = scalar_like(max_norm, norm)
    # max(norm, limit) keeps the quotient at 1 for small gradients, and free of 0 / 0.
    scale = F.div(limit, F.max(norm, limit))
    return [F.mul(g, cast_like(scale, g)) for g in gradients]


def _updates(
    trained: Sequence[TrainedParameter], gradients: Sequence[Value | Rows], rule: UpdateRule, token: Value | None
) -> tuple[list[Value], list[tuple[Value, Value]]]:
    """New state inputs (slots, averages and step count) plus the learning rate, and the updates of everything.

    token: what has to be finite before anything is written, if there is such a thing.
    """
    dense = [states.widened(g) for g in dense_of(gradients)]
    if rule.clip_norm is not None:
        dense = clip_by_global_norm(dense, rule.clip_norm)
    optimizer = rule.optimizer
    fed = Value(TensorType(DType.FLOAT32, ()), LEARNING_RATE)
    count = Value(TensorType(DType.INT64, ()), STEP, role="state")
    # Every update reads the rate or the step.
    rate = finite.guarded(fed, token)
    step = F.add(finite.guarded(count, token), F.constant(value=np.asarray(1, np.int64)))
    inputs, updates = [fed, count], [(count, step)]
    for parameter, found, grad in zip(trained, gradients, dense, strict=True):
        weight = parameter.value
        kinds = states.kinds(optimizer, weight.tensor)
        slots = [Value(kind, f"{parameter.name}/{slot}", role="state") for slot, kind in kinds.items()]
        lr = rate if parameter.lr_mult == 1.0 else F.mul(rate, scalar_like(parameter.lr_mult, rate))
        kept = [weight, *slots]
        with context.made_by(f"{optimizer.kind}'s update of {parameter.name!r}"):
            if isinstance(found, Rows):
                rows = [found.take(s) for s in kept]
                made = states.update(
                    optimizer, rows[0], found.per_place(grad), rows[1:], lr, step, parameter.decay_mult
                )
                new = [found.put(s, r) for s, r in zip(kept, (made.weight, *made.states), strict=True)]
                precise = states.widened(new[0])
            else:
                made = states.update(optimizer, weight, grad, slots, lr, step, parameter.decay_mult)
                new, precise = [made.weight, *made.states], made.precise
        inputs += slots
        updates += list(zip(kept, new, strict=True))
        if rule.ema is not None:
            average = Value(states.precise(weight.tensor), f"{parameter.name}/{AVERAGE}", role="state")
            inputs.append(average)
            updates.append((average, rule.ema.update(average, precise, step)))
    if rule.scale is not None:
        inputs.append(rule.scale)
        updates.append((rule.scale, finite.guarded(loss_scale.next_state(rule.scale), token)))
    return inputs, updates


def dense_of(gradients: Sequence[Value | Rows]) -> list[Value]:
    return [g.gradient if isinstance(g, Rows) else g for g in gradients]


def token_of(loss: Value | None, gradients: Sequence[Value | Rows], rule: UpdateRule) -> Value | None:
    """What has to be finite before anything is written; None: nothing has to."""
    if not rule.looks_at_gradients:
        return loss if rule.on_nonfinite == "raise" else None
    zero = finite.zero_if_finite(dense_of(gradients))
    return zero if loss is None else F.add(cast_like(loss, zero), zero)


def guarded_updates(graph: Graph, token: Value | None) -> list[tuple[Value, Value]]:
    """The graph's own updates, of running statistics, once `token` is known to be finite."""
    return [(state, finite.guarded(new, token)) for state, new in graph.updates]


def gradients_of(
    graph: Graph, loss: Value, trained: Sequence[TrainedParameter], rule: UpdateRule
) -> list[Value | Rows]:
    """The gradients of a loss that is made of the values of `graph`; those of tables by rows."""
    tables = {t.name: lookups(graph, t.value, t.name) for t in trained if t.lazy}
    if tables and not rule.optimizer.elementwise:
        raise UsageError(
            f"{rule.optimizer.kind} takes norms of whole parameters: row-sparse updates "
            f"({', '.join(tables)}) need another optimizer"
        )
    wanted = [tables[t.name].outputs if t.lazy else [t.value] for t in trained]
    flat = iter(loss_scale.gradients(loss, [v for values in wanted for v in values], rule.scale))
    grouped = [[next(flat) for _ in values] for values in wanted]
    return [tables[t.name].rows(group) if t.lazy else group[0] for t, group in zip(trained, grouped, strict=True)]


def fused_step(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> Graph:
    """`graph` (first output: the loss) plus backward and the update of parameters and slots, in one program."""
    gradients = gradients_of(graph, graph.outputs[0], trained, rule)
    token = token_of(graph.outputs[0], gradients, rule)
    inputs, updates = _updates(trained, gradients, rule, token)
    statistics = guarded_updates(graph, token)
    return graph.replace(inputs=[*graph.inputs, *inputs], updates=[*statistics, *updates])


def whole_gradients(graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule) -> Graph:
    """`graph` plus backward, to be divided among ranks: behind its outputs come `<parameter>/gradient` of each of
    `trained`, clipped as the rule says, and FINITE where something has to be. Raises UsageError for row-sparse updates.
    """
    _refuse_lazy(trained)
    gradients = gradient([graph.outputs[0]], [t.value for t in trained])
    token = token_of(graph.outputs[0], gradients, rule)
    if rule.clip_norm is not None:
        gradients = clip_by_global_norm(gradients, rule.clip_norm)
    further = {f"{t.name}/{GRADIENT}": g for t, g in zip(trained, gradients, strict=True)}
    further |= {} if token is None else {FINITE: token}
    return graph.replace(outputs=[*graph.outputs, *further.values()], output_names=[*graph.output_names, *further])


def placed_step(part: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, last: Value) -> Graph:
    """A rank's part of `whole_gradients` with the update of `trained`, parameters that are there, by its outputs of
    these names in place of them. Nothing is written, and NotFinite not raised, before `last` is computed.
    """
    found = dict(zip(part.output_names, part.outputs, strict=True))
    stored = {part.name_of(v): v for v in part.inputs}
    gradients = [found.pop(f"{t.name}/{GRADIENT}") for t in trained]
    token = found.pop(FINITE, None)
    if token is not None:
        token = F.control_dependency(token, last)
    own = [replace(t, value=stored[t.name]) for t in trained]
    inputs, updates = _updates(own, gradients, replace(rule, clip_norm=None), token)
    return part.replace(
        inputs=[*part.inputs, *inputs], outputs=found.values(), output_names=found,
        updates=[*guarded_updates(part, token), *updates],
    )  # fmt: skip


def split_step(
    graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, buckets: Buckets | None = None
) -> tuple[Graph, Graph]:
    """The accumulating program and the updating one; they share the states `<parameter>/gradient_sum`.

    Inputs beside the data: `batch_weight` (float32 scalar, the number of samples) of the first, unless the graph has an
    output of this name; `total_weight`, the sum of the weights, and `learning_rate` of the second, which resets the
    sums. buckets: of the processes that the second sums over; the first has the mean loss over them, and the last of
    its outputs is the weight of them all.
    Raises UsageError for row-sparse updates: the sums are dense.
    """
    _refuse_lazy(trained)
    weight, fed = weight_of(graph)
    sums = [gradient_sum(t) for t in trained]
    outputs, names, known = list(graph.outputs), list(graph.output_names), graph.outputs[0]
    if buckets is not None:
        known, total = all_reduce.mean_loss(graph.outputs[0], weight)
        outputs, names = [known, *outputs[1:], total], [*names, TOTAL_WEIGHT]
    token = None if rule.on_nonfinite == "ignore" else known
    if token is None and buckets is not None:
        token = all_reduce.zero_after(total)
    wanted = [t.value for t in trained]
    added, token = _added(graph.outputs[0], wanted, sums, weight, token, rule.scale, shared=buckets is not None)
    updates = [*guarded_updates(graph, token), *added]
    accumulate = graph.replace(
        inputs=[*graph.inputs, *fed, *sums, *([] if rule.scale is None else [rule.scale])], outputs=outputs,
        output_names=names, updates=updates,
    )  # fmt: skip
    if buckets is not None:
        accumulate = chained(accumulate, total)
    return accumulate, _update(graph.name, trained, rule, sums, buckets)


def gradient_sum(parameter: TrainedParameter) -> Value:
    """The state in which gradients of a parameter wait."""
    return Value(states.precise(parameter.value.tensor), f"{parameter.name}/{GRADIENT_SUM}", role="state")


def _added(
    loss: Value,
    wanted: Sequence[Value],
    sums: Sequence[Value],
    weight: Value,
    token: Value | None,
    scale: Value | None,
    *,
    shared: bool,
) -> tuple[list[tuple[Value, Value]], Value | None]:
    """The updates of `sums` by gradient * weight, and what has to be finite. shared: the loss may be one of several
    processes whose gradients go through statistics of all, so that their weights come first.
    """
    if not shared or not any(isinstance(node.op, AllReduceMoments) for node in topological([loss])):
        factor = finite.guarded(weight, token)
        gradients = loss_scale.gradients(loss, wanted, scale)
        wide = map(states.widened, gradients)
        return [(s, F.add(s, F.mul(g, cast_like(factor, g)))) for s, g in zip(sums, wide, strict=True)], token
    gradients = loss_scale.gradients(F.mul(loss, cast_like(weight, loss)), wanted, scale)
    if token is not None:
        for found in gradients:  # nobody may stop while another one waits for a sum
            token = F.control_dependency(token, found)
    wide = map(states.widened, gradients)
    return [(s, F.add(finite.guarded(s, token), g)) for s, g in zip(sums, wide, strict=True)], token


def _update(
    name: str, trained: Sequence[TrainedParameter], rule: UpdateRule, sums: Sequence[Value], buckets: Buckets | None
) -> Graph:
    """The program that updates by the gradients that wait, and resets their sums."""
    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    if buckets is None:
        weight = divisor(total)
        means: Sequence[Value | Rows] = [F.div(s, cast_like(weight, s)) for s in sums]
        inputs, updates = _updates(trained, means, rule, token_of(None, means, rule))
    else:
        inputs, updates, _ = _shared_updates(trained, rule, sums, None, total, buckets)
    reset = [(s, F.expand(scalar_like(0.0, s), F.shape(s))) for s in sums]
    return Graph(
        [total, *inputs, *(t.value for t in trained), *sums], [inputs[1]], [*updates, *reset], f"{name}_update",
        output_names=["previous_step"],
    )  # fmt: skip


def staged_update(name: str, trained: Sequence[TrainedParameter], rule: UpdateRule) -> tuple[Graph, Graph]:
    """The update of the parameters of one of several stages, around what all stages have to tell each other.

    Both read the gradients that wait, and `total_weight`. The first has the outputs `squares`, the sum of squares of
    the mean gradients, and `finite`, which is 0 when they are; the second updates, and resets the sums. Where the rule
    clips gradients, they are multiplied by its input `gradient_scale`.
    """
    _refuse_lazy(trained)
    total = Value(TensorType(DType.FLOAT32, ()), TOTAL_WEIGHT)
    scale = Value(TensorType(DType.FLOAT32, ()), SCALE)
    sums = [gradient_sum(t) for t in trained]
    weight = divisor(total)
    means = [F.div(s, cast_like(weight, s)) for s in sums]
    squares = [F.cast(F.reduce_sum_square(m, keepdims=False), to="float32") for m in means]
    told = [squares[0] if len(squares) == 1 else F.sum(*squares), finite.zero_if_finite(means)]
    measure = Graph([total, *sums], told, (), f"{name}_measure", output_names=["squares", "finite"])
    clips = rule.clip_norm is not None
    scaled = [F.mul(m, cast_like(scale, m)) for m in means] if clips else means
    inputs, updates = _updates(trained, scaled, replace(rule, clip_norm=None), None)
    reset = [(s, F.expand(scalar_like(0.0, s), F.shape(s))) for s in sums]
    update = Graph(
        [total, *([scale] if clips else ()), *inputs, *(t.value for t in trained), *sums], [inputs[1]],
        [*updates, *reset], f"{name}_update", output_names=["previous_step"],
    )  # fmt: skip
    return measure, update


def shared_step(
    graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, buckets: Buckets
) -> tuple[Graph, Graph]:
    """The whole step of one of several processes, whose gradients are summed while the backward pass goes on; and that
    of a process without samples, which gives zeros and takes part in the sums and the update.

    `batch_weight` is fed as for `split_step`; of the second, `<parameter>/gradient_sum` and `loss_sum` are, and of a
    table, which has no rows then, `<parameter>/rows` too. The last output of both is the weight of all processes.
    """
    weight, fed = weight_of(graph)
    loss, total = all_reduce.mean_loss(graph.outputs[0], weight)
    weighted = F.mul(graph.outputs[0], cast_like(weight, graph.outputs[0]))
    parts = gradients_of(graph, weighted, trained, rule)
    inputs, updates, token = _shared_updates(trained, rule, parts, loss, total, buckets)
    step = graph.replace(
        inputs=[*graph.inputs, *fed, *inputs], outputs=[loss, *graph.outputs[1:], total],
        output_names=[*graph.output_names, TOTAL_WEIGHT], updates=[*guarded_updates(graph, token), *updates],
    )  # fmt: skip
    step = chained(step, total)
    return step, _idle(graph, trained, rule, buckets, absence(graph, step))


def _idle(
    graph: Graph, trained: Sequence[TrainedParameter], rule: UpdateRule, buckets: Buckets, absent: Absence
) -> Graph:
    """The step of a process without samples."""
    pair = Value(TensorType(DType.FLOAT64, (2,)), LOSS_SUM)
    loss, total = all_reduce.mean_of(absent.before(pair), graph.outputs[0].dtype)
    fed = _nothing(trained)
    parts = _parts(trained, absent.after_sums(fed, total))
    inputs, updates, token = _shared_updates(trained, rule, parts, loss, total, buckets)
    statistics = [(state, finite.guarded(new, token)) for state, new in absent.updates]
    updated = [t.value for t in trained]
    states = [v for v in absent.states if v not in set(updated)]
    return Graph(
        [pair, *fed, *absent.inputs, *inputs, *updated, *states], [loss, total], [*statistics, *updates],
        f"{graph.name}_idle", output_names=[graph.output_names[0], TOTAL_WEIGHT],
    )  # fmt: skip


def split_idle(graph: Graph, accumulate: Graph, rule: UpdateRule, alone: bool = False) -> Graph | None:
    """What a process without samples does in the place of `accumulate`, the first program of a `split_step` of `graph`;
    None where that is to take part in the sum of losses alone, unless `alone`.
    """
    absent = absence(graph, accumulate)
    if absent.last is None and not alone:
        return None
    pair = Value(TensorType(DType.FLOAT64, (2,)), LOSS_SUM)
    loss, total = all_reduce.mean_of(absent.before(pair), graph.outputs[0].dtype)
    (total,) = absent.after_sums([total], total)
    token = all_reduce.zero_after(total) if rule.on_nonfinite == "ignore" else F.control_dependency(loss, total)
    statistics = [(state, finite.guarded(new, token)) for state, new in absent.updates]
    return Graph(
        [pair, *absent.inputs, *absent.states], [loss, total], statistics, f"{graph.name}_idle",
        output_names=[graph.output_names[0], TOTAL_WEIGHT],
    )  # fmt: skip


def _nothing(trained: Sequence[TrainedParameter]) -> list[Value]:
    """Inputs of a process without samples, zeros: the gradients, and of tables no rows."""
    fed: list[Value] = []
    for t in trained:
        kind = t.value.tensor
        if t.lazy:
            fed.append(Value(TensorType(DType.INT64, (0,)), f"{t.name}/{ROWS}"))
            kind = TensorType(kind.dtype, (0, *kind.known_shape[1:]))
        fed.append(Value(kind, f"{t.name}/{GRADIENT_SUM}"))
    return fed


def _parts(trained: Sequence[TrainedParameter], fed: Sequence[Value]) -> list[Value | Rows]:
    """The gradients made of such inputs."""
    values = iter(fed)
    return [Rows(t.value, next(values), None, next(values)) if t.lazy else next(values) for t in trained]


def _shared_updates(
    trained: Sequence[TrainedParameter],
    rule: UpdateRule,
    parts: Sequence[Value | Rows],
    loss: Value | None,
    total: Value,
    buckets: Buckets,
) -> tuple[list[Value], list[tuple[Value, Value]], Value | None]:
    """New inputs and updates from this process's parts of the gradients; what has to be finite, behind all sums."""
    if buckets.place is not None:
        return _sharded_updates(trained, rule, parts, loss, total, buckets)
    means, done = all_reduce.means(parts, total, buckets)
    token = token_of(loss, means, rule)
    if token is None and loss is not None:
        token = all_reduce.zero_after(total)
    if token is not None:
        for sums in done:  # nobody may stop while another one waits for a sum
            token = F.control_dependency(token, sums)
    inputs, updates = _updates(trained, means, rule, token)
    return inputs, updates, token


def _sharded_updates(
    trained: Sequence[TrainedParameter],
    rule: UpdateRule,
    parts: Sequence[Value | Rows],
    loss: Value | None,
    total: Value,
    buckets: Buckets,
) -> tuple[list[Value], list[tuple[Value, Value]], Value | None]:
    """The same where this process updates its slices of the buckets, and gets those of the others."""
    values = [t.value for t in trained]
    own, done = sharded.scattered(values, dense_of(parts), total, buckets)
    gradients, token = [piece.gradient for piece in own], loss if rule.on_nonfinite == "raise" else None
    if rule.clip_norm is not None or rule.looks_at_gradients:
        squares, zero, after = sharded.of_all(gradients, done)
        done.append(after)
        if rule.looks_at_gradients:
            token = zero if loss is None else F.add(cast_like(loss, zero), zero)
        if rule.clip_norm is not None:
            gradients = _clipped(gradients, F.sqrt(squares), rule.clip_norm)
    if token is None and loss is not None:
        token = all_reduce.zero_after(total)
    if token is not None:
        for sums in done:  # nobody may stop while another one waits for a sum
            token = F.control_dependency(token, sums)
    pieces = [replace(trained[piece.position], value=piece.weight) for piece in own]
    inputs, found = _updates(pieces, gradients, replace(rule, clip_norm=None, ema=None), token)
    weights = {piece.weight for piece in own}
    new = [result for state, result in found if state in weights]
    updates = [(state, result) for state, result in found if state not in weights]
    step = updates[0][1]
    for parameter, whole in zip(trained, sharded.gathered(values, own, new, token, done, buckets), strict=True):
        updates.append((parameter.value, whole))
        if rule.ema is not None:
            average = Value(states.precise(parameter.value.tensor), f"{parameter.name}/{AVERAGE}", role="state")
            inputs.append(average)
            updates.append((average, rule.ema.update(average, states.widened(whole), step)))
    return inputs, updates, token


def _refuse_lazy(trained: Sequence[TrainedParameter]) -> None:
    if lazy := [t.name for t in trained if t.lazy]:
        raise UsageError(
            f"row-sparse updates (lazy=, --sparse-update) need one batch per update; they are on for {', '.join(lazy)}"
        )


def fit_sums(
    arrays: dict[str, np.ndarray], trained: Sequence[str], states: Mapping[str, np.ndarray], waiting: int, rank: int
) -> None:
    """Make the gradient sums of a checkpoint those of a trainer with these states, which may have been saved by another
    number of processes or another `accumulate`.

    waiting: of how many batches they are; without any they are 0, and nothing is lost. A process adds what it has to
    the sums of the others, so that rank 0 alone takes those that wait. Raises UsageError where they have no place.
    """
    for key in (f"{name}/{GRADIENT_SUM}" for name in trained):
        if key in states and (rank > 0 or not waiting):
            arrays[key] = np.zeros_like(states[key])
        elif key not in states and key in arrays:
            if waiting:
                raise UsageError(
                    f"the checkpoint contains accumulated gradients of {waiting} batches, but this trainer updates "
                    f"after every batch: resume with accumulate={waiting + 1} (--accumulate), or more"
                )
            del arrays[key]
