"""Losses by name. A loss is a scalar, computed from outputs and targets, and averaged over the batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir import context
from graphkit.ir.graph import Graph, Value
from graphkit.ir.names import Names
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.signatures import typed
from graphkit.text import short_repr
from graphkit.train.arguments import BELOW_ONE, NOT_NEGATIVE, real
from graphkit.train.probabilities import logits_of
from graphkit.train.programs.weights import BATCH_WEIGHT, Term, quotient, target_count
from graphkit.train.programs.weights import mixed as mixed_terms

# Returns the mean over the batch, or a sum and the weight that it is to be divided by.
LossFunction: TypeAlias = Callable[..., Value | tuple[Value, Value]]

# The inputs of a mixed loss: `<target>_second` are the targets of the second samples, `mix` is the share of the first
# samples.
SECOND, MIX = "_second", "mix"


@dataclass(frozen=True)
class Loss:
    """A named loss.

    Attributes:
        name: Name of the loss.
        build: Function of (output, target) that returns a scalar.
        target_type: Function that returns the type of the target for the type of the output.
        of_logits: For a loss of logits: "Softmax" or "Sigmoid". If an output comes from this operator, the loss takes
            the operator's input.
        classes: Whether targets are class numbers.
        probabilities: Whether targets are probabilities.
        takes: Names of the possible options.
        options: The options that are set.
    """

    name: str
    build: Callable[..., Value]
    target_type: Callable[[TensorType], TensorType]
    of_logits: str = ""
    classes: bool = False
    probabilities: bool = False
    takes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_options(self, **options: Any) -> Loss:
        """Return a copy of this loss with the options that are not None. Unknown options raise UsageError."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in self.takes:
                others = " and ".join(loss.name for loss in _LOSSES.values() if name in loss.takes)
                both = f"{name}= and --{name.replace('_', '-')}"
                only = f": {both} only work with {others}" if others else ""
                raise UsageError(f"loss {self.name!r} has no option {name!r}{only}")
        if "label_smoothing" in given:
            given["label_smoothing"] = real(self.name, "label_smoothing", given["label_smoothing"], BELOW_ONE)
        if "class_weights" in given:
            weights = [real(self.name, "each of class_weights", w, NOT_NEGATIVE) for w in given["class_weights"]]
            given["class_weights"] = tuple(weights)
        return replace(self, build=partial(self.build, **given), options={**self.options, **given}) if given else self

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def term(self, graph: Graph, output: Value, target: Value) -> Term:
        """Return the loss of an output of `graph`, and the weight of the batch."""
        mean = _scalar(self.build(output, target))
        weights = self.options.get("class_weights") if self.classes else None
        return Term(mean, target_count(graph, target) if weights is None else weight_of_classes(target, weights))

    def largest_target(self, output: TensorType) -> int | None:
        """Return the largest valid target: classes - 1, or 1 for probabilities.

        None if targets can be any number, or if the number of classes is unknown.
        """
        if self.classes:
            count = output.known_shape[-1]
            return count - 1 if isinstance(count, int) else None
        return 1 if self.probabilities else None

    def describe_target(self, output: TensorType) -> str:
        """Describe in words which targets an output needs."""
        kind = self.target_type(output)
        if self.classes:
            largest = self.largest_target(output)
            numbers = "class numbers" if largest is None else f"class numbers from 0 to {largest}"
            return f"{numbers}, {kind}, for the output {output}"
        return f"targets {'from 0 to 1, ' if self.probabilities else ''}of the shape of the output, {kind}"


# A loss as a Trainer takes it.
AnyLoss: TypeAlias = str | Loss | LossFunction | Mapping[str, str | Loss]


def _classes(logits: TensorType) -> TensorType:
    return TensorType(DType.INT64, logits.known_shape[:-1])


def _same(output: TensorType) -> TensorType:
    return TensorType(output.dtype, output.shape)


