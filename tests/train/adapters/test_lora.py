"""gk.lora: the function and gradients of adapters by formulas in numpy, the layers it finds, and its errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from combinations import in_one_item
from python_calls import count_calls

import graphkit as gk
from graphkit.errors import GraphkitWarning, InvalidModel, UsageError
from graphkit.train.adapters import layers as layers_module
from graphkit.train.adapters import lora as lora_module
from graphkit.train.adapters.layers import find_layers

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def linear(**kwargs) -> gk.Model:
    x = gk.input("x", ["N", 6])
    return gk.Model({"y": gk.nn.linear(x, 5, name="fc", **kwargs)}, seed=0)


def product(dtype: str = "float32", rank: int = 2) -> gk.Model:
    """MatMul with a weight [inputs, outputs], for vectors (rank 1), matrices or sequences (rank 3)."""
    x = gk.input("x", [[6], ["N", 6], ["N", 3, 6]][rank - 1], dtype)
    return gk.Model({"y": gk.mat_mul(x, gk.parameter("fc.weight", (6, 5), dtype=dtype))}, seed=0)


def convolution(**kwargs) -> gk.Model:
    x = gk.input("x", ["N", 3, 7, 7])
    return gk.Model({"y": gk.nn.conv2d(x, 4, kernel=3, name="conv", **kwargs)}, seed=0)


def disturb(model: gk.Model) -> None:
    """Give each trainable parameter other values."""
    for name in model.trainable:
        array = model.params[name]
        model.params[name] = array + (0.3 * RNG.standard_normal(array.shape)).astype(array.dtype)


def layer_names(model: gk.Model) -> list[str]:
    return [layer.name for layer in find_layers(model.graph)[0]]


# --- the function -----------------------------------------------------------------------------------


@in_one_item("values")
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_outputs_are_those_of_the_base_model_at_first(dora: bool, dropout: float) -> None:
    cases = [(linear(), (4, 6)), (linear(), (0, 6)), (convolution(), (2, 3, 7, 7))]
    cases += [(product(rank=rank), shape) for rank, shape in ((1, (6,)), (2, (4, 6)), (3, (2, 3, 6)))]
    for net, shape in cases:
        x = floats(*shape)
        adapted = gk.lora(net, rank=2, dora=dora, dropout=dropout)
        np.testing.assert_allclose(adapted.run({"x": x})["y"], net.run({"x": x})["y"], rtol=1e-6, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dora", [False, True])
def test_half_layers_get_float32_adapters(dtype: type, dora: bool) -> None:
    net = product(np.dtype(dtype).name, rank=3)
    x = floats(2, 3, 6).astype(dtype)
    adapted = gk.lora(net, rank=2, dora=dora)
    assert {str(adapted.params.type_of(n).dtype) for n in adapted.trainable} == {"float32"}
    np.testing.assert_array_equal(adapted.run({"x": x})["y"], net.run({"x": x})["y"])
    disturb(adapted)
    changed = adapted.run({"x": x})["y"]
    assert changed.dtype == np.dtype(dtype)
    merged = gk.merge_lora(adapted)
    assert merged.params["fc.weight"].dtype == np.dtype(dtype)
    tolerance = 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(
        merged.run({"x": x})["y"].astype(np.float32), changed.astype(np.float32), rtol=tolerance, atol=4 * tolerance
    )


@in_one_item()
@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("beside", ["Gemm", "MatMul"])
def test_output_and_gradients_of_lora_follow_the_formula(rslora: bool, beside: str) -> None:
    net = linear() if beside == "Gemm" else product()
    adapted = gk.lora(net, rank=2, alpha=6.0, rslora=rslora)
    disturb(adapted)
    a, b = (adapted.params[f"fc.lora_{part}.weight"].astype(np.float64) for part in "AB")
    w = net.params["fc_weight"] if beside == "Gemm" else net.params["fc.weight"].T
    bias = net.params["fc_bias"] if beside == "Gemm" else 0.0
    x, target = floats(4, 6), floats(4, 5)
    scaling = 6.0 / (np.sqrt(2) if rslora else 2)
    y = x @ w.T + bias + scaling * x @ a.T @ b.T
    np.testing.assert_allclose(adapted.run({"x": x})["y"], y, rtol=1e-5, atol=1e-5)
    dy = 2 * (y - target) / y.size
    expected = {"B": scaling * dy.T @ (x @ a.T), "A": scaling * b.T @ dy.T @ x}
    before = {part: np.array(adapted.params[f"fc.lora_{part}.weight"]) for part in "AB"}
    gk.Trainer(adapted, "mse", gk.optim.SGD(1.0), threads=1).step(x, target)
    for part, gradient in expected.items():
        found = before[part] - adapted.params[f"fc.lora_{part}.weight"]
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("dropout", [0.0, 1e-9])  # the ratio adds the nodes, but drops nothing
@pytest.mark.parametrize("beside", ["Gemm", "MatMul"])
def test_output_and_gradients_of_dora_follow_the_formula(dropout: float, beside: str) -> None:
    """Liu et al. 2024, section 4.3: the lengths are a constant for gradients."""
    net = linear() if beside == "Gemm" else product()
    adapted = gk.lora(net, rank=2, alpha=4.0, dora=True, dropout=dropout)
    disturb(adapted)
    a, b = (adapted.params[f"fc.lora_{part}.weight"].astype(np.float64) for part in "AB")
    m = adapted.params["fc.lora_magnitude_vector"].astype(np.float64)
    w = net.params["fc_weight"] if beside == "Gemm" else net.params["fc.weight"].T
    bias = net.params["fc_bias"] if beside == "Gemm" else 0.0
    x, target = floats(4, 6), floats(4, 5)
    direction = w + 2.0 * b @ a
    length = np.linalg.norm(direction, axis=1)
    y = x @ (m / length * direction.T) + bias
    np.testing.assert_allclose(adapted.run({"x": x})["y"], y, rtol=1e-5, atol=1e-5)
    dy = 2 * (y - target) / y.size
    scaled = dy * (m / length)
    expected = {
        "lora_magnitude_vector": (dy * (x @ direction.T) / length).sum(0),
        "lora_B.weight": 2.0 * scaled.T @ (x @ a.T),
        "lora_A.weight": 2.0 * b.T @ scaled.T @ x,
    }
    before = {name: np.array(adapted.params[f"fc.{name}"]) for name in expected}
    gk.Trainer(adapted, "mse", gk.optim.SGD(1.0), threads=1).step(x, target)
    for name, gradient in expected.items():
        np.testing.assert_allclose(before[name] - adapted.params[f"fc.{name}"], gradient, rtol=1e-4, atol=1e-6)


def test_a_row_of_zeros_stays_finite_with_dora() -> None:
    net = linear()
    weight = np.array(net.params["fc_weight"])
    weight[1] = 0.0
    net.params["fc_weight"] = weight
    adapted, x = gk.lora(net, rank=2, dora=True), floats(4, 6)
    np.testing.assert_allclose(adapted.run({"x": x})["y"], net.run({"x": x})["y"], rtol=1e-6, atol=1e-6)
    assert all(np.isfinite(a).all() for a in gk.merge_lora(adapted).params.values())


def test_convolution_with_strides_is_the_convolution_with_the_merged_filters() -> None:
    net = convolution(stride=2, pad=1)
    adapted = gk.lora(net, rank=2, alpha=3.0)
    disturb(adapted)
    a, b = (np.array(adapted.params[f"conv.lora_{part}.weight"]) for part in "AB")
    assert a.shape == (2, 3, 3, 3)
    assert b.shape == (4, 2, 1, 1)
    net.params["conv_weight"] = net.params["conv_weight"] + 1.5 * np.einsum("orxy,rchw->ochw", b, a)
    x = floats(2, 3, 7, 7)
    np.testing.assert_allclose(adapted.run({"x": x})["y"], net.run({"x": x})["y"], rtol=1e-4, atol=1e-5)


def test_gemm_keeps_its_factors() -> None:
    x = gk.input("x", ["N", 6])
    w, c = gk.parameter("fc.weight", (6, 5)), gk.parameter("fc.bias", (5,), "ones")
    net = gk.Model({"y": gk.gemm(x, w, c, alpha=0.5, beta=3.0)}, seed=0)
    for dora in (False, True):
        adapted = gk.lora(net, rank=2, dora=dora)
        disturb(adapted)
        data = {"x": floats(4, 6)}
        merged = gk.merge_lora(adapted)
        expected = 0.5 * data["x"] @ merged.params["fc.weight"] + 3.0
        np.testing.assert_allclose(adapted.run(data)["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_is_the_same_for_equal_seeds_only() -> None:
    net = linear()
    arrays = [np.array(gk.lora(net, rank=2, seed=seed).params["fc.lora_A.weight"]) for seed in (1, 1, 2)]
    assert np.array_equal(arrays[0], arrays[1])
    assert not np.array_equal(arrays[0], arrays[2])
    assert np.abs(arrays[0]).max() <= 1 / np.sqrt(6)


# --- which parameters are trained -----------------------------------------------------------------


def test_only_adapters_are_trained_and_the_base_is_shared() -> None:
    net = linear()
    before = {name: np.array(array) for name, array in net.params.items()}
    adapted = gk.lora(net, rank=2)
    assert adapted.trainable == ("fc.lora_A.weight", "fc.lora_B.weight")
    assert np.shares_memory(adapted.params["fc_weight"], net.params["fc_weight"])
    trainer = gk.Trainer(adapted, "mse", threads=1)
    for _ in range(3):
        trainer.step(floats(4, 6), floats(4, 5))
    for name, array in before.items():
        assert np.array_equal(adapted.params[name], array)
        assert np.array_equal(net.params[name], array)
    assert net.trainable == ("fc_weight", "fc_bias")


def test_statistics_of_frozen_normalisations_do_not_change() -> None:
    x = gk.input("x", ["N", 6])
    net = gk.Model({"y": gk.nn.linear(gk.nn.batch_norm(gk.nn.linear(x, 5, name="a"), name="bn"), 2, name="b")}, seed=0)
    adapted = gk.lora(net, rank=2)
    before = {name: np.array(array) for name, array in adapted.params.items()}
    gk.Trainer(adapted, "mse", threads=1).step(floats(8, 6), floats(8, 2))
    changed = {name for name in before if not np.array_equal(before[name], adapted.params[name])}
    assert changed == {"a.lora_B.weight", "b.lora_B.weight"}  # the gradients of A are 0 while B is 0


@pytest.mark.parametrize("shape", [["N", 6], ["N", 3, 6]])  # a sequence reads the transposed weight
def test_layers_whose_weight_is_trained_get_no_adapter(shape: list) -> None:
    x = gk.input("x", shape)
    net = gk.Model({"y": gk.nn.linear(gk.nn.linear(x, 5, name="body"), 2, name="head")}, seed=0)
    adapted = gk.lora(net, rank=2, train="head*")
    assert set(adapted.trainable) == {"head_weight", "head_bias", "body.lora_A.weight", "body.lora_B.weight"}
    with pytest.raises(UsageError, match="the weights of all layers that match layers= are trained"):
        gk.lora(net, layers="head", train="head*")
    with pytest.raises(UsageError, match="train pattern 'haed' matches no parameter"):
        gk.lora(net, train="haed")


def test_dropout_of_adapters_acts_only_in_training() -> None:
    net = linear()
    adapted = gk.lora(net, rank=2, dropout=0.5)
    disturb(adapted)
    x, y = floats(64, 6), np.zeros((64, 5), np.float32)
    trainer = gk.Trainer(adapted, "mse", gk.optim.SGD(0.0), threads=1)
    losses = [float(trainer.step(x, y)) for _ in range(3)]
    assert len(set(losses)) == 3
    assert np.array_equal(adapted.run({"x": x})["y"], adapted.run({"x": x})["y"])


# --- shared and quantised weights -----------------------------------------------------------------


@pytest.mark.parametrize("dora", [False, True])
def test_nodes_with_one_weight_share_one_adapter(dora: bool) -> None:
    x, w = gk.input("x", ["N", 6]), gk.parameter("fc.weight", (6, 6))
    net = gk.Model({"y": gk.mat_mul(gk.relu(gk.mat_mul(x, w)), w)}, seed=0)
    adapted = gk.lora(net, rank=2, dora=dora)
    assert [n for n in adapted.trainable if "lora_A" in n] == ["fc.lora_A.weight"]
    disturb(adapted)
    data = floats(4, 6)
    merged = gk.merge_lora(adapted)
    weight = merged.params["fc.weight"]
    expected = np.maximum(data @ weight, 0) @ weight
    np.testing.assert_allclose(adapted.run({"x": data})["y"], expected, rtol=1e-4, atol=1e-5)


def test_an_embedding_keeps_the_weight_that_it_shares() -> None:
    table, ids = gk.parameter("emb.weight", (10, 6)), gk.input("ids", ["N", "T"], "int64")
    logits = gk.mat_mul(gk.gather(table, ids), gk.transpose(table, perm=(1, 0)), name="lm_head")
    net = gk.Model({"y": logits}, seed=0)
    assert layer_names(net) == ["lm_head"]
    adapted = gk.lora(net, rank=2)
    disturb(adapted)
    merged = gk.merge_lora(adapted)
    assert list(merged.params) == ["emb.weight", "lm_head.weight"]
    assert np.array_equal(merged.params["emb.weight"], net.params["emb.weight"])
    data = {"ids": np.array([[1, 2, 9]])}
    np.testing.assert_allclose(merged.run(data)["y"], adapted.run(data)["y"], rtol=1e-5, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("options", [{"bits": 4, "block_size": 16}, {"bits": 8}, {"bits": 4, "standard": True}])
def test_quantised_weights_stay_frozen(tmp_path, options: dict) -> None:
    x = gk.input("x", ["N", 32])
    gk.Model({"y": gk.nn.linear(x, 5, name="fc")}, seed=0).save(tmp_path / "float.onnx")
    gk.quantize(tmp_path / "float.onnx", mode="weights", **options).save(tmp_path / "q.onnx")
    net, data = gk.load(tmp_path / "q.onnx"), {"x": floats(8, 32)}
    adapted = gk.lora(net, rank=2)
    assert adapted.trainable == ("fc.lora_A.weight", "fc.lora_B.weight")
    np.testing.assert_allclose(adapted.run(data)["y"], net.run(data)["y"], rtol=1e-5, atol=1e-5)
    trainer = gk.Trainer(adapted, "mse", gk.optim.Adam(0.05), threads=1)
    losses = [float(trainer.step(data["x"], np.ones((8, 5), np.float32))) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    merged = gk.merge_lora(adapted)
    np.testing.assert_allclose(merged.run(data)["y"], adapted.run(data)["y"], rtol=1e-4, atol=1e-4)
    assert "fc.weight" in merged.params


# --- names and patterns ---------------------------------------------------------------------------


def in_pytorchs_form(names: list[str], scopes: list | None = None) -> gk.Model:
    """A file with one MatMul for each name, whose weights have names without meaning."""
    nodes, weights, last = [], [], "x"
    for i, name in enumerate(names):
        node = onnx.helper.make_node("MatMul", [last, f"onnx::MatMul_{i}"], [f"{name}_output_0"], name=name)
        if scopes:
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes[i]))
        nodes.append(node)
        weights.append(onnx.numpy_helper.from_array(floats(4, 4), f"onnx::MatMul_{i}"))
        last = f"{name}_output_0"
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 4])],
        [onnx.helper.make_tensor_value_info(last, 1, ["N", 4])],
        weights,
    )
    return gk.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]))


def test_layers_have_the_names_of_pytorchs_modules() -> None:
    assert layer_names(in_pytorchs_form(["/layer.0/q/MatMul", "/layer.0/k/MatMul"])) == ["layer.0.q", "layer.0.k"]
    scopes = [["", "attn", "attn.q", "linear"], ["", "attn", "attn.o", "linear_1"]]
    assert layer_names(in_pytorchs_form(["node_1", "node_2"], scopes)) == ["attn.q", "attn.o"]
    assert layer_names(in_pytorchs_form(["node_1"], ["not a list"])) == ["node_1"]


def test_layers_of_one_module_are_told_apart_by_their_nodes() -> None:
    net = in_pytorchs_form(["/attn/MatMul", "/attn/MatMul_1", "/out/MatMul"])
    assert layer_names(net) == ["attn.MatMul", "attn.MatMul_1", "out"]


def test_two_layers_with_one_name_are_an_error() -> None:
    net = in_pytorchs_form(["a/b", "a.b"])
    with pytest.raises(UsageError, match=r"two layers of model 'g' have the name 'a\.b'"):
        gk.lora(net)


def test_patterns_match_layers_nodes_and_weights() -> None:
    x = gk.input("x", ["N", 4])
    with gk.name_scope("block1"):
        h = gk.nn.linear(x, 4, name="fc")
    net = gk.Model({"y": gk.nn.linear(h, 4, name="out[0]")}, seed=0)
    assert layer_names(net) == ["block1.fc", "out[0]"]
    for pattern in ("block1.fc", "block1/fc", "block1/fc_weight", "block1*"):
        assert gk.lora(net, layers=pattern).trainable == ("block1.fc.lora_A.weight", "block1.fc.lora_B.weight")
    assert gk.lora(net, layers="out[0]").trainable[0] == "out[0].lora_A.weight"


def test_a_pattern_without_a_layer_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"layers pattern 'fd' matches no layer of model 'model'; known: 'fc'"):
        gk.lora(linear(), layers=["fc", "fd"])
    with pytest.raises(UsageError, match="has no MatMul, Gemm or Conv with weights"):
        gk.lora(gk.Model({"y": gk.relu(gk.input("x", [3]))}))
    with pytest.raises(UsageError, match="layers is empty"):
        gk.lora(linear(), layers=[])


def test_layers_that_cannot_be_adapted_are_named() -> None:
    x = gk.input("x", ["N", 4, 5, 5])
    grouped = gk.nn.conv2d(x, 4, kernel=3, groups=2, name="grouped")
    net = gk.Model({"y": gk.nn.conv2d(grouped, 4, kernel=1, name="plain")}, seed=0)
    with pytest.warns(GraphkitWarning, match=r"get no adapter: grouped \(a grouped convolution\)"):
        adapted = gk.lora(net)
    assert adapted.trainable == ("plain.lora_A.weight", "plain.lora_B.weight")
    with pytest.raises(UsageError, match=r"cannot have adapters: grouped \(a grouped convolution\)"):
        gk.lora(net, layers=["plain", "grouped"])


def test_settings_are_checked() -> None:
    for bad, message in (
        ({"rank": 0}, "rank must be an integer of at least 1"),
        ({"alpha": 0.0}, "alpha must be a finite number above 0"),
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"dropout": 1.0}, "dropout must be a finite number in"),
    ):
        with pytest.raises(UsageError, match=message):
            gk.lora(linear(), **bad)
    with pytest.raises(UsageError, match="has adapters already"):
        gk.lora(gk.lora(linear()))


# --- files of the model ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["json", "onnx"])
def test_a_saved_model_keeps_its_adapters(tmp_path, suffix: str) -> None:
    adapted = gk.lora(linear(), rank=2, layers="fc", dropout=0.1)
    disturb(adapted)
    adapted.save(tmp_path / f"net.{suffix}")
    again = gk.load(tmp_path / f"net.{suffix}")
    x = {"x": floats(4, 6)}
    assert np.array_equal(again.run(x)["y"], adapted.run(x)["y"])
    assert again.trainable == adapted.trainable
    a, b = gk.merge_lora(again), gk.merge_lora(adapted)
    assert np.array_equal(a.params["fc_weight"], b.params["fc_weight"])


def test_dora_of_an_onnx_file_is_not_trained(tmp_path) -> None:
    """The file has lost the place where gradients stop."""
    gk.lora(linear(), rank=2, dora=True).save(tmp_path / "net.onnx")
    with pytest.raises(UsageError, match=r"was read from an \.onnx file, which does not say where gradients stop"):
        gk.Trainer(gk.load(tmp_path / "net.onnx"), "mse")
    with pytest.raises(UsageError, match=r"does not say where gradients stop"):
        gk.StepBuilder().network(gk.load(tmp_path / "net.onnx"))
    gk.StepBuilder().network(gk.load(tmp_path / "net.onnx"), training=False)


def test_a_damaged_description_is_an_error(tmp_path) -> None:
    adapted = gk.lora(linear(), rank=2)
    adapted.save(tmp_path / "net.onnx")
    proto = onnx.load(tmp_path / "net.onnx")
    for text in ("{", "[]", '{"rank": 2}', '{"rank": 3, "alpha": 1, "layers": ["*"], "dropout": 0, "dora": false, '
                 '"rslora": false}'):  # fmt: skip
        next(p for p in proto.metadata_props if p.key == "graphkit.lora").value = text
        with pytest.raises(InvalidModel, match=r"graphkit\.lora|is not complete"):
            gk.merge_lora(gk.load(proto))


def test_a_formula_that_reads_a_value_twice_at_each_step() -> None:
    """200 steps have 2 ** 200 paths to the parameter."""
    x, w = gk.input("x", ["N", 4]), gk.parameter("w", (4, 4))
    weight = w
    for _ in range(200):
        weight = gk.mul(gk.add(weight, weight), 0.5)
    model = gk.lora(gk.Model({"y": gk.mat_mul(x, weight, name="fc")}, seed=0), rank=1)
    assert model.trainable == ("fc.lora_A.weight", "fc.lora_B.weight")
    leaves = layers_module.leaves_of(weight)
    assert w in leaves
    assert layers_module.leaves_of(w) == {w}


def chain(layers: int) -> gk.Model:
    """Return layers whose weights are computed, so that adapters must evaluate them."""
    h = gk.input("x", ["N", 4])
    for i in range(layers):
        h = gk.mat_mul(h, gk.tanh(gk.parameter(f"w{i}", (4, 4))), name=f"fc{i}")
    return gk.Model({"y": h}, seed=0)


@in_one_item()
@pytest.mark.parametrize(("batch", "programs"), [(1 << 20, 1), (130, 3), (1, 6)])
def test_one_program_computes_the_weights_of_many_layers(monkeypatch, batch: int, programs: int) -> None:
    model = gk.lora(chain(6), rank=2, dora=True, seed=0)
    disturb(model)
    calls = []
    run = lora_module._arrays
    monkeypatch.setattr(lora_module, "_BATCH", batch)
    monkeypatch.setattr(lora_module, "_arrays", lambda model, values: calls.append(values) or run(model, values))
    merged = gk.merge_lora(model)
    assert len(calls) == programs
    x = {"x": floats(3, 4)}
    np.testing.assert_allclose(merged.run(x)["y"], model.run(x)["y"], rtol=2e-5, atol=1e-6)


def test_exact_names_are_not_compared_with_every_layer() -> None:
    (few, _), (many, _) = (
        count_calls(
            lambda size=size: layers_module.select_layers(chain(size).graph, [f"fc{i}" for i in range(size)], "test"),
            layers_module.__file__,
        )
        for size in (10, 80)
    )
    assert few >= 10
    assert many < 9 * few


def test_exact_names_and_patterns_select_layers_together() -> None:
    model = gk.lora(chain(8), layers=["fc[12]", "w3", "fc6"], rank=1)
    assert [name for name in model.trainable if "lora_A" in name] == [f"fc{i}.lora_A.weight" for i in (1, 2, 3, 6)]
