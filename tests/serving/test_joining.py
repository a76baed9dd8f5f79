"""Models whose requests can share batches, and the reasons for other models."""

from __future__ import annotations

import numpy as np

import graphkit as gk
from graphkit.serving.joining import why_not_joined


def why(*outputs):
    net = gk.Model({f"y{place}": output for place, output in enumerate(outputs)})
    return why_not_joined(net, net.compile(threads=1).run)


def test_independent_rows_are_joined():
    x = gk.input("x", ["N", 3])
    assert why(gk.relu(gk.nn.linear(x, 4)), gk.softmax(x, axis=1)) is None


def test_different_names_of_the_batch_are_one():
    x, z = gk.input("x", ["N", 3]), gk.input("z", ["M", 3])
    assert why(x + 1.0, z * 2.0) is None


def test_a_network_of_texts_is_joined():
    net = gk.models.build("text_classifier")
    assert why_not_joined(net, net.compile(threads=1).run) is None


def test_a_loop_over_steps_is_joined():
    x = gk.input("x", ["N", 4, 3])
    steps = gk.transpose(x, perm=[1, 0, 2])
    total, _ = gk.scan(lambda state, row: (state + row, state), gk.reduce_sum(x, [1], keepdims=0) * 0.0, steps)
    assert why(total) is None


def test_a_fixed_batch():
    x = gk.input("x", [1, 3])
    assert why(gk.relu(x)) == "input 'x' is float32[1, 3]: its first axis is fixed"


def test_an_input_without_batch():
    x, rate = gk.input("x", ["N", 3]), gk.input("rate", [])
    assert why(x * rate) == "input 'rate' is float32[] and has no batch axis"


def test_a_batch_axis_that_is_another_axis_too():
    x, w = gk.input("x", ["N", "N"]), gk.input("w", ["M", "N"])
    wanted = "input {} is float32[{}, N]: 'N' is the batch axis of an input, too"
    assert why(gk.reduce_sum(x, [1], keepdims=0)) == wanted.format("'x'", "N")
    assert why(2.0 * gk.input("z", ["N", 4]), gk.reduce_sum(w, [1], keepdims=0)) == wanted.format("'w'", "M")


def test_an_output_without_batch():
    x = gk.input("x", ["N", 3])
    assert "output 'y0' is float32[3]: its first axis" in why(gk.reduce_sum(x, [0], keepdims=0))
    assert "its first axis is not the batch" in why(gk.mat_mul(x, gk.transpose(x)))
    assert "its first axis is not the batch" in why(gk.concat(x, x, axis=0))


def test_rows_that_depend_on_each_other():
    x = gk.input("x", ["N", 3])
    mixed = gk.softmax(x, axis=0)
    for each in (mixed, gk.cum_sum(x, gk.constant(np.int64(0))), gk.arg_max(mixed, axis=1, keepdims=0), mixed > 2.0):
        assert "random requests do not show that its rows are independent" in why(each)
    half = gk.input("x", ["N", 3], dtype="float16")
    bits, scale, zero = gk.dynamic_quantize_linear(x)
    scores = gk.cast(gk.mat_mul_integer(bits, gk.constant(np.eye(3, dtype=np.int8)), zero), to="float32") * scale
    for each, operator in (
        (x - gk.reduce_mean(x, [0]), "ReduceMean"),
        (half + gk.reduce_mean(half, [0, 1], keepdims=1) * 0.01, "ReduceMean"),
        (gk.arg_max(scores, axis=1, keepdims=0), "DynamicQuantizeLinear"),
    ):
        assert f"its rows depend on each other: {operator}" in why(each)


def test_time_before_batch():
    net = gk.models.build("lstm_lm")
    assert "LSTM 'lstm0' computes float32[1, N, 200]" in why_not_joined(net, net.compile(threads=1).run)


def test_nothing_compared_is_not_joined():
    x = gk.input("x", ["N", 3])
    assert "NaN" in why(gk.softmax(x, axis=0) * np.float32("nan"))


def test_random_rows_are_not_joined():
    x = gk.input("x", ["N", 3])
    assert why(x + gk.random_uniform_like(x)) is not None
