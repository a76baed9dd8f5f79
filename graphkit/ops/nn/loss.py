"""Classification losses: negative log likelihood, softmax cross entropy, and its gradient operator.

Scores are [N, C, d1, ..., dk] with the classes on axis 1, labels [N, d1, ..., dk]. A label equal to
`ignore_index` has weight 0; every other label is in [0, C).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch, UsageError
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, INDICES, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, apply, op
from graphkit.ops.nn.softmax import log_softmax, log_softmax_gradient
from graphkit.ops.operands import check_stored, fits
from graphkit.ops.pointwise import scalar_like

_LABELS = np.array([2, 0, 3], np.int64)
_PIXELS = np.array([[[0, 3], [1, 1]], [[2, 0], [3, 2]]], np.int64)
_WEIGHTS = Rand((4,), 0.5, 2.0)


class ClassLoss(Op):
    """Base of the losses: reduction, ignore_index, operand checks, and the weight of each label."""

    ignore_index: int | None = None
    reduction: str = "mean"

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        at = next(i for i, name in enumerate(self.inputs) if name in ("labels", "target"))
        shape = inputs[at - 1].tensor.shape  # of the scores
        return "labels", inputs[at], inputs[at - 1] if shape is None else shape[1], self.ignore_index

    def check(self, scores: TensorType, labels: TensorType, weights: TensorType | None) -> None:
        """Raise TypeMismatch if the shapes do not match."""
        if self.reduction not in ("none", "mean", "sum"):
            raise UsageError(f"reduction must be 'none', 'mean' or 'sum', not {self.reduction!r}")
        if scores.shape is not None:
            if len(scores.shape) < 2:
                raise TypeMismatch(f"scores {scores} have no class axis")
            if not fits(labels.shape, (scores.shape[0], *scores.shape[2:])):
                raise TypeMismatch(f"labels {labels} do not fit scores {scores}")
        if weights is not None:
            classes = weights.shape if scores.shape is None else scores.shape[1:2]
            if weights.rank not in (None, 1) or not fits(weights.shape, classes):
                raise TypeMismatch(f"weights {weights} are not one number per class of scores {scores}")

    def loss_type(self, scores: TensorType, labels: TensorType) -> TensorType:
        if self.reduction != "none":
            return TensorType(scores.dtype, ())
        if labels.shape is None and scores.shape is not None:
            return TensorType(scores.dtype, (scores.shape[0], *scores.shape[2:]))
        return TensorType(scores.dtype, labels.shape)

    # --- on arrays -----------------------------------------------------------------------------

    def label_weights(self, xp: Any, scores: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Return labels (0 for ignored ones), the mask of labels that are not ignored, and the weight of each label."""
        classes = scores.shape[1]
        valid = xp.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        if bool(xp.any(valid & ((labels < 0) | (labels >= classes)))):
            raise RuntimeFailure(f"a label is outside [0, {classes}) and is not ignore_index ({self.ignore_index})")
        safe = xp.where(valid, labels, 0)
        weight = valid.astype(scores.dtype)
        if weights is not None and safe.size:
            weight = weight * weights[safe]
        return safe, valid, weight

    def likelihood_loss(self, xp: Any, log_prob: Any, labels: Any, weights: Any) -> Any:
        safe, valid, weight = self.label_weights(xp, log_prob, labels, weights)
        index = xp.expand_dims(safe, 1)
        picked = xp.take_along_axis(log_prob, index, axis=1) if log_prob.shape[1] else xp.zeros(index.shape)
        # The loss of an ignored target is 0, even if it would be infinite.
        each = (xp.where(valid, -xp.squeeze(picked, axis=1), 0) * weight).astype(log_prob.dtype)
        if self.reduction == "none":
            return each
        total = xp.sum(each)
        return total if self.reduction == "sum" else total / xp.sum(weight)

    # --- in the graph --------------------------------------------------------------------------

    def built_weights(self, scores: Any, labels: Any, weights: Any) -> Any:
        """Build the weight of each label; None if all are 1."""
        if self.ignore_index is None:
            return None if weights is None else F.gather(weights, labels, axis=0)
        valid = F.not_(F.equal(labels, self.ignore_index))
        if weights is None:
            return F.cast(valid, to=scores.dtype)
        gathered = F.gather(weights, F.where(valid, labels, scalar_like(0, labels)), axis=0)
        return F.where(valid, gathered, scalar_like(0.0, gathered))

    def built_hits(self, scores: Any, labels: Any) -> Any:
        """Build bool [N, C, d1, ..., dk]: whether the class is the label and not ignored."""
        size = F.slice(F.shape(scores), np.array([1]), np.array([2]), np.array([0]))
        count = F.squeeze(size, np.array([0]))
        numbers = F.range(np.array(0, np.int64), count, np.array(1, np.int64))
        classes = F.reshape(F.cast(numbers, to=labels.dtype), _class_shape(scores))
        hits = F.equal(F.unsqueeze(labels, np.array([1])), classes)
        if self.ignore_index is None or self.ignore_index < 0:
            return hits
        return F.and_(hits, F.not_(F.equal(classes, self.ignore_index)))

    def built_total_weight(self, scores: Any, labels: Any, weight: Any) -> Any:
        if weight is None:
            return F.cast(F.size(labels), to=scores.dtype)
        return F.reduce_sum(weight, keepdims=False)


