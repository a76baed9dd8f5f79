"""Loss functions: from outputs and targets (graph values) to a scalar averaged over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.signatures import typed
from graphkit.train.programs.weights import quotient


def softmax_cross_entropy(
    logits: Value,
    target: Value,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
    ignore_index: int | None = None,
    sample_weight: Value | None = None,
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
        ignore_index: Targets of this value do not count, such as the padding of a text or the border of a segment. It
            may be outside of the class numbers.
        sample_weight: float [N], one weight per sample, not negative: it multiplies the terms of both sums.

    Returns:
        The loss, a scalar of the type of logits.

    Raises:
        UsageError: The number of classes is unknown or 1, or differs from the number of weights.
    """
    row_weight = None if sample_weight is None else _over_rows(sample_weight, target)
    logits, target = _rows(logits, target, "softmax_cross_entropy")
    if class_weights is not None or ignore_index is not None or row_weight is not None:
        return _weighted_cross_entropy(logits, target, label_smoothing, class_weights, ignore_index, row_weight)
    loss, log_prob = F.softmax_cross_entropy_loss(logits, target, None, reduction="mean")
    if not label_smoothing:
        return value_of(loss)
    return _smoothed(loss, _mean(F.neg(log_prob)), label_smoothing)


def _rows(logits: Value, target: Value, loss: str) -> tuple[Value, Value]:
    """Return logits as [N, classes] and targets as [N]. Raises UsageError if the number of classes is unknown or 1."""
    classes = logits.tensor.known_shape[-1]
    if not isinstance(classes, int):
        raise UsageError(f"{loss} needs a fixed number of classes, not {logits}")
    if classes == 1:
        raise UsageError(
            f"the output {logits} has only one class, so {loss} is always 0. For a regression, use "
            "loss='mse' (--loss mse). For two classes, use loss='sigmoid_binary_cross_entropy' (--loss "
            "sigmoid_binary_cross_entropy), or an output with 2 columns"
        )
    if logits.rank == 2:
        return logits, target
    return F.reshape(logits, np.array([-1, classes], np.int64)), F.reshape(target, np.array([-1], np.int64))


def _weighted_cross_entropy(
    logits: Value,
    target: Value,
    label_smoothing: float,
    class_weights: Sequence[float] | None,
    ignore_index: int | None,
    row_weight: Value | None,
) -> Value:
    """Return the cross entropy with class weights or ignored targets. logits: [N, classes]; target, row_weight: [N].

    Sums are float32: many weights may overflow float16.
    """
    classes = logits.tensor.known_shape[-1]
    assert isinstance(classes, int), "checked"
    if class_weights is not None and len(class_weights) != classes:
        raise UsageError(
            f"softmax_cross_entropy: {len(class_weights)} class weights (--class-weights) for {classes} classes"
        )
    factors = np.array(np.ones(classes) if class_weights is None else class_weights, np.float32)
    each, log_prob = F.softmax_cross_entropy_loss(
        logits, target, F.cast(F.constant(value=factors), to=logits.dtype), reduction="none", ignore_index=ignore_index
    )
    weight = target_weight(target, class_weights, ignore_index, row_weight)
    each = F.cast(each, to="float32")
    if row_weight is not None:
        each = F.mul(each, row_weight)
    loss = quotient(F.reduce_sum(each, keepdims=False), weight).mean
    if label_smoothing:
        shares = F.mul(F.cast(log_prob, to="float32"), F.constant(value=-factors / np.float32(classes)))
        if ignore_index is not None:
            shares = F.where(F.unsqueeze(_kept(target, ignore_index), np.array([1])), shares, np.float32(0))
        if row_weight is not None:
            shares = F.mul(shares, F.unsqueeze(row_weight, np.array([1])))
        loss = _smoothed(loss, quotient(F.reduce_sum(shares, keepdims=False), weight).mean, label_smoothing)
    return value_of(F.cast(loss, to=logits.dtype))


def _kept(target: Value, ignore_index: int) -> Value:
    return value_of(F.not_(F.equal(target, np.array(ignore_index, target.dtype.numpy))))


def _smoothed(loss: Value, uniform_loss: Value, label_smoothing: float) -> Value:
    """Return (1 - s) * loss + s * uniform_loss. uniform_loss: the loss for equal shares of all classes."""
    kept, smoothed = (scalar_like(share, loss) for share in (1.0 - label_smoothing, label_smoothing))
    return value_of(F.add(F.mul(kept, loss), F.mul(smoothed, uniform_loss)))


def target_weight(
    target: Value, class_weights: Sequence[float] | None = None, ignore_index: int | None = None,
    sample_weight: Value | None = None,
) -> Value:  # fmt: skip
    """Return the sum of the weights of targets (integers of any shape), as a float32 scalar.

    A target has the weight of its class (default: 1) times that of its sample, and 0 for `ignore_index`.
    """
    kept = None if ignore_index is None else _kept(target, ignore_index)
    if class_weights is None:
        if kept is None:
            assert sample_weight is not None, "targets have weights, or some are ignored"
            return weight_sum(target, sample_weight, every_target=True)
        weights = F.cast(kept, to="float32")
    else:
        factors = F.constant(value=np.array(class_weights, np.float32))
        if kept is None:
            weights = F.gather(factors, target)
        else:
            safe = F.where(kept, target, np.array(0, target.dtype.numpy))
            weights = F.where(kept, F.gather(factors, safe), np.float32(0))
    if sample_weight is not None:
        weights = F.mul(weights, _along(sample_weight, target))
    return value_of(F.stop_gradient(F.reduce_sum(weights, keepdims=False)))


