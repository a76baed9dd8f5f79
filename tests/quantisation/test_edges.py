"""Models and data at the edges: nothing to quantise, NaN, old opsets, taken names, subgraphs, batches."""

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from onnx_networks import check, conv_net, decibels, floats, info, initializers, kinds, model, run

import graphkit as gk
from graphkit.errors import InputError, UnsupportedError
from graphkit.quantisation.calibration import read_samples
from graphkit.quantisation.difference import output_differences

node = helper.make_node


def saved(proto, folder, name="net.onnx"):
    path = folder / name
    onnx.save(proto, path)
    return path


def one_conv(arrays=None, opset=17, shape=("N", 2, 4, 4), **attributes):
    arrays = arrays or {"w": floats(3, 2, 2, 2)}
    return model(
        [node("Conv", ["x", *arrays], ["y"], "conv", **attributes)],
        [("x", list(shape))],
        [info("y", None)],
        arrays,
        opset,
    )


@in_one_item()
@pytest.mark.parametrize("mode", ["static", "dynamic", "weights"])
def test_a_model_without_layers_is_refused(tmp_path, mode):
    proto = model([node("Sin", ["x"], ["y"])], [("x", ["N", 3])], [("y", ["N", 3])], {})
    data = floats(2, 3) if mode == "static" else None
    with pytest.raises(UnsupportedError, match=r"net\.onnx: nothing to quantise: the model has no Conv"):
        gk.quantize(saved(proto, tmp_path), data, mode=mode)


def test_a_quantised_model_is_refused(tmp_path):
    once = gk.quantize(saved(one_conv(), tmp_path), floats(2, 2, 4, 4))
    with pytest.raises(UnsupportedError, match=r"nothing could be quantised. conv .Conv.: it is quantised already"):
        gk.quantize(saved(once.message, tmp_path), floats(2, 2, 4, 4))
    dynamic = gk.quantize(saved(one_conv(), tmp_path), mode="dynamic")
    with pytest.raises(UnsupportedError, match="nothing to quantise"):
        gk.quantize(saved(dynamic.message, tmp_path), mode="dynamic")


def test_reasons_of_layers_in_float(tmp_path):
    arrays = {"w": floats(3, 2, 2, 2), "nan": np.full((3, 2, 2, 2), np.nan, np.float32)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], "good"), node("Conv", ["x", "nan"], ["b"], "bad"),
        node("Conv", ["x", "k"], ["c"], "given"), node("Conv", ["x", "w"], ["d"], "left"),
    ]  # fmt: skip
    proto = model(
        nodes, [("x", ["N", 2, 4, 4]), ("k", [3, 2, 2, 2])], [info(n, None) for n in "abcd"], arrays
    )  # fmt: skip
    data = gk.data.Dataset({"x": floats(2, 2, 4, 4), "k": floats(3, 2, 2, 2)}, axes={"k": None})
    found = gk.quantize(saved(proto, tmp_path), data, exclude=["le*"])
    assert found.layers == (("good", "Conv"),)
    assert {kept.name: kept.reason for kept in found.kept} == {
        "bad": "its weight 'nan' contains NaN or infinity", "given": "its weight is not constant",
        "left": "excluded (exclude, --exclude)",
    }  # fmt: skip


@pytest.mark.full
def test_include_by_name_and_operator(tmp_path):
    path, x = saved(conv_net(), tmp_path), floats(2, 3, 8, 8)
    assert [n for n, _ in gk.quantize(path, x, include=["Conv"]).layers] == ["conv1", "conv2"]
    assert [n for n, _ in gk.quantize(path, x, include=["conv1", "fc"], exclude=["Gemm"]).layers] == ["conv1"]
    kept = gk.quantize(path, x, exclude=["relu1"])
    assert kinds(kept.message).count("Relu") == 1


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_values_that_are_not_finite_are_named(tmp_path, value, kind):
    proto = model(
        [node("Log", ["x"], ["l"], "log"), node("Conv", ["l", "w"], ["y"])], [("x", ["N", 2, 4, 4])], [info("y", None)],
        {"w": floats(3, 2, 2, 2)},
    )  # fmt: skip
    x = np.ones((3, 2, 4, 4), np.float32)
    x[2, 0, 0, 0] = -1 if kind == "NaN" else 0
    with pytest.raises(InputError, match=rf"'l', node 'log' \(Log\), contains {kind}.*batch 1"):
        gk.quantize(saved(proto, tmp_path), x, batch_size=2)


@pytest.mark.full
@pytest.mark.parametrize(("low", "high"), [(2.0, 3.0), (-3.0, -2.0), (0.0, 0.0), (5.0, 5.0)])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_ranges_without_zero_and_constant_inputs(tmp_path, low, high, activations):
    proto = one_conv({"w": floats(3, 2, 2, 2), "b": floats(3, seed=1)})
    x = np.random.default_rng(0).uniform(low, high, (4, 2, 4, 4)).astype(np.float32)
    found = gk.quantize(saved(proto, tmp_path), x, activations=activations)
    ours = found.model.run({"x": x})["y"]
    np.testing.assert_allclose(ours, run(found.message, {"x": x})[0], rtol=1e-5, atol=1e-5)
    exact = run(proto, {"x": x})[0]
    assert np.abs(exact - ours).max() <= 0.03 * np.abs(exact).max()


