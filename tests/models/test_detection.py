"""SSD: default boxes, matching, loss and detections, compared with loops that follow the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError
from graphkit.models._multibox import Detection, decoded
from graphkit.models.ssd import default_boxes, match, multibox_loss

SMALL = {"image": (3, 268, 280), "classes": 4, "width": 4}
TARGETS = {"classes": gk.TensorType("int64", ["N", "A"]), "places": gk.TensorType("float32", ["N", "A", 4])}


def corners(box):
    x, y, width, height = map(float, box)
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def overlap(a, b):
    width, height = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    shared = width * height
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return shared / (sum(areas) - shared) if shared else 0.0


def test_default_boxes_of_300_pixels():
    boxes = default_boxes()
    assert boxes.shape == (8732, 4)
    assert boxes.dtype == np.float32
    # The first place of the first map: 8 pixels apart, scale 0.07 and the mean with 0.15, ratio 2 both ways.
    mean, root = math.sqrt(0.07 * 0.15), math.sqrt(2)
    sizes = [(0.07, 0.07), (mean, mean), (0.07 * root, 0.07 / root), (0.07 / root, 0.07 * root)]
    np.testing.assert_allclose(boxes[:4], [(4 / 300, 4 / 300, *s) for s in sizes], rtol=1e-6)
    np.testing.assert_allclose(boxes[4:8, :2], [(12 / 300, 4 / 300)] * 4, rtol=1e-6)
    np.testing.assert_allclose(boxes[-4:, :2], 0.5)
    np.testing.assert_allclose(boxes[-3, 2:], math.sqrt(0.87 * 1.05), rtol=1e-6)
    assert boxes[:, 2:].max() == 1  # the centres of 64 pixels may lie outside


@in_one_item()
@pytest.mark.parametrize("sides", [(268, 280), (300, 300), (331, 268), (512, 400)])
def test_there_are_as_many_default_boxes_as_outputs(sides, unset_parameters):
    net = gk.models.build("ssd", **SMALL | {"image": (3, *sides)})
    assert len(default_boxes((3, *sides))) == net.output_types["logits"].known_shape[1]


def test_matching_follows_the_paper():
    rng = np.random.default_rng(3)
    defaults = default_boxes((3, 268, 268))[4000:5500]
    low = rng.uniform(0, 0.7, (2, 5, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.3, (2, 5, 2))], axis=2)
    labels = rng.integers(1, 4, (2, 5))
    classes, offsets = match([*boxes, np.zeros((0, 4))], [*labels, np.zeros(0, np.int64)], defaults)
    assert classes.shape == (3, 1500)
    assert (classes > 0).sum() > 10
    for image in range(2):
        table = np.array([[overlap(box, corners(default)) for default in defaults] for box in boxes[image]])
        expected = {d: int(table[:, d].argmax()) for d in range(1500) if table[:, d].max() >= 0.5}
        expected |= {int(row.argmax()): number for number, row in enumerate(table)}
        assert {d: int(classes[image, d]) for d in np.flatnonzero(classes[image])} == {
            d: int(labels[image, number]) for d, number in expected.items()
        }
        for d, number in expected.items():
            x1, y1, x2, y2 = boxes[image, number]
            x, y, width, height = map(float, defaults[d])
            wanted = [((x1 + x2) / 2 - x) / width / 0.1, ((y1 + y2) / 2 - y) / height / 0.1]
            wanted += [math.log((x2 - x1) / width) / 0.2, math.log((y2 - y1) / height) / 0.2]
            np.testing.assert_allclose(offsets[image, d], wanted, rtol=1e-3, atol=1e-4)
    assert not classes[2].any()
    assert not offsets[classes == 0].any()


def test_decoding_undoes_the_encoding():
    defaults = default_boxes((3, 268, 268))
    box = np.array([[0.2, 0.3, 0.55, 0.8]], np.float32)
    classes, offsets = match([box], [np.array([2])], defaults)
    values = gk.input("offsets", ["N", len(defaults), 4])
    (found,) = gk.Model(decoded(values, defaults)).compile(threads=1)(offsets)
    np.testing.assert_allclose(found[classes > 0], np.repeat(box, (classes > 0).sum(), axis=0), atol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    ("boxes", "labels", "message"),
    [
        ([[[0.1, 0.1, 0.1, 0.5]]], [[1]], "image 0, box 0: expected x1 < x2 and y1 < y2"),
        ([[], [[0.1, 0.1, 0.4, np.nan]]], [[], [1]], "image 1, box 0: expected x1 < x2 and y1 < y2"),
        ([[[0.1, 0.1, 0.4, np.inf]]], [[1]], "image 0, box 0"),
        ([[[0.1, 0.1, 0.4, 0.5]]], [[0]], r"image 0: labels must be integers from 1, not \[0\]"),
        ([[[0.1, 0.1, 0.4, 0.5]]], [[1.5]], r"image 0: labels must be integers from 1, not \[1.5\]"),
        ([[[0.1, 0.1, 0.4, 0.5]]], [[1, 2]], r"image 0: expected boxes \[objects, 4\] and labels \[objects\]"),
        ([[[0.1, 0.1, 0.4]]], [[1]], r"not \(1, 3\) and \(1,\)"),
        ([[]], [[], []], "boxes for 1 image, but labels for 2"),
    ],
)
def test_objects_that_are_none(boxes, labels, message):
    with pytest.raises(InputError, match=message):
        match([np.array(b) for b in boxes], [np.array(n) for n in labels], default_boxes((3, 268, 268)))


# --- loss -------------------------------------------------------------------------------------------


def loss_of(logits, offsets, classes, places):
    values = [
        gk.input(n, a.shape, a.dtype.name) for n, a in zip("loct", (logits, offsets, classes, places), strict=True)
    ]
    (loss,) = gk.Model(multibox_loss(*values)).compile(threads=1)(logits, offsets, classes, places)
    return float(loss)


def expected_loss(logits, offsets, classes, places):
    total, matched = 0.0, 0
    for image in range(len(logits)):
        entropies = []
        for box, label in enumerate(classes[image]):
            row = logits[image, box]
            entropy = math.log(sum(math.exp(v) for v in row)) - row[label]
            if label:
                matched += 1
                total += entropy
                distances = np.abs(offsets[image, box] - places[image, box])
                total += sum(d * d / 2 if d < 1 else d - 0.5 for d in distances)
            else:
                entropies.append(entropy)
        total += sum(sorted(entropies, reverse=True)[: 3 * int((classes[image] > 0).sum())])
    return total / max(matched, 1)


@in_one_item()
@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.6, 1.0])
def test_the_loss_is_its_equation(share):
    """A quarter of matches takes all of the background, and more find fewer than three times their number."""
    rng = np.random.default_rng(0)
    logits, offsets, places = (rng.standard_normal((3, 40, n)) * 2 for n in (5, 4, 4))
    classes = np.where(rng.random((3, 40)) < share, rng.integers(1, 5, (3, 40)), 0)
    classes[2] = 0
    case = logits, offsets, classes, places
    assert loss_of(*case) == pytest.approx(expected_loss(*case), rel=1e-12)


@pytest.mark.full
def test_training_lowers_the_loss():
    net = gk.models.build("ssd", **SMALL)
    images = np.random.default_rng(0).uniform(0, 100, (2, 3, 268, 280)).astype(np.float32)
    boxes = [np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.2, 0.9, 0.9]]), np.zeros((0, 4))]
    classes, places = match(boxes, [np.array([2, 1]), np.zeros(0, np.int64)], default_boxes((3, 268, 280)))
    trainer = gk.Trainer(net, multibox_loss, gk.optim.Adam(1e-3), targets=TARGETS, threads=2)
    losses = [float(trainer.step(images, {"classes": classes, "places": places})) for _ in range(12)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.7 * losses[0]


def test_an_image_without_any_light_has_finite_gradients():
    """The length of the normalised map is 0 there: its direction is 0, not NaN."""
    net = gk.models.build("ssd", **SMALL)
    images = np.zeros((1, 3, 268, 280), np.float32)
    box = [np.array([[0.1, 0.1, 0.4, 0.5]])]
    classes, places = match(box, [np.array([2])], default_boxes((3, 268, 280)))
    trainer = gk.Trainer(net, multibox_loss, gk.optim.SGD(0.01), targets=TARGETS, threads=2)
    assert np.isfinite([float(trainer.step(images, {"classes": classes, "places": places})) for _ in range(2)]).all()
    assert all(np.isfinite(net.params[n]).all() for n in net.params)


# --- detections -------------------------------------------------------------------------------------


def expected_detections(scores, boxes, *, most, candidates, limit, least):
    """(boxes, labels, scores) of one image: scores [A, classes], boxes [A, 4] as corners."""
    found = []
    for label in range(1, scores.shape[1]):
        order = np.argsort(-scores[:, label], kind="stable")[:candidates]
        kept = []
        for box in order[scores[order, label] > least]:
            if all(overlap(boxes[box], boxes[other]) <= limit for other in kept):
                kept.append(box)
        found += [(float(scores[box, label]), label, box) for box in kept]
    found.sort(key=lambda entry: -entry[0])
    return found[:most]


def test_detections_are_those_of_a_loop(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    rng = np.random.default_rng(1)
    defaults = default_boxes((3, 268, 268))[5000:6500]
    logits = rng.standard_normal((3, 1500, 4)).astype(np.float32) * 1.5
    offsets = rng.standard_normal((3, 1500, 4)).astype(np.float32)
    logits[2, :, 0] = 30  # background everywhere
    logits[2, 7, 3] = 31
    values = gk.input("logits", ["N", 1500, 4]), gk.input("offsets", ["N", 1500, 4])
    options = {"most": 60, "candidates": 50, "overlap": 0.45, "score": 0.3}
    net = gk.Model(Detection(**options).detect(*values, defaults))
    found = net.compile(threads=1).run({"logits": logits, "offsets": offsets})
    (places,) = gk.Model(decoded(values[1], defaults)).compile(threads=1)(offsets)
    raised = np.exp(logits - logits.max(axis=2, keepdims=True))
    scores = raised / raised.sum(axis=2, keepdims=True)
    counts = []
    for image in range(3):
        expected = expected_detections(
            scores[image], places[image].astype(float), most=60, candidates=50, limit=0.45, least=0.3
        )
        counts.append(len(expected))
        np.testing.assert_array_equal(found["labels"][image, : len(expected)], [label for _, label, _ in expected])
        np.testing.assert_allclose(found["scores"][image, : len(expected)], [s for s, _, _ in expected], rtol=1e-5)
        np.testing.assert_array_equal(found["boxes"][image, : len(expected)], [places[image, b] for *_, b in expected])
        for name in ("boxes", "labels", "scores"):
            assert not found[name][image, len(expected) :].any()
    assert counts[0] == 60
    assert counts[2] == 1
    assert gk.verify(net, {"logits": logits, "offsets": offsets}).passed


def test_the_detector_has_the_parameters_of_the_trained_network(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    net = gk.models.build("ssd", **SMALL)
    detector = gk.models.build("ssd", **SMALL, detections=7)
    assert list(detector.params) == list(net.params)
    for name in net.params:
        detector.params[name] = net.params[name]
    images = np.random.default_rng(0).uniform(0, 100, (2, 3, 268, 280)).astype(np.float32)
    detector.save(tmp_path / "ssd.onnx")
    again = gk.load(tmp_path / "ssd.onnx").compile(threads=1).run({"x": images})
    found = detector.compile(threads=1).run({"x": images})
    assert {n: a.shape for n, a in found.items()} == {"boxes": (2, 7, 4), "labels": (2, 7), "scores": (2, 7)}
    for name, array in found.items():
        np.testing.assert_array_equal(again[name], array)
    assert (np.diff(found["scores"], axis=1) <= 0).all()
    assert gk.verify(detector, {"x": images}).passed
