"""Layers that make the parameters of RNN, GRU and LSTM."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import TypeMismatch, UsageError


@pytest.fixture
def x():
    return gk.input("x", ["T", "N", 3])


@pytest.mark.parametrize(("layer", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_ends_and_parameters(layer, gates, direction, x):
    y, last = getattr(gk.nn, layer)(x, 5, direction=direction)
    directions = 2 if direction == "bidirectional" else 1
    assert str(y.type) == f"float32[T, N, {5 * directions}]"
    for state in last if layer == "lstm" else (last,):
        assert str(state.type) == f"float32[{directions}, N, 5]"
    net = gk.Model(y)
    assert {n: a.shape for n, a in net.params.items()} == {
        f"{layer}_weight": (directions, gates * 5, 3),
        f"{layer}_recurrent": (directions, gates * 5, 5),
        f"{layer}_bias": (directions, 2 * gates * 5),
    }
    for array in net.params.values():
        assert 0.3 < np.abs(array).max() <= 5**-0.5
    report = gk.verify(net, {"x": np.random.default_rng(0).standard_normal((4, 2, 3), np.float32)})
    assert report.passed, str(report)


def test_lengths_and_first_states(x):
    lengths, first = gk.input("lengths", ["N"], "int64"), gk.input("first", [1, "N", 4])
    y, last = gk.nn.gru(x, 4, lengths=lengths, initial=first, name="g")
    net = gk.Model({"y": y, "last": last})
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((3, 2, 3), np.float32),
        "lengths": np.array([2, 0]),
        "first": rng.standard_normal((1, 2, 4), np.float32),
    }
    found = net.run(feeds)
    assert not found["y"][2:, 0].any()
    assert not found["y"][:, 1].any()
    np.testing.assert_array_equal(found["last"][0, 1], feeds["first"][0, 1])
    np.testing.assert_array_equal(found["last"][0, 0], found["y"][1, 0])


def test_options(x):
    net = gk.Model(gk.nn.rnn(x, 5, activation="Relu", bias=False, init="zeros", direction="bidirectional")[0])
    assert list(net.params) == ["rnn_weight", "rnn_recurrent"]
    assert not net.params["rnn_weight"].any()
    assert (net.run({"x": np.ones((2, 1, 3), np.float32)})[net.outputs[0]] == 0).all()


def test_errors(x):
    with pytest.raises(UsageError, match="direction must be forward, reverse or bidirectional, not 'both'"):
        gk.nn.lstm(x, 5, direction="both")
    with pytest.raises(UsageError, match="units must be a positive integer"):
        gk.nn.rnn(x, 0)
    with pytest.raises(TypeMismatch, match=r"\[T, N, C\], of rank 3"):
        gk.nn.gru(gk.input("x", ["N", 3]), 5)
    with pytest.raises(UsageError, match="in_features"):
        gk.nn.lstm(gk.input("x", ["T", "N", "C"]), 5)
