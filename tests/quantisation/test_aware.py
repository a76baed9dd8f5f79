"""Quantisation-aware fine-tuning, compared with formulas in numpy, and with files in ONNX Runtime."""

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from onnx_networks import check, conv_net, decibels, floats, info, initializers, model, run, sixteenths

import graphkit as gk
from graphkit.errors import InputError, UnsupportedError, UsageError

node = helper.make_node


def trained(aware, x, y, steps=3, rate=1e-2, **options):
    trainer = gk.Trainer(aware.model, optimizer=gk.optim.SGD(rate), **options)
    losses = [float(trainer.step(x, y)) for _ in range(steps)]
    return trainer, losses


def gemm_net(**arrays):
    arrays = arrays or {"w": floats(4, 6), "b": floats(4, seed=1)}
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], "fc", transB=1)]
    return model(nodes, [("x", ["N", 6])], [("y", ["N", 4])], arrays)


@in_one_item()
@pytest.mark.parametrize("scales", ["fixed", "learned"])
@pytest.mark.parametrize("options", [{}, {"per_channel": False, "activations": "int8"}])
def test_before_training_the_file_is_unchanged(scales, options):
    """Weights start in float, and round to the integers of the file."""
    found = gk.quantize(gk.load(conv_net()), floats(8, 3, 8, 8), **options)
    aware = gk.quantization_aware(found, scales=scales)
    again = aware.quantized()
    before, after = initializers(found.message), initializers(again.message)
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    assert again.layers == found.layers
    assert aware.weights == ("w1", "w2", "w3")
    assert bool(aware.scales) is (scales == "learned")


@pytest.mark.parametrize("scales", ["fixed", "learned"])
def test_the_trained_file_computes_what_was_trained(scales):
    x, y = floats(16, 3, 8, 8, seed=7), np.arange(16) % 5
    found = gk.quantize(gk.load(conv_net()), x)
    aware = gk.quantization_aware(found, scales=scales)
    _, losses = trained(aware, x, y, steps=12)
    assert losses[-1] < losses[0]
    tuned = aware.quantized()
    check(tuned.message)
    assert any((initializers(tuned.message)[n] != initializers(found.message)[n]).any() for n in ("w1_quantized",))
    wanted = aware.model.run({"x": x})["y"]
    # Biases are rounded to int32, which may move a number halfway between two integers by one.
    assert decibels(wanted, run(tuned.message, {"x": x})[0]) > 30
    assert decibels(run(found.message, {"x": x})[0], wanted) < 30
    scale = {n: a for n, a in initializers(tuned.message).items() if n.endswith("_scale") and n[0] != "b"}
    changed = [n for n, a in scale.items() if (a != initializers(found.message)[n]).any()]
    assert bool(changed) is (scales == "learned")


