"""The convolutional classifier: its windows, its padding, its frozen embedding, and phrases that it learns."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk

SMALL = {"vocab": 20, "width": 5, "windows": (2, 4), "maps": 3, "classes": 3}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")


def spread(net):
    rng = np.random.default_rng(0)
    for n in net.params:
        net.params[n] = (0.5 * rng.standard_normal(net.params[n].shape)).astype(np.float32)
    return net


def one_sentence(p, words):
    """The logits of a sentence by itself, window by window."""
    pooled = []
    for window in SMALL["windows"]:
        ends = np.zeros((window - 1, SMALL["width"]))
        padded = np.concatenate([ends, p["token_weight"][words], ends])
        weight, bias = p[f"conv{window}_weight"], p[f"conv{window}_bias"]
        count = max(1, len(padded) - window + 1)
        found = [
            np.einsum("mwk,kw->m", weight, padded[i : i + window]) + bias if len(words) else bias
            for i in range(count)
        ]  # fmt: skip
        pooled.append(np.maximum(np.max(found, axis=0), 0))
    return p["fc_weight"] @ np.concatenate(pooled) + p["fc_bias"]


def test_it_is_one_sentence_at_a_time_and_padding_does_not_matter():
    net = spread(gk.models.build("text_cnn", **SMALL))
    rng = np.random.default_rng(1)
    x, lengths = rng.integers(0, 20, (5, 7)), np.array([7, 3, 1, 0, 5])
    wanted = [one_sentence(net.params, row[:n]) for row, n in zip(x, lengths, strict=True)]
    np.testing.assert_allclose(net.run({"x": x, "lengths": lengths})["logits"], wanted, rtol=1e-4, atol=1e-5)
    padded = np.concatenate([x, rng.integers(0, 20, (5, 3))], axis=1)
    for row, length in enumerate(lengths):
        padded[row, length:] = rng.integers(0, 20, 10 - length)
    feeds = {"x": padded, "lengths": lengths}
    np.testing.assert_allclose(net.run(feeds)["logits"], wanted, rtol=1e-4, atol=1e-5)
    assert gk.verify(net, feeds).passed


def phrases(count, rng):
    """Sentences of 4 to 12 words; the class says whether words 1 and 2 follow each other: both are in all of them."""
    x, lengths = rng.integers(3, 20, (count, 12)), rng.integers(4, 13, count)
    together = np.arange(count) % 2
    for row in range(count):
        at = rng.integers(0, lengths[row] - 2)
        x[row, at], x[row, at + 1 + (together[row] == 0)] = 1, 2
    return {"x": x, "lengths": lengths}, together


def test_it_learns_a_phrase_that_may_be_anywhere():
    rng = np.random.default_rng(0)
    net = gk.models.build("text_cnn", vocab=20, width=8, windows=(2, 3), maps=16, dropout=0.2)
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(1e-2), threads=1, seed=0)
    trainer.fit(gk.data.Dataset(*phrases(512, rng)), epochs=8, batch_size=32)
    assert trainer.evaluate(gk.data.Dataset(*phrases(400, rng)))["accuracy"] > 0.97


def test_a_static_embedding_keeps_its_vectors():
    net = gk.models.build("text_cnn", **SMALL, static=True)
    vectors = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    net.params["token_weight"] = vectors
    before = net.params["conv2_weight"].copy()
    assert "token_weight" not in net.trainable
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(1e-2), threads=1, seed=0)
    trainer.step({"x": np.ones((2, 4), np.int64), "lengths": np.array([4, 2])}, np.array([0, 2]))
    np.testing.assert_array_equal(net.params["token_weight"], vectors)
    assert (net.params["conv2_weight"] != before).any()
