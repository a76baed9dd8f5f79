"""Models of MXNet: parameters, data inputs and their shapes, names, errors, and the ways to load them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from tests.mxnet_io.files import dense, listed, node, symbol, write_model

W = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
B = np.float32([1, 2, 3])
X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


def _classifier(**attrs):
    """A fully connected layer with softmax output, which reads a label."""
    nodes = [
        node("null", "data"),
        node("null", "fc_weight", attrs={"__lr_mult__": "2.0"}),
        node("null", "fc_bias"),
        node("FullyConnected", "fc", [(0, 0), (1, 0), (2, 0)], attrs={"num_hidden": "3", **attrs}),
        node("null", "softmax_label"),
        node("SoftmaxOutput", "softmax", [(3, 0), (4, 0)]),
    ]
    return symbol(nodes, [(5, 0)])


def _written(tmp_path, document=None, arrays=None, epoch=0):
    arrays = {"arg:fc_weight": W, "arg:fc_bias": B} if arrays is None else arrays
    return write_model(tmp_path, document or _classifier(), arrays, epoch)


def _softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_a_classifier_computes_what_its_operators_say(tmp_path):
    net = gk.load(_written(tmp_path))
    assert net.name == "net"
    assert net.inputs == ("data",)  # the label is not an input
    assert str(net.input_types["data"]) == "float32[N, 4]"
    assert net.outputs == ("softmax_output",)
    assert list(net.params) == ["fc_weight", "fc_bias"]
    assert [n.name for n in net.graph.nodes] == ["fc", "softmax"]
    np.testing.assert_allclose(net.run({"data": X})["softmax_output"], _softmax(X @ W.T + B), rtol=1e-6)


def test_multipliers_of_the_learning_rate_are_kept(tmp_path):
    net = gk.load(_written(tmp_path))
    assert net.value("fc_weight").attrs == {"lr_mult": 2.0}
    assert net.value("fc_bias").attrs == {}


def test_an_imported_model_trains(tmp_path):
    net = gk.load(_written(tmp_path))
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.5))
    losses = [float(trainer.step(X, np.array([0, 2]))) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_an_imported_model_is_exported_and_verified(tmp_path):
    net = gk.load(_written(tmp_path))
    assert gk.verify(net, {"data": X}).passed


# --- ways to load -------------------------------------------------------------------------------------


@pytest.fixture
def three_epochs(tmp_path):
    for epoch in (2, 10, 9):
        _written(tmp_path, arrays={"arg:fc_weight": W * epoch, "arg:fc_bias": B}, epoch=epoch)
    return tmp_path


def _scale(net):
    return net.params["fc_weight"][1, 0] / W[1, 0]


def test_the_newest_epoch_is_the_default(three_epochs):
    assert _scale(gk.load(three_epochs / "net-symbol.json")) == pytest.approx(10)
    assert _scale(gk.load(three_epochs / "net")) == pytest.approx(10)


def test_an_epoch_or_a_file_of_parameters_is_selected(three_epochs):
    assert _scale(gk.load(three_epochs / "net", epoch=9)) == pytest.approx(9)
    assert _scale(gk.load(three_epochs / "net-0002.params")) == pytest.approx(2)
    given = gk.load(three_epochs / "net-symbol.json", params=three_epochs / "net-0002.params")
    assert _scale(given) == pytest.approx(2)
    assert _scale(gk.load(three_epochs / "net-symbol.json", params={"fc_weight": W * 5, "fc_bias": B})) == 5


def test_a_symbol_of_another_name_needs_parameters(three_epochs):
    other = three_epochs / "other.json"
    other.write_text(json.dumps(_classifier()))
    with pytest.raises(gk.errors.InvalidModel, match="is a symbol of MXNet"):
        gk.load(other)
    assert _scale(gk.load(other, params=three_epochs / "net-0002.params")) == pytest.approx(2)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("net", {"epoch": 3}, r"no parameter file '.*net-0003\.params'"),
        ("nothing-symbol.json", {}, r"nothing-symbol\.json': no such file"),
        ("nothing-0001.params", {}, r"nothing-symbol\.json': no such file"),
        ("net-0099.params", {}, r"net-0099\.params': no such file"),
        ("net-0002.params", {"params": "net-0009.params"}, "is a file of parameters"),
        ("net", {"epoch": 2, "params": "net-0009.params"}, "either params or epoch"),
    ],
)
def test_wrong_ways_to_load(three_epochs, name, options, words):
    with pytest.raises(gk.errors.UsageError, match=words):
        gk.load(three_epochs / name, **options)


def test_a_symbol_without_parameters_is_an_error(tmp_path):
    (tmp_path / "net-symbol.json").write_text(json.dumps(_classifier()))
    with pytest.raises(gk.errors.UsageError, match=r"no parameter file .*net-EPOCH\.params"):
        gk.load(tmp_path / "net-symbol.json")


def test_options_of_mxnet_need_a_path():
    with pytest.raises(gk.errors.UsageError, match="are for models of MXNet"):
        gk.load(b"", epoch=1)


# --- parameters ---------------------------------------------------------------------------------------


def test_bare_names_of_gluon_are_read(tmp_path):
    net = gk.load(_written(tmp_path, arrays={"fc_weight": W, "fc_bias": B}))
    assert net.trainable == ("fc_weight", "fc_bias")


def test_unused_arrays_are_left_out(tmp_path):
    arrays = {"arg:fc_weight": W, "arg:fc_bias": B, "arg:other": B}
    assert "other" not in gk.load(_written(tmp_path, arrays=arrays)).params


def test_a_missing_parameter_is_named(tmp_path):
    with pytest.raises(gk.errors.InvalidModel, match="has no array 'fc_bias'"):
        gk.load(_written(tmp_path, arrays={"arg:fc_weight": W}))


def test_two_arrays_of_one_name_are_an_error(tmp_path):
    arrays = {"arg:fc_weight": W, "aux:fc_weight": W, "arg:fc_bias": B}
    with pytest.raises(gk.errors.InvalidModel, match=r"two arrays .* 'fc_weight'"):
        gk.load(_written(tmp_path, arrays=arrays))


def test_a_parameter_of_the_wrong_shape_names_the_node(tmp_path):
    with pytest.raises(gk.errors.GraphkitError, match=r"node 'fc' \(FullyConnected\)"):
        gk.load(_written(tmp_path, arrays={"arg:fc_weight": W, "arg:fc_bias": np.zeros(5, np.float32)}))


def test_running_statistics_are_states_with_or_without_a_prefix(tmp_path):
    names = ["bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    nodes = [node("null", "data"), *(node("null", n) for n in names)]
    nodes.append(node("BatchNorm", "bn", [(i, 0) for i in range(5)], attrs={"fix_gamma": "False"}))
    net = gk.load(_written(tmp_path, symbol(nodes, [(5, 0)]), dict.fromkeys(names, B)), shapes={"data": ("N", 3)})
    assert net.trainable == ("bn_gamma", "bn_beta")
    assert {net.value(n).role for n in names[2:]} == {"state"}


# --- data inputs -------------------------------------------------------------------------------------


def test_the_shape_of_an_image_follows_from_the_convolution(tmp_path):
    nodes = [
        node("null", "data"),
        node("_minus_scalar", "centred", [(0, 0)], attrs={"scalar": "0.5"}),
        node("null", "c_weight"),
        node("Convolution", "c", [(1, 0), (2, 0)], attrs={"kernel": "(3, 3)", "num_filter": "2", "no_bias": "True"}),
    ]
    weight = np.ones((2, 5, 3, 3), np.float32)
    net = gk.load(_written(tmp_path, symbol(nodes, [(3, 0)]), {"c_weight": weight}))
    assert str(net.input_types["data"]) == "float32[N, 5, H, W]"


def test_a_declared_shape_and_type_are_used(tmp_path):
    nodes = [node("null", "data", attrs={"__shape__": "(0, 7)", "__dtype__": "2"}), node("relu", "r", [(0, 0)])]
    net = gk.load(_written(tmp_path, symbol(nodes, [(1, 0)]), {}))
    assert str(net.input_types["data"]) == "float16[data_0, 7]"


def test_given_shapes_come_first(tmp_path):
    net = gk.load(_written(tmp_path), shapes={"data": ("batch", 2, 2)})
    assert str(net.input_types["data"]) == "float32[batch, 2, 2]"
    with pytest.raises(gk.errors.UsageError, match="no data input 'date'; did you mean 'data'"):
        gk.load(_written(tmp_path), shapes={"date": (1, 4)})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_input_has_the_type_of_the_weight_that_it_meets(tmp_path, dtype):
    """`net.cast("float16")` of Gluon converts the parameters; the exported symbol declares no type of the data."""
    nodes = [node("null", "data"), node("tanh", "t", [(0, 0)]), node("null", "w"), node("null", "b")]
    nodes.append(node("FullyConnected", "fc", [(1, 0), (2, 0), (3, 0)], attrs={"num_hidden": "3"}))
    w, b, x = (v.astype(dtype) for v in (W, B, X))
    net = gk.load(_written(tmp_path, symbol(nodes, [(4, 0)]), {"arg:w": w, "arg:b": b}), shapes={"data": ("N", 4)})
    assert str(net.input_types["data"]) == f"{dtype}[N, 4]"
    y = net.run({"data": x})["fc_output"]
    wanted = np.tanh(x.astype(np.float64)) @ w.T.astype(np.float64) + b
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=8 * np.finfo(dtype).eps)


def test_inputs_of_a_fused_rnn_have_the_type_of_its_parts(tmp_path):
    parts = {f"p{i}": np.zeros(size) for i, size in enumerate((6, 9, 3, 3))}
    nodes = [node("null", name) for name in (*parts, "data", "state")]
    nodes.append(node("_rnn_param_concat", "all", [(i, 0) for i in range(4)], attrs={"num_args": "4", "dim": "0"}))
    attributes = {"mode": "rnn_tanh", "num_layers": "1", "state_size": "3"}
    nodes.append(node("RNN", "rnn", [(4, 0), (6, 0), (5, 0)], attrs=attributes))
    path = _written(tmp_path, symbol(nodes, [(7, 0)]), parts)
    net = gk.load(path, shapes={"data": (4, 2, 2), "state": (1, 2, 3)})
    assert [str(t) for t in net.input_types.values()] == ["float64[4, 2, 2]", "float64[1, 2, 3]"]


def test_a_shape_that_does_not_follow_is_asked_for(tmp_path):
    document = symbol([node("null", "data"), node("Flatten", "f", [(0, 0)]), node("sum", "s", [(0, 0)])], [(2, 0)])
    path = _written(tmp_path, document, {})
    with pytest.raises(
        gk.errors.UsageError,
        match=r"node 's' \(sum\).*shapes=\{'data': \(1, 10\)\}; commands take --shape data:1,10",
    ):
        gk.load(path)
    assert gk.load(path, shapes={"data": (2, 3)}).run({"data": np.ones((2, 3), np.float32)})["s_output"] == 6


def test_two_inputs_share_the_batch_only(tmp_path):
    nodes = [node("null", name) for name in ("a", "a_weight", "b", "b_weight")]
    nodes += [node("Embedding", f"{x}_rows", [(i, 0), (i + 1, 0)]) for i, x in ((0, "a"), (2, "b"))]
    arrays = {name: np.ones((3, 2), np.float32) for name in ("a_weight", "b_weight")}
    net = gk.load(_written(tmp_path, symbol(nodes, [(4, 0), (5, 0)]), arrays))
    assert [str(t) for t in net.input_types.values()] == ["float32[N, T]", "float32[N, b_T]"]


# --- outputs, attributes, operators -------------------------------------------------------------------


def test_several_outputs_get_mxnet_names(tmp_path):
    nodes = [node("null", "data"), node("SliceChannel", "split", [(0, 0)], attrs={"num_outputs": "2"})]
    nodes.append(node("relu", "r", [(1, 1)]))
    path = _written(tmp_path, symbol(nodes, [(1, 0), (1, 1), (2, 0), (0, 0)]), {})
    net = gk.load(path, shapes={"data": (1, 4)})
    assert net.outputs == ("split_output0", "split_output1", "r_output", "data")
    found = net.run({"data": X[:1]})
    np.testing.assert_array_equal(found["split_output1"], X[:1, 2:])
    np.testing.assert_array_equal(found["data"], X[:1])


def test_nodes_that_no_output_needs_are_not_built(tmp_path):
    document = _classifier()
    document["nodes"].append(node("relu", "unused", [(4, 0)]))
    assert len(gk.load(_written(tmp_path, document)).graph.nodes) == 2


@in_one_item()
@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"flaten": "True"}, "unknown attributes: flaten=True"),
        ({"flatten": "maybe"}, "attribute flatten must be True or False, not 'maybe'"),
        ({"num_hidden": "three"}, "attribute num_hidden must be a number, not 'three'"),
    ],
)
def test_wrong_attributes_name_the_node(tmp_path, attrs, words):
    with pytest.raises(gk.errors.InvalidModel, match=rf"net-symbol.json': node 'fc' \(FullyConnected\).*{words}"):
        gk.load(_written(tmp_path, _classifier(**attrs)))


def test_attributes_without_effect_are_ignored(tmp_path):
    gk.load(_written(tmp_path, _classifier(workspace="1024", cudnn_tune="off")))


def test_all_unsupported_operators_are_listed_at_once(tmp_path):
    inner = symbol([node("null", "y"), node("Strange", "deep", [(0, 0)])], [(1, 0)])
    nodes = [node("null", "x"), *(node("Custom", f"c{i}", [(0, 0)]) for i in range(7))]
    nodes.append(node("_foreach", "loop", [(0, 0)], subgraphs=[inner]))
    with pytest.raises(gk.errors.UnsupportedOperator) as caught:
        gk.load(_written(tmp_path, symbol(nodes, [(8, 0)]), {}))
    text = str(caught.value)
    assert "2 operators of MXNet are not supported" in text
    assert "Custom: 'c0', 'c1', 'c2', 'c3', 'c4' and 2 more" in text
    assert "Strange: 'deep'" in text


def test_an_output_that_a_node_does_not_have_is_an_error(tmp_path):
    nodes = [node("null", "x"), node("relu", "r", [(0, 0)]), node("relu", "again", [(1, 3)])]
    with pytest.raises(gk.errors.InvalidModel, match=r"'again'.* reads output 3 of 'r'.*, which has 1"):
        gk.load(_written(tmp_path, symbol(nodes, [(2, 0)]), {}))


def test_two_variables_of_one_name_are_an_error(tmp_path):
    nodes = [node("null", "x"), node("null", "x"), node("elemwise_add", "a", [(0, 0), (1, 0)])]
    with pytest.raises(gk.errors.InvalidModel, match="two variables have the name 'x'"):
        gk.load(_written(tmp_path, symbol(nodes, [(2, 0)]), {}))


def test_a_missing_input_is_an_error(tmp_path):
    nodes = [node("null", "x"), node("elemwise_add", "a", [(0, 0)])]
    with pytest.raises(gk.errors.InvalidModel, match=r"node 'a' \(elemwise_add\): it has 1 inputs; input 1 is missing"):
        gk.load(_written(tmp_path, symbol(nodes, [(1, 0)]), {}))


def test_a_memory_limit_holds_for_the_files(tmp_path):
    with pytest.raises(gk.errors.OutOfMemory):
        gk.load(_written(tmp_path), max_memory=100)


def test_bytes_after_the_names_are_an_error(tmp_path):
    path = _written(tmp_path)
    (tmp_path / "net-0000.params").write_bytes(listed([dense(W)], ["arg:fc_weight"]) + b"x")
    with pytest.raises(gk.errors.InvalidModel, match=r"net-0000\.params"):
        gk.load(path)


def test_options_of_mxnet_are_refused_for_other_files(tmp_path):
    gk.Model({"y": gk.relu(gk.input("x", [2]))}).save(tmp_path / "net.onnx")
    with pytest.raises(gk.errors.UsageError, match=r"are for models of MXNet, not for .*net\.onnx"):
        gk.load(tmp_path / "net.onnx", epoch=7)


@in_one_item()
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("_arange", {"start": "0", "stop": "3e8"}),
        ("_arange", {"start": "0", "stop": "1e18"}),
        ("_linspace", {"num": "100000000000"}),
        ("_eye", {"N": "1000000"}),
        ("_zeros", {"shape": "(100000, 100000)"}),
    ],
)
def test_constants_of_a_small_file_are_limited(tmp_path, op, attrs):
    path = _written(tmp_path, symbol([node(op, "c", attrs=attrs)], [(0, 0)]), {})
    with pytest.raises(gk.errors.OutOfMemory, match=r"node 'c'.* a constant of"):
        gk.load(path, max_memory="100MB")


def test_a_recurrent_layer_of_too_many_layers_is_refused(tmp_path):
    nodes = [node("null", n) for n in ("data", "p_parameters", "state")]
    nodes.append(
        node("RNN", "r", [(0, 0), (1, 0), (2, 0)], attrs={"mode": "gru", "state_size": "2", "num_layers": "9" * 9})
    )
    path = _written(tmp_path, symbol(nodes, [(3, 0)]), {"p_parameters": W.ravel()})
    with pytest.raises(gk.errors.InvalidModel, match="num_layers 999999999"):
        gk.load(path)
