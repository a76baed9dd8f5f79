"""Static quantisation in QDQ form, compared with onnxruntime.quantization and with formulas in numpy."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_networks import check, conv_net, decibels, floats, info, initializers, kinds, model, producer, run, sixteenths
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

import graphkit as gk

node = helper.make_node


class Reader(CalibrationDataReader):
    def __init__(self, x):
        self._rest = iter([{"x": x}])

    def get_next(self):
        return next(self._rest, None)


def peer(proto, x, path, *, activations=QuantType.QUInt8, per_channel=True, **options):
    """The same model, quantised by ONNX Runtime's tool."""
    quantize_static(
        proto, path, Reader(x), quant_format=QuantFormat.QDQ, per_channel=per_channel, activation_type=activations,
        weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax, extra_options=options,
    )  # fmt: skip
    return onnx.load(path)


@pytest.mark.parametrize(("activations", "per_channel"), [("uint8", True), ("int8", False)])
def test_minmax_parameters_equal_those_of_onnxruntime(tmp_path, activations, per_channel):
    proto, x = conv_net(), sixteenths(6, 3, 8, 8)
    found = gk.quantize(proto_path(proto, tmp_path), x, activations=activations, per_channel=per_channel, batch_size=4)
    kind = QuantType.QUInt8 if activations == "uint8" else QuantType.QInt8
    other = peer(
        proto,
        x,
        tmp_path / "o.onnx",
        activations=kind,
        per_channel=per_channel,
        ActivationSymmetric=activations == "int8",
    )
    ours, theirs = initializers(found.message), initializers(other)
    tensors = ["x", "r1", "r2", "a", "g"]
    for name in tensors:
        np.testing.assert_array_equal(ours[f"{name}_scale"], theirs[f"{name}_scale"], err_msg=name)
        np.testing.assert_array_equal(ours[f"{name}_zero_point"], theirs[f"{name}_zero_point"], err_msg=name)
        assert ours[f"{name}_zero_point"].dtype == np.dtype(activations)
    for name in ("w1", "w2", "w3"):
        np.testing.assert_array_equal(ours[f"{name}_quantized"], theirs[f"{name}_quantized"])
        np.testing.assert_array_equal(ours[f"{name}_scale"].reshape(-1), theirs[f"{name}_scale"].reshape(-1))
    for name in ("b1", "b2", "b3"):
        np.testing.assert_array_equal(ours[f"{name}_quantized"], theirs[f"{name}_quantized"])


def proto_path(proto, folder):
    path = folder / "net.onnx"
    onnx.save(proto, path)
    return path


