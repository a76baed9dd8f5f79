"""Connectionist temporal classification: the loss of a sequence whose labels have no known positions."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend.alignment import NEVER, log_likelihood
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.train.loss_functions import average, value_of


def ctc(
    logits: Value, target: Value, lengths: Value | None = None, blank: int = 0, sample_weight: Value | None = None
) -> Value:
    """Mean over samples of -log p(labels) / (number of labels), where p sums over all alignments (Graves et al., 2006).

    An alignment gives each time step a class. Its labels are found by merging equal neighbours, then removing blanks.
    The loss equals PyTorch's `ctc_loss` with reduction="mean".

    If a sequence is too short for its labels, its loss is infinite, and its gradient is 0. Each label needs one time
    step, and one more if the label before it is equal.

    Args:
        logits: Float tensor [N, T, classes].
        target: int64 [N, S], class numbers other than `blank`. Rows with fewer labels end with -1.
        lengths: int64 [N], the number of time steps of each sequence, at most T; later steps do not count. Default: T.
        blank: The class number of the blank.
        sample_weight: See `mse`.

    Returns:
        The loss, a scalar of the type of logits.

    Raises:
        UsageError: The shapes are wrong, or the blank is not a class.
    """
    classes = logits.tensor.known_shape[-1] if logits.rank == 3 else None
    if not isinstance(classes, int) or target.rank != 2:
        raise UsageError(
            f"ctc needs logits [N, T, classes] with a fixed number of classes, and targets [N, S], not {logits} and "
            f"{target}"
        )
    if not 0 <= blank < classes:
        raise UsageError(f"ctc: blank={blank} must be a class number, from 0 to {classes - 1}")
    dtype = logits.dtype if logits.dtype is DType.FLOAT64 else DType.FLOAT32
    total, count = log_likelihood(F.cast(logits, to=dtype), target, lengths, blank)
    each = F.div(F.neg(total), F.cast(F.max(F.squeeze(count, np.array([1])), np.int64(1)), to=dtype))
    impossible = F.less(total, scalar_like(NEVER / 2, total))
    each = F.where(impossible, scalar_like(np.inf, each), F.where(impossible, scalar_like(0.0, each), each))
    return value_of(F.cast(average(each, sample_weight), to=logits.dtype))
