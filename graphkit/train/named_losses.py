"""Losses by name, with their options and the types of their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.signatures import typed
from graphkit.text import short_repr
from graphkit.train.alignment_loss import ctc
from graphkit.train.arguments import BELOW_ONE, FRACTION, NOT_NEGATIVE, integer, real
from graphkit.train.distance_losses import contrastive, triplet, triplet_term
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
    weight_sum,
)  # fmt: skip
from graphkit.train.programs.weights import Term, target_count

# The input with the weights of samples, and the parameter of loss functions that take them.
SAMPLE_WEIGHT = "sample_weight"


@dataclass(frozen=True)
class Loss:
    """A named loss.

    Attributes:
        build: Function of (output, target) that returns a scalar.
        target_type: Returns the type of the target for the type of the output.
        of_logits: "Softmax" or "Sigmoid": if an output comes from this operator, the loss takes the operator's input.
        classes: Whether targets are class numbers.
        probabilities: Whether targets are probabilities.
        per_sample: Whether the loss is a mean over samples, not over all targets.
        weighs: Function with the arguments of `build` that returns the loss and the weight of the batch. None: the
            weight is the number of samples or targets.
        needs: Which targets the loss needs, in words (default: a description from the other attributes).
        options: The options that are set.
        takes: Names of the possible options.
        has_target: Whether the loss compares its output with a target.
        target: Name of the target if the loss is one of several (default: see `losses.target_of`).
    """

    name: str
    build: Callable[..., Value]
    target_type: Callable[[TensorType], TensorType]
    of_logits: str = ""
    classes: bool = False
    probabilities: bool = False
    per_sample: bool = False
    weighs: Callable[..., Term] | None = None
    needs: str = ""
    takes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    has_target: bool = True

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
        if "blank" in given:
            given["blank"] = integer(self.name, "blank", given["blank"], 0)
        for name, limit in (("gamma", NOT_NEGATIVE), ("alpha", FRACTION), ("margin", NOT_NEGATIVE)):
            if name in given:
                given[name] = real(self.name, name, given[name], limit)
        if "ignore_index" in given:
            given["ignore_index"] = integer(self.name, "ignore_index", given["ignore_index"], -(1 << 63))
            if given["ignore_index"] >= 1 << 63:
                raise UsageError(f"{self.name}: ignore_index={given['ignore_index']} is not an int64 number")
        if "axis" in given:
            given["axis"] = integer(self.name, "axis", given["axis"], 1)
        if not given:
            return self
        options = {**self.options, **given}
        if (axis := given.pop("axis", None)) is not None:
            return replace(self.with_options(**given), target_type=partial(_classes, axis=axis), options=options)
        weighs = None if self.weighs is None else partial(self.weighs, **given)
        return replace(self, build=partial(self.build, **given), weighs=weighs, options=options)

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def term(self, graph: Graph, output: Value, target: Value, sample_weight: Value | None = None) -> Term:
        """Return the loss of an output, and the weight of the batch. sample_weight: [N], or None."""
        further = {} if sample_weight is None else {SAMPLE_WEIGHT: sample_weight}
        if self.weighs is not None:
            return self.weighs(output, target, **further)
        mean = scalar_of(self.build(output, target, **further))
        weights = self.class_weights, self.ignore_index
        if weights != (None, None):
            return Term(mean, target_weight(target, *weights, sample_weight))
        if sample_weight is not None:
            return Term(mean, weight_sum(target, sample_weight, every_target=not self.per_sample))
        return Term(mean, None if self.per_sample else target_count(graph, target))

    def divisor(self, target: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a key that is equal for losses with the same divisor.

        With class weights or an ignored class, it contains these and the target's name, else the symbolic dimensions
        along which targets are counted.
        """
        if self.class_weights or self.ignore_index is not None:
            return target, self.class_weights, self.ignore_index
        return tuple(dim for dim in (shape[:1] if self.per_sample else shape) if not isinstance(dim, int))

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """The class weights, if targets are class numbers and the option is set."""
        return self.options.get("class_weights") if self.classes else None

    @property
    def ignore_index(self) -> int | None:
        """The class number of targets that do not count, or None."""
        return self.options.get("ignore_index")

    @property
    def class_axis(self) -> int:
        """The axis of the output that counts the classes."""
        return int(self.options.get("axis", -1))

    def largest_target(self, output: TensorType) -> int | None:
        """Return the largest valid target: classes - 1, or 1 for probabilities; None if unlimited or unknown."""
        if self.classes:
            shape = output.known_shape
            count = shape[self.class_axis] if self.class_axis < len(shape) else None
            return count - 1 if isinstance(count, int) else None
        return 1 if self.probabilities else None

    def describe_target(self, output: TensorType) -> str:
        """Describe in words which targets an output needs."""
        kind = self.target_type(output)
        if self.needs:
            return f"{self.needs}, {kind}"
        if self.classes:
            largest = self.largest_target(output)
            numbers = "class numbers" if largest is None else f"class numbers from 0 to {largest}"
            if self.ignore_index is not None:
                numbers += f", or {self.ignore_index} (ignored)"
            return f"{numbers}, {kind}, for the output {output}"
        return f"targets {'from 0 to 1, ' if self.probabilities else ''}of the shape of the output, {kind}"


