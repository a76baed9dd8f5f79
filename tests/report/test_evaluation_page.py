"""The page of an evaluation stands alone, contains its numbers, and names from files do not break out of it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import graphkit as gk
from graphkit.report.evaluation_page import evaluation_page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
RNG = np.random.default_rng(3)


class Balanced(HTMLParser):
    """Raises where an element is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(text: str) -> None:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "@@" not in text
    assert not re.search(r"https?:|@import|url\(|<link|<iframe|<script|<img(?![^>]* src=\"data:)", text)


def evaluated(outputs: int, targets: np.ndarray, shape=(1, 6, 6), **options) -> gk.inference.evaluation.Evaluation:
    x = gk.input("x", ["N", *shape])
    flat = gk.reshape(x, np.array([-1, int(np.prod(shape))], np.int64))
    net = gk.Model({"y": gk.nn.linear(flat, outputs, name="fc")}, name=HOSTILE)
    inputs = RNG.uniform(size=(len(targets), *shape)).astype(np.float32)
    return gk.evaluate(net, gk.data.Dataset(inputs, targets, name=HOSTILE, **options), worst=5)


def test_classes_of_images():
    found = evaluated(3, RNG.integers(0, 3, 40), classes=["a", HOSTILE, "c"])
    text = evaluation_page(found)
    check(text)
    assert text.count("data:image/png;base64,") == 5
    assert "Confusion matrix" in text
    assert text.count('class="bar"') == np.count_nonzero(found.calibration.count)
    assert f"{found.metrics['accuracy']:.4g}" in text
    assert f"{found.calibration_error:.4g}" in text
    assert all(f"sample {sample.index}:" in text for sample in found.worst)


def test_numbers_and_notes():
    found = evaluated(1, RNG.normal(size=30).astype(np.float32), shape=(4,))
    text = evaluation_page(replace(found, notes=(HOSTILE,), nonfinite=2), title=HOSTILE)
    check(text)
    assert "Predictions over targets" in text
    assert "Reliability diagram" not in text
    assert "2 samples" in text


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_files_of_images_are_named(tmp_path, layout):
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 40), ("dog", 220)):
        (tmp_path / name).mkdir()
        for i in range(3):
            pixels = np.full((9, 9, 3), shade + i, np.uint8)
            image.fromarray(pixels).save(tmp_path / name / f"{i}&.png")
    shape = ["N", 3, 9, 9] if layout == "NCHW" else ["N", 9, 9, 3]
    x = gk.input("x", shape)
    net = gk.Model({"y": gk.nn.linear(gk.reshape(x, np.array([-1, 243], np.int64)), 2, name="fc")})
    found = gk.evaluate(net, tmp_path)
    assert {s.name for s in found.worst} == {str(p) for p in tmp_path.rglob("*.png")}
    text = evaluation_page(found)
    check(text)
    assert text.count("data:image/png;base64,") == 6
    assert f"{tmp_path}/cat/0&amp;.png" in text


def test_data_without_positions_have_no_samples_on_the_page():
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc")})
    batches = [(RNG.normal(size=(5, 3)).astype(np.float32), RNG.integers(0, 2, 5)) for _ in range(3)]
    found = gk.evaluate(net, lambda: iter(batches))
    assert found.samples == 15
    text = evaluation_page(found)
    check(text)
    assert "Reliability diagram" in text
