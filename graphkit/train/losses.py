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
from graphkit.train.arguments import BELOW_ONE, FRACTION, NOT_NEGATIVE, integer, real
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
    target_weight,
)  # fmt: skip
from graphkit.train.probabilities import logits_of
from graphkit.train.programs.weights import BATCH_WEIGHT, Term, quotient, target_count
from graphkit.train.programs.weights import mixed as mixed_terms

__all__ = [
    "BoundLoss", "Loss", "attach", "balanced", "bind_loss", "categorical_cross_entropy", "dice", "focal", "get",
    "huber", "kl_divergence", "l1", "mse", "names", "sigmoid_binary_cross_entropy", "sigmoid_focal",
    "softmax_cross_entropy", "with_loss",
]  # fmt: skip

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
        per_sample: Whether the loss is a mean over samples, not over all targets.
        takes: Names of the possible options.
        options: The options that are set.
    """

    name: str
    build: Callable[..., Value]
    target_type: Callable[[TensorType], TensorType]
    of_logits: str = ""
    classes: bool = False
    probabilities: bool = False
    per_sample: bool = False
    takes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_options(self, **options: Any) -> Loss:
        """Return a copy of this loss with the options that are not None. Unknown options raise UsageError."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in self.takes:
                others = " and ".join(loss.name for loss in _LOSSES.values() if name in loss.takes)
                only = f": {_spelled(name)} only work with {others}" if others else ""
                raise UsageError(f"loss {self.name!r} has no option {name!r}{only}")
        if "label_smoothing" in given:
            given["label_smoothing"] = real(self.name, "label_smoothing", given["label_smoothing"], BELOW_ONE)
        if "class_weights" in given:
            weights = [real(self.name, "each of class_weights", w, NOT_NEGATIVE) for w in given["class_weights"]]
            given["class_weights"] = tuple(weights)
        for name, limit in (("gamma", NOT_NEGATIVE), ("alpha", FRACTION)):
            if name in given:
                given[name] = real(self.name, name, given[name], limit)
        if "ignore_index" in given:
            given["ignore_index"] = integer(self.name, "ignore_index", given["ignore_index"], -(1 << 63))
            if given["ignore_index"] >= 1 << 63:
                raise UsageError(f"{self.name}: ignore_index={given['ignore_index']} is not an int64 number")
        return replace(self, build=partial(self.build, **given), options={**self.options, **given}) if given else self

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def term(self, graph: Graph, output: Value, target: Value) -> Term:
        """Return the loss of an output of `graph`, and the weight of the batch."""
        mean = _scalar(self.build(output, target))
        if self.per_sample:
            return Term(mean, None)
        weights = self.class_weights, self.ignore_index
        return Term(mean, target_count(graph, target) if weights == (None, None) else target_weight(target, *weights))

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """The weights of the classes, by which a loss of class numbers is divided; None if there are none."""
        return self.options.get("class_weights") if self.classes else None

    @property
    def ignore_index(self) -> int | None:
        """The class number of targets that do not count; None if all count."""
        return self.options.get("ignore_index")

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
            if self.ignore_index is not None:
                numbers += f", or {self.ignore_index} (ignored)"
            return f"{numbers}, {kind}, for the output {output}"
        return f"targets {'from 0 to 1, ' if self.probabilities else ''}of the shape of the output, {kind}"


# A loss as a Trainer takes it.
AnyLoss: TypeAlias = str | Loss | LossFunction | Mapping[str, str | Loss]


def _classes(logits: TensorType) -> TensorType:
    return TensorType(DType.INT64, logits.known_shape[:-1])


def _same(output: TensorType) -> TensorType:
    return TensorType(output.dtype, output.shape)


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
    "categorical_crossentropy": "categorical_cross_entropy",
    "kl_div": "kl_divergence",
    "kldiv": "kl_divergence",
    "focal_loss": "focal",
    "sigmoid_focal_loss": "sigmoid_focal",
    "binary_focal_crossentropy": "sigmoid_focal",
    "dice_loss": "dice",
}

_CLASS_OPTIONS = ("label_smoothing", "class_weights")


def _spelled(option: str) -> str:
    """Return an option as it is written in Python and on the command line."""
    own = option in (*_CLASS_OPTIONS, "ignore_index")
    return f"{option}= and --{option.replace('_', '-')}" if own else f"{option}= and --loss-option {option}=X"


_LOSSES = {
    loss.name: loss
    for loss in (
        Loss(
            "softmax_cross_entropy",
            softmax_cross_entropy,
            _classes,
            "Softmax",
            classes=True,
            takes=(*_CLASS_OPTIONS, "ignore_index"),
        ),
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
        Loss("categorical_cross_entropy", categorical_cross_entropy, _same, "Softmax", probabilities=True),
        Loss("kl_divergence", kl_divergence, _same, "Softmax", probabilities=True),
        Loss("focal", focal, _classes, "Softmax", classes=True, takes=("gamma",)),
        Loss("sigmoid_focal", sigmoid_focal, _same, "Sigmoid", probabilities=True, takes=("gamma", "alpha")),
        Loss("dice", dice, _same, "Sigmoid", probabilities=True, per_sample=True),
    )
}


def names() -> list[str]:
    """Return the names of all losses."""
    return list(_LOSSES)


@typed("gk.losses.get")
def get(
    name: str | Loss,
    *,
    label_smoothing: float | None = None,
    class_weights: Sequence[float] | None = None,
    ignore_index: int | None = None,
    gamma: float | None = None,
    alpha: float | None = None,
) -> Loss:
    """Return a loss by its name, with options. The function of the same name in `gk.losses` explains them."""
    if isinstance(name, Loss):
        found = name
    elif name in _LOSSES:
        found = _LOSSES[name]
    else:
        raise UsageError(f"unknown loss {name!r}{did_you_mean(_OTHER_NAMES.get(name, name), _LOSSES)}")
    return found.with_options(
        label_smoothing=label_smoothing,
        class_weights=class_weights,
        ignore_index=ignore_index,
        gamma=gamma,
        alpha=alpha,
    )


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

        The key has the target, the class weights and the ignored class number, or else the symbolic dimensions of the
        target that are counted. The value is the name of the first output whose loss has this divisor.
        """
        over: dict[tuple[Any, ...], str] = {}
        for target, (loss, output) in self.named.items():
            shape = self.targets[target].shape or ()
            dims = shape[:1] if loss.per_sample else shape
            if loss.class_weights or loss.ignore_index is not None:
                over.setdefault((target, loss.class_weights, loss.ignore_index), output)
            else:
                over.setdefault(tuple(dim for dim in dims if not isinstance(dim, int)), output)
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
        return Term(total, first.weight if len(made.averaged_over) == 1 else None)

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