def softmax_cross_entropy(
    logits: Value, target: Value, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
) -> Value:
    """Mean over all targets of -log p[target], where p = softmax(logits) along the last axis.

    With label smoothing s and class weights w it is, as in PyTorch:

        sum((1 - s) * w[target] * -log p[target] + s * mean(w * -log p)) / sum(w[target])

    The sums are over all targets, the mean is over the classes. By default s is 0, and all weights are 1.

    Args:
        logits: Float tensor [..., classes].
        target: int64 [...], class numbers.
        label_smoothing: s, the share of each target that is distributed equally over all classes (Szegedy et al.,
            2016); from 0 to below 1.
        class_weights: w, one number for each class, not negative. If sum(w[target]) is 0, the sum is not divided.
            Without label smoothing, the loss is then 0.

    Returns:
        The loss, a scalar of the type of logits.

    Raises:
        UsageError: The number of classes is unknown or 1, or differs from the number of weights.
    """
    classes = logits.tensor.known_shape[-1]
    if not isinstance(classes, int):
        raise UsageError(f"softmax_cross_entropy needs a fixed number of classes, not {logits}")
    if classes == 1:
        raise UsageError(
            f"the output {logits} has only one class, so softmax_cross_entropy is always 0. For a regression, use "
            "loss='mse' (--loss mse). For two classes, use loss='sigmoid_binary_cross_entropy' (--loss "
            "sigmoid_binary_cross_entropy), or an output with 2 columns"
        )
    if logits.rank != 2:
        logits = F.reshape(logits, np.array([-1, classes], np.int64))
        target = F.reshape(target, np.array([-1], np.int64))
    if class_weights is not None:
        return _weighted_cross_entropy(logits, target, label_smoothing, class_weights)
    loss, log_prob = F.softmax_cross_entropy_loss(logits, target, None, reduction="mean")
    if not label_smoothing:
        return _value(loss)
    return _smoothed(loss, _mean(F.neg(log_prob)), label_smoothing)


def _weighted_cross_entropy(
    logits: Value, target: Value, label_smoothing: float, class_weights: Sequence[float]
) -> Value:
    """Return the cross entropy with class weights. logits: [N, classes]; target: [N].

    Sums are float32, because the sum of many weights may overflow in float16.
    """
    classes = logits.tensor.known_shape[-1]
    assert isinstance(classes, int), "checked"
    if len(class_weights) != classes:
        raise UsageError(
            f"softmax_cross_entropy: {len(class_weights)} class weights (--class-weights) for {classes} classes"
        )
    factors = F.constant(value=np.array(class_weights, np.float32))
    each, log_prob = F.softmax_cross_entropy_loss(logits, target, F.cast(factors, to=logits.dtype), reduction="none")
    weight = weight_of_classes(target, class_weights)
    loss = quotient(F.reduce_sum(F.cast(each, to="float32"), keepdims=False), weight).mean
    if label_smoothing:
        all_classes = F.reduce_sum(F.neg(F.mul(F.cast(log_prob, to="float32"), factors)), keepdims=False)
        loss = _smoothed(
            loss, quotient(F.div(all_classes, scalar_like(float(classes), all_classes)), weight).mean, label_smoothing
        )
    return _value(F.cast(loss, to=logits.dtype))


def _smoothed(loss: Value, uniform_loss: Value, label_smoothing: float) -> Value:
    """Return (1 - s) * loss + s * uniform_loss, where uniform_loss is the loss for equal shares of all classes."""
    kept, smoothed = (scalar_like(share, loss) for share in (1.0 - label_smoothing, label_smoothing))
    return _value(F.add(F.mul(kept, loss), F.mul(smoothed, uniform_loss)))


def weight_of_classes(target: Value, class_weights: Sequence[float]) -> Value:
    """Return the sum of the class weights of targets (integers of any shape), as a float32 scalar."""
    factors = F.constant(value=np.array(class_weights, np.float32))
    return _value(F.stop_gradient(F.reduce_sum(F.gather(factors, target), keepdims=False)))


@typed("gk.losses.mse")
def mse(output: Value, target: Any) -> Value:
    """Mean of (output - target)^2 over all elements."""
    difference = F.sub(output, target)
    return _mean(F.mul(difference, difference))


