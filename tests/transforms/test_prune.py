"""gk.prune, compared with formulas in numpy and with torch.nn.utils.prune's definition, and run in ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import InputError, UnsupportedError, UsageError

node = helper.make_node


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes, arrays, inputs=(("x", ["N", 8]),), outputs=("y",), opset=17):
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def mlp(**changes):
    arrays = {"w": floats(16, 8), "b": floats(16, seed=1), "v": 0.1 * floats(16, 4, seed=2), **changes}
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], "first", transB=1), node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["y"], "second"),
    ]  # fmt: skip
    return model(nodes, arrays)


def weights(proto):
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def run(proto, feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def smallest(array, count):
    """The mask of torch.nn.utils.prune.l1_unstructured: False for the `count` smallest magnitudes."""
    mask = np.ones(array.size, bool)
    mask[np.argsort(np.abs(array).reshape(-1), kind="stable")[:count]] = False
    return mask.reshape(array.shape)


@in_one_item()
@pytest.mark.parametrize("sparsity", [0.01, 0.3, 0.5, 0.999])
def test_each_layer_loses_its_smallest_weights(sparsity):
    proto = mlp()
    found = gk.prune(gk.load(proto), sparsity, scope="layer")
    before, after = weights(proto), weights(found.message)
    for name in ("w", "v"):
        mask = smallest(before[name], round(sparsity * before[name].size))
        np.testing.assert_array_equal(found.masks[name], mask)
        np.testing.assert_array_equal(after[name], before[name] * mask)
    np.testing.assert_array_equal(after["b"], before["b"])
    x = floats(3, 8, seed=5)
    hidden = np.maximum(x @ after["w"].T + before["b"], 0)
    np.testing.assert_allclose(run(found.message, {"x": x})[0], hidden @ after["v"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.model.run({"x": x})["y"], hidden @ after["v"], rtol=1e-4, atol=1e-5)


def test_global_sparsity_compares_all_weights():
    proto = mlp()
    found = gk.prune(gk.load(proto), 0.4)
    before = weights(proto)
    both = np.concatenate([before["w"].reshape(-1), before["v"].reshape(-1)])
    mask = smallest(both, round(0.4 * both.size))
    np.testing.assert_array_equal(found.masks["w"].reshape(-1), mask[: before["w"].size])
    np.testing.assert_array_equal(found.masks["v"].reshape(-1), mask[before["w"].size :])
    assert found.sparsity == np.count_nonzero(~mask) / mask.size


def test_of_equal_weights_the_first_are_pruned():
    found = gk.prune(gk.load(mlp(w=np.ones((16, 8), np.float32))), 0.25, include=["first"])
    assert not found.masks["w"][:4].any()
    assert found.masks["w"][4:].all()


def conv(weight, axis_in, group=1, kind="Conv"):
    return model(
        [node(kind, ["x", "w"], ["y"], "conv", group=group)], {"w": weight}, [("x", ["N", axis_in, 5, 5])]
    )  # fmt: skip


@in_one_item()
@pytest.mark.parametrize(
    ("proto", "axis"),
    [
        (mlp(), 1),
        (model([node("Gemm", ["x", "w"], ["y"], "first")], {"w": floats(8, 5)}), 0),
        (model([node("MatMul", ["x", "w"], ["y"], "first")], {"w": floats(8, 5)}), 0),
        (model([node("MatMul", ["x", "w"], ["y"], "first")], {"w": floats(2, 8, 5)}, [("x", [2, 3, 8])]), 1),
        (conv(floats(6, 8, 3, 2), 8), 1),
        (conv(floats(6, 4, 3, 2), 8, group=2), 1),
        (conv(floats(8, 3, 3, 2), 8, kind="ConvTranspose"), 0),
    ],
)
@pytest.mark.parametrize("pattern", [(2, 4), (1, 2), (3, 4)])
def test_patterns_hold_along_the_summed_axis(proto, axis, pattern):
    kept, group = pattern
    found = gk.prune(gk.load(proto), pattern=f"{kept}:{group}")
    before, after = weights(proto)["w"], weights(found.message)["w"]
    rows = np.moveaxis(before, axis, -1).reshape(-1, group)
    wanted = np.zeros_like(rows)
    for i, row in enumerate(rows):
        best = np.argsort(-np.abs(row), kind="stable")[:kept]
        wanted[i, best] = row[best]
    np.testing.assert_array_equal(np.moveaxis(after, axis, -1).reshape(-1, group), wanted)


def test_layers_that_a_pattern_does_not_divide_stay():
    proto = mlp(w=floats(16, 8)[:, :8], v=floats(16, 4))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(floats(16, 6), "w"))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 6
    found = gk.prune(gk.load(proto), pattern="2:4")
    assert list(found.masks) == ["v"]
    assert [(k.name, k.reason) for k in found.kept] == [
        ("first", "it sums over 6 inputs, which is not a multiple of 4")
    ]
    with pytest.raises(UnsupportedError, match=r"nothing could be pruned. conv .Conv.: it sums over 3 inputs"):
        gk.prune(gk.load(conv(floats(4, 3, 2, 2), 3)), pattern="2:4")
    with pytest.raises(UnsupportedError, match="it sums over 2 inputs"):
        gk.prune(gk.load(conv(floats(4, 3, 2, 2), 4, group=2, kind="ConvTranspose")), pattern="2:4")
    with pytest.raises(UnsupportedError, match="it sums over 1 input, which"):
        gk.prune(gk.load(conv(floats(4, 1, 2, 2), 1)), pattern="2:4")


def test_shared_weights_are_pruned_once_or_kept():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "one"), node("MatMul", ["a", "w"], ["b"], "two"),
        node("Gemm", ["b", "w"], ["c"], "three"), node("Gemm", ["c", "t"], ["d"], "four"),
        node("Gemm", ["d", "t"], ["e"], "five", transB=1), node("MatMul", ["e", "u"], ["f"], "six"),
        node("Add", ["f", "u"], ["y"], "sum"),
    ]  # fmt: skip
    arrays = {"w": floats(8, 8), "t": floats(8, 8, seed=1), "u": floats(8, 8, seed=2)}
    proto = model(nodes, arrays, [("x", [8, 8])])
    found = gk.prune(gk.load(proto), pattern="2:4")
    assert [w.layers for w in found.weights] == [("one", "two", "three")]
    assert {k.name: k.reason for k in found.kept} == {
        "four": "its weight 't' is summed over other axes in another layer",
        "five": "its weight 't' is summed over other axes in another layer",
        "six": "its weight 'u' is also read by 'sum' (Add)",
    }
    assert gk.prune(gk.load(proto), 0.5).weights[1].layers == ("four", "five")


def test_branches_and_functions(tmp_path):
    inside = helper.make_graph(
        [node("MatMul", ["x", "w"], ["m"], "inside")], "then", [],
        [helper.make_tensor_value_info("m", TensorProto.FLOAT, None)], [numpy_helper.from_array(floats(8, 4), "w")],
    )  # fmt: skip
    other = helper.make_graph(
        [node("MatMul", ["x", "v"], ["n"], "outside")], "else", [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
    )  # fmt: skip
    proto = model([node("If", ["c"], ["y"], then_branch=inside, else_branch=other)], {"v": floats(8, 4, seed=1)})
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    found = gk.prune(gk.load(proto), 0.5, scope="layer")
    assert sorted(w.layers[0] for w in found.weights) == ["inside", "outside"]
    x = floats(3, 8)
    for c, before in ((True, floats(8, 4)), (False, floats(8, 4, seed=1))):
        wanted = x @ (before * smallest(before, 16))
        feeds = {"x": x, "c": np.array(c)}
        np.testing.assert_allclose(run(found.message, feeds)[0], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.model.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)
    function = helper.make_function(
        "here", "Layer", ["a", "w"], ["b"], [node("MatMul", ["a", "w"], ["b"])], [helper.make_opsetid("", 17)]
    )
    called = model([node("Layer", ["x", "w"], ["h"], domain="here"), node("MatMul", ["h", "u"], ["y"], "own")],
                   {"w": floats(8, 8), "u": floats(8, 4)})  # fmt: skip
    called.functions.append(function)
    called.opset_import.append(helper.make_opsetid("here", 1))
    onnx.save(called, tmp_path / "called.onnx")
    found = gk.prune(tmp_path / "called.onnx", 0.5)
    assert [w.layers for w in found.weights] == [("own",)]
    assert found.notes == ("layers inside functions are not pruned: Layer",)


def test_the_rest_of_a_file_stays(tmp_path):
    proto = mlp()
    helper.set_model_props(proto, {"author": "me"})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4]))
    onnx.save(proto, tmp_path / "net.onnx")
    found = gk.prune(tmp_path / "net.onnx", 0.5)
    found.save(tmp_path / "sparse.onnx")
    made = onnx.load(tmp_path / "sparse.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert [n.SerializeToString() for n in made.graph.node] == [n.SerializeToString() for n in proto.graph.node]
    assert {p.key: p.value for p in made.metadata_props} == {"author": "me"}
    assert found.before.nbytes == found.after.nbytes


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(dtype):
    proto = model([node("MatMul", ["x", "w"], ["y"], "one")], {"w": floats(8, 4).astype(dtype)})
    proto.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if dtype == np.float64:
        with pytest.raises(UnsupportedError, match="its element type is float64"):
            gk.prune(gk.load(proto), 0.5)
        return
    found = gk.prune(gk.load(proto), 0.5)
    after = weights(found.message)["w"]
    assert after.dtype == dtype
    np.testing.assert_array_equal(after, weights(proto)["w"] * smallest(weights(proto)["w"], 16))


@in_one_item()
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give either sparsity"),
        ({"sparsity": 0.5, "pattern": "2:4"}, "give either sparsity"),
        ({"sparsity": 0.0}, "above 0 and below 1"),
        ({"sparsity": 1.0}, "above 0 and below 1"),
        ({"sparsity": float("nan")}, "above 0 and below 1"),
        ({"pattern": "4:4"}, "must be N:M"),
        ({"pattern": "0:4"}, "must be N:M"),
        ({"pattern": "2-4"}, "must be N:M"),
        ({"pattern": "2:4", "scope": "layer"}, "scope .--scope. only works with sparsity"),
        ({"sparsity": 0.5, "scope": "locally"}, "scope .--scope. must be global or layer, not 'locally'$"),
        ({"sparsity": 0.5, "include": ["thrid"]}, "no node has such a name or operator"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(UsageError, match=text):
        gk.prune(gk.load(mlp()), **options)


def test_bfloat16_layers_are_not_supported():
    x = gk.input("x", ["N", 8], "bfloat16")
    with pytest.raises(UnsupportedError, match="element type is bfloat16; only float32 and float16 are supported"):
        gk.prune(gk.Model({"y": gk.nn.linear(x, 4)}, seed=0), 0.5)


def test_nothing_to_prune_is_an_error():
    with pytest.raises(UnsupportedError, match="nothing to prune"):
        gk.prune(gk.load(model([node("Sin", ["x"], ["y"])], {})), 0.5)
    with pytest.raises(UnsupportedError, match="no weight would become 0"):
        gk.prune(gk.load(mlp()), 1e-9)
    once = gk.prune(gk.load(mlp()), 0.5)
    with pytest.raises(UnsupportedError, match="no weight would become 0"):
        gk.prune(once.model, 0.4)
    with pytest.raises(UnsupportedError, match="contains NaN or infinity"):
        gk.prune(gk.load(mlp(w=np.full((16, 8), np.nan, np.float32), v=np.full((16, 4), np.inf, np.float32))), 0.5)


def test_a_layer_without_any_weight_left_is_noted():
    found = gk.prune(gk.load(mlp(v=np.full((16, 4), 1e-6, np.float32))), 0.5)
    assert found.notes == ("v (second) contains only zeros",)


def test_trained_returns_the_trained_file():
    net = gk.models.build("mlp", inputs=8, hidden=(16,), classes=4)
    found = gk.prune(net, 0.5)
    assert all(a is b for a, b in zip(found.model.graph.nodes, net.graph.nodes, strict=True))
    assert not np.array_equal(net.params["fc1_weight"] == 0, ~found.masks["fc1_weight"])  # the original is unchanged
    x, y = floats(32, 8), np.arange(32) % 4
    trainer = gk.Trainer(found.model, optimizer=gk.optim.Adam(1e-2), masks=found.masks)
    for _ in range(5):
        trainer.step(x, y)
    made = found.trained()
    for name, mask in found.masks.items():
        array = weights(made.message)[name]
        np.testing.assert_array_equal(array, found.model.params[name])
        np.testing.assert_array_equal(array != 0, mask)
    np.testing.assert_allclose(run(made.message, {"x": x})[0], found.model.run({"x": x})["logits"], atol=1e-5)
    trainer = gk.Trainer(found.model, optimizer=gk.optim.SGD(0.1))
    trainer.step(x, y)
    with pytest.raises(UsageError, match="is not 0 any more where it was pruned"):
        found.trained()


def test_data_errors_name_the_model():
    with pytest.raises((InputError, UsageError)):
        gk.prune("absent.onnx", 0.5)


@pytest.mark.pytorch
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_pruned_training_equals_pytorch(scope):
    torch = pytest.importorskip("torch")
    from torch.nn.utils import prune as peer

    net = gk.models.build("mlp", inputs=64, hidden=(50,), classes=10)
    layers = []
    for name in ("fc1", "fc2"):
        weight, bias = (torch.tensor(np.array(net.params[f"{name}_{kind}"])) for kind in ("weight", "bias"))
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight, bias
        layers.append(layer)
    if scope == "global":
        both = [(layer, "weight") for layer in layers]
        peer.global_unstructured(both, pruning_method=peer.L1Unstructured, amount=0.7)
    else:
        for layer in layers:
            peer.l1_unstructured(layer, "weight", 0.7)
    found = gk.prune(net, 0.7, scope=scope)
    for name, layer in zip(("fc1_weight", "fc2_weight"), layers, strict=True):
        np.testing.assert_array_equal(found.masks[name], layer.weight_mask.numpy() != 0)
    x, y = floats(32, 64), np.arange(32) % 10
    trainer = gk.Trainer(found.model, optimizer=gk.optim.Adam(1e-2), masks=found.masks)
    other = torch.optim.Adam([p for layer in layers for p in layer.parameters()], 1e-2)
    for _ in range(5):
        trainer.step(x, y)
        other.zero_grad()
        logits = layers[1](torch.relu(layers[0](torch.tensor(x))))
        torch.nn.functional.cross_entropy(logits, torch.tensor(y)).backward()
        other.step()
    for name, layer in zip(("fc1_weight", "fc2_weight"), layers, strict=True):
        wanted = (layer.weight_orig * layer.weight_mask).detach().numpy()
        np.testing.assert_allclose(found.model.params[name], wanted, atol=1e-5)


def test_weights_behind_a_transpose_are_pruned() -> None:
    """A linear layer on sequences is a MatMul with a transposed weight."""
    x = gk.input("x", ["N", "T", 8])
    h = gk.relu(gk.nn.linear(x, 12, name="first"))
    net = gk.Model({"y": gk.nn.linear(h, 4, name="last")}, seed=0)
    pruned = gk.prune(net, pattern="2:4")
    assert [weight.name for weight in pruned.weights] == ["first_weight", "last_weight"]
    for name in ("first_weight", "last_weight"):
        weight = np.asarray(pruned.model.params[name])
        groups = np.abs(np.asarray(net.params[name])).reshape(len(weight), -1, 4)
        kept = groups >= np.sort(groups, axis=-1)[..., 2:3]
        np.testing.assert_array_equal(weight.reshape(groups.shape) != 0, kept)


def test_a_transposed_weight_with_another_reader_is_kept() -> None:
    """The table of an embedding is also the last layer."""
    ids = gk.input("ids", ["N", "T"], "int64")
    table = gk.parameter("table", [9, 8])
    h = gk.nn.linear(gk.gather(table, ids), 8, name="body")
    net = gk.Model({"y": gk.mat_mul(h, gk.transpose(table, perm=(1, 0)), name="head")}, seed=0)
    pruned = gk.prune(net, 0.5)
    assert [weight.name for weight in pruned.weights] == ["body_weight"]
    (kept,) = pruned.kept
    assert kept.name == "head"
    assert "its weight 'table' is also read by" in kept.reason
