"""Adapters in files: peft's names and shapes, several adapters of one model, merging, and ONNX Runtime's format."""

from __future__ import annotations

import json

import numpy as np
import pytest
from combinations import in_one_item
from safetensors.numpy import load_file, save_file

import graphkit as gk
from graphkit.errors import InvalidModel, UsageError
from graphkit.onnx_io.compare import OnnxRuntimeModel

RNG = np.random.default_rng(0)
_STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Let each test draw the same numbers, whatever ran before it."""
    RNG.bit_generator.state = _STATE


X = {"x": RNG.standard_normal((4, 6)).astype(np.float32)}


def base(seed: int = 0) -> gk.Model:
    x = gk.input("x", ["N", 6])
    h = gk.tanh(gk.nn.linear(x, 5, name="body"))
    return gk.Model({"y": gk.nn.linear(h, 3, name="head")}, seed=seed)


def disturbed(model: gk.Model) -> gk.Model:
    for name in model.trainable:
        model.params[name] = model.params[name] + RNG.standard_normal(model.params[name].shape).astype(np.float32)
    return model


def test_files_have_the_names_and_shapes_of_peft(tmp_path) -> None:
    adapted = disturbed(gk.lora(base(), rank=2, alpha=3.0, layers="body", dora=True, dropout=0.25, train="head*"))
    gk.save_adapter(adapted, tmp_path / "new" / "folder")
    tensors = load_file(tmp_path / "new" / "folder" / "adapter_model.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {
        "base_model.model.body.lora_A.weight": (2, 6),
        "base_model.model.body.lora_B.weight": (5, 2),
        "base_model.model.body.lora_magnitude_vector": (5,),
        "base_model.model.head_weight": (3, 5),
        "base_model.model.head_bias": (3,),
    }
    config = json.loads((tmp_path / "new" / "folder" / "adapter_config.json").read_text())
    expected = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "lora_dropout": 0.25, "use_dora": True, "bias": "none"}
    assert expected.items() <= config.items()
    assert config["target_modules"] == ["body"]


@in_one_item()
@pytest.mark.parametrize("options", [{}, {"dora": True}, {"rslora": True, "alpha": 0.5}, {"train": "head*"}])
def test_loaded_adapters_give_the_same_outputs(tmp_path, options: dict) -> None:
    adapted = disturbed(gk.lora(base(), rank=2, layers="body", dropout=0.1, **options))
    gk.save_adapter(adapted, tmp_path)
    net = base()
    loaded = gk.load_adapter(net, tmp_path)
    assert np.array_equal(loaded.run(X)["y"], adapted.run(X)["y"])
    assert loaded.trainable == adapted.trainable
    assert not np.array_equal(loaded.run(X)["y"], net.run(X)["y"])
    assert np.shares_memory(loaded.params["body_weight"], net.params["body_weight"])


def test_adapters_of_one_model_do_not_disturb_each_other(tmp_path) -> None:
    net = base()
    adapted = [disturbed(gk.lora(net, rank=rank, train="head*")) for rank in (1, 3)]
    for i, each in enumerate(adapted):
        gk.save_adapter(each, tmp_path / str(i))
    expected = [each.run(X)["y"] for each in (*adapted, base())]
    loaded = [gk.load_adapter(net, tmp_path / str(i)) for i in range(2)]
    for each, y in zip((*loaded, net), expected, strict=True):
        assert np.array_equal(each.run(X)["y"], y)


def test_set_adapter_keeps_the_compiled_program(tmp_path) -> None:
    adapted = [disturbed(gk.lora(base(), rank=2)) for _ in range(2)]
    gk.save_adapter(adapted[1], tmp_path)
    expected = adapted[1].run(X)["y"]
    program = adapted[0].compile(shapes={"x": (4, 6)})
    gk.set_adapter(adapted[0], tmp_path)
    assert np.array_equal(program.run(X)["y"], expected)


def test_set_adapter_rejects_other_settings_and_changes_nothing(tmp_path) -> None:
    adapted = disturbed(gk.lora(base(), rank=2, alpha=4.0, layers="body"))
    before = {name: np.array(array) for name, array in adapted.params.items()}
    for options, message in (
        ({"rank": 3, "alpha": 6.0, "layers": "body"}, "rank 3 instead of 2"),
        ({"rank": 2, "alpha": 5.0, "layers": "body"}, "scaling 2.5 instead of 2.0"),
        ({"rank": 2, "alpha": 4.0}, "other parameters: head.lora_A.weight, head.lora_B.weight"),
    ):
        gk.save_adapter(gk.lora(base(), **options), tmp_path)
        with pytest.raises(UsageError, match=message):
            gk.set_adapter(adapted, tmp_path)
    assert all(np.array_equal(adapted.params[name], array) for name, array in before.items())


@pytest.mark.parametrize("dora", [False, True])
def test_merged_and_unmerged_files_agree_in_onnx_runtime(tmp_path, dora: bool) -> None:
    adapted = disturbed(gk.lora(base(), rank=2, dora=dora))
    merged = gk.merge_lora(adapted)
    assert list(merged.params) == list(base().params)
    assert [n.op.name for n in merged.graph.nodes] == [n.op.name for n in base().graph.nodes]
    outputs = []
    for name, model in (("unmerged", adapted), ("merged", merged)):
        model.save(tmp_path / f"{name}.onnx")
        outputs += OnnxRuntimeModel(tmp_path / f"{name}.onnx").run(X).values()
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(outputs[0], adapted.run(X)["y"], rtol=1e-5, atol=1e-5)
    assert not np.allclose(outputs[0], base().run(X)["y"])


def test_a_merged_model_can_get_adapters_again() -> None:
    merged = gk.merge_lora(disturbed(gk.lora(base(), rank=2)))
    assert merged.trainable == base().trainable
    assert np.array_equal(gk.lora(merged, rank=2).run(X)["y"], merged.run(X)["y"])
    for function in (gk.merge_lora, gk.adapter_parameters):
        with pytest.raises(UsageError, match="has no adapters"):
            function(merged)


def test_onnx_runtime_takes_adapters_of_its_own_format(tmp_path) -> None:
    ort = pytest.importorskip("onnxruntime")
    first, second = (disturbed(gk.lora(base(), rank=2, layers="body", train="head_bias")) for _ in range(2))
    first.save(tmp_path / "net.onnx", as_inputs=gk.adapter_parameters(first))
    gk.save_adapter(second, tmp_path / "second.onnx_adapter")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(tmp_path / "net.onnx", options)
    assert {i.name for i in session.get_overridable_initializers()} == set(gk.adapter_parameters(first))
    np.testing.assert_allclose(session.run(None, X)[0], first.run(X)["y"], rtol=1e-5, atol=1e-5)
    adapter, run = ort.LoraAdapter(), ort.RunOptions()
    adapter.Load(str(tmp_path / "second.onnx_adapter"))
    run.add_active_adapter(adapter)
    np.testing.assert_allclose(session.run(None, X, run)[0], second.run(X)["y"], rtol=1e-5, atol=1e-5)


def test_only_known_parameters_become_inputs() -> None:
    with pytest.raises(UsageError, match="the graph has no parameter 'hed_bias'; did you mean 'head_bias'"):
        base().to_onnx(as_inputs=["hed_bias"])
    proto = base().to_onnx(as_inputs=["head_bias"])
    assert [i.name for i in proto.graph.input] == ["x", "head_bias"]
    assert len(proto.graph.initializer) == 4


# --- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    gk.save_adapter(gk.lora(base(), rank=2), tmp_path)
    return tmp_path


def change(folder, tensors=None, **config) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    if tensors is not None:
        save_file(tensors, folder / "adapter_model.safetensors")


def test_missing_and_damaged_files_are_errors(saved) -> None:
    (saved / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InvalidModel, match=r"adapter_model\.safetensors is truncated or damaged"):
        gk.load_adapter(base(), saved)
    (saved / "adapter_config.json").write_text("{")
    with pytest.raises(InvalidModel, match=r"adapter_config\.json.* is damaged, or not an adapter configuration"):
        gk.load_adapter(base(), saved)
    (saved / "adapter_model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"contains no adapter: adapter_model\.safetensors is missing"):
        gk.load_adapter(base(), saved)
    with pytest.raises(UsageError, match=r"contains no adapter: adapter_config\.json is missing"):
        gk.load_adapter(base(), saved / "none")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type must be 'LORA', not 'LOHA'"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"alpha_pattern": {"body": 3}}, "alpha_pattern="),
        ({"r": 0}, "a setting is not valid: .*rank"),
        ({"lora_dropout": 2.0}, "a setting is not valid: .*dropout"),
        ({"r": 3}, r"adapter_config\.json: r is 3, but .*body\.lora_A\.weight .* has shape \[2, 6\]"),
        ({"r": 10**30}, r"adapter_config\.json: r is 10+, but"),
        ({"r": 10**9}, r"adapter_config\.json: r is 10+, but"),
        ({"lora_alpha": 10**400}, r"adapter_config\.json: a setting is not valid"),
        ({"target_modules": 3}, r"adapter_config\.json: target_modules must be a list of names, not 3"),
        ({"target_modules": ["body", 3]}, r"target_modules must be a list of names, not \['body', 3\]"),
        ({"modules_to_save": "head"}, "modules_to_save must be a list of names, not 'head'"),
        ({"use_dora": True}, "lacks base_model.model.body.lora_magnitude_vector"),
    ],
)
def test_settings_that_do_not_fit_are_errors(saved, config: dict, message: str) -> None:
    change(saved, **config)
    with pytest.raises(InvalidModel, match=message):
        gk.load_adapter(base(), saved)


def test_tensors_that_do_not_fit_are_errors(saved) -> None:
    tensors = load_file(saved / "adapter_model.safetensors")
    a = tensors["base_model.model.body.lora_A.weight"]
    for changes, error, message in (
        (
            {"base_model.model.bdy.lora_A.weight": a},
            UsageError,
            "layer 'bdy', but .* no such layer; did you mean 'body'",
        ),
        ({"base_model.model.hed_bias": a}, UsageError, "a parameter 'hed_bias', but .* did you mean 'head_bias'"),
        ({"base_model.model.emb.lora_embedding_A": a}, InvalidModel, "adapters of embeddings are not supported"),
        ({"base_model.model.body.lora_magnitude_vector": a}, InvalidModel, "belongs to no adapter"),
    ):
        change(saved, tensors | changes)
        with pytest.raises(error, match=message):
            gk.load_adapter(base(), saved)
    change(saved, {"other": a})
    with pytest.raises(InvalidModel, match=r"contains no tensor with a name such as LAYER\.lora_A\.weight"):
        gk.load_adapter(base(), saved)
    del tensors["base_model.model.body.lora_A.weight"]
    change(saved, tensors)
    with pytest.raises(InvalidModel, match=r"lacks base_model\.model\.body\.lora_A\.weight"):
        gk.load_adapter(base(), saved)


def test_adapters_of_half_precision_files_are_widened(saved) -> None:
    tensors = load_file(saved / "adapter_model.safetensors")
    change(saved, {name: array.astype(np.float16) for name, array in tensors.items()})
    loaded = gk.load_adapter(base(), saved)
    assert loaded.params["body.lora_A.weight"].dtype == np.float32
    with pytest.raises(UsageError, match="has adapters already"):
        gk.load_adapter(loaded, saved)


def test_an_empty_tensor_does_not_make_a_large_adapter(saved) -> None:
    tensors = load_file(saved / "adapter_model.safetensors")
    name = "base_model.model.body.lora_A.weight"
    rank = 1 << 40
    tensors = {key: np.zeros((rank, 0) if "lora_A" in key else (0, rank), np.float32) for key in tensors}
    change(saved, tensors, r=rank)
    with pytest.raises(InvalidModel, match=rf"{name} has shape \[{rank}, 0\], but the layer needs \[{rank}, 6\]"):
        gk.load_adapter(base(), saved)


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda a: a.astype(np.int32), "has elements of int32, the parameter of float32"),
        (lambda a: np.full(a.shape, 1e300), "has values of float64 that are too large for float32"),
    ],
    ids=["integers", "too large"],
)
def test_elements_that_do_not_fit_are_errors(saved, convert, message: str) -> None:
    model = gk.load_adapter(base(), saved)
    before = {name: np.array(array) for name, array in model.params.items()}
    tensors = load_file(saved / "adapter_model.safetensors")
    name = "base_model.model.head.lora_B.weight"
    change(saved, tensors | {name: convert(tensors[name])})
    for load in (lambda: gk.load_adapter(base(), saved), lambda: gk.set_adapter(model, saved)):
        with pytest.raises(InvalidModel, match=f"adapter_model.safetensors: '{name}' {message}"):
            load()
    for key, array in before.items():
        np.testing.assert_array_equal(model.params[key], array)


def test_two_tensors_for_one_parameter_are_an_error(saved) -> None:
    tensors = load_file(saved / "adapter_model.safetensors")
    a = tensors["base_model.model.body.lora_A.weight"]
    change(saved, tensors | {"body.lora_A.weight": a + 1})
    with pytest.raises(InvalidModel, match=r"contains two tensors for body\.lora_A\.weight"):
        gk.load_adapter(base(), saved)