def test_gradient_step_equals_numpy():
    """Straight-through estimator: the gradient of the rounded weight, where it is not clipped."""
    proto, x, y = gemm_net(), sixteenths(5, 6, seed=3), floats(5, 4, seed=4)
    found = gk.quantize(gk.load(proto), x)
    aware = gk.quantization_aware(found)
    trainer = gk.Trainer(aware.model, "mse", gk.optim.SGD(0.1))
    trainer.step(x, y)
    at = initializers(found.message)
    w, b = initializers(proto)["w"], at["b_quantized"] * at["b_scale"]
    wq = np.clip(np.rint(w / at["w_scale"][:, None]), -128, 127) * at["w_scale"][:, None]
    steps = np.clip(np.rint(x / at["x_scale"]) + at["x_zero_point"], 0, 255) - at["x_zero_point"].astype(np.float32)
    xq = steps * at["x_scale"]
    error = 2 * (xq @ wq.T + b - y) / y.size
    np.testing.assert_allclose(aware.model.params["w"], w - 0.1 * error.T @ xq, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(aware.model.params["b"], b - 0.1 * error.sum(0), rtol=1e-5, atol=1e-6)


def test_learned_scale_has_the_gradient_of_lsq():
    """d loss / d t = s * d loss / d s for a scale s * exp(t)."""
    proto, x, y = gemm_net(), sixteenths(5, 6, seed=3), floats(5, 4, seed=4)
    found = gk.quantize(gk.load(proto), x, per_channel=False)
    aware = gk.quantization_aware(found, scales="learned")
    trainer = gk.Trainer(aware.model, "mse", gk.optim.SGD(1.0), train=["w_scale_log"])
    trainer.step(x, y)
    at = initializers(found.message)
    w, s, b = initializers(proto)["w"], at["w_scale"], at["b_quantized"] * at["b_scale"]
    steps = np.clip(np.rint(x / at["x_scale"]) + at["x_zero_point"], 0, 255) - at["x_zero_point"].astype(np.float32)
    xq = steps * at["x_scale"]
    error = 2 * (xq @ (np.rint(w / s) * s).T + b - y) / y.size
    gradient = ((error.T @ xq) * (np.rint(w / s) - w / s)).sum() * s
    np.testing.assert_allclose(aware.model.params["w_scale_log"], -gradient, rtol=1e-4)
    tuned = initializers(aware.quantized().message)
    np.testing.assert_allclose(tuned["w_scale"], s * np.exp(-gradient), rtol=1e-5)
    np.testing.assert_allclose(tuned["b_scale"], tuned["w_scale"] * tuned["x_scale"], rtol=1e-6)


def test_four_bit_blocks(tmp_path):
    proto = gemm_net(w=floats(4, 48), b=floats(4, seed=1))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 48
    found = gk.quantize(gk.load(proto), mode="weights", bits=4, block_size=32, standard=True)
    x, y = floats(16, 48, seed=5), floats(16, 4, seed=6)
    aware = gk.quantization_aware(found)
    before = run(found.message, {"x": x})[0]
    trainer = gk.Trainer(aware.model, "mse", gk.optim.Adam(1e-2))
    for _ in range(30):
        trainer.step(x, y)
    tuned = aware.quantized()
    after = run(tuned.message, {"x": x})[0]
    assert np.square(after - y).mean() < 0.5 * np.square(before - y).mean()
    np.testing.assert_allclose(aware.model.run({"x": x})["y"], after, rtol=1e-4, atol=1e-4)


def test_a_file_of_another_tool_is_trained(tmp_path):
    """Scales of one element, Constant nodes, and a zero point that a node computes."""
    q = np.arange(-12, 12, dtype=np.int8).reshape(4, 6)
    nodes = [
        node("Constant", [], ["q"], value=onnx.numpy_helper.from_array(q)),
        node("Identity", ["z"], ["zero"]),
        node("DequantizeLinear", ["q", "s", "zero"], ["w"]),
        node("DequantizeLinear", ["bq", "bs"], ["b"]),
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
        node("Gemm", ["xf", "w", "b"], ["y"], "fc", transB=1),
    ]
    arrays = {
        "s": np.array([0.1], np.float32), "z": np.zeros(1, np.int8), "bq": np.arange(4, dtype=np.int32) * 100,
        "bs": np.array([0.002], np.float32), "xs": np.array(0.02, np.float32), "xz": np.array(128, np.uint8),
    }  # fmt: skip
    proto = model(nodes, [("x", ["N", 6])], [("y", ["N", 4])], arrays, opset=13)
    onnx.save(proto, tmp_path / "q.onnx")
    x, y = floats(8, 6), np.arange(8) % 4
    for scales in ("fixed", "learned"):
        aware = gk.quantization_aware(tmp_path / "q.onnx", scales=scales)
        np.testing.assert_array_equal(run(aware.quantized().message, {"x": x})[0], run(proto, {"x": x})[0])
        _, losses = trained(aware, x, y, steps=10, rate=0.05)
        assert losses[-1] < losses[0]
        tuned = aware.quantized()
        np.testing.assert_allclose(run(tuned.message, {"x": x})[0], aware.model.run({"x": x})["y"], atol=5e-3)
        assert tuned.layers == (("fc", "Gemm"),)


def test_two_layers_that_share_a_weight_train_one_parameter():
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], "one", transB=1), node("Relu", ["h"], ["r"]),
        node("Gemm", ["r", "w", "c"], ["y"], "two", transB=1),
    ]  # fmt: skip
    arrays = {"w": floats(6, 6), "b": floats(6, seed=1), "c": floats(6, seed=2, scale=1e9)}
    proto = model(nodes, [("x", ["N", 6])], [("y", ["N", 6])], arrays)
    found = gk.quantize(gk.load(proto), floats(8, 6, seed=4))
    assert len([n for n in initializers(found.message) if n.startswith("w_quantized")]) == 2  # the bias raises a scale
    aware = gk.quantization_aware(found)
    assert aware.weights == ("w",)
    aware.model.params["w"] = aware.model.params["w"] * np.float32(0.5)
    tuned = initializers(aware.quantized().message)
    half = np.rint(arrays["w"] * np.float32(0.5) / tuned["w_scale"][:, None])
    np.testing.assert_array_equal(tuned["w_quantized"], half)


def test_a_bias_that_grows_beyond_int32_raises_the_scale_of_the_weight():
    found = gk.quantize(gk.load(gemm_net()), floats(8, 6, seed=4))
    aware = gk.quantization_aware(found)
    aware.model.params["b"] = aware.model.params["b"] + np.array([1e9, 0, 0, 0], np.float32)
    tuned = initializers(aware.quantized().message)
    before = initializers(found.message)
    assert tuned["w_scale"][0] > before["w_scale"][0]
    np.testing.assert_array_equal(tuned["w_scale"][1:], before["w_scale"][1:])
    bias = tuned["b_quantized"].astype(np.float64) * tuned["b_scale"]
    np.testing.assert_allclose(bias, aware.model.params["b"], rtol=1e-5, atol=1e-4)


