"""Boxes: their overlap, suppression of overlapping boxes, encoding for regression, and matching.

A box is [left, top, right, bottom] (format corner) or [x, y, width, height] (format center). Source:
src/operator/contrib/bounding_box-inl.h of MXNet 1.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.frontend.control import while_loop
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import (
    Call,
    as_floats,
    as_indices,
    converter,
    rank_of,
    ranked_operands,
    scalar,
    sizes_of,
    static_sizes,
    transpose,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64, reshape_like

# --- shared with detectors ----------------------------------------------------------------------------------


def positions(x: Value, axis: int) -> Value:
    """Return 0, 1, ... along an axis, as an int64 vector."""
    result: Value = F.range(np.int64(0), F.squeeze(sizes_of(x, axis), i64(0)), np.int64(1))
    return result


def rows_at(x: Value, places: Value) -> Value:
    """Return the rows of x [batch, n, width] at places [batch, k], as [batch, k, width]."""
    result: Value = F.gather_nd(x, F.unsqueeze(places, i64(-1)), batch_dims=1)
    return result


def chosen_greedily(
    left: Value, removed: Callable[[Value], Value], scores: Value | None = None, limit: int | None = None
) -> Value:
    """Repeatedly choose the first candidate, or the one with the highest score, and remove others because of it.

    Args:
        left: The candidates, bool [batch, n].
        removed: Function of the position of a chosen candidate, int64 [batch, 1], that returns the candidates that it
            removes, bool [batch, n].
        scores: Scores [batch, n]. Of equal scores, the first is chosen.
        limit: Largest number of chosen candidates in each batch element.

    Returns:
        The chosen candidates, bool [batch, n].
    """
    places = positions(left, 1)

    def going(state: tuple[Value, Value]) -> Value:
        count: Value = F.reduce_sum(F.cast(state[0], to=DType.INT64), keepdims=False)
        return count > 0

    def step(state: tuple[Value, Value]) -> tuple[Value, Value]:
        left, chosen = state
        rank = F.cast(left, to=DType.FLOAT32) if scores is None else F.where(left, scores, scalar(-np.inf, scores))
        best = F.arg_max(rank, axis=1, keepdims=True)
        found = F.equal(places, best) & left
        return left & ~(found | removed(best)), chosen | found

    nothing = left & np.bool_(False)
    result: Value = while_loop(going, step, (left, nothing), limit)[1]
    return result


def first_true(mask: Value) -> tuple[Value, Value]:
    """Return the positions of a mask [batch, n] at which it is true, in ascending order, followed by the others; and
    which of the returned positions are true.
    """
    values, places = F.top_k(F.cast(mask, to=DType.FLOAT32), sizes_of(mask, 1), axis=1)
    return places, values > 0


def intersection(a: Sequence[Value], b: Sequence[Value], inclusive: bool = False) -> Value:
    """Return the area that two boxes share. Each is left, top, right, bottom.

    inclusive: right and bottom are the last pixels of a box.
    """
    width, height = (F.min(a[i + 2], b[i + 2]) - F.max(a[i], b[i]) for i in (0, 1))
    if inclusive:
        width, height = width + 1, height + 1
    result: Value = F.relu(width) * F.relu(height)
    return result


def columns(boxes: Value) -> list[Value]:
    """Return the four numbers of boxes [..., 4], each as [...]."""
    return [boxes[..., i] for i in range(4)]


# --- box_nms ------------------------------------------------------------------------------------------------


def _corners_and_area(boxes: Sequence[Value], format_: str) -> tuple[list[Value], Value]:
    """Return left, top, right, bottom and the area, which is 0 if the width or the height is negative."""
    a, b, c, d = boxes
    if format_ == "corner":
        corners, width, height = [a, b, c, d], c - a, d - b
    else:
        width, height = c, d
        x, y = width / 2, height / 2
        corners = [a - x, b - y, a + x, b + y]
    negative = (width < 0) | (height < 0)
    return corners, F.where(negative, scalar(0.0, width), width * height)


def _reformatted(rows: Value, start: int, format_: str) -> Value:
    """Convert the four columns from `start` on. A box whose first number is negative stays as it is."""
    boxes = rows[..., start : start + 4]
    a, b = boxes[..., :2], boxes[..., 2:]
    if format_ == "center":
        converted = F.concat((a + b) / 2, b - a, axis=-1)
    else:
        converted = F.concat(a - b / 2, a + b / 2, axis=-1)
    boxes = F.where(boxes[..., :1] < 0, boxes, converted)
    result: Value = F.concat(rows[..., :start], boxes, rows[..., start + 4 :], axis=-1)
    return result


@converter("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def box_nms(call: Call) -> Value:
    """Sort the rows [..., boxes, width] by descending score, remove rows, and fill up with rows of -1.

    A row is removed if its score is not above valid_thresh, if its class is background_id, if it is not among the topk
    others, or if a kept row of the same class overlaps it by more than overlap_thresh. Of rows with equal scores, the
    first remains. topk=0 returns the operand.
    """
    attributes = call.attributes
    overlap, threshold = attributes.number("overlap_thresh", 0.5), attributes.number("valid_thresh", 0.0)
    most, start = attributes.integer("topk", -1), attributes.integer("coord_start", 2)
    score_column, class_column = attributes.integer("score_index", 1), attributes.integer("id_index", -1)
    background = attributes.integer("background_id", -1)
    by_class = not attributes.flag("force_suppress", False) and class_column >= 0
    given, wanted = (attributes.choice(name, "corner", "center") for name in ("in_format", "out_format"))
    x = call.x
    if most == 0:
        result: Value = F.identity(x, name=call.name)
        return result
    _check_columns(x, start, score_column, class_column)
    rows = _as_batch(x)
    valid = rows[..., score_column] > threshold
    if class_column >= 0:
        valid = valid & ~F.equal(rows[..., class_column], scalar(background, x))
    count = sizes_of(rows, 1)
    kept_count = count if most < 0 else F.min(count, constant(i64(most)))
    scores = F.where(valid, rows[..., score_column], scalar(-np.inf, x))
    order = F.top_k(scores, kept_count, axis=1)[1]
    rows, valid = rows_at(rows, order), F.gather_elements(valid, order, axis=1)

    corners, area = _corners_and_area([rows[..., start + i] for i in range(4)], given)
    parts = [*corners, area]
    if by_class:
        parts.append(as_indices(rows[..., class_column]))

    def suppressed(first: Value) -> Value:
        one = [F.gather_elements(part, first, axis=1) for part in parts]
        shared = intersection(one, parts)
        found = shared / (one[4] + area - shared) > overlap
        return found & F.equal(one[5], parts[5]) if by_class else found

    places, kept = first_true(chosen_greedily(valid, suppressed))
    rows = F.where(F.unsqueeze(kept, i64(-1)), rows_at(rows, places), scalar(-1.0, x))
    if most > 0:
        ends = F.concat(i64(0, 0, 0, 0), count - kept_count, i64(0), axis=0)
        rows = F.pad(rows, ends, scalar(-1.0, x))
    if given != wanted:
        rows = _reformatted(rows, start, wanted)
    return rows if x.rank == 3 else reshape_like(rows, x)


def _check_columns(x: Value, start: int, score: int, label: int) -> None:
    """Raise InvalidModel if coordinates, score and class are not different columns of x."""
    (width,) = static_sizes(x, [rank_of(x) - 1])
    used = [*range(start, start + 4), score, *([label] if label >= 0 else [])]
    if min(used) < 0 or max(used) >= width or len(set(used)) < len(used):
        raise InvalidModel(f"coord_start {start}, score_index {score} and id_index {label} do not fit {width} columns")


def _as_batch(x: Value) -> Value:
    """Join all axes but the last two."""
    rank = rank_of(x)
    if rank == 3:
        return x
    result: Value = F.reshape(x, F.concat(i64(-1), sizes_of(x, rank - 2, rank - 1), axis=0))
    return result


# --- overlap and encoding -----------------------------------------------------------------------------------


@converter("_contrib_box_iou")
def box_iou(call: Call) -> Value:
    """The intersection of each pair of boxes divided by their union: [..., 4] and [_, 4] make [..., _]."""
    format_ = call.attributes.choice("format", "corner", "center")
    a, b = call[0], call[1]
    axes = i64(*range(rank_of(a) - 1, rank_of(a) + rank_of(b) - 2))
    (first, area), (second, other) = (_corners_and_area(columns(x), format_) for x in (a, b))
    first, area = [F.unsqueeze(v, axes) for v in first], F.unsqueeze(area, axes)
    shared = intersection(first, second)
    result: Value = F.where(shared > 0, shared / (area + other - shared), scalar(0.0, a), name=call.name)
    return result


def _centres_and_sizes(boxes: Value) -> tuple[Value, Value]:
    """Return x and y of the centres, and width and height, of boxes in corner format."""
    begin = boxes[..., :2]
    size = boxes[..., 2:] - begin
    return begin + size * 0.5, size


@converter("_contrib_box_decode")
def box_decode(call: Call) -> Value:
    """Boxes in corner format from predictions [batch, n, 4] relative to anchors [1, n, 4].

    A prediction, multiplied by std0 to std3, is a shift of the centre in units of the anchor's size, and the logarithm
    of the size in these units, which is at most `clip` if that is above 0.
    """
    attributes = call.attributes
    format_ = attributes.choice("format", "center", "corner")
    clip = attributes.number("clip", -1.0)
    factors = [attributes.number(f"std{i}", 1.0) for i in range(4)]
    x, anchors = ranked_operands(call, 0, 1)
    centre, size = _centres_and_sizes(anchors) if format_ == "corner" else (anchors[..., :2], anchors[..., 2:])
    scaled = x * constant(np.asarray(factors, x.dtype.numpy))
    exponent = scaled[..., 2:]
    if clip > 0:
        exponent = F.min(exponent, scalar(clip, x))
    centre, half = scaled[..., :2] * size + centre, F.exp(exponent) * size * 0.5
    result: Value = F.concat(centre - half, centre + half, axis=-1, name=call.name)
    return result


@converter("_contrib_box_encode")
def box_encode(call: Call) -> list[Value]:
    """Targets of regression, the inverse of box_decode, and masks: 1 where the sample is above 0.5, 0 elsewhere.

    Operands: samples and matches [batch, n], anchors [batch, n, 4], references [batch, m, 4], means and deviations [4].
    """
    samples, matches, anchors, references, means, deviations = ranked_operands(call, *range(6))
    last = F.squeeze(sizes_of(references, 1), i64(0)) - 1
    places = F.clip(as_indices(matches), np.int64(0), last)  # a match of -1 belongs to an anchor that is not sampled
    (centre, size), (wanted, extent) = (_centres_and_sizes(v) for v in (anchors, rows_at(references, places)))
    codes = (F.concat((wanted - centre) / size, F.log(extent / size), axis=-1) - means) / deviations
    valid = F.unsqueeze(samples > 0.5, i64(-1))
    masks = F.expand(as_floats(valid, anchors), F.shape(anchors))
    return [F.where(valid, codes, scalar(0.0, anchors)), masks]


# --- matching -----------------------------------------------------------------------------------------------


def matches(scores: Value, allowed: Value, limit: int | None = None) -> Value:
    """Match rows with columns: repeatedly take the highest score whose row and column are free.

    Args:
        scores: Scores [batch, rows, columns]. Of equal scores, the first in the flat matrix is taken.
        allowed: The pairs that may be matched, bool [batch, rows, columns].
        limit: Largest number of matches in each batch element.

    Returns:
        The matched pairs, bool [batch, rows, columns].
    """
    flat = [F.flatten(v, axis=1) for v in (scores, allowed)]
    width = F.squeeze(sizes_of(scores, 2), i64(0))
    places = positions(flat[0], 1)
    row, column = places / width, F.mod(places, width)

    def taken(best: Value) -> Value:
        result: Value = F.equal(row, best / width) | F.equal(column, F.mod(best, width))
        return result

    result: Value = reshape_like(chosen_greedily(flat[1], taken, flat[0], limit), scores)
    return result


def partners(pairs: Value, like: Value) -> Value:
    """Return the column of each row's match, -1 for rows without one, in the element type of `like`."""
    hits = F.cast(pairs, to=DType.FLOAT32)
    found = F.reduce_max(hits, i64(-1), keepdims=False) > 0
    result: Value = F.where(found, as_floats(F.arg_max(hits, axis=-1, keepdims=False), like), scalar(-1.0, like))
    return result


@converter("_contrib_bipartite_matching")
def bipartite_matching(call: Call) -> list[Value]:
    """The matched column of each row, and the matched row of each column; -1 for none. Operand: [..., rows, columns].

    Only scores above the threshold are matched, or below it with is_ascend, which begins with the lowest. MXNet makes
    one match more than a positive topk.
    """
    attributes = call.attributes
    ascending, threshold = attributes.flag("is_ascend", False), attributes.number("threshold", 0.0)
    most = attributes.integer("topk", -1)
    x = call.x
    rank = rank_of(x)
    batch = _as_batch(x)
    allowed = batch < threshold if ascending else batch > threshold
    pairs = matches(-batch if ascending else batch, allowed, most + 1 if most > 0 else None)
    pairs = pairs if rank == 3 else reshape_like(pairs, x)
    swapped = transpose(pairs, *range(rank - 2), rank - 1, rank - 2)
    return [partners(pairs, x), partners(swapped, x)]