@typed("gk.losses.l1")
def l1(output: Value, target: Any) -> Value:
    """Mean of |output - target| over all elements."""
    return _mean(F.abs(F.sub(output, target)))


@typed("gk.losses.huber")
def huber(output: Value, target: Any) -> Value:
    """Mean of d^2/2 where |d| <= 1, |d| - 1/2 elsewhere, d = output - target (Huber, 1964)."""
    distance = F.abs(F.sub(output, target))
    inside = F.clip(distance, None, scalar_like(1.0, output))
    half = scalar_like(0.5, output)
    return _mean(F.add(F.mul(half, F.mul(inside, inside)), F.sub(distance, inside)))


def sigmoid_binary_cross_entropy(
    logits: Value, target: Value, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
) -> Value:
    """Mean of -t log s(x) - (1-t) log(1-s(x)), where s is the logistic function, over all elements.

    Without class weights, it is computed as max(x,0) - x t + log(1+exp(-|x|)).

    Args:
        logits: Float tensor x of any shape.
        target: t, of the same shape and type, from 0 to 1.
        label_smoothing: Replaces targets by t (1 - label_smoothing) + label_smoothing / 2.
        class_weights: Two factors, (negative, positive). The negative one multiplies the term with 1 - t, the positive
            one the term with t.

    Returns:
        The loss, a scalar of the type of logits.
    """
    if label_smoothing:
        kept, half = (scalar_like(number, logits) for number in (1.0 - label_smoothing, label_smoothing / 2))
        target = F.add(F.mul(target, kept), half)
    if class_weights is not None:
        if len(class_weights) != 2:
            raise UsageError(
                f"sigmoid_binary_cross_entropy needs two class weights, (negative, positive), not {class_weights}"
            )
        no, yes = (scalar_like(weight, logits) for weight in class_weights)
        against = F.mul(F.mul(no, F.sub(scalar_like(1.0, logits), target)), F.softplus(logits))
        return _mean(F.add(against, F.mul(F.mul(yes, target), F.softplus(F.neg(logits)))))
    positive = F.relu(logits)
    return _mean(F.add(F.sub(positive, F.mul(logits, target)), F.softplus(F.neg(F.abs(logits)))))


def _mean(value: Value) -> Value:
    return _value(F.reduce_mean(value, keepdims=False))


def _value(value: Any) -> Value:
    assert isinstance(value, Value), "operators return a Value if their operands are Values"
    return value


@typed("gk.losses.balanced")
def balanced(targets: Any, classes: int) -> tuple[float, ...]:
    """Return class weights that give every class equal influence: samples / (classes * samples of the class).

    Raises UsageError if targets are not class numbers, or if a class has no sample.
    """
    labels = np.asarray(targets).reshape(-1)
    if labels.dtype.kind not in "biu":
        raise UsageError(f"balanced class weights need class numbers as targets, not {labels.dtype}")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise UsageError(
            f"balanced class weights: targets must be from 0 to {classes - 1}, but are from {labels.min()} to "
            f"{labels.max()}"
        )
    counts = np.bincount(labels.astype(np.int64), minlength=classes)
    if empty := [str(c) for c in np.flatnonzero(counts == 0)]:
        few = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise UsageError(
            f"balanced class weights need samples of every class, but the targets have none of class {few}; give the "
            "weights as numbers (class_weights=, --class-weights)"
        )
    return tuple((labels.size / (classes * counts)).tolist())


# Names in other libraries, for suggestions.
_OTHER_NAMES = {
    "mae": "l1",
    "smooth_l1": "huber",
    "cross_entropy": "softmax_cross_entropy",
    "sparse_categorical_crossentropy": "softmax_cross_entropy",
    "binary_crossentropy": "sigmoid_binary_cross_entropy",
    "binary_cross_entropy": "sigmoid_binary_cross_entropy",
    "bce_with_logits": "sigmoid_binary_cross_entropy",
}