def _class_shape(scores: Any) -> Any:
    """Return the shape [C, 1, ..., 1], in which one number per class broadcasts to the scores."""
    minus_one = np.array([-1], np.int64)
    if scores.rank is not None:
        return np.array([-1] + [1] * (scores.rank - 2), np.int64)
    beyond = F.sub(F.shape(F.shape(scores)), np.array([2], np.int64))
    return F.concat(minus_one, F.expand(np.array([1], np.int64), beyond), axis=0)


@op
class NegativeLogLikelihoodLoss(ClassLoss):
    """-weight[t] * x[t] for each target t; `reduction`: "mean" (their weighted mean), "sum" or "none" (one each).

    x: log-probabilities [N, C, d1, ..., dk]; target: int [N, d1, ..., dk]; weight: [C]. Targets equal to `ignore_index`
    have weight 0. The mean divides by the sum of the weights, and is NaN if this sum is 0.
    """

    inputs = ("x", "target", "weight?")
    outputs = ("loss",)
    types = {"x": FLOATS, "target": INDICES, "weight": "x"}
    onnx = Onnx("NegativeLogLikelihoodLoss", since=22)
    samples = lambda: (
        Sample((3, 4), _LABELS),
        Sample((3, 4), _LABELS, _WEIGHTS, reduction="sum"),
        Sample((3, 4), np.array([2, -1, 3]), reduction="none", ignore_index=-1),
        Sample((2, 4, 2, 2), _PIXELS, _WEIGHTS, ignore_index=3),
    )

    def infer(self, x: TensorType, target: TensorType, weight: TensorType | None = None) -> TensorType:
        self.check(x, target, weight)
        return self.loss_type(x, target)

    def reference(self, xp: Any, x: Any, target: Any, weight: Any = None) -> Any:
        return self.likelihood_loss(xp, x, target, weight)

    def expand(self, x: Any, target: Any, weight: Any = None) -> Any:
        each_weight = self.built_weights(x, target, weight)
        picked = F.where(self.built_hits(x, target), x, scalar_like(0.0, x))
        each = F.neg(F.reduce_sum(picked, np.array([1], np.int64), keepdims=False))
        if each_weight is not None:
            each = each * each_weight
        if self.reduction == "none":
            return each
        total = F.reduce_sum(each, keepdims=False)
        return total if self.reduction == "sum" else total / self.built_total_weight(x, target, each_weight)


