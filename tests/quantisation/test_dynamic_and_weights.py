"""Dynamic and weight-only quantisation, compared with onnxruntime.quantization and with numpy."""

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from onnx_networks import check, conv_net, decibels, floats, info, initializers, kinds, model, run
from onnxruntime.quantization import QuantType, quantize_dynamic

import graphkit as gk
from graphkit.errors import UsageError

node = helper.make_node


def products(opset=17):
    """MatMul of three axes with a bias, and Gemm."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"], "product"), node("Add", ["p", "b"], ["h"], "bias"),
        node("Relu", ["h"], ["r"], "relu"), node("ReduceMean", ["r"], ["m"], "mean", axes=[1], keepdims=0),
        node("Gemm", ["m", "v", "c"], ["y"], "fc", transB=1),
    ]  # fmt: skip
    arrays = {"w": floats(48, 40), "b": floats(40, seed=1), "v": floats(6, 40, seed=2), "c": floats(6, seed=3)}
    return model(nodes, [("x", ["N", 3, 48])], [("y", ["N", 6])], arrays, opset)


def saved(proto, folder):
    path = folder / "net.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("per_channel", [True, False])
def test_dynamic_weights_equal_those_of_onnxruntime(tmp_path, per_channel):
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "product")], [("x", ["N", 48])], [("y", ["N", 40])], {"w": floats(48, 40)}
    )
    path = saved(proto, tmp_path)
    found = gk.quantize(path, mode="dynamic", per_channel=per_channel)
    quantize_dynamic(path, tmp_path / "o.onnx", weight_type=QuantType.QInt8, per_channel=per_channel)
    other = onnx.load(tmp_path / "o.onnx")
    assert kinds(found.message) == kinds(other)
    ours, theirs = initializers(found.message), initializers(other)
    np.testing.assert_array_equal(ours["w_quantized"], theirs["w_quantized"])
    np.testing.assert_array_equal(ours["w_scale"].reshape(-1), theirs["w_scale"].reshape(-1))
    x = floats(4, 48, seed=5)
    np.testing.assert_array_equal(run(found.message, {"x": x})[0], run(other, {"x": x})[0])
    np.testing.assert_allclose(found.model.run({"x": x})["y"], run(other, {"x": x})[0], rtol=1e-6, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("make", "x"), [(products, floats(2, 3, 48, seed=7)), (conv_net, floats(2, 3, 8, 8, seed=7))])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dynamic"},
        {"mode": "dynamic", "per_channel": False},
        {"mode": "weights"},
        {"mode": "weights", "per_channel": False},
        {"mode": "weights", "bits": 4},
        {"mode": "weights", "bits": 4, "standard": True},
        {"mode": "weights", "bits": 8, "block_size": 16},
        {"mode": "weights", "bits": 8, "block_size": 64, "standard": True},
    ],
)
def test_results_in_both_engines(tmp_path, make, x, options):
    proto = make()
    found = gk.quantize(saved(proto, tmp_path), **options)
    if found.message.opset_import[-1].domain == "":
        check(found.message)
    exact, theirs = run(proto, {"x": x})[0], run(found.message, {"x": x})[0]
    ours = found.model.run({"x": x})["y"]
    assert decibels(exact, theirs) > (15 if options.get("bits") == 4 else 28)
    assert decibels(theirs, ours) > 60
    if make is products:
        assert found.after.nbytes < found.before.nbytes
    found.save(tmp_path / "q.json")
    np.testing.assert_array_equal(gk.load(tmp_path / "q.json").run({"x": x})["y"], ours)


def test_weights_are_stored_as_numpy_computes_them(tmp_path):
    proto = products()
    found = initializers(gk.quantize(saved(proto, tmp_path), mode="weights").message)
    w = initializers(proto)["w"]
    scale = (np.abs(w).max(0).astype(np.float64) * 2 / 254).astype(np.float32)
    np.testing.assert_array_equal(found["w_scale"], scale)
    np.testing.assert_array_equal(found["w_quantized"], np.rint(w / scale).astype(np.int8))
    assert "w" not in found


def test_blocks_are_stored_as_the_standard_defines_them(tmp_path):
    """Dequantised by numpy: (number - zero point) * scale of its block."""
    proto = products()
    found = gk.quantize(saved(proto, tmp_path), mode="weights", bits=4, standard=True)
    made, w = initializers(found.message), initializers(proto)["w"]
    assert made["w_scale"].shape == (2, 40)  # 48 terms in blocks of 32
    each = np.arange(48) // 32
    restored = (made["w_quantized"].astype(np.float32) - made["w_zero_point"].astype(np.float32)[each]) * made[
        "w_scale"
    ][each]
    assert np.all(np.abs(restored - w) <= made["w_scale"][each] * 1.001)
    dequantise = next(n for n in found.message.graph.node if "w_quantized" in n.input)
    assert {a.name: a.i for a in dequantise.attribute} == {"axis": 0, "block_size": 32}


@pytest.mark.full
def test_weight_shared_with_another_operator(tmp_path):
    """A tied embedding: Gather keeps the floats, Gemm gets integers. Two layers share one integer weight."""
    nodes = [
        node("Gather", ["w", "i"], ["e"], "embed"), node("Gemm", ["e", "w"], ["p"], "one", transB=1),
        node("Gemm", ["e", "w"], ["q"], "two", transB=1), node("Add", ["p", "q"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, [info("i", ["N"], TensorProto.INT64)], [("y", ["N", 10])], {"w": floats(10, 32)})
    i = np.array([3, 1])
    for options in ({"mode": "weights"}, {"mode": "dynamic"}, {"mode": "weights", "bits": 4}):
        found = gk.quantize(saved(proto, tmp_path), **options)
        made = initializers(found.message)
        np.testing.assert_array_equal(made["w"], floats(10, 32))
        stored = [name for name, array in made.items() if array.shape[:1] == (10,) and array.size > 10 and name != "w"]
        assert len([name for name in stored if made[name].dtype != np.float32 or "quant" in name or "Q4" in name]) <= 2
        assert len(found.layers) == 2
        exact = run(proto, {"i": i})[0]
        assert decibels(exact, found.model.run({"i": i})["y"]) > 15
        assert decibels(exact, run(found.message, {"i": i})[0]) > 15


@pytest.mark.full
def test_layers_of_branches_are_quantised_without_calibration(tmp_path):
    def branch(name, weight):
        return helper.make_graph(
            [node("MatMul", ["x", weight], [name], f"{name}_product")], name, [], [info(name, None)]
        )

    nodes = [node("If", ["c"], ["y"], "choice", then_branch=branch("t", "w"), else_branch=branch("e", "v"))]
    proto = model(
        nodes, [("x", ["N", 32]), info("c", [], TensorProto.BOOL)], [("y", ["N", 16])],
        {"w": floats(32, 16), "v": floats(32, 16, seed=1)},
    )  # fmt: skip
    path = saved(proto, tmp_path)
    x = floats(3, 32, seed=2)
    for options in ({"mode": "dynamic"}, {"mode": "weights"}, {"mode": "weights", "bits": 4}):
        found = gk.quantize(path, **options)
        assert len(found.layers) == 2
        for c in (True, False):
            feeds = {"x": x, "c": np.array(c)}
            assert decibels(run(proto, feeds)[0], run(found.message, feeds)[0]) > 15
            assert decibels(run(found.message, feeds)[0], found.model.run(feeds)["y"]) > 60
    with pytest.raises(gk.errors.UnsupportedError, match=r"t_product.*inside a loop or branch"):
        gk.quantize(path, gk.data.Dataset({"x": x, "c": np.ones(3, bool)}, axes={"c": None}))


@in_one_item()
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "qat"}, "mode must be"),
        ({}, "static quantisation needs data"),
        ({"mode": "dynamic", "bits": 4}, 'only for mode="weights"'),
        ({"mode": "weights", "bits": 3}, "bits"),
        ({"mode": "weights", "block_size": 24}, "power of 2"),
        ({"mode": "weights", "data": np.zeros((1, 3, 48), np.float32)}, "does not use data"),
        ({"mode": "weights", "exclude": ["products"]}, "no node has such a name or operator; did you mean 'product'"),
    ],
)
def test_wrong_arguments(tmp_path, options, text):
    with pytest.raises(UsageError, match=text):
        gk.quantize(saved(products(), tmp_path), **options)