_CLASS_OPTIONS = ("label_smoothing", "class_weights")

_LOSSES = {
    loss.name: loss
    for loss in (
        Loss("softmax_cross_entropy", softmax_cross_entropy, _classes, "Softmax", classes=True, takes=_CLASS_OPTIONS),
        Loss("mse", mse, _same),
        Loss("l1", l1, _same),
        Loss("huber", huber, _same),
        Loss(
            "sigmoid_binary_cross_entropy",
            sigmoid_binary_cross_entropy,
            _same,
            "Sigmoid",
            probabilities=True,
            takes=_CLASS_OPTIONS,
        ),
    )
}


def names() -> list[str]:
    """Return the names of all losses."""
    return list(_LOSSES)


@typed("gk.losses.get")
def get(
    name: str | Loss, *, label_smoothing: float | None = None, class_weights: Sequence[float] | None = None
) -> Loss:
    """Return a loss by its name, with options (see `softmax_cross_entropy` and `sigmoid_binary_cross_entropy`)."""
    if isinstance(name, Loss):
        found = name
    elif name in _LOSSES:
        found = _LOSSES[name]
    else:
        raise UsageError(f"unknown loss {name!r}{did_you_mean(_OTHER_NAMES.get(name, name), _LOSSES)}")
    return found.with_options(label_smoothing=label_smoothing, class_weights=class_weights)


def attach(
    graph: Graph,
    loss: AnyLoss,
    targets: Mapping[str, TensorType] | None = None,
    output: str | None = None,
    weights: Mapping[str, float] | None = None,
    *,
    mixed: bool = False,
    weighted: bool = False,
) -> Graph:
    """Return the graph with target inputs, and with the loss as its first output, `loss`, before its own outputs.

    If the graph already has an output `loss`, or an input with the name of a target, the new name gets a number:
    `loss_1`, `target_1` (see `target_inputs`).

    Args:
        graph: The graph of a model.
        loss: A name or a Loss, a function, or a dict of names or Losses by output. A named loss compares one output
            with a target called `target`. If it is a loss of logits, and the output comes from a Softmax (over the last
            axis) or Sigmoid, it takes the logits before it (see `logits_of`). A function is called with the outputs,
            then the targets. It returns the mean over the batch, or a sum and its weight. The losses of a dict are
            multiplied by `weights` and added.
        targets: The types of the targets by name. Required for a function. A named loss determines the type itself. A
            dict of losses also determines the names: see `target_of`.
        output: Name of the output for the loss. Required if there are several outputs and the loss is a name. If the
            loss is a function, it gets all outputs unless `output` is given.
        weights: Factors of the losses of a dict, by output (default: 1).
        mixed: Add a second input for each target (`SECOND`) and a scalar input `MIX`. The loss is MIX * loss(targets) +
            (1 - MIX) * loss(second targets), as in mixup (Zhang et al., 2018).
        weighted: If the weight of a batch is not its number of samples, add the weight as the last output,
            BATCH_WEIGHT.
    """
    found = bind_loss(graph, loss, targets, output, weights)
    names = target_inputs(graph, found.targets)
    placeholders = [Value(t, names[n]) for n, t in found.targets.items()]
    with context.made_by(f"loss {described(loss)}"):
        term = found.build(*placeholders)
        if mixed:
            second = [Value(t, f"{names[n]}{SECOND}") for n, t in found.targets.items()]
            mix = Value(TensorType(DType.FLOAT32, ()), MIX)
            term = mixed_terms(term, found.build(*second), mix)
            placeholders += [*second, mix]
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


def target_inputs(graph: Graph, targets: Iterable[str]) -> dict[str, str]:
    """Return the names of the inputs that `attach` adds, by the names of targets.

    An input has the target's name unless the graph uses that name already.
    """
    names = Names(graph.input_names)
    return {target: names.take(target) for target in targets}