@op
class SoftmaxCrossEntropyLoss(ClassLoss):
    """Negative log likelihood of log_softmax(scores) along axis 1; the second output is these log-probabilities.

    scores: [N, C, d1, ..., dk]; labels: int [N, d1, ..., dk]; weights: [C]. `reduction` is "mean", "sum" or "none" (one
    loss for each label). The mean divides by the sum of the weights of the labels, and is NaN if this sum is 0. Labels
    equal to `ignore_index` have weight 0.
    """

    inputs = ("scores", "labels", "weights?")
    outputs = ("loss", "log_prob")
    types = {"scores": FLOATS, "labels": INDICES, "weights": "scores"}
    onnx = Onnx("SoftmaxCrossEntropyLoss", since=13)
    samples = lambda: (
        Sample((3, 4), _LABELS),
        Sample((3, 4), _LABELS.astype(np.int32), reduction="sum"),
        Sample((3, 4), _LABELS, reduction="none"),
        Sample((3, 4), _LABELS, _WEIGHTS),
        Sample((3, 4), np.array([2, -1, 3]), ignore_index=-1),
        Sample((3, 4), np.array([2, 9, 3]), _WEIGHTS, ignore_index=9),
        Sample((2, 4, 2, 2), _PIXELS, _WEIGHTS, ignore_index=3),
        Sample((2, 4, 2, 2), _PIXELS, _WEIGHTS, reduction="none"),
        Sample((2, 4, 3), np.array([[0, 1, 2], [3, 0, 1]]), _WEIGHTS, reduction="sum", ignore_index=0),
        # onnx=False: neither onnx's evaluator nor ONNX Runtime takes an empty batch.
        Sample((0, 4), np.zeros((0,), np.int64), reduction="sum", onnx=False),
    )

    def infer(self, scores: TensorType, labels: TensorType, weights: TensorType | None = None) -> Any:
        self.check(scores, labels, weights)
        return self.loss_type(scores, labels), TensorType(scores.dtype, scores.shape)

    def reference(self, xp: Any, scores: Any, labels: Any, weights: Any = None) -> Any:
        log_prob = log_softmax(xp, scores, 1)
        return self.likelihood_loss(xp, log_prob, labels, weights), log_prob

    def grad(self, node: Node, dloss: Any, dlog_prob: Any) -> Any:
        _, labels, weights = self.named_inputs(node.inputs).values()
        loss, log_prob = node.outputs
        dscores = dweights = None
        if dloss is not None:
            dscores = F.softmax_cross_entropy_grad(
                dloss, log_prob, labels, weights, ignore_index=self.ignore_index, reduction=self.reduction
            )
            if weights is not None:
                dweights = self._weight_gradient(dloss, loss, log_prob, labels, weights)
        if dlog_prob is not None:
            through = log_softmax_gradient(log_prob, dlog_prob, 1)
            dscores = through if dscores is None else dscores + through
        return (dscores, None, dweights)[: len(node.inputs)]

    def _weight_gradient(self, dloss: Any, loss: Any, log_prob: Any, labels: Any, weights: Any) -> Any:
        # With l_i = -log_prob[i, label_i]: d/dw_c of sum w l is the sum of l_i over label_i == c; of the weighted
        # mean, (the sum of l_i - mean over label_i == c) / total weight.
        each = F.neg(log_prob)
        if self.reduction == "mean":
            total = self.built_total_weight(log_prob, labels, self.built_weights(log_prob, labels, weights))
            each = (each - loss) * (dloss / total)
        else:
            each = each * (F.unsqueeze(dloss, np.array([1])) if self.reduction == "none" else dloss)
        chosen = F.where(self.built_hits(log_prob, labels), each, scalar_like(0.0, each))
        per_class = F.reduce_to_shape_of(chosen, F.reshape(weights, _class_shape(log_prob)))
        return F.reshape(per_class, F.shape(weights))


@op
class SoftmaxCrossEntropyGrad(ClassLoss):
    """Gradient of SoftmaxCrossEntropyLoss for scores: weights[label] * (softmax - one_hot(label)) * dloss.

    dloss: gradient with respect to the loss, of the shape of the loss; log_prob: the second output of the loss, [N, C,
    d1, ..., dk].
    """

    domain = DOMAIN
    inputs = ("dloss", "log_prob", "labels", "weights?")
    outputs = ("dscores",)
    types = {"dloss": FLOATS, "log_prob": "dloss", "labels": INDICES, "weights": "dloss"}
    inplace = ((1, 0),)
    samples = lambda: (
        Sample((), (3, 4), _LABELS),
        Sample((), (3, 4), _LABELS.astype(np.int32), _WEIGHTS),
        Sample((3,), (3, 4), _LABELS, _WEIGHTS, reduction="none"),
        Sample((), (3, 4), np.array([2, -1, 3]), reduction="sum", ignore_index=-1),
        Sample((), (2, 4, 2, 2), _PIXELS, _WEIGHTS, ignore_index=3),
        Sample((2, 2, 2), (2, 4, 2, 2), _PIXELS, reduction="none", ignore_index=1),
        Sample((), (0, 4), np.zeros((0,), np.int64), reduction="sum"),
    )

    def infer(
        self, dloss: TensorType, log_prob: TensorType, labels: TensorType, weights: TensorType | None = None
    ) -> TensorType:
        self.check(log_prob, labels, weights)
        expected = self.loss_type(log_prob, labels)
        if not fits(dloss.shape, expected.shape):
            raise TypeMismatch(f"dloss {dloss} is not of the loss's type {expected}")
        return TensorType(log_prob.dtype, log_prob.shape)

    def reference(self, xp: Any, dloss: Any, log_prob: Any, labels: Any, weights: Any = None) -> Any:
        safe, _, weight = self.label_weights(xp, log_prob, labels, weights)
        scale = weight * dloss
        if self.reduction == "mean":
            scale = scale / xp.sum(weight)
        classes = xp.arange(log_prob.shape[1]).reshape([-1] + [1] * (log_prob.ndim - 2))
        one_hot = (xp.expand_dims(safe, 1) == classes).astype(log_prob.dtype)
        return (xp.exp(log_prob) - one_hot) * xp.expand_dims(scale, 1)

    def expand(self, dloss: Any, log_prob: Any, labels: Any, weights: Any = None) -> Any:
        weight = self.built_weights(log_prob, labels, weights)
        scale = dloss
        if self.reduction == "mean":
            scale = scale / self.built_total_weight(log_prob, labels, weight)
        if weight is not None:
            scale = scale * weight
        difference = F.exp(log_prob) - F.cast(self.built_hits(log_prob, labels), to=log_prob.dtype)
        # Without weights, all labels of a reduced loss have the same scale.
        per_label = weight is not None or self.reduction == "none"
        return difference * (F.unsqueeze(scale, np.array([1])) if per_label else scale)