def test_the_result_is_close_to_float_and_equal_in_onnxruntime(tmp_path):
    proto, x = conv_net(), floats(8, 3, 8, 8)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    check(found.message)
    exact = run(proto, {"x": x})[0]
    ours, theirs = found.model.run({"x": x})["y"], run(found.message, {"x": x})[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert decibels(exact, ours) > 30
    # The integers of graphkit are those of the float kernels of a runtime without fusions, but for single steps.
    assert decibels(exact, theirs) > 30


def test_the_form_of_the_graph(tmp_path):
    found = gk.quantize(proto_path(conv_net(), tmp_path), floats(4, 3, 8, 8))
    assert [layer for layer, _ in found.layers] == ["conv1", "conv2", "fc"]
    assert "Relu" not in kinds(found.message)  # the range of the result begins at 0
    assert found.between == ("relu1", "pool", "relu2", "sum", "mean", "flat")
    names = {n.name for n in found.message.graph.node}
    assert {"conv1", "pool", "conv2", "sum", "mean", "flat", "fc"} <= names
    arrays = initializers(found.message)
    # MaxPool and Flatten keep the scale of their operand.
    assert producer(found.message, "p1_QuantizeLinear_Output").input[1] == "r1_scale"
    assert producer(found.message, "f_QuantizeLinear_Output").input[1] == "g_scale"
    assert arrays["w1_scale"].shape == (8,)
    assert arrays["b1_quantized"].dtype == np.int32
    np.testing.assert_array_equal(arrays["b1_scale"], arrays["x_scale"] * arrays["w1_scale"])


def test_graphkit_runs_the_layers_on_integers(tmp_path):
    from graphkit.passes.cleanup import CLEANUP
    from graphkit.passes.core.sweep import run_passes
    from graphkit.passes.quantise.integers import integers

    found = gk.quantize(proto_path(conv_net(), tmp_path), floats(4, 3, 8, 8))
    graph = run_passes(found.model.graph, (*CLEANUP, integers))
    assert {n.op.name for n in graph.nodes} - {"Constant"} == {
        "QuantizeLinear", "QLinearConv", "MaxPool", "QLinearAdd", "QLinearGlobalAveragePool", "Flatten", "QGemm",
    }  # fmt: skip


def test_names_metadata_and_other_nodes_stay(tmp_path):
    arrays = {"w": floats(4, 3), "shift": floats(4, seed=1)}
    nodes = [
        node("MatMul", ["e", "wt"], ["h"], "product"),
        node("Transpose", ["w"], ["wt"], "turn", perm=[1, 0]),
        node("Exp", ["x"], ["e"], "first", doc_string="kept"),
        node("Softmax", ["h"], ["s"], "soft", axis=-1),
        node("Sin", ["s"], ["y"], "last"),
    ]
    proto = model(nodes[2:3] + nodes[1:2] + nodes[:1] + nodes[3:], [("x", ["N", 3])], [("y", ["N", 4])], arrays)
    proto.producer_name, proto.doc_string = "someone", "about it"
    helper.set_model_props(proto, {"author": "me"})
    found = gk.quantize(proto_path(proto, tmp_path), floats(5, 3, seed=3))
    made = found.message
    assert (made.producer_name, made.doc_string) == ("someone", "about it")
    assert {p.key: p.value for p in made.metadata_props} == {"author": "me"}
    by_name = {n.name: n for n in made.graph.node}
    for original in (nodes[2], nodes[3], nodes[4]):
        assert by_name[original.name].SerializeToString() == original.SerializeToString()
    assert made.opset_import[0].version == 17
    assert [i.name for i in made.graph.input] == ["x"]
    assert [o.name for o in made.graph.output] == ["y"]


def test_batch_normalisation_is_folded_first(tmp_path):
    vectors = {n: np.abs(floats(4, seed=i)) + 0.5 for i, n in enumerate(("s", "b", "m", "v"))}
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("BatchNormalization", ["c", *vectors], ["n"], "norm"),
        node("Relu", ["n"], ["y"], "relu"),
    ]
    proto = model(nodes, [("x", ["N", 3, 6, 6])], [("y", ["N", 4, 4, 4])], {"w": floats(4, 3, 3, 3), **vectors})
    x = floats(4, 3, 6, 6, seed=9)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    assert kinds(found.message) == ["Conv", *["DequantizeLinear"] * 4, *["QuantizeLinear"] * 2]
    assert decibels(run(proto, {"x": x})[0], found.model.run({"x": x})["y"]) > 30