@pytest.mark.full
def test_a_channel_of_zeros(tmp_path):
    weight = floats(3, 2, 2, 2)
    weight[1] = 0
    proto = one_conv({"w": weight, "b": floats(3, seed=1)})
    x = floats(2, 2, 4, 4, seed=2)
    found = gk.quantize(saved(proto, tmp_path), x)
    assert initializers(found.message)["w_scale"][1] >= 1
    assert decibels(run(proto, {"x": x})[0], found.model.run({"x": x})["y"]) > 30


@pytest.mark.full
def test_a_large_bias_of_a_small_channel(tmp_path):
    """Its integers would leave int32 with the scale of the weight alone."""
    weight = floats(3, 2, 2, 2)
    weight[0] *= 1e-9
    proto = one_conv({"w": weight, "b": np.array([3.0, 1.0, -2.0], np.float32)})
    x = floats(2, 2, 4, 4, seed=2)
    found = gk.quantize(saved(proto, tmp_path), x)
    exact, ours = run(proto, {"x": x})[0], found.model.run({"x": x})["y"]
    assert decibels(exact, ours) > 30
    np.testing.assert_allclose(ours[:, 0], exact[:, 0], rtol=0.02)


@pytest.mark.full
@pytest.mark.parametrize("size", [1e-30, 1e-38, 1e30])
def test_inputs_of_extreme_sizes(tmp_path, size):
    """The scale of the bias would underflow: the bias stays in float."""
    proto = one_conv({"w": floats(3, 2, 2, 2) * np.float32(1e-6), "b": np.zeros(3, np.float32)})
    x = floats(2, 2, 4, 4, seed=2) * np.float32(size)
    found = gk.quantize(saved(proto, tmp_path), x)
    exact, ours = run(proto, {"x": x})[0], found.model.run({"x": x})["y"]
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, run(found.message, {"x": x})[0], rtol=1e-4, atol=0.02 * np.abs(exact).max())
    if size == 1e30:
        assert decibels(exact / np.float32(size), ours / np.float32(size)) > 30


@pytest.mark.full
def test_old_opsets_are_raised(tmp_path):
    proto = conv_net(opset=11)
    x = floats(4, 3, 8, 8)
    found = gk.quantize(saved(proto, tmp_path), x)
    assert found.notes == ("the opset is 21, because quantisation needs opset 13 or newer; it was 11",)
    check(found.message)
    assert [name for name, _ in found.layers] == ["conv1", "conv2", "fc"]
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 30
    assert not gk.quantize(saved(proto, tmp_path), mode="dynamic").notes