def weight_sum(target: Value, sample_weight: Value, *, every_target: bool) -> Value:
    """Return the sum of the weights of samples, as a float32 scalar.

    every_target: Multiply the sum by the number of targets of a sample, such as the number of steps of a sequence.
        Axes with a fixed size are not counted.
    """
    total = F.reduce_sum(F.cast(sample_weight, to="float32"), keepdims=False)
    shape = target.tensor.shape
    axes = [axis for axis, dim in enumerate(shape or ()) if axis and not isinstance(dim, int)]
    if every_target and axes:
        lengths = F.gather(F.shape(target), np.array(axes, np.int64))
        total = F.mul(total, F.cast(F.reduce_prod(lengths, keepdims=False), to="float32"))
    return value_of(F.stop_gradient(total))


def _along(sample_weight: Value, values: Value) -> Value:
    """Return weights [N] as float32 [N, 1, ...], to multiply them with values [N, ...]."""
    weight = F.cast(sample_weight, to="float32")
    if values.rank is None or values.rank < 1:
        raise UsageError(f"sample weights need a value for each sample, [N, ...], not {values}")
    return value_of(F.unsqueeze(weight, np.arange(1, values.rank)) if values.rank > 1 else weight)


def _over_rows(sample_weight: Value, target: Value) -> Value:
    """Return one weight per target, as a vector. sample_weight: [N]; target: [N, ...]."""
    if target.rank == 1:
        return _along(sample_weight, target)
    every = F.expand(_along(sample_weight, target), F.shape(target))
    return value_of(F.reshape(every, np.array([-1], np.int64)))


def average(each: Value, sample_weight: Value | None) -> Value:
    """Return the mean of losses [N, ...].

    With weights w [N], the result is sum(w * l) / sum(w), where l is the mean loss of each sample. If sum(w) is 0, the
    result is 0.
    """
    if sample_weight is None:
        return _mean(each)
    single = each if each.dtype is DType.FLOAT64 else F.cast(each, to="float32")
    weight = F.cast(sample_weight, to=single.dtype)
    if (single.rank or 0) > 1:
        single = F.reduce_mean(single, np.arange(1, single.rank), keepdims=False)
    found = quotient(F.reduce_sum(F.mul(single, weight), keepdims=False), F.reduce_sum(weight, keepdims=False))
    return value_of(F.cast(found.mean, to=each.dtype))


def categorical_cross_entropy(logits: Value, target: Value, sample_weight: Value | None = None) -> Value:
    """Mean over all rows of -sum(t log p), where p = softmax(logits) along the last axis.

    Args:
        logits: Float tensor [..., classes].
        target: t, of the same shape and type: a probability for each class, such as those of a teacher network.
        sample_weight: See `mse`.
    """
    rows = F.reduce_sum(F.mul(target, F.log_softmax(logits, axis=-1)), np.array([-1]), keepdims=False)
    return average(F.neg(rows), sample_weight)


def kl_divergence(logits: Value, target: Value, sample_weight: Value | None = None) -> Value:
    """Mean over all rows of sum(t (log t - log p)), where p = softmax(logits) along the last axis.

    It is the Kullback-Leibler divergence KL(t || p). Terms with t = 0 are 0.

    Args:
        logits: Float tensor [..., classes].
        target: t, of the same shape and type: a probability for each class.
        sample_weight: See `mse`.
    """
    zero = scalar_like(0.0, target)
    positive = F.greater(target, zero)
    entropy = F.where(positive, F.mul(target, F.log(F.where(positive, target, scalar_like(1.0, target)))), zero)
    rows = F.sub(entropy, F.mul(target, F.log_softmax(logits, axis=-1)))
    return average(F.reduce_sum(rows, np.array([-1]), keepdims=False), sample_weight)


def focal(logits: Value, target: Value, gamma: float = 2.0, sample_weight: Value | None = None) -> Value:
    """Mean over all targets of -(1 - p)^gamma log p, where p is the probability of the target (Lin et al., 2017).

    Args:
        logits: Float tensor [..., classes].
        target: int64 [...], class numbers.
        gamma: Exponent, at least 0. With 0, it is the softmax cross entropy.
        sample_weight: See `mse`.
    """
    given = target
    logits, target = _rows(logits, target, "focal")
    each, _ = F.softmax_cross_entropy_loss(logits, target, None, reduction="none")
    if gamma:
        each = F.mul(each, _focus(F.exp(F.neg(each)), gamma))
    return average(each if given.rank == 1 else F.reshape(each, F.shape(given)), sample_weight)


