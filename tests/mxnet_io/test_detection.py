"""Detection operators against plain loops that follow the rules of MXNet's CPU code."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InvalidModel, UsageError
from tests.mxnet_io.symbols import compare, imported

f32 = np.float32


def corners(n, seed, batch=None):
    """Return boxes that overlap in part, in corner format."""
    rng = np.random.default_rng(seed)
    shape = (n,) if batch is None else (batch, n)
    begin = rng.uniform(0, 0.5, (*shape, 2))
    return np.concatenate([begin, begin + rng.uniform(0.1, 0.4, (*shape, 2))], axis=-1).astype(f32)


def area(box):
    return f32(0) if box[2] < box[0] or box[3] < box[1] else (box[2] - box[0]) * (box[3] - box[1])


def shared(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(width, f32(0)) * max(height, f32(0))


def iou(a, b):
    common = shared(a, b)
    return common / (area(a) + area(b) - common) if common > 0 else f32(0)


# --- anchors ------------------------------------------------------------------------------------------------


def prior(height, width, sizes=(1.0,), ratios=(1.0,), clip=False, steps=(-1.0, -1.0), offsets=(0.5, 0.5)):
    steps = (1 / height, 1 / width) if min(steps) <= 0 else steps
    kinds = [(size, ratios[0]) for size in sizes] + [(sizes[0], ratio) for ratio in ratios[1:]]
    boxes = []
    for row in range(height):
        for column in range(width):
            y, x = (row + offsets[0]) * steps[0], (column + offsets[1]) * steps[1]
            for size, ratio in kinds:
                w, h = size * height / width * np.sqrt(ratio) / 2, size / np.sqrt(ratio) / 2
                boxes.append([x - w, y - h, x + w, y + h])
    return np.clip(boxes, 0, 1)[None] if clip else np.asarray(boxes)[None]


@in_one_item()
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"sizes": (0.2, 0.7), "ratios": (2, 1, 0.5), "clip": True},
        {"sizes": (0.3,), "ratios": (0.5, 3), "steps": (0.1, 0.2), "offsets": (0.25, 0.75)},
    ],
)
def test_multibox_prior(tmp_path, attributes):
    data = np.zeros((2, 3, 3, 5), f32)
    wanted = prior(3, 5, **attributes)
    compare(tmp_path, "_contrib_MultiBoxPrior", {"data": data}, attributes, wanted)


def test_multibox_prior_of_symbolic_sizes(tmp_path):
    shapes = {"data": ("N", 3, "H", "W")}
    attributes = {"sizes": (0.2, 0.7), "ratios": (2, 1)}
    wanted = prior(4, 2, **attributes)
    compare(tmp_path, "MultiBoxPrior", {"data": np.zeros((1, 3, 4, 2))}, attributes, wanted, shapes=shapes)


def test_multibox_prior_refuses_three_steps(tmp_path):
    with pytest.raises(InvalidModel, match="steps must contain 2 numbers, not 3"):
        imported(tmp_path, "MultiBoxPrior", {"data": np.zeros((1, 3, 4, 2))}, {"steps": (1, 1, 1)})


@in_one_item()
@pytest.mark.parametrize(
    ("op", "operands"),
    [("MultiBoxPrior", 1), ("_contrib_MultiBoxTarget", 3), ("_contrib_box_decode", 2), ("Correlation", 2)],
)
def test_unknown_rank_asks_for_shapes(tmp_path, op, operands):
    with pytest.raises(UsageError, match="pass shapes"):
        imported(tmp_path, op, {f"x{i}": np.zeros((1, 3, 4)) for i in range(operands)}, shapes={})


# --- SSD's detections -----------------------------------------------------------------------------------------


def detections(probabilities, codes, anchors, *, threshold=0.01, clip=True, variances=(0.1, 0.1, 0.2, 0.2),
               nms_threshold=0.5, force_suppress=False, nms_topk=-1):  # fmt: skip
    batch, classes, count = probabilities.shape
    out = np.full((batch, count, 6), -1, f32)
    variances = np.asarray(variances, f32)
    for n in range(batch):
        rows = []
        for i in range(count):
            best, label = f32(-1), 0
            for c in range(1, classes):
                if probabilities[n, c, i] > best:
                    best, label = probabilities[n, c, i], c
            if label == 0 or best < f32(threshold):
                continue
            left, top, right, bottom = anchors[0, i]
            a, b, c, d = codes[n, 4 * i : 4 * i + 4] * variances
            x, y = a * (right - left) + (left + right) / 2, b * (bottom - top) + (top + bottom) / 2
            w, h = np.exp(c) * (right - left) / 2, np.exp(d) * (bottom - top) / 2
            box = np.asarray([x - w, y - h, x + w, y + h], f32)
            rows.append([label - 1, best, *(np.clip(box, 0, 1) if clip else box)])
        for i, row in enumerate(rows):
            out[n, i] = row
        if not rows or not 0 < nms_threshold <= 1:
            continue
        order = sorted(range(len(rows)), key=lambda i: -rows[i][1])
        kept = min(nms_topk, len(rows)) if nms_topk > 0 else len(rows)
        out[n, kept : len(rows), 0] = -1
        for i in range(kept):
            out[n, i] = rows[order[i]]
        for i in range(kept):
            for j in range(i + 1, kept):
                a, b = out[n, i], out[n, j]
                if a[0] < 0 or b[0] < 0 or not (force_suppress or a[0] == b[0]):
                    continue
                union = (a[4] - a[2]) * (a[5] - a[3]) + (b[4] - b[2]) * (b[5] - b[3]) - shared(a[2:], b[2:])
                if (shared(a[2:], b[2:]) / union if union > 0 else 0) >= f32(nms_threshold):
                    b[0] = -1
    return out


def ssd(batch=2, count=12, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(classes), (batch, count)).transpose(0, 2, 1).astype(f32)
    return probabilities, rng.standard_normal((batch, 4 * count)).astype(f32), corners(count, seed)[None]


TIED = ssd(seed=3)
TIED[0][:, :, ::2] = TIED[0][:, :, :1]
IDENTICAL = ssd(seed=4)
IDENTICAL[1][:], IDENTICAL[2][:] = 0, IDENTICAL[2][:, :1]


@in_one_item()
@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        (ssd(), {}),
        (ssd(seed=1), {"threshold": 0.3, "nms_threshold": 0.2, "force_suppress": True, "clip": False}),
        (ssd(seed=2), {"nms_topk": 5, "nms_threshold": 0.3, "variances": (0.2, 0.3, 0.1, 0.4)}),
        (TIED, {"nms_topk": 7}),
        (IDENTICAL, {"force_suppress": True}),
        (ssd(), {"threshold": 1.0}),  # no detection at all
        (ssd(), {"nms_threshold": 0}),
        (ssd(1, 1), {"nms_topk": 400}),
    ],
)  # fmt: skip
def test_multibox_detection(tmp_path, operands, attributes):
    inputs = dict(zip(("cls", "loc", "anchors"), operands, strict=True))
    compare(tmp_path, "_contrib_MultiBoxDetection", inputs, attributes, detections(*operands, **attributes))


def test_multibox_detection_removes_an_overlap_equal_to_the_threshold(tmp_path):
    anchors = np.asarray([[[0, 0, 1, 1], [0, 0, 0.5, 1]]], f32)
    probabilities = np.asarray([[[0.2, 0.3], [0.8, 0.7]]], f32)
    inputs = {"cls": probabilities, "loc": np.zeros((1, 8)), "anchors": anchors}
    wanted = [[[0, 0.8, 0, 0, 1, 1], [-1, 0.7, 0, 0, 0.5, 1]]]
    compare(tmp_path, "_contrib_MultiBoxDetection", inputs, {"nms_threshold": 0.5}, wanted)


# --- SSD's targets --------------------------------------------------------------------------------------------


def targets(anchors, labels, predictions, *, overlap_threshold=0.5, ignore_label=-1.0, negative_mining_ratio=-1.0,
            negative_mining_thresh=0.5, variances=(0.1, 0.1, 0.2, 0.2)):  # fmt: skip
    batch, count = len(labels), anchors.shape[1]
    codes, masks = (np.zeros((batch, count, 4), f32) for _ in range(2))
    classes = np.full((batch, count), ignore_label, f32)
    for n in range(batch):
        objects = labels[n, : next((i for i, row in enumerate(labels[n]) if row[0] == -1), len(labels[n]))]
        if not len(objects):
            continue
        table = np.asarray([[iou(anchor, row[1:5]) for row in objects] for anchor in anchors[0]], f32)
        match, free = {}, set(range(len(objects)))
        while free:
            best, found = f32(1e-6), None
            for j in range(count):
                for k in sorted(free):
                    if j not in match and table[j, k] > best:
                        best, found = table[j, k], (j, k)
            if found is None:
                break
            match[found[0]] = found[1]
            free.remove(found[1])
        for j in range(count):
            if j not in match and 0 < overlap_threshold < table[j].max():
                match[j] = int(table[j].argmax())
        negative = [j for j in range(count) if j not in match]
        if negative_mining_ratio > 0:
            exponents = np.exp(predictions[n] - predictions[n].max(axis=0))
            background = exponents[0] / exponents.sum(axis=0)
            negative = [j for j in negative if table[j].max() < negative_mining_thresh]
            negative = sorted(negative, key=lambda j: background[j])[: int(len(match) * negative_mining_ratio)]
        classes[n, negative] = 0
        for j, k in match.items():
            classes[n, j], masks[n, j] = objects[k, 0] + 1, 1
            a, g = anchors[0, j], objects[k, 1:5]
            size, extent = a[2:] - a[:2], g[2:] - g[:2]
            shift = ((g[:2] + g[2:]) * f32(0.5) - (a[:2] + a[2:]) * f32(0.5)) / size
            codes[n, j] = np.concatenate([shift, np.log(extent / size)]) / np.asarray(variances, f32)
    return codes.reshape(batch, -1), masks.reshape(batch, -1), classes


def objects(*counts, most=4, seed=0):
    labels = np.full((len(counts), most, 5), -1, f32)
    for n, count in enumerate(counts):
        labels[n, :count, 0] = np.arange(count)
        labels[n, :count, 1:] = corners(count, seed + n)
    return labels


TWICE = objects(3, 2)
TWICE[:, 1, 1:] = TWICE[:, 0, 1:]


@in_one_item()
@pytest.mark.parametrize(
    ("labels", "attributes"),
    [
        (objects(3, 1), {}),
        (objects(4, 0), {"overlap_threshold": 0.3, "ignore_label": -2, "variances": (1, 1, 1, 1)}),
        (objects(2, 3), {"negative_mining_ratio": 1.5, "negative_mining_thresh": 0.3}),
        (TWICE, {"overlap_threshold": 0}),
        (objects(0, 0), {"negative_mining_ratio": 3}),
    ],
)
def test_multibox_target(tmp_path, labels, attributes):
    anchors = corners(14, 7)[None]
    predictions = np.random.default_rng(5).standard_normal((2, 4, 14)).astype(f32)
    inputs = {"anchors": anchors, "labels": labels, "predictions": predictions}
    wanted = targets(anchors, labels, predictions, **attributes)
    compare(tmp_path, "_contrib_MultiBoxTarget", inputs, attributes, *wanted, tolerance=1e-5)


# --- proposals ------------------------------------------------------------------------------------------------


def proposals(scores, codes, info, *, rpn_pre_nms_top_n=6000, rpn_post_nms_top_n=300, threshold=0.7, rpn_min_size=16,
              scales=(4, 8, 16, 32), ratios=(0.5, 1, 2), feature_stride=16, iou_loss=False):  # fmt: skip
    kinds = len(scales) * len(ratios)
    regions, found = [], []
    for n, (height, width, scale) in enumerate(info):
        rows = []
        for y in range(scores.shape[2]):
            for x in range(scores.shape[3]):
                for k in range(kinds):
                    ratio, factor = ratios[k // len(scales)], scales[k % len(scales)]
                    w = np.floor(np.sqrt(np.floor(feature_stride**2 / ratio)) + 0.5)
                    size = np.asarray([w * factor, np.floor(w * ratio + 0.5) * factor], f32)
                    begin = f32((feature_stride - 1) / 2) - (size - 1) / 2 + np.asarray([x, y], f32) * feature_stride
                    code, end = codes[n, 4 * k : 4 * k + 4, y, x], begin + size - 1
                    if iou_loss:
                        begin, end = begin + code[:2], end + code[2:]
                    else:
                        centre, extent = code[:2] * size + begin + (size - 1) / 2, np.exp(code[2:]) * size
                        begin, end = centre - (extent - 1) / 2, centre + (extent - 1) / 2
                    limit = np.asarray([width, height], f32) - 1
                    begin, end = np.clip(begin, 0, limit), np.clip(end, 0, limit)
                    score = scores[n, kinds + k, y, x]
                    if y >= int(height / feature_stride) or x >= int(width / feature_stride):
                        score = f32(-1)
                    least = f32(rpn_min_size) * scale
                    if ((end - begin + 1) < least).any():
                        begin, end, score = begin - least / 2, end + least / 2, f32(-1)
                    rows.append((*begin, *end, score))
        rows.sort(key=lambda row: -row[4])
        rows = rows[: rpn_pre_nms_top_n if rpn_pre_nms_top_n > 0 else len(rows)]
        kept = []
        for row in rows:
            grown = [np.asarray([*r[:2], r[2] + 1, r[3] + 1]) for r in (row, *kept)]
            if len(kept) < rpn_post_nms_top_n and all(iou(grown[0], g) <= threshold for g in grown[1:]):
                kept.append(row)
        for i in range(rpn_post_nms_top_n):
            regions.append([n, *kept[i % len(kept)][:4]])
            found.append([kept[i % len(kept)][4]])
    return np.asarray(regions, f32), np.asarray(found, f32)


@pytest.mark.parametrize(
    ("op", "batch", "attributes"),
    [
        ("_contrib_Proposal", 1, {"scales": (1, 2), "ratios": (0.5, 1), "rpn_post_nms_top_n": 12}),
        ("_contrib_MultiProposal", 2, {"scales": (1, 2), "ratios": (1, 2), "rpn_post_nms_top_n": 30, "iou_loss": True,
                                       "rpn_pre_nms_top_n": 20, "threshold": 0.3}),
    ],
)  # fmt: skip
def test_proposal(tmp_path, op, batch, attributes):
    rng = np.random.default_rng(1)
    attributes = {"rpn_min_size": 6, "feature_stride": 8, **attributes}
    scores = rng.uniform(0, 1, (batch, 8, 3, 4)).astype(f32)
    scores[:, :, 1] = 0.5  # equal scores
    codes = (rng.standard_normal((batch, 16, 3, 4)) * (5 if "iou_loss" in attributes else 0.3)).astype(f32)
    info = np.asarray([[24, 32, 1.5], [20, 30, 0.5]], f32)[:batch]
    regions, found = proposals(scores, codes, info, **attributes)
    inputs = {"scores": scores, "codes": codes, "info": info}
    shapes = {"scores": ("N", 8, "H", "W"), "codes": ("N", 16, "H", "W"), "info": ("N", 3)}
    compare(tmp_path, op, inputs, attributes, regions, tolerance=1e-5)
    scored = {**attributes, "output_score": True}
    compare(tmp_path, op, inputs, scored, regions, found, tolerance=1e-5, shapes=shapes)


def test_proposal_refuses_another_count_of_anchors(tmp_path):
    inputs = {"scores": np.zeros((1, 18, 3, 4)), "codes": np.zeros((1, 36, 3, 4)), "info": np.zeros((1, 3))}
    with pytest.raises(InvalidModel, match="must have 24 and 48 channels"):
        imported(tmp_path, "_contrib_Proposal", inputs)
