"""Losses of a model: attach one to a graph. A loss is a scalar, computed from outputs and targets."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir import context
from graphkit.ir.graph import Graph, Value
from graphkit.ir.names import Names
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.mxnet_io.output_heads import HEADS
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.train import defaults
from graphkit.train.alignment_loss import ctc
from graphkit.train.arguments import NOT_NEGATIVE, real
from graphkit.train.distance_losses import contrastive, triplet, triplet_margin
from graphkit.train.distillation import distillation
from graphkit.train.loss_functions import (
    categorical_cross_entropy,
    dice,
    focal,
    huber,
    kl_divergence,
    l1,
    mse,
    sigmoid_binary_cross_entropy,
    sigmoid_focal,
    softmax_cross_entropy,
    weight_sum,
)  # fmt: skip
from graphkit.train.named_losses import SAMPLE_WEIGHT, Loss, balanced, get, names, scalar_of
from graphkit.train.probabilities import logits_of
from graphkit.train.programs.weights import BATCH_WEIGHT, Term, quotient
from graphkit.train.programs.weights import mixed as mixed_terms

__all__ = [
    "BoundLoss", "Loss", "attach", "balanced", "bind_loss", "categorical_cross_entropy", "contrastive", "ctc",
    "default_loss", "dice", "distillation", "focal", "get", "huber", "kl_divergence", "l1", "mse", "names", "of_mxnet",
    "sigmoid_binary_cross_entropy", "sigmoid_focal", "softmax_cross_entropy", "triplet", "triplet_margin", "with_loss",
]  # fmt: skip

LossFunction: TypeAlias = Callable[..., Value | tuple[Value, Value]]

# Inputs of a mixed loss: `<target>_second` are the targets of the second samples, `mix` is the share of the first.
SECOND, MIX = "_second", "mix"

AnyLoss: TypeAlias = str | Loss | LossFunction | Mapping[str, str | Loss]


def attach(
    graph: Graph,
    loss: AnyLoss,
    targets: Mapping[str, TensorType] | None = None,
    output: str | None = None,
    weights: Mapping[str, float] | None = None,
    *,
    mixed: bool = False,
    weighted: bool = False,
    sample_weights: bool = False,
) -> Graph:
    """Return the graph with target inputs, and with the loss as its first output, `loss`, before its own outputs.

    If the graph already has an output `loss`, or an input with the name of a target, the new name gets a number:
    `loss_1`, `target_1` (see `target_inputs`).

    Args:
        graph: The graph of a model.
        loss: A name or a Loss, a function, or a dict of names or Losses by output. A named loss compares one output
            with a target called `target`. If a loss takes logits, and the output comes from a Softmax (over the last
            axis) or Sigmoid, the loss takes the operand of this operator instead (see `logits_of`). A function is
            called with the outputs, then the targets. It returns the mean over the batch, or a sum and its weight. The
            losses of a dict are multiplied by `weights` and added.
        targets: The types of the targets by name. Required for a function. A named loss determines the type itself. A
            dict of losses also determines the names: see `target_of`.
        output: Name of the output for the loss. Required if there are several outputs and the loss is a name. If the
            loss is a function, it gets all outputs unless `output` is given.
        weights: Factors of the losses of a dict, by output (default: 1).
        mixed: Add a second input for each target (`SECOND`) and a scalar input `MIX`. The loss is MIX * loss(targets) +
            (1 - MIX) * loss(second targets), as in mixup (Zhang et al., 2018).
        weighted: If the weight of a batch is not its number of samples, add the weight as the last output,
            BATCH_WEIGHT.
        sample_weights: Add an input `SAMPLE_WEIGHT`, float32 [N], with the weights of the samples.
    """
    found = bind_loss(graph, loss, targets, output, weights)
    with context.made_by(f"loss {described(loss)}"):
        term, placeholders = _placed(graph, found, mixed, sample_weights)
    further = {BATCH_WEIGHT: term.weight} if weighted and term.weight is not None else {}
    position = 1 + max((i for i, v in enumerate(graph.inputs) if v.role == "data"), default=-1)
    inputs = [*graph.inputs[:position], *placeholders, *graph.inputs[position:]]
    return Graph(
        inputs,
        [term.mean, *graph.outputs, *further.values()],
        graph.updates,
        graph.name,
        output_names=[Names(graph.output_names).take("loss"), *graph.output_names, *further],
        meta=graph.meta,
    )


def of_mxnet(net: Model, output: str | None = None) -> dict[str, Loss]:
    """Return losses by output, with the gradients of the output operators of a model from MXNet.

    They are the default of `gk.Trainer` for such a model. The gradients are those of SoftmaxOutput and the other output
    operators, with all their attributes, divided by the number of samples.

    Args:
        net: A model that was loaded from MXNet, or trained from one.
        output: Return only the loss of this output (default: of all).

    Returns:
        The losses, for `gk.Trainer(net, loss=...)`. Empty if the model has no output operators of MXNet.

    Raises:
        UsageError: For an output operator of the model, graphkit has no loss with the same gradient. The message names
            the operator.
    """
    if HEADS not in net.meta:
        return {}
    from graphkit.train.mxnet_losses import losses_of

    return {name: loss for name, loss in losses_of(net).items() if output in (None, name)}


def default_loss(net: Model, given: AnyLoss | None = None, output: str | None = None) -> AnyLoss:
    """Return the given loss, else the losses of MXNet's output operators, else the default loss.

    output: the output that the user chose for the loss, or None.
    """
    return given if given is not None else of_mxnet(net, output) or defaults.LOSS


def _placed(graph: Graph, bound: BoundLoss, mixed: bool, sample_weights: bool) -> tuple[Term, list[Value]]:
    """Return the loss of a graph, and the inputs of its targets. Arguments: see `attach`."""
    types, names = dict(bound.targets), target_inputs(graph, bound.targets)
    if sample_weights:
        types[SAMPLE_WEIGHT], names[SAMPLE_WEIGHT] = _weight_type(bound), weight_input(graph, bound.targets)
    placeholders = [Value(t, names[n]) for n, t in types.items()]

    def build(values: list[Value]) -> Term:
        return bound.build(*values[:-1], sample_weight=values[-1]) if sample_weights else bound.build(*values)

    if not mixed:
        return build(placeholders), placeholders
    second = [Value(t, f"{names[n]}{SECOND}") for n, t in types.items()]
    mix = Value(TensorType(DType.FLOAT32, ()), MIX)
    return mixed_terms(build(placeholders), build(second), mix), [*placeholders, *second, mix]


def target_inputs(graph: Graph, targets: Iterable[str]) -> dict[str, str]:
    """Return the names of the inputs that `attach` adds, by target.

    An input has the target's name unless the graph already uses this name.
    """
    names = Names(graph.input_names)
    return {target: names.take(target) for target in targets}


def weight_input(graph: Graph, targets: Iterable[str]) -> str:
    """Return the name of the input that `attach` adds for sample weights."""
    return Names([*graph.input_names, *target_inputs(graph, targets).values()]).take(SAMPLE_WEIGHT)


def _weight_type(bound: BoundLoss) -> TensorType:
    """Return float32 [N], where N is the first dimension of the first target."""
    shape = next((t.shape for t in bound.targets.values()), None)
    if not shape:
        raise UsageError("sample_weight= needs a target whose first axis counts samples")
    return TensorType(DType.FLOAT32, shape[:1])


@dataclass(frozen=True)
class BoundLoss:
    """A loss for the outputs of one graph.

    Attributes:
        build: Takes the targets as Values, in the order of `targets`, and `sample_weight` (a Value [N] or None). It
            returns the loss.
        targets: Types of the targets by name.
        named: The named loss and the output of each target.
    """

    build: Callable[..., Term]
    targets: Mapping[str, TensorType]
    named: Mapping[str, tuple[Loss, str]]

    @property
    def averaged_over(self) -> dict[tuple[Any, ...], str]:
        """The divisors of the losses, each with the first output whose loss has this divisor."""
        over: dict[tuple[Any, ...], str] = {}
        for target, (loss, output) in self.named.items():
            over.setdefault(loss.divisor(target, self.targets[target].shape or ()), output)
        return over

    def warn_of_weights(self) -> None:
        """Warn if losses have different divisors: a batch has only one weight."""
        if len(self.averaged_over) > 1:
            first, second, *_ = self.averaged_over.values()
            warnings.warn(
                f"the losses of outputs {first!r} and {second!r} have different divisors (numbers of targets, or sums "
                "of class weights). If losses of several batches or ranks are averaged, each batch is therefore "
                "weighted by its number of samples",
                stacklevel=5,
            )


def bind_loss(
    graph: Graph, loss: AnyLoss, targets: Mapping[str, TensorType] | None, output: str | None,
    weights: Mapping[str, float] | None = None,
) -> BoundLoss:  # fmt: skip
    """Return the loss with its targets. Arguments: see `attach`. Raises UsageError if they contradict each other."""
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    for name in (*(() if output is None else (output,)), *(loss if isinstance(loss, Mapping) else ())):
        if name not in outputs:
            raise UsageError(f"the model has no output {name!r}{did_you_mean(name, outputs)}")
    if isinstance(loss, Mapping):
        return _of_outputs(graph, outputs, loss, targets, weights or {})
    if weights:
        raise UsageError("loss_weights= needs a dict of losses by output: loss={output: loss, ...}")
    chosen = list(outputs.values()) if output is None else [outputs[output]]
    named: dict[str, tuple[Loss, str]] = {}
    if isinstance(loss, (str, Loss)):
        known = get(loss)
        _check_floats(graph, chosen)
        if not targets:
            if len(chosen) != 1:
                raise UsageError(
                    f"loss {known.name!r} takes one output, but the model has {len(chosen)} "
                    f"({', '.join(graph.output_names)}): choose one with output= (--output-name)"
                )
            targets = {"target": known.target_type(chosen[0].tensor)}
            named = {"target": (known, output or graph.output_names[0])}
        compared = [logits_of(_classes_last(known, v), known.of_logits) for v in chosen]
        if named:
            return BoundLoss(partial(known.term, graph, *compared), targets, named)
        function: LossFunction = known.build
    else:
        function, compared = loss, chosen
        if targets is None:
            raise UsageError("a loss that is a function needs targets={name: TensorType, ...}")

    def build(*given: Value, sample_weight: Value | None = None) -> Term:
        if sample_weight is None:
            return _term(function(*compared, *given))
        return _weighted_term(function, *compared, *given, sample_weight=sample_weight)

    return BoundLoss(build, targets, named)


def _of_outputs(
    graph: Graph, outputs: Mapping[str, Value], given: Mapping[str, str | Loss],
    targets: Mapping[str, TensorType] | None, weights: Mapping[str, float],
) -> BoundLoss:  # fmt: skip
    if not given:
        raise UsageError("loss={} is empty: give a loss for at least one output")
    if targets is not None:
        raise UsageError("a dict of losses determines the targets; leave targets= out")
    for name, weight in weights.items():
        if name not in given:
            raise UsageError(f"loss_weights: no output with a loss is called {name!r}{did_you_mean(name, given)}")
        real("loss_weights", name, weight, NOT_NEGATIVE)
    if odd := [loss for loss in given.values() if not isinstance(loss, (str, Loss))]:
        raise UsageError(f"losses by output must be names or results of gk.losses.get, not {odd[0]!r}")
    losses = {name: get(loss) for name, loss in given.items()}
    _check_floats(graph, [outputs[name] for name in losses], every=True)

    types: dict[str, TensorType] = {}
    named: dict[str, tuple[Loss, str]] = {}
    for name, loss in losses.items():
        target, kind = loss.target or target_of(name), loss.target_type(outputs[name].tensor)
        if loss.has_target and types.setdefault(target, kind) != kind:
            raise UsageError(f"two losses need different targets {target!r}: {types[target]} and {kind}")
        if loss.has_target:
            named.setdefault(target, (loss, name))

    def build(*values: Value, sample_weight: Value | None = None) -> Term:
        terms, first, given = [], None, dict(zip(types, values, strict=True))
        for name, loss in losses.items():
            # A loss without target does not read this operand.
            target = given[loss.target or target_of(name)] if loss.has_target else outputs[name]
            found = loss.term(
                graph, logits_of(_classes_last(loss, outputs[name]), loss.of_logits), target, sample_weight
            )
            first = first or found
            factor, term = weights.get(name, 1.0), found.mean
            terms.append(term if factor == 1.0 else F.mul(scalar_like(factor, term), term))
        total = terms[0]
        for term in terms[1:]:
            total = F.add(total, F.cast(term, to=total.dtype) if term.dtype is not total.dtype else term)
        assert first is not None, "`given` is not empty"
        if len(made.averaged_over) <= 1:
            return Term(total, first.weight)
        return Term(total, None if sample_weight is None else weight_sum(values[0], sample_weight, every_target=False))

    made = BoundLoss(build, types, named)
    return made


def _classes_last(loss: Loss, output: Value) -> Value:
    if loss.class_axis == -1:
        return output
    axes = [i for i in range(len(output.tensor.known_shape)) if i != loss.class_axis]
    return F.transpose(output, perm=[*axes, loss.class_axis])


def target_of(output: str) -> str:
    """Return the name of the target of one of several outputs."""
    return f"target_{output}"


def described(loss: AnyLoss) -> str:
    """Return a loss as text, for messages and logs."""
    if isinstance(loss, Mapping):
        return ", ".join(f"{output}={described(each)}" for output, each in loss.items())
    return str(loss) if isinstance(loss, (str, Loss)) else getattr(loss, "__name__", "function")


def _term(found: Any) -> Term:
    if not isinstance(found, (tuple, list)):
        return Term(scalar_of(found), None)
    if len(found) != 2:
        raise UsageError(f"a loss must be a float scalar, or a pair of a sum and its weight, not {len(found)} values")
    return quotient(*map(scalar_of, found))


def _weighted_term(function: LossFunction, *values: Value, sample_weight: Value) -> Term:
    name = getattr(function, "__name__", "function")
    if SAMPLE_WEIGHT not in inspect.signature(function).parameters:
        raise UsageError(
            f"sample_weight=: the loss {name} is a function without the parameter {SAMPLE_WEIGHT!r}. Add it, float32 "
            "[N], and return the pair (sum of the weighted losses, sum of the weights)"
        )
    found = function(*values, sample_weight=sample_weight)
    if not isinstance(found, (tuple, list)):
        raise UsageError(
            f"sample_weight=: the loss {name} must return the pair (sum of the weighted losses, sum of the weights), "
            "so that means over several batches are correct"
        )
    return _term(found)


def _check_floats(graph: Graph, chosen: Sequence[Value], every: bool = False) -> None:
    """Raise UsageError if none of the outputs is floating-point: their loss would have no gradient.

    every: raise also if one output is not floating-point.
    """
    odd = [value for value in chosen if not (isinstance(value.type, TensorType) and value.dtype.is_float)]
    if not odd or (len(odd) < len(chosen) and not every):
        return
    value = odd[0]
    message = f"{value} is not floating-point, so a loss of it has no gradient"
    if (last := float_behind(value)) is not None:
        message += (
            f"; the last floating-point value before it is {last}: make that the output, with gk.Model(net.value(NAME))"
        )
    raise UsageError(message)


def float_behind(value: Value) -> Value | None:
    """Return the nearest floating-point tensor before `value` along first operands, or None."""
    while not (isinstance(value.type, TensorType) and value.dtype.is_float):
        if value.node is None or not value.node.operands:
            return None
        value = value.node.operands[0]
    return value


def with_loss(
    model: Model,
    loss: AnyLoss,
    targets: Mapping[str, TensorType] | None = None,
    output: str | None = None,
) -> Model:
    """Return a model whose first output is the scalar loss, with the same parameters and one more input per target.

    The output is named `loss` and the input `target`, unless the model already has these names: see `attach`.

    Args:
        model: The model.
        loss: A name, a loss with options (`gk.losses.get(...)`), a function, or a dict of losses by output.
        targets: Names and types of the targets; only if the loss is a function.
        output: Name of the output for the loss; needed if the model has several.
    """
    return Model.from_graph(attach(model.graph, loss, targets, output), model.params.entries())