def scalar_of(value: Any) -> Value:
    if not isinstance(value, Value) or not value.dtype.is_float or value.rank not in (0, None):
        raise UsageError(f"a loss must be a float scalar, not {value}")
    return value


def _classes(logits: TensorType, axis: int = -1) -> TensorType:
    shape = logits.known_shape
    if axis >= len(shape):
        raise UsageError(f"axis={axis}: the output {logits} has {len(shape)} axes, counted from 0")
    return TensorType(DType.INT64, [size for i, size in enumerate(shape) if i != axis % len(shape)])


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


def _labels(logits: TensorType) -> TensorType:
    """Return the type of the targets of `ctc`: one row of labels per sample, of a new symbolic length."""
    return TensorType(DType.INT64, (logits.known_shape[0], dims.fresh()))


def _class_of_sample(embedding: TensorType) -> TensorType:
    return TensorType(DType.INT64, embedding.known_shape[:1])


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
    "ctc_loss": "ctc",
    "contrastive_loss": "contrastive",
    "triplet_loss": "triplet",
    "triplet_hard_loss": "triplet",
    "triplet_margin": "triplet",
}

_CLASS_OPTIONS = ("label_smoothing", "class_weights")


def _spelled(option: str) -> str:
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
            takes=(*_CLASS_OPTIONS, "ignore_index", "axis"),
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
        Loss("focal", focal, _classes, "Softmax", classes=True, takes=("gamma", "axis")),
        Loss("sigmoid_focal", sigmoid_focal, _same, "Sigmoid", probabilities=True, takes=("gamma", "alpha")),
        Loss("dice", dice, _same, "Sigmoid", probabilities=True, per_sample=True),
        Loss(
            "ctc",
            ctc,
            _labels,
            "Softmax",
            per_sample=True,
            takes=("blank",),
            needs="class numbers of the labels of each sample, in rows that end with -1",
        ),
        Loss("contrastive", contrastive, _same, probabilities=True, takes=("margin",)),
        Loss(
            "triplet",
            triplet,
            _class_of_sample,
            weighs=triplet_term,
            takes=("margin",),
            needs="the class number of each sample",
        ),
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
    margin: float | None = None,
    blank: int | None = None,
    axis: int | None = None,
) -> Loss:
    """Return a loss by its name, with options. The function of the same name in `gk.losses` explains them.

    axis: the axis of the output that counts the classes (default: the last one), such as 1 for logits [N, C, H, W].
    """
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
        margin=margin,
        blank=blank,
        axis=axis,
    )