@pytest.mark.full
def test_names_that_exist_already(tmp_path):
    """The model already has values and nodes with the names that the tool would use."""
    arrays = {"w": floats(3, 2, 2, 2), "w_quantized": floats(1), "x_scale": floats(1, seed=1)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], "x_QuantizeLinear_Output_QuantizeLinear"),
        node("Mul", ["c", "w_quantized"], ["w_scale"]), node("Mul", ["w_scale", "x_scale"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, [("x", ["N", 2, 4, 4])], [info("y", None)], arrays)
    x = floats(2, 2, 4, 4, seed=2)
    for options in ({"data": x}, {"mode": "dynamic"}, {"mode": "weights"}):
        found = gk.quantize(saved(proto, tmp_path), **options)
        names = [n.name for n in found.message.graph.node if n.name]
        assert len(set(names)) == len(names)
        assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 30


@pytest.mark.full
def test_initialisers_that_are_inputs(tmp_path):
    proto = one_conv()
    proto.graph.input.append(info("w", [3, 2, 2, 2]))
    x = floats(2, 2, 4, 4, seed=2)
    found = gk.quantize(saved(proto, tmp_path), x)
    assert [i.name for i in found.message.graph.input] == ["x"]
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 30


@in_one_item()
@pytest.mark.parametrize("batch", ["N", 1, 4])
def test_uneven_batches_of_the_calibration(tmp_path, batch):
    """7 samples in batches of 3, for a symbolic and for fixed batch sizes: every sample counts."""
    proto = one_conv(shape=(batch, 2, 4, 4))
    x = floats(7, 2, 4, 4, seed=2)
    x[6, 0, 0, 0] = 50
    found = gk.quantize(saved(proto, tmp_path), x, batch_size=3)
    low = min(x.min(), 0)
    np.testing.assert_array_equal(initializers(found.message)["x_scale"], np.float32((50 - np.float64(low)) / 255))


def test_a_weight_of_two_layers(tmp_path):
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Conv", ["r", "w"], ["y"])]
    proto = model(nodes, [("x", ["N", 2, 6, 6])], [info("y", None)], {"w": floats(2, 2, 2, 2)})
    x = floats(2, 2, 6, 6, seed=2)
    found = gk.quantize(saved(proto, tmp_path), x)
    int8 = [t.name for t in found.message.graph.initializer if t.data_type == TensorProto.INT8 and len(t.dims) == 4]
    assert int8 == ["w_quantized"]
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 28


@pytest.mark.full
def test_a_value_that_a_branch_reads(tmp_path):
    """The result of a quantised layer is captured by the bodies of an If."""
    then = helper.make_graph([node("Neg", ["c"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([node("Identity", ["c"], ["e"])], "else", [], [info("e", None)])
    nodes = [node("Conv", ["x", "w"], ["c"]), node("If", ["k"], ["y"], then_branch=then, else_branch=other)]
    proto = model(
        nodes, [("x", [2, 2, 4, 4]), info("k", [], TensorProto.BOOL)], [info("y", None)], {"w": floats(3, 2, 2, 2)}
    )
    x = floats(2, 2, 4, 4, seed=2)
    data = gk.data.Dataset({"x": x, "k": np.array(True)}, axes={"k": None})
    found = gk.quantize(saved(proto, tmp_path), data)
    for k in (True, False):
        feeds = {"x": x, "k": np.array(k)}
        assert decibels(run(proto, feeds)[0], run(found.message, feeds)[0]) > 28


@pytest.mark.full
def test_models_in_memory_and_run_folders(tmp_path):
    x = gk.input("x", ["N", 6])
    net = gk.Model({"y": gk.nn.linear(x, 4, name="fc")}, name="small")
    data = floats(5, 6)
    net.save(tmp_path / "net.json")
    for source in (net, tmp_path / "net.json", str(tmp_path / "net.json")):
        found = gk.quantize(source, {"x": data})
        assert len(found.layers) == 1
        assert decibels(net.run({"x": data})["y"], found.model.run({"x": data})["y"]) > 35
    with pytest.raises(gk.errors.UsageError):
        gk.quantize(tmp_path / "absent.onnx", data)


def test_samples_are_evenly_spaced_and_data_may_be_files(tmp_path):
    net = gk.load(saved(one_conv(), tmp_path))
    x = floats(10, 2, 4, 4)
    found = read_samples(net, x, 4, 3)
    assert [feed.size for feed in found.feeds] == [3, 1]
    np.testing.assert_array_equal(np.concatenate([f.arrays["x"] for f in found.feeds]), x[[0, 3, 6, 9]])
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(10))
    for name in ("x.npy", "x.npz"):
        assert read_samples(net, tmp_path / name, 100, 4).count == 10
    for wrong in (floats(0, 2, 4, 4), {"z": x}):
        with pytest.raises(InputError):
            read_samples(net, wrong, 4, 4)


def test_differences_of_outputs(tmp_path):
    """The ratio of numpy, over all batches; equal models; outputs of integers are left out."""
    nodes = [node("Conv", ["x", "w"], ["y"]), node("Shape", ["x"], ["s"])]
    proto = model(
        nodes, [("x", ["N", 2, 4, 4])], [info("y", None), info("s", [4], TensorProto.INT64)], {"w": floats(3, 2, 2, 2)}
    )
    net, x = gk.load(saved(proto, tmp_path)), floats(7, 2, 4, 4, seed=1)
    samples = read_samples(net, x, 7, 2)
    found = gk.quantize(tmp_path / "net.onnx", samples)
    (difference,) = output_differences(net, found.model, samples)
    exact, other = net.run({"x": x})["y"], found.model.run({"x": x})["y"]
    assert difference.name == "y"
    assert difference.sqnr == pytest.approx(decibels(exact, other))
    assert difference.max_abs == pytest.approx(np.abs(exact - other).max(), rel=1e-6)
    assert output_differences(net, net, samples)[0].sqnr == np.inf


def test_layers_inside_functions_stay_in_float(tmp_path):
    """The file has a Conv inside of a function, and one outside."""
    proto = one_conv()
    inner = helper.make_function(
        "own", "Twice", ["a", "k"], ["b"], [node("Conv", ["a", "k"], ["b"])], [helper.make_opsetid("", 17)]
    )
    proto.functions.append(inner)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node.append(node("Twice", ["y", "v"], ["z"], domain="own"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(2, 3, 2, 2, seed=4), "v"))
    proto.graph.output[0].name = "z"
    x = floats(2, 2, 4, 4, seed=2)
    found = gk.quantize(saved(proto, tmp_path), x)
    assert found.notes == ("layers inside functions stay in float: Twice",)
    assert found.layers == (("conv", "Conv"),)
    assert decibels(run(proto, {"x": x})[0], run(found.message, {"x": x})[0]) > 28
