"""MXNet's CTCLoss, compared with the sum over all alignments, and with figures of MXNet 1.9.1."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from tests.mxnet_io.symbols import compare, imported

STEPS, SAMPLES, CLASSES = 5, 3, 4
X = np.random.default_rng(0).standard_normal((STEPS, SAMPLES, CLASSES)).astype(np.float32)
LENGTHS = np.float32([5, 3, 4])
# Rows of the gradient in MXNet 1.9.1: the first step of the first sample, the last step of the last sample.
FIRST = (0.0011049, 0.1746174, -0.3970413, 0.2213184)
LAST = (0.2127795, -0.4011, 0.0701094, 0.1182111)


def _loss(x, labels, blank):
    """Return -log of the sum of the probabilities of all alignments of one sample. x: [steps, classes]."""
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    total = 0.0
    for path in itertools.product(range(x.shape[1]), repeat=len(x)):
        merged = [c for i, c in enumerate(path) if (i == 0 or c != path[i - 1]) and c != blank]
        if merged == labels:
            total += np.prod(p[np.arange(len(x)), path])
    return -np.log(total)


@in_one_item()
@pytest.mark.parametrize("blank", ["first", "last"])
@pytest.mark.parametrize("of_data", [False, True])
@pytest.mark.parametrize("of_labels", [False, True])
def test_ctc_loss_sums_over_all_alignments(tmp_path, blank, of_data, of_labels):
    # Class 0 or class 3 is the blank. The second label of the last sample equals its first.
    low, padding, number = (1, 0, 0) if blank == "first" else (0, -1, CLASSES - 1)
    labels = [[low + 1, low], [low + 2], [low, low]]
    rows = np.float32([row + [padding] * (3 - len(row)) for row in labels])
    inputs = {"data": X, "label": rows}
    attributes = {"blank_label": blank}
    if of_data:
        inputs["data_lengths"], attributes["use_data_lengths"] = LENGTHS, True
    if of_labels:
        labels[0] = labels[0][:1]  # shorter than its row
        inputs["label_lengths"], attributes["use_label_lengths"] = np.float32([1, 1, 2]), True
    lengths = LENGTHS.astype(int) if of_data else [STEPS] * SAMPLES
    expected = [_loss(X[:n, i].astype(np.float64), labels[i], number) for i, n in enumerate(lengths)]
    compare(tmp_path, "ctc_loss", inputs, attributes, np.float32(expected), tolerance=1e-5)


def test_ctc_loss_has_the_gradient_of_mxnet(tmp_path):
    """The gradient of the sum of the losses; figures of MXNet 1.9.1 for MakeLoss(ctc_loss(data, label))."""
    model = imported(tmp_path, "CTCLoss", {"data": X, "label": np.float32([[2, 1, 0], [3, 0, 0], [1, 1, 0]])})
    total = gk.Model({"total": gk.reduce_sum(model.graph.outputs[0], keepdims=False)})
    feeds = {"data": X, "label": np.float32([[2, 1, 0], [3, 0, 0], [1, 1, 0]])}
    (found,) = gk.grad(total, wrt=["data"]).run(feeds).values()
    np.testing.assert_allclose(found[0, 0], FIRST, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[4, 2], LAST, rtol=1e-5, atol=1e-6)
