"""Training through quantisation: straight-through gradients, and those of the scales."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops import F
from graphkit.passes.training.fake_quantise import fake_quantise

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((3, 8)) * 4).astype(np.float32)
DY = RNG.standard_normal((3, 8)).astype(np.float32)


def gradients(zero, scale, x=X, dy=DY, **attributes):
    """The value of a quantisation and back, its gradient in x, and that in the scale."""
    image, step = gk.input("x", x.shape), gk.input("scale", scale.shape)
    q = F.quantize_linear(image, step, zero, **attributes)
    where = {key: value for key, value in attributes.items() if key != "output_dtype"}
    y = F.mul(F.dequantize_linear(q, step, zero, **where), dy)
    net = gk.grad(gk.Model({"y": y}), wrt=["x", "scale"])
    return net.compile().run({"x": x, "scale": scale}).values()


def by_formula(x, dy, scale, zero, least, most):
    steps = np.rint(x / scale)
    inside = (steps + zero >= least) & (steps + zero <= most)
    error = np.where(inside, steps - x / scale, np.where(steps + zero < least, least - zero, most - zero))
    return dy * inside, dy * error


@in_one_item()
@pytest.mark.parametrize(("dtype", "zero", "least", "most"), [(np.uint8, 120, 0, 255), (np.int8, -5, -128, 127)])
def test_gradients_of_one_scale(dtype, zero, least, most):
    scale = np.array(0.02, np.float32)
    dx, dscale = gradients(np.array(zero, dtype), scale)
    wanted, of_scale = by_formula(X, DY, scale, zero, least, most)
    np.testing.assert_array_equal(dx, wanted)
    assert 0 < np.count_nonzero(dx) < dx.size  # some elements lie outside
    np.testing.assert_allclose(dscale, of_scale.sum(), rtol=1e-4)


def test_gradients_of_a_scale_for_each_channel():
    scale = np.geomspace(0.01, 0.1, 8).astype(np.float32)
    zero = np.arange(8, dtype=np.int8)
    dx, dscale = gradients(zero, scale, axis=1)
    wanted, of_scale = by_formula(X, DY, scale, zero.astype(np.float32), -128, 127)
    np.testing.assert_array_equal(dx, wanted)
    np.testing.assert_allclose(dscale, of_scale.sum(0), rtol=1e-4, atol=1e-4)


def test_gradients_of_a_scale_for_each_block():
    scale = RNG.uniform(0.3, 0.6, (3, 3)).astype(np.float32)
    dx, dscale = gradients(None, scale, axis=1, block_size=3, output_dtype="int4")
    spread = np.repeat(scale, 3, 1)[:, :8]
    wanted, of_scale = by_formula(X, DY, spread, 0, -8, 7)
    np.testing.assert_array_equal(dx, wanted)
    sums = np.add.reduceat(of_scale, [0, 3, 6], axis=1)
    np.testing.assert_allclose(dscale, sums, rtol=1e-4, atol=1e-4)


def test_the_scale_of_stored_numbers():
    numbers, zero = RNG.integers(-128, 128, (3, 8)).astype(np.int8), np.arange(3, dtype=np.int8)
    at = gk.input("scale", [3])
    y = F.mul(F.dequantize_linear(gk.constant(numbers), at, zero, axis=0), DY)
    found = gk.grad(gk.Model({"y": y}), wrt=["scale"]).compile().run({"scale": np.ones(3, np.float32)})
    expected = (DY * (numbers.astype(np.float32) - zero[:, None])).sum(1)
    np.testing.assert_allclose(found["scale_grad"], expected, rtol=1e-4)


def test_other_parameters_are_no_way_through():
    x = gk.input("x", [4])
    y = F.dequantize_linear(F.quantize_linear(x, np.float32(0.1)), np.float32(0.2))
    with pytest.raises(gk.errors.UsageError, match="do not depend on"):
        gk.grad(gk.Model({"y": y}), wrt=["x"])


def test_values_and_exports_stay_as_they_were():
    x = gk.input("x", ["N", 8])
    zero = np.array(3, np.uint8)
    y = F.dequantize_linear(F.quantize_linear(x, np.float32(0.05), zero), np.float32(0.05), zero)
    net = gk.Model({"y": y})
    graph = fake_quantise(net.graph)
    assert [n.op.name for n in graph.nodes if n.op.name != "Constant"] == ["FakeQuantize"]
    trained = gk.Model.from_graph(graph, {})
    np.testing.assert_array_equal(trained.compile().run({"x": X})["y"], net.compile().run({"x": X})["y"])
    names = [node.op_type for node in trained.to_onnx().graph.node]
    assert names.count("QuantizeLinear") == names.count("DequantizeLinear") == 1


def quantised_network() -> gk.Model:
    """Two layers whose activations and weights are quantised."""

    def fake(value, scale, zero=0, dtype=np.int8):
        at = np.float32(scale), np.array(zero, dtype)
        return F.dequantize_linear(F.quantize_linear(value, *at), *at)

    h = fake(gk.input("x", ["N", 8]), 0.1)
    for layer, (width, inner) in enumerate([(16, 8), (3, 16)]):
        weight = gk.parameter(f"w{layer}", [inner, width])
        h = F.mat_mul(h, fake(weight, 0.01))
        h = fake(F.relu(h), 0.05, 0, np.uint8) if layer == 0 else h
    return gk.Model({"logits": h}, name="quantised")


def test_training_lowers_the_loss_and_keeps_the_grid():
    targets = (X[:, 0] > 0).astype(np.int64)
    trainer = gk.Trainer(quantised_network(), optimizer=gk.optim.Adam(1e-2), seed=1)
    losses = [float(trainer.step(X, targets)) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.pytorch
def test_as_pytorch():
    torch = pytest.importorskip("torch")
    x = torch.tensor(X, requires_grad=True)
    y = torch.fake_quantize_per_tensor_affine(x, 0.02, 120, 0, 255)
    y.backward(torch.tensor(DY))
    dx, _ = gradients(np.array(120, np.uint8), np.array(0.02, np.float32))
    np.testing.assert_array_equal(dx, x.grad.numpy())
    scale = torch.tensor([0.02], requires_grad=True)
    zero = torch.tensor([120.0])
    y = torch._fake_quantize_learnable_per_tensor_affine(torch.tensor(X), scale, zero, 0, 255, 1.0)
    y.backward(torch.tensor(DY))
    _, dscale = gradients(np.array(120, np.uint8), np.array(0.02, np.float32))
    np.testing.assert_allclose(dscale, scale.grad.numpy()[0], rtol=1e-4)
