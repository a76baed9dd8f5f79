"""Loss scaling: the scale, and the gradients."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph
from graphkit.ops.evaluate import evaluate
from graphkit.train.programs import loss_scale


def after(factor: float, since: int) -> list[float]:
    scale = loss_scale.state()
    (found,) = evaluate(Graph([scale], [loss_scale.next_state(scale)]), [np.array([factor, since], np.float32)])
    return found.tolist()


def test_loss_scale_doubles_at_intervals() -> None:
    last = loss_scale.INTERVAL - 1
    assert after(8, 0) == [8, 1]
    assert after(8, last - 1) == [8, last]
    assert after(8, last) == [16, 0]
    assert after(2.0**24, last) == [2.0**24, 0]


def test_loss_scale_halves_down_to_one() -> None:
    halved = loss_scale.lower(np.array([8, 7], np.float32))
    assert halved is not None
    assert halved.tolist() == [4, 0]
    assert loss_scale.lower(np.array([1, 7], np.float32)) is None


def test_gradients_are_those_of_the_loss() -> None:
    x = gk.input("x", [3])
    loss = gk.reduce_sum(gk.exp(x) * x, keepdims=False)
    scale = loss_scale.state()
    (scaled,), (plain,) = loss_scale.gradients(loss, [x], scale), gradient([loss], [x])
    array, factor = np.array([0.1, 2, -3], np.float32), np.array([1024, 5], np.float32)
    found, expected = evaluate(Graph([x, scale], [scaled, plain]), [array, factor])
    np.testing.assert_array_equal(found, expected)


def test_float16_needs_a_gpu() -> None:
    x = gk.input("x", ["N", 3])
    net = gk.Model({"y": gk.nn.linear(x, 2)})
    with pytest.raises(UnsupportedError, match="'f16' needs a GPU"):
        gk.Trainer(net, "mse", precision="f16")
