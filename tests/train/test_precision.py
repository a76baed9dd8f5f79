"""Training with precision="bf16": parameters are float32, and the loss falls as with float32."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UnsupportedError
from graphkit.executor.devices.cpu import native

RNG = np.random.default_rng(4)
X = RNG.standard_normal((48, 1, 12, 12)).astype(np.float32)
Y = (X.mean(axis=(1, 2, 3)) > 0).astype(np.int64) + 2 * (X[:, 0, :6].mean(axis=(1, 2)) > 0)


def trainer(**options: object) -> gk.Trainer:
    x = gk.input("x", ["N", 1, 12, 12])
    h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 8, kernel=3, pad=1, name="conv"), name="bn"))
    h = gk.max_pool(h, kernel_shape=(2, 2), strides=(2, 2))[0]
    h = gk.relu(gk.nn.linear(gk.flatten(h), 32, name="fc1"))
    net = gk.Model({"logits": gk.nn.linear(h, 4, name="fc2")})
    for i, name in enumerate(net.params):
        shape = net.params[name].shape
        if len(shape) > 1:
            net.params[name] = np.random.default_rng(i).standard_normal(shape).astype(np.float32) * 0.1
    return gk.Trainer(net, optimizer=gk.optim.Adam(3e-3), seed=0, **options)


@pytest.mark.skipif(not native.has_bfloat16(), reason="the processor has no bfloat16 arithmetic")
def test_bfloat16_trains_like_float32() -> None:
    exact, rounded = trainer(), trainer(precision="bf16")
    losses = np.array([[float(t.step(X, Y)) for t in (exact, rounded)] for _ in range(30)])
    assert losses[0, 0] != losses[0, 1]
    np.testing.assert_allclose(losses[0, 1], losses[0, 0], rtol=0.02)
    assert losses[-1, 1] < 0.6 * losses[0, 1]
    np.testing.assert_allclose(losses[-1, 1], losses[-1, 0], rtol=0.1)
    assert {a.dtype for a in rounded.net.params.values()} == {np.dtype(np.float32)}
    # Most updates are smaller than half a unit of bfloat16. They have an effect because the weights are float32.
    weight = rounded.net.params["fc1_weight"]
    assert np.mean(weight.view(np.uint32) & 0xFFFF != 0) > 0.9


@pytest.mark.skipif(native.has_bfloat16(), reason="the processor has bfloat16 arithmetic")
def test_bfloat16_is_refused_without_the_arithmetic() -> None:
    with pytest.raises(UnsupportedError, match="does not multiply matrices of bfloat16"):
        trainer(precision="bf16")


@in_one_item()
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_deterministic_training_gives_the_same_bits(threads: int) -> None:
    first, second = (trainer(deterministic=True, threads=n) for n in (1, threads))
    for _ in range(3):
        assert float(first.step(X, Y)) == float(second.step(X, Y))
    for name, array in first.net.params.items():
        np.testing.assert_array_equal(second.net.params[name], array, err_msg=name)