def test_outputs_keep_their_names_and_float_types(tmp_path):
    """A quantised value that is an output, and is read by a layer, too."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], "one"),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "w2"], ["d"], "two"),
    ]
    proto = model(
        nodes, [("x", [1, 2, 5, 5])], [("r", [1, 2, 3, 3]), ("d", [1, 2, 1, 1])],
        {"w": floats(2, 2, 3, 3), "w2": floats(2, 2, 3, 3, seed=1)},
    )  # fmt: skip
    x = floats(1, 2, 5, 5, seed=2)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    check(found.message)
    assert [o.name for o in found.message.graph.output] == ["r", "d"]
    assert producer(found.message, "r").op_type == "DequantizeLinear"
    for exact, other in zip(run(proto, {"x": x}), run(found.message, {"x": x}), strict=True):
        assert decibels(exact, other) > 25


@pytest.mark.full
@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "VALID", "dilations": [2, 2]},
        {"group": 2, "pads": [1, 0, 2, 1]},
    ],
)
def test_attributes_of_convolutions(tmp_path, attributes):
    groups = attributes.get("group", 1)
    arrays = {"w": floats(6, 4 // groups, 3, 3, scale=0.2), "b": floats(6, seed=1)}
    proto = model(
        [node("Conv", ["x", "w", "b"], ["y"], **attributes)], [("x", ["N", 4, 9, 9])], [info("y", None)], arrays
    )
    x = floats(3, 4, 9, 9, seed=2)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    exact = run(proto, {"x": x})[0]
    ours = found.model.run({"x": x})["y"]
    np.testing.assert_allclose(ours, run(found.message, {"x": x})[0], rtol=1e-5, atol=1e-5)
    assert decibels(exact, ours) > 30


@pytest.mark.full
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose(tmp_path, groups):
    arrays = {"w": floats(4, 6 // groups, 3, 3), "b": floats(6, seed=1)}
    proto = model(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], group=groups, strides=[2, 2])], [("x", ["N", 4, 5, 5])],
        [info("y", ["N", 6, 11, 11])], arrays,
    )  # fmt: skip
    x = floats(3, 4, 5, 5, seed=2)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    check(found.message)
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 30
    # Floats between the two roundings may differ in the last bit, so single integers may differ by 1.
    assert decibels(found.model.run({"x": x})["y"], run(found.message, {"x": x})[0]) > 45


@pytest.mark.full
@pytest.mark.parametrize("attributes", [{"transB": 1, "alpha": 0.5, "beta": 2.0}, {"transB": 0, "transA": 1}, {}])
@pytest.mark.parametrize("bias", [(1, 5), (5,), (), (4, 5), None])
def test_forms_of_gemm(tmp_path, attributes, bias):
    transposed = attributes.get("transA", 0)
    arrays = {"w": floats(*((5, 7) if attributes.get("transB") else (7, 5)))}
    if bias is not None:
        arrays["c"] = floats(*bias, seed=1)
    operands = ["x", "w"] + (["c"] if bias is not None else [])
    shape = [7, 4] if transposed else [4, 7]
    nodes = [
        node("Gemm", operands, ["g"], "fc", **attributes),
        node("Relu", ["g"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    arrays["v"] = floats(5, 3, seed=4)
    proto = model(nodes, [("x", shape)], [("y", [4, 3])], arrays)
    x = floats(*shape, seed=2)
    found = gk.quantize(proto_path(proto, tmp_path), gk.data.Dataset({"x": x}, axes={"x": int(transposed)}))
    check(found.message)
    exact, theirs = run(proto, {"x": x})[0], run(found.message, {"x": x})[0]
    assert decibels(exact, theirs) > 28
    assert decibels(exact, found.model.run({"x": x})["y"]) > 28


@pytest.mark.full
def test_int8_activations_keep_relu(tmp_path):
    proto, x = conv_net(), floats(4, 3, 8, 8)
    found = gk.quantize(proto_path(proto, tmp_path), x, activations="int8")
    assert kinds(found.message).count("Relu") == 2
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 25


@pytest.mark.full
def test_gate_and_product_are_rounded_once(tmp_path):
    """x * Sigmoid(x) between two layers: the result of Sigmoid stays float."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("Sigmoid", ["c"], ["s"]), node("Mul", ["s", "c"], ["m"]),
        node("Conv", ["m", "w"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, [("x", ["N", 4, 6, 6])], [info("y", None)], {"w": floats(4, 4, 2, 2, scale=0.3)})
    x = floats(3, 4, 6, 6, seed=1)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    assert (
        producer(found.message, producer(found.message, producer(found.message, "m").input[0]).output[0]).op_type
        == "Sigmoid"
    )
    assert decibels(run(proto, {"x": x})[0], found.model.run({"x": x})["y"]) > 28


@pytest.mark.full
def test_two_computed_matrices(tmp_path):
    """Attention: a product without a weight, between products with weights."""
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], "q"), node("MatMul", ["x", "wk"], ["k"], "k"),
        node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["s"], "scores"),
        node("Softmax", ["s"], ["y"], "soft"),
    ]  # fmt: skip
    proto = model(nodes, [("x", ["N", 5, 8])], [("y", ["N", 5, 5])], {"wq": floats(8, 8), "wk": floats(8, 8, seed=1)})
    x = floats(2, 5, 8, seed=2, scale=0.3)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    assert [name for name, _ in found.layers] == ["q", "k", "scores"]
    dynamic = gk.quantize(tmp_path / "net.onnx", mode="dynamic")
    assert [name for name, _ in dynamic.layers] == ["q", "k"]
    assert [tuple(kept) for kept in dynamic.kept] == [("scores", "MatMul", "it multiplies two computed matrices")]
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 25
    np.testing.assert_allclose(found.model.run({"x": x})["y"], run(found.message, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_a_constant_operand_of_a_sum_is_quantised(tmp_path):
    arrays = {"w": floats(4, 4, 1, 1), "k": floats(1, 4, 5, 5, seed=3)}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "k"], ["a"], "sum"), node("Conv", ["a", "w"], ["y"])]
    proto = model(nodes, [("x", ["N", 4, 5, 5])], [info("y", None)], arrays)
    x = floats(3, 4, 5, 5, seed=2)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    made = initializers(found.message)
    low, high = min(arrays["k"].min(), 0), max(arrays["k"].max(), 0)
    scale = np.float32((np.float64(high) - low) / 255)
    np.testing.assert_array_equal(made["k_scale"], scale)
    expected = np.clip(np.rint(arrays["k"] / scale) + np.rint(0 - low / ((np.float64(high) - low) / 255)), 0, 255)
    np.testing.assert_array_equal(made["k_quantized"], expected)
    assert decibels(run(proto, {"x": x})[0], found.model.run({"x": x})["y"]) > 28