def sigmoid_focal(
    logits: Value, target: Value, gamma: float = 2.0, alpha: float | None = 0.25, sample_weight: Value | None = None
) -> Value:
    """Mean over all elements of -a (1 - p)^gamma log p, where p is the probability of the target (Lin et al., 2017).

    Args:
        logits: Float tensor of any shape.
        target: t, of the same shape and type, from 0 to 1.
        gamma: Exponent, at least 0.
        alpha: a is alpha t + (1 - alpha) (1 - t). None: a is 1.
        sample_weight: See `mse`.
    """
    one = scalar_like(1.0, logits)
    rest = F.sub(one, target)
    p = F.sigmoid(logits)
    each = F.sub(F.softplus(logits), F.mul(logits, target))
    if gamma:
        each = F.mul(each, _focus(F.add(F.mul(p, target), F.mul(F.sub(one, p), rest)), gamma))
    if alpha is not None:
        yes, no = scalar_like(alpha, logits), scalar_like(1.0 - alpha, logits)
        each = F.mul(each, F.add(F.mul(yes, target), F.mul(no, rest)))
    return average(each, sample_weight)


def _focus(p: Value, gamma: float) -> Value:
    """Return (1 - p)^gamma. 1 - p is at least 1e-6: at 0, the derivative may be infinite."""
    far = F.max(F.sub(scalar_like(1.0, p), p), scalar_like(1e-6, p))
    return value_of(F.pow(far, scalar_like(gamma, p)))


def dice(logits: Value, target: Value, sample_weight: Value | None = None) -> Value:
    """Mean over the samples of 1 - (2 sum(p t) + 1) / (sum(p) + sum(t) + 1), where p = sigmoid(logits).

    It measures the overlap of the predicted mask with the target mask (Milletari, Navab and Ahmadi, 2016). The 1 in
    numerator and denominator makes the loss of two empty masks 0.

    Args:
        logits: Float tensor [N, ...].
        target: t, of the same shape and type: masks, from 0 to 1.
        sample_weight: See `mse`.
    """
    if logits.rank is None or logits.rank < 2:
        raise UsageError(f"dice needs an output with one mask for each sample, [N, ...], not {logits}")
    axes = np.arange(1, logits.rank)
    p, one = F.sigmoid(logits), scalar_like(1.0, logits)
    overlap, own, wanted = (F.reduce_sum(part, axes, keepdims=False) for part in (F.mul(p, target), p, target))
    quotients = F.div(F.add(F.add(overlap, overlap), one), F.add(F.add(own, wanted), one))
    return average(F.sub(one, quotients), sample_weight)


@typed("gk.losses.mse")
def mse(output: Value, target: Any, sample_weight: Value | None = None) -> Value:
    """Mean of (output - target)^2 over all elements.

    Args:
        output: Float tensor [N, ...].
        target: A tensor of the same shape.
        sample_weight: float w [N], one weight per sample, not negative. The result is then sum(w * l) / sum(w), where l
            is the mean loss of each sample. If all weights are 0, the result is 0.
    """
    difference = F.sub(output, target)
    return average(F.mul(difference, difference), sample_weight)


@typed("gk.losses.l1")
def l1(output: Value, target: Any, sample_weight: Value | None = None) -> Value:
    """Mean of |output - target| over all elements. sample_weight: see `mse`."""
    return average(F.abs(F.sub(output, target)), sample_weight)


@typed("gk.losses.huber")
def huber(output: Value, target: Any, sample_weight: Value | None = None) -> Value:
    """Mean of d^2/2 where |d| <= 1, |d| - 1/2 elsewhere, d = output - target (Huber, 1964).

    sample_weight: see `mse`.
    """
    distance = F.abs(F.sub(output, target))
    inside = F.clip(distance, None, scalar_like(1.0, output))
    half = scalar_like(0.5, output)
    return average(F.add(F.mul(half, F.mul(inside, inside)), F.sub(distance, inside)), sample_weight)


def sigmoid_binary_cross_entropy(
    logits: Value, target: Value, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None,
    sample_weight: Value | None = None,
) -> Value:  # fmt: skip
    """Mean of -t log s(x) - (1-t) log(1-s(x)), where s is the logistic function, over all elements.

    Without class weights, it is computed as max(x,0) - x t + log(1+exp(-|x|)).

    Args:
        logits: Float tensor x of any shape.
        target: t, of the same shape and type, from 0 to 1.
        label_smoothing: Replaces targets by t (1 - label_smoothing) + label_smoothing / 2.
        class_weights: Two factors, (negative, positive). The negative one multiplies the term with 1 - t, the positive
            one the term with t.
        sample_weight: See `mse`.

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
        return average(F.add(against, F.mul(F.mul(yes, target), F.softplus(F.neg(logits)))), sample_weight)
    positive = F.relu(logits)
    each = F.add(F.sub(positive, F.mul(logits, target)), F.softplus(F.neg(F.abs(logits))))
    return average(each, sample_weight)


def _mean(value: Value) -> Value:
    return value_of(F.reduce_mean(value, keepdims=False))


def value_of(value: Any) -> Value:
    assert isinstance(value, Value), "operators return a Value if their operands are Values"
    return value
