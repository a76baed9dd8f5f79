"""Alignments of connectionist temporal classification (CTC): labels of a sequence that have no known positions."""

from __future__ import annotations

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like

# The logarithm of the probability of what is impossible. Sums of a few of them are finite in float32, and differences
# are not NaN, as those of infinities would be.
NEVER = -1e30


def log_likelihood(logits: Value, target: Value, lengths: Value | None, blank: int) -> tuple[Value, Value]:
    """Return log p(labels) of each sample, where p sums over all alignments, and the number of labels.

    Args:
        logits: float32 or float64 [N, T, classes].
        target: int64 [N, S], class numbers other than `blank`. Rows with fewer labels end with -1.
        lengths: int64 [N], the number of time steps of each sequence; None if all have T.
        blank: The class number of the blank.

    Returns:
        The logarithms [N], below NEVER / 2 if a sequence is too short for its labels, and int64 [N, 1].
    """
    log_p = F.log_softmax(logits, axis=-1)
    labels = _with_blanks(target, blank)
    # The probability of each label at each step, time first: [T, N, L].
    steps = F.reshape(F.slice(F.shape(logits), np.array([1]), np.array([2])), np.array([1]))
    index = F.expand(F.unsqueeze(labels, np.array([1])), _shape(1, steps, 1))
    emitted = F.transpose(F.gather_elements(log_p, index, axis=2), perm=[1, 0, 2])
    last = _last_states(emitted, labels, lengths, blank)
    count: Value = F.reduce_sum(
        F.cast(F.greater_or_equal(target, np.int64(0)), to="int64"), np.array([1]), keepdims=True
    )
    return _ending(last, count), count


def _with_blanks(target: Value, blank: int) -> Value:
    """Return the labels with a blank before, between and after them: int64 [N, L], L = 2 S + 1. Padding is blank."""
    clean = F.where(F.less(target, np.int64(0)), np.int64(blank), target)
    blanks = F.expand(np.full((1, 1), blank, np.int64), F.shape(target))
    pairs = F.concat([F.unsqueeze(blanks, np.array([2])), F.unsqueeze(clean, np.array([2]))], axis=2)
    rows = F.slice(F.shape(target), np.array([0]), np.array([1]))
    end = F.expand(np.full((1, 1), blank, np.int64), _shape(rows, 1))
    return _value(F.concat([F.reshape(pairs, np.array([0, -1])), end], axis=1))


def _last_states(emitted: Value, labels: Value, lengths: Value | None, blank: int) -> Value:
    """Return the logarithms [N, L] of the probabilities that an alignment ends at each label.

    emitted: log-probabilities [T, N, L] of each label at each step. labels: of `_with_blanks`.
    """
    from graphkit.frontend.control import scan  # most networks need no loops

    rows = F.slice(F.shape(labels), np.array([0]), np.array([1]))
    two_before = F.concat(
        [F.expand(np.full((1, 2), blank, np.int64), _shape(rows, 2)), _without_last(labels, 2)],
        axis=1,
    )
    # A blank may be left out between two different labels.
    may_skip = F.and_(F.not_(F.equal(labels, np.int64(blank))), F.not_(F.equal(labels, two_before)))
    zero = F.mul(F.cast(labels, to=emitted.dtype), scalar_like(0.0, emitted))
    never = F.add(zero, scalar_like(NEVER, emitted))
    # Before the first step, an alignment is at the first blank.
    start = F.concat([_first(zero, 1), _without_last(never, 1)], axis=1)

    def step(state: tuple[Value, Value], emitted_now: Value) -> tuple[tuple[Value, Value], tuple[()]]:
        alpha, time = state
        before = F.concat([_first(never, 1), _without_last(alpha, 1)], axis=1)
        skipped = F.concat([_first(never, 2), _without_last(alpha, 2)], axis=1)
        skipped = F.where(may_skip, skipped, never)
        largest = F.stop_gradient(F.max(alpha, before, skipped))
        parts = [F.exp(F.sub(way, largest)) for way in (alpha, before, skipped)]
        new = F.add(emitted_now, F.add(largest, F.log(F.add(F.add(parts[0], parts[1]), parts[2]))))
        if lengths is not None:
            new = F.where(F.unsqueeze(F.less(time, lengths), np.array([1])), new, alpha)
        return (new, F.add(time, np.int64(1))), ()

    (alpha, _), _ = scan(step, (start, F.constant(value=np.array(0, np.int64))), emitted, name="ctc")
    return _value(alpha)


def _ending(alpha: Value, count: Value) -> Value:
    """Return the logarithm [N] of the probability to end at the last label, or at the blank after it.

    count: int64 [N, 1], the number of labels.
    """
    at = F.mul(count, np.int64(2))
    blank = F.gather_elements(alpha, at, axis=1)
    label = F.gather_elements(alpha, F.max(F.sub(at, np.int64(1)), np.int64(0)), axis=1)
    label = F.where(F.greater(count, np.int64(0)), label, scalar_like(NEVER, alpha))
    largest = F.stop_gradient(F.max(blank, label))
    total = F.add(largest, F.log(F.add(F.exp(F.sub(blank, largest)), F.exp(F.sub(label, largest)))))
    return _value(F.squeeze(total, np.array([1])))


def _shape(*sizes: Value | int) -> Value:
    """Return a shape, int64 [axes], from int64 [1] and integers."""
    parts = [F.constant(value=np.array([size], np.int64)) if isinstance(size, int) else size for size in sizes]
    return _value(F.concat(parts, axis=0))


def _first(rows: Value, count: int) -> Value:
    """Return the first columns of [N, L]."""
    return _value(F.slice(rows, np.array([0]), np.array([count]), np.array([1])))


def _without_last(rows: Value, count: int) -> Value:
    """Return [N, L] without its last columns."""
    return _value(F.slice(rows, np.array([0]), np.array([-count]), np.array([1])))


def _value(result: Value) -> Value:
    """Return a result of an operator, with its type for the type checker."""
    return result