@op
class SoftmaxCrossEntropyWithGrad(ClassLoss):
    """SoftmaxCrossEntropyLoss of rows of scores, reduced to one number, and its gradient, in one pass.

    The gradient is that with respect to scores. scores: [N, C]; labels: int [N]; dloss: gradient with respect to the
    loss, a scalar; weights: [C]. The computation uses the type of dloss. If that is float32, scores may be float16 or
    bfloat16; `made`, if given, is the type of dscores.
    """

    made: DType | None = None
    domain = DOMAIN
    inputs = ("scores", "labels", "dloss", "weights?")
    outputs = ("loss", "dscores")
    types = {"scores": FLOATS, "labels": INDICES, "dloss": FLOATS, "weights": "dloss"}
    inplace = ((0, 1),)
    samples = lambda: (
        Sample((3, 4), _LABELS, ()),
        Sample((3, 4), _LABELS.astype(np.int32), (), _WEIGHTS),
        Sample((3, 4), np.array([2, -1, 3]), (), reduction="sum", ignore_index=-1),
        Sample((3, 4), np.array([2, 9, 3]), (), _WEIGHTS, ignore_index=9),
        Sample((0, 4), np.zeros((0,), np.int64), (), reduction="sum"),
        Sample(Rand((3, 4), dtype="bfloat16"), _LABELS, Rand((), dtype="float32"), made=DType.BFLOAT16, grad=False),
        Sample(Rand((3, 4), dtype="float16"), _LABELS, Rand((), dtype="float32"), grad=False),
    )

    def infer(
        self, scores: TensorType, labels: TensorType, dloss: TensorType, weights: TensorType | None = None
    ) -> Any:
        self.check(scores, labels, weights)
        if self.reduction == "none" or scores.rank not in (None, 2):
            raise TypeMismatch(f"scores {scores} must be [N, C], and reduction 'mean' or 'sum', not {self.reduction!r}")
        made = self.made or dloss.dtype
        check_stored(dloss.dtype, scores.dtype, made)
        return TensorType(dloss.dtype, ()), TensorType(made, scores.shape)

    def parts(self) -> tuple[SoftmaxCrossEntropyLoss, SoftmaxCrossEntropyGrad]:
        """Build the two operators that it replaces."""
        options: Any = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        return SoftmaxCrossEntropyLoss(**options), SoftmaxCrossEntropyGrad(**options)

    def reference(self, xp: Any, scores: Any, labels: Any, dloss: Any, weights: Any = None) -> Any:
        forward, backward = self.parts()
        loss, log_prob = forward.reference(xp, scores.astype(dloss.dtype), labels, weights)
        dscores = backward.reference(xp, dloss, log_prob, labels, weights)
        return loss, dscores if self.made is None else dscores.astype(self.made.numpy)

    def expand(self, scores: Any, labels: Any, dloss: Any, weights: Any = None) -> Any:
        forward, backward = self.parts()
        loss, log_prob = apply(forward, F.cast(scores, to=dloss.dtype), labels, weights)
        return loss, F.cast(apply(backward, dloss, log_prob, labels, weights), to=self.made or dloss.dtype)