@pytest.mark.full
def test_float16(tmp_path):
    arrays = {"w": floats(4, 3, 3, 3, scale=0.2).astype(np.float16), "b": floats(4, seed=1).astype(np.float16)}
    kind = TensorProto.FLOAT16
    proto = model(
        [node("Conv", ["x", "w", "b"], ["c"]), node("Relu", ["c"], ["y"])], [info("x", ["N", 3, 6, 6], kind)],
        [info("y", ["N", 4, 4, 4], kind)], arrays,
    )  # fmt: skip
    x = floats(3, 3, 6, 6, seed=2).astype(np.float16)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    assert found.notes == ("the opset is 21, because quantisation needs opset 19 or newer; it was 17",)
    made = initializers(found.message)
    assert made["x_scale"].dtype == np.float16
    assert "b_quantized" not in made  # its scale may underflow
    exact = run(proto, {"x": x})[0]
    assert decibels(exact, run(found.message, {"x": x})[0]) > 28
    assert decibels(exact, found.model.run({"x": x})["y"]) > 28


def test_pools_with_dilations_of_one_run_in_onnxruntime(tmp_path):
    """QLinearAveragePool of ONNX Runtime refuses the attribute."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("AveragePool", ["c"], ["p"], kernel_shape=[2, 2], dilations=[1, 1]),
        node("Conv", ["p", "w"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, [("x", ["N", 2, 7, 7])], [info("y", None)], {"w": floats(2, 2, 2, 2)}, opset=21)
    x = floats(3, 2, 7, 7, seed=1)
    found = gk.quantize(proto_path(proto, tmp_path), x)
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 25


@pytest.mark.full
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_nodes_after_the_last_layer_run_in_onnxruntime(tmp_path, activations):
    """MaxPool after a layer, and a bias after a product of three axes, with opset 21."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2]),
        node("Reshape", ["p", "shape"], ["r"]), node("MatMul", ["r", "v"], ["m"]), node("Add", ["m", "b"], ["a"]),
        node("Sin", ["a"], ["y"]), node("Sin", ["p"], ["z"]),
    ]  # fmt: skip
    arrays = {"w": floats(2, 2, 2, 2), "shape": np.array([0, 2, 25]), "v": floats(25, 4), "b": floats(4, seed=2)}
    proto = model(nodes, [("x", ["N", 2, 7, 7])], [info("y", None), info("z", None)], arrays, opset=21)
    x = floats(3, 2, 7, 7, seed=1)
    found = gk.quantize(proto_path(proto, tmp_path), x, activations=activations)
    for exact, theirs, ours in zip(
        run(proto, {"x": x}), run(found.message, {"x": x}), found.model.run({"x": x}).values(), strict=True
    ):
        assert decibels(exact, theirs) > 12
        assert decibels(exact, ours) > 12


@pytest.mark.full
def test_a_last_conv_transpose_is_not_quantised_again(tmp_path):
    """No engine has a ConvTranspose of integers, so that a scale of the result would be of no use."""
    proto = model(
        [node("ConvTranspose", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])], [("x", ["N", 2, 5, 5])],
        [info("y", ["N", 3, 6, 6])], {"w": floats(2, 3, 2, 2)},
    )  # fmt: skip
    found = gk.quantize(proto_path(proto, tmp_path), floats(2, 2, 5, 5))
    assert kinds(found.message) == ["ConvTranspose", *["DequantizeLinear"] * 2, "QuantizeLinear", "Relu"]