@dataclass(frozen=True)
class BoundLoss:
    """A loss for the outputs of one graph.

    Attributes:
        build: Function that takes the targets as Values, in the order of `targets`, and returns the loss.
        targets: Types of the targets by name.
        named: For targets of named losses: the loss and the name of the output that it compares with the target.
    """

    build: Callable[..., Term]
    targets: Mapping[str, TensorType]
    named: Mapping[str, tuple[Loss, str]]

    @property
    def averaged_over(self) -> dict[tuple[Any, ...], str]:
        """The different divisors of the losses. Each key stands for a divisor.

        The key is the tuple of class weights, or else the tuple of the symbolic dimensions of the target. The value is
        the name of the first output whose loss has this divisor.
        """
        over: dict[tuple[Any, ...], str] = {}
        for target, (loss, output) in self.named.items():
            shape = self.targets[target].shape or ()
            weights = loss.options.get("class_weights") if loss.classes else None
            over.setdefault(weights or tuple(dim for dim in shape if not isinstance(dim, int)), output)
        return over

    def warn_of_weights(self) -> None:
        """Warn if the losses of several outputs have different divisors, because a batch has only one weight."""
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
        compared = [logits_of(v, known.of_logits) for v in chosen]
        if named:
            return BoundLoss(partial(known.term, graph, *compared), targets, named)
        function: LossFunction = known.build
    else:
        function, compared = loss, chosen
        if targets is None:
            raise UsageError("a loss that is a function needs targets={name: TensorType, ...}")

    def build(*given: Value) -> Term:
        return _term(function(*compared, *given))

    return BoundLoss(build, targets, named)


def _of_outputs(
    graph: Graph, outputs: Mapping[str, Value], given: Mapping[str, str | Loss],
    targets: Mapping[str, TensorType] | None, weights: Mapping[str, float],
) -> BoundLoss:  # fmt: skip
    """Return the weighted sum of the losses of several outputs."""
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

    types = {target_of(name): loss.target_type(outputs[name].tensor) for name, loss in losses.items()}
    named = {target_of(name): (loss, name) for name, loss in losses.items()}

    def build(*values: Value) -> Term:
        terms, first = [], None
        for (name, loss), target in zip(losses.items(), values, strict=True):
            found = loss.term(graph, logits_of(outputs[name], loss.of_logits), target)
            first = first or found
            factor, term = weights.get(name, 1.0), found.mean
            terms.append(term if factor == 1.0 else F.mul(scalar_like(factor, term), term))
        total = terms[0]
        for term in terms[1:]:
            total = F.add(total, F.cast(term, to=total.dtype) if term.dtype is not total.dtype else term)
        assert first is not None, "`given` is not empty"
        return Term(_value(total), first.weight if len(made.averaged_over) == 1 else None)

    made = BoundLoss(build, types, named)
    return made


def target_of(output: str) -> str:
    """Return the name of the target of one of several outputs."""
    return f"target_{output}"


def described(loss: AnyLoss) -> str:
    """Return a loss as text, for messages and logs."""
    if isinstance(loss, Mapping):
        return ", ".join(f"{output}={described(each)}" for output, each in loss.items())
    return str(loss) if isinstance(loss, (str, Loss)) else getattr(loss, "__name__", "function")


def _term(found: Any) -> Term:
    """Return the result of a loss function as a Term."""
    if not isinstance(found, (tuple, list)):
        return Term(_scalar(found), None)
    if len(found) != 2:
        raise UsageError(f"a loss must be a float scalar, or a pair of a sum and its weight, not {len(found)} values")
    return quotient(*map(_scalar, found))


def _scalar(value: Any) -> Value:
    if not isinstance(value, Value) or not value.dtype.is_float or value.rank not in (0, None):
        raise UsageError(f"a loss must be a float scalar, not {value}")
    return value


def _check_floats(graph: Graph, chosen: Sequence[Value], every: bool = False) -> None:
    """Raise UsageError if none of the outputs is floating-point: a loss of other types has no gradient.

    every: raise also if at least one output is not floating-point. The message names the last floating-point value
    before that output.
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
    """Return the nearest floating-point tensor before `value`, following the first operand of each node.

    None if there is no such tensor.
    """
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
