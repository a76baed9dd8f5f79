"""Operators on boxes against plain loops that follow the rules of MXNet's CPU code."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InvalidModel
from tests.mxnet_io.symbols import compare, imported
from tests.mxnet_io.test_detection import area, corners, iou, shared

f32 = np.float32


def cornered(box, format_):
    if format_ == "corner":
        return box
    return np.asarray([box[0] - box[2] / 2, box[1] - box[3] / 2, box[0] + box[2] / 2, box[1] + box[3] / 2], f32)


def nms(data, *, overlap_thresh=0.5, valid_thresh=0.0, topk=-1, coord_start=2, score_index=1, id_index=-1,
        background_id=-1, force_suppress=False, in_format="corner", out_format="corner"):  # fmt: skip
    if topk == 0:
        return data
    out = np.full_like(data, -1).reshape(-1, *data.shape[-2:])
    place = slice(coord_start, coord_start + 4)
    for n, rows in enumerate(data.reshape(out.shape)):
        valid = [row for row in rows if row[score_index] > valid_thresh]
        if id_index >= 0:
            valid = [row for row in valid if row[id_index] != background_id]
        valid.sort(key=lambda row: -row[score_index])
        kept = []
        for row in valid if topk < 0 else valid[:topk]:
            for other in kept:
                if id_index >= 0 and not force_suppress and int(other[id_index]) != int(row[id_index]):
                    continue
                a, b = (cornered(r[place], in_format) for r in (other, row))
                if shared(a, b) / (area(a) + area(b) - shared(a, b)) > overlap_thresh:
                    break
            else:
                kept.append(row)
        for i, row in enumerate(kept):
            out[n, i] = row
            a, b, c, d = row[place]
            if in_format != out_format and a >= 0:
                converted = [(a + c) / 2, (b + d) / 2, c - a, d - b]
                out[n, i, place] = converted if out_format == "center" else cornered(row[place], "center")
    return out.reshape(data.shape)


def rows(*shape, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    head = np.stack([rng.integers(0, classes, shape), rng.uniform(0, 1, shape)], axis=-1)
    return np.concatenate([head, corners(int(np.prod(shape)), seed).reshape(*shape, 4)], axis=-1).astype(f32)


TIED = rows(2, 9, seed=3)
TIED[..., 1] = 0.5
IDENTICAL = rows(1, 6)
IDENTICAL[..., 2:] = IDENTICAL[:, :1, 2:]
SHIFTED = rows(8)
SHIFTED[::2, 2] -= 1  # a negative left edge: not converted
LAST = np.concatenate(
    [rows(2, 5)[..., 2:], rows(2, 5)[..., 1:2], rows(2, 5)[..., :1], np.ones((2, 5, 1), f32)], axis=-1
)


@in_one_item()
@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        (rows(10), {"overlap_thresh": 0.3}),
        (rows(2, 10, seed=1), {"id_index": 0, "overlap_thresh": 0.2, "valid_thresh": 0.3, "background_id": 1}),
        (rows(2, 2, 7, seed=2), {"id_index": 0, "force_suppress": True, "topk": 4, "overlap_thresh": 0.4}),
        (TIED, {"overlap_thresh": 0.1, "topk": 50}),
        (IDENTICAL, {"overlap_thresh": 0.99}),  # all but one are removed
        (rows(2, 4), {"valid_thresh": 2}),  # no box at all
        (rows(1, 1), {}),
        (rows(2, 4), {"topk": 0}),
        (SHIFTED, {"out_format": "center", "overlap_thresh": 0.3}),
        (rows(2, 8), {"in_format": "center", "overlap_thresh": 0.3}),
        (LAST, {"coord_start": 0, "score_index": 4, "id_index": 5, "overlap_thresh": 0.3}),
    ],
)
def test_box_nms(tmp_path, data, attributes):
    compare(tmp_path, "_contrib_box_nms", {"data": data}, attributes, nms(data, **attributes))


def test_box_nms_of_symbolic_sizes(tmp_path):
    data = rows(2, 10, seed=1)
    shapes = {"data": ("N", "boxes", 6)}
    wanted = nms(data, id_index=0, topk=6)
    compare(tmp_path, "_contrib_box_non_maximum_suppression", {"data": data}, {"id_index": 0, "topk": 6}, wanted,
            shapes=shapes)  # fmt: skip


def test_box_nms_keeps_an_overlap_equal_to_the_threshold(tmp_path):
    data = np.asarray([[0, 0.8, 0, 0, 1, 1], [0, 0.7, 0, 0, 0.5, 1]], f32)
    compare(tmp_path, "_contrib_box_nms", {"data": data}, {"overlap_thresh": 0.5}, data)


@in_one_item()
@pytest.mark.parametrize("attributes", [{"coord_start": 3}, {"score_index": 2}, {"id_index": 1}])
def test_box_nms_refuses_columns_that_do_not_fit(tmp_path, attributes):
    with pytest.raises(InvalidModel, match="do not fit 6 columns"):
        imported(tmp_path, "_contrib_box_nms", {"data": rows(2, 4)}, attributes)


@pytest.mark.parametrize("format_", ["corner", "center"])
def test_box_iou(tmp_path, format_):
    a, b = corners(6, 0).reshape(2, 3, 4), corners(5, 1)
    a[0, 0] = b[0]
    b[1] = [0.5, 0.5, 0.5, 0.5] if format_ == "corner" else [0.5, 0.5, 0, 0]  # an empty box
    b[2, 2:] = -1  # a negative size
    table = [[iou(cornered(x, format_), cornered(y, format_)) for y in b] for x in a.reshape(6, 4)]
    wanted = np.reshape(np.asarray(table, f32), (2, 3, 5))
    compare(tmp_path, "_contrib_box_iou", {"a": a, "b": b}, {"format": format_}, wanted)


@pytest.mark.parametrize("attributes", [{}, {"format": "corner", "clip": 0.5, "std0": 0.1, "std1": 0.2, "std2": 2}])
def test_box_decode(tmp_path, attributes):
    data, anchors = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(f32), corners(5, 1)[None]
    wanted = np.zeros_like(data)
    for n in range(2):
        for i in range(5):
            x, y, w, h = anchors[0, i]
            if "format" in attributes:
                w, h = w - x, h - y
                x, y = x + w / 2, y + h / 2
            code = data[n, i] * np.asarray([attributes.get(f"std{k}", 1) for k in range(4)], f32)
            width, height = np.exp(np.minimum(code[2:], attributes.get("clip", np.inf))) * (w, h)
            wanted[n, i] = cornered([code[0] * w + x, code[1] * h + y, width, height], "center")
    compare(tmp_path, "_contrib_box_decode", {"data": data, "anchors": anchors}, attributes, wanted, tolerance=1e-5)


def test_box_encode(tmp_path):
    samples = np.asarray([[1, 0, -1, 0.6], [0.5, 1, 1, 0]], f32)
    matches = np.asarray([[2, 0, -1, 1], [-1, 0, 2, 1]], f32)
    anchors, references = corners(4, 0, batch=2), corners(3, 1, batch=2)
    means, deviations = np.asarray([0, 0.1, 0.2, 0.3], f32), np.asarray([0.1, 0.1, 0.2, 0.5], f32)
    codes, masks = np.zeros((2, 4, 4), f32), np.zeros((2, 4, 4), f32)
    for n in range(2):
        for i in range(4):
            if samples[n, i] > 0.5:
                a, r = anchors[n, i], references[n, int(matches[n, i])]
                size, extent = a[2:] - a[:2], r[2:] - r[:2]
                shift = (r[:2] + extent / 2 - a[:2] - size / 2) / size
                codes[n, i] = (np.concatenate([shift, np.log(extent / size)]) - means) / deviations
                masks[n, i] = 1
    inputs = {"samples": samples, "matches": matches, "anchors": anchors, "references": references, "means": means,
              "deviations": deviations}  # fmt: skip
    compare(tmp_path, "_contrib_box_encode", inputs, {}, codes, masks, tolerance=1e-5)


def matching(scores, threshold, is_ascend=False, topk=-1):
    flat = scores.reshape(-1, *scores.shape[-2:])
    by_row, by_column = np.full(flat.shape[:2], -1, f32), np.full((len(flat), flat.shape[2]), -1, f32)
    for n, table in enumerate(flat):
        count = 0
        for place in np.argsort(table.ravel() if is_ascend else -table.ravel(), kind="stable"):
            r, c = divmod(int(place), table.shape[1])
            if by_row[n, r] != -1 or by_column[n, c] != -1:
                continue
            if not (table[r, c] < threshold if is_ascend else table[r, c] > threshold):
                break
            by_row[n, r], by_column[n, c] = c, r
            count += 1
            if 0 < topk < count:
                break
    return by_row.reshape(scores.shape[:-1]), by_column.reshape(*scores.shape[:-2], -1)


SCORES = np.random.default_rng(0).uniform(0, 1, (2, 5, 4)).astype(f32)


@in_one_item()
@pytest.mark.parametrize(
    ("scores", "attributes"),
    [
        (SCORES, {"threshold": 0.4}),
        (SCORES[0].T, {"threshold": 0.6, "is_ascend": True}),
        (SCORES, {"threshold": 0.0, "topk": 2}),  # three matches
        (np.floor(SCORES * 3), {"threshold": -1}),  # equal scores
        (SCORES[None], {"threshold": 2}),  # none
    ],
)
def test_bipartite_matching(tmp_path, scores, attributes):
    compare(tmp_path, "_contrib_bipartite_matching", {"scores": scores}, attributes, *matching(scores, **attributes))