def test_float16_models_are_trained():
    proto = conv_net(opset=19)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    x = floats(8, 3, 8, 8).astype(np.float16)
    aware = gk.quantization_aware(gk.quantize(gk.load(proto), x), scales="learned")
    trained(aware, x, np.arange(8) % 5)
    assert aware.model.params["w1"].dtype == np.float16
    tuned = aware.quantized()
    wanted = aware.model.run({"x": x})["y"]
    assert decibels(wanted, run(tuned.message, {"x": x})[0]) > 25


@pytest.mark.parametrize("mode", ["dynamic", "weights"])
def test_models_without_weights_to_train_are_refused(mode):
    proto = gemm_net(w=floats(4, 32), b=floats(4))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 32
    found = gk.quantize(gk.load(proto), mode=mode, **({"bits": 4} if mode == "weights" else {}))
    with pytest.raises(UnsupportedError, match="nothing to train"):
        gk.quantization_aware(found)


def test_wrong_arguments_and_parameters():
    with pytest.raises(UnsupportedError, match="nothing to train"):
        gk.quantization_aware(gk.load(gemm_net()))
    found = gk.quantize(gk.load(gemm_net()), floats(8, 6))
    with pytest.raises(UsageError, match="scales must be fixed or learned"):
        gk.quantization_aware(found, scales="leaned")
    aware = gk.quantization_aware(found)
    aware.model.params["w"] = np.full((4, 6), np.nan, np.float32)
    with pytest.raises(InputError, match="parameter 'w' contains NaN"):
        aware.quantized()


def test_layers_in_subgraphs_keep_their_integers():
    """Weights that are read in a branch are dequantised in the top-level graph, so they are trained, too."""
    branch = helper.make_graph(
        [node("MatMul", ["x", "w"], ["m"], "inside")], "then", [], [info("m", ["N", 4])]
    )  # fmt: skip
    other = helper.make_graph([node("MatMul", ["x", "v"], ["n"], "outside")], "else", [], [info("n", ["N", 4])])
    nodes = [node("If", ["c"], ["y"], then_branch=branch, else_branch=other)]
    inputs = [("x", ["N", 6]), info("c", [], TensorProto.BOOL)]
    proto = model(nodes, inputs, [("y", ["N", 4])], {"w": floats(6, 4), "v": floats(6, 4, seed=1)})
    found = gk.quantize(gk.load(proto), mode="weights")
    aware = gk.quantization_aware(found)
    assert aware.weights == ("w", "v")
    x = floats(3, 6)
    aware.model.params["w"] = aware.model.params["w"] * np.float32(0.5)
    tuned = aware.quantized()
    for c in (True, False):
        feeds = {"x": x, "c": np.array(c)}
        np.testing.assert_allclose(run(tuned.message, feeds)[0], aware.model.run(feeds)["y"], rtol=1e-5, atol=1e-5)


def test_a_scale_of_two_biases_cannot_be_learned():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]), node("DequantizeLinear", ["b1", "bs"], ["b"]),
        node("DequantizeLinear", ["b2", "bs"], ["c"]),
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]), node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
        node("Gemm", ["xf", "w", "b"], ["h"], "one", transB=1),
        node("QuantizeLinear", ["h", "hs", "xz"], ["hq"]), node("DequantizeLinear", ["hq", "hs", "xz"], ["hf"]),
        node("Gemm", ["hf", "w", "c"], ["y"], "two", transB=1),
    ]  # fmt: skip
    arrays = {
        "q": np.arange(-18, 18, dtype=np.int8).reshape(6, 6), "s": np.array(0.1, np.float32),
        "b1": np.arange(6, dtype=np.int32), "b2": np.arange(6, dtype=np.int32), "bs": np.array(0.002, np.float32),
        "xs": np.array(0.02, np.float32), "hs": np.array(0.03, np.float32), "xz": np.array(128, np.uint8),
    }  # fmt: skip
    proto = model(nodes, [("x", ["N", 6])], [("y", ["N", 6])], arrays, opset=13)
    fixed = gk.quantization_aware(gk.load(proto))
    np.testing.assert_array_equal(initializers(fixed.quantized().message)["bs"], arrays["bs"])
    learned = gk.quantization_aware(gk.load(proto), scales="learned")
    learned.model.params["xs_log"] = learned.model.params["xs_log"] + np.float32(0.1)
    with pytest.raises(UnsupportedError, match="the scale 'bs' belongs to several biases"):
        learned.quantized()
