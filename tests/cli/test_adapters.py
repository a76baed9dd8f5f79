"""--adapter of graphkit run, predict, evaluate, generate, verify and export, compared with merged weights."""

import json
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk

RNG = np.random.default_rng(7)


def adapter(net, folder, **options):
    """Write random adapters of a model to a folder, and return the model with them."""
    made = gk.lora(net, **{"rank": 2, "seed": 1, **options})
    for name in made.trainable:
        array = made.params[name]
        made.params[name] = array + RNG.standard_normal(array.shape).astype(array.dtype)
    gk.save_adapter(made, folder)
    return made


@pytest.fixture
def base(task):
    """The files net.onnx and net.json of a model, the folders a (rank 2) and b (rank 3), and both adapted models."""
    net = gk.load(task / "net.json")
    net.save("net.onnx")
    net.save("net.json")
    return {"a": adapter(net, "a"), "b": adapter(net, "b", rank=3, alpha=5.0, layers="fc1")}


def weights(*adapted):
    """Return the weights of the base model plus factor * scaling * B A of each (model, factor), in numpy."""
    found = {n: np.array(a, np.float64) for n, a in gk.load("net.json").params.items()}
    for model, factor in adapted:
        for layer in ("fc1", "fc2"):
            if f"{layer}.lora_A.weight" in model.params:
                a, b = (model.params[f"{layer}.lora_{part}.weight"].astype(np.float64) for part in "AB")
                found[f"{layer}_weight"] += factor * {2: 8.0, 3: 5.0 / 3}[len(a)] * b @ a
    return found


def logits(x, params):
    return np.tanh(x @ params["fc1_weight"].T + params["fc1_bias"]) @ params["fc2_weight"].T + params["fc2_bias"]


@pytest.mark.parametrize("file", ["net.onnx", "net.json"])
@pytest.mark.parametrize(
    ("given", "factors"),
    [
        (["a"], {"a": 1.0}),
        (["b:-0.5"], {"b": -0.5}),
        (["a", "b:0.25"], {"a": 1.0, "b": 0.25}),
        (["a:0"], {"a": 0.0}),
        (["a", "a:-1"], {}),
    ],
)
def test_run_adds_weighted_adapters(call, base, file, given, factors):
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    np.save("x.npy", x)
    options = [part for text in given for part in ("--adapter", text)]
    code, _, err = call("run", file, "x=x.npy", *options, "-o", "out.npz")
    assert code == 0, err
    assert f"{', '.join(given)}: LoRA of rank" in err
    expected = logits(x, weights(*((base[name], factor) for name, factor in factors.items())))
    np.testing.assert_allclose(np.load("out.npz")["logits"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
def test_predict_and_evaluate_use_the_adapter_in_both_engines(call, base, task, engine):
    data = np.load(task / "data.npz")
    np.save("samples.npy", data["x"])
    code, _, err = call("predict", "net.onnx", "samples.npy", "--adapter", "a", "--engine", engine, "-o", "out.npz")
    assert code == 0, err
    expected = logits(data["x"], weights((base["a"], 1.0)))
    np.testing.assert_allclose(np.load("out.npz")["logits"], expected, rtol=1e-4, atol=1e-4)
    code, out, err = call(
        "evaluate", "net.onnx", "--data", task / "data.npz", "--part", "all", "--adapter", "a", "--engine", engine,
        "--json",
    )  # fmt: skip
    assert code == 0, err
    accuracy = np.mean(expected.argmax(1) == data["y"])
    assert json.loads(out)["metrics"]["accuracy"] == pytest.approx(accuracy)
    assert np.mean(logits(data["x"], weights()).argmax(1) == data["y"]) != accuracy


@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
def test_generate_uses_the_adapter(call, engine):
    ids = gk.input("input_ids", ["N", "T"], "int64")
    table = gk.parameter("emb", (7, 6))
    net = gk.Model({"logits": gk.mat_mul(gk.gather(table, ids), gk.parameter("head.weight", (6, 7)))}, seed=0)
    net.save("lm.onnx")
    made = adapter(net, "a", alpha=20.0)
    head = gk.merge_lora(made).params["head.weight"]
    tokens = {}
    for name, matrix in (("adapted", head), ("base", net.params["head.weight"])):
        tokens[name] = [3]
        for _ in range(5):
            tokens[name].append(int((net.params["emb"][tokens[name][-1]] @ matrix).argmax()))
    assert tokens["adapted"] != tokens["base"]
    for options, expected in ((["--adapter", "a"], "adapted"), ([], "base")):
        code, out, err = call(
            "generate", "lm.onnx", "--ids", "3", "--max-tokens", 5, "--no-end", "--engine", engine, "--json", *options
        )
        assert code == 0, err
        assert list(json.loads(out)["results"][0]["ids"]) == tokens[expected][1:]


def test_verify_compares_the_adapted_model(call, base):
    gk.merge_lora(base["a"]).save("merged.onnx")
    code, out, err = call("verify", "net.onnx", "--adapter", "a", "--against", "merged.onnx", "--json")
    assert code == 0, err
    assert json.loads(out)["passed"] is True
    assert call("verify", "net.onnx", "--adapter", "a")[0] == 0
    assert call("verify", "net.onnx", "--against", "merged.onnx")[0] == 1
    assert call("verify", "net.onnx", "--adapter", "a:0.5", "--against", "merged.onnx")[0] == 1


def test_export_merges_the_sum_of_adapters(call, base):
    code, _, err = call("export", "net.json", "--adapter", "a", "--adapter", "b:0.5", "-o", "out.onnx")
    assert code == 0, err
    found = gk.load("out.onnx").params
    for name, array in weights((base["a"], 1.0), (base["b"], 0.5)).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_adapters_of_quantised_weights(call):
    x = gk.input("x", ["N", 32])
    gk.Model({"y": gk.nn.linear(x, 5, name="fc")}, seed=0).save("float.onnx")
    gk.quantize("float.onnx", mode="weights", bits=4, block_size=16).save("q.onnx")
    made, samples = adapter(gk.load("q.onnx"), "a"), RNG.standard_normal((3, 32)).astype(np.float32)
    np.save("x.npy", samples)
    a, b = (made.params[f"fc.lora_{part}.weight"] for part in "AB")
    for options, change in (((), 0.0), (("--adapter", "a:0.5"), 0.5 * 8.0 * samples @ a.T @ b.T)):
        code, _, err = call("run", "q.onnx", "x=x.npy", "-o", "out.npz", *options)
        assert code == 0, err
        expected = gk.load("q.onnx").run({"x": samples})["y"] + change
        np.testing.assert_allclose(np.load("out.npz")["y"], expected, rtol=1e-4, atol=1e-4)


def test_errors_name_the_folder_and_the_layer(call, base, task):
    x = gk.input("x", ["N", 6])
    other = gk.Model({"y": gk.nn.linear(x, 4, name="fc1")}, seed=0)
    adapter(other, "shape")
    adapter(gk.Model({"y": gk.nn.linear(x, 4, name="fc9")}, seed=0), "layer")
    adapter(gk.load("net.json"), "dora", dora=True)
    adapter(gk.load("net.json"), "head", layers="fc1", train="fc2*")
    base["a"].save("adapted.json")
    for arguments, code, message in (
        (["net.onnx", "--adapter", "none"], 2, "none contains no adapter: adapter_config.json is missing"),
        (["net.onnx", "--adapter", "none:half"], 2, "there is no such folder, and 'half' is not a number"),
        (["net.onnx", "--adapter", "a:nan"], 2, "--adapter a:nan: the weight must be a finite number, not nan"),
        (["net.onnx", "--adapter", ""], 2, "--adapter '': the name of the folder is empty"),
        (["net.onnx", "--adapter", ":0.5"], 2, "--adapter ':0.5': the name of the folder is empty"),
        (["net.onnx", "--adapter", "a/adapter_model.safetensors"], 2, "is a file; give the folder that contains"),
        (
            ["net.onnx", "--adapter", "layer"],
            2,
            "--adapter: layer contains an adapter of layer 'fc9', but model",
        ),
        (["net.onnx", "--adapter", "shape"], 4, "fc1.lora_B.weight has shape [4, 2], but the layer needs [8, 2]"),
        (["adapted.json", "--adapter", "a"], 2, "--adapter a: model 'small' has adapters already. Leave out --adapter"),
        (["net.onnx", "--adapter", "a", "--adapter", "dora"], 2, "dora contains DoRA adapters"),
        (["net.onnx", "--adapter", "dora:0.5"], 2, "They can neither be added nor multiplied by a weight"),
        (["net.onnx", "--adapter", "head:0.5"], 2, "'fc2_bias'. They cannot be multiplied by the weight 0.5: give"),
        (
            ["net.onnx", "--adapter", "head", "--adapter", "a"],
            2,
            "but there are also adapters of the layer 'fc2'",
        ),
        (
            ["net.onnx", "--adapter", "b", "--adapter", "head", "--adapter", "head"],
            2,
            "and so does head. Give only one",
        ),
    ):
        found, _, err = call("run", *arguments)
        assert found == code, (arguments, err)
        assert message in err.replace("\n", " ")
    assert call("run", "net.onnx", "--adapter", "dora")[0] == 0
    assert call("run", "net.onnx", "--adapter", "head", "--adapter", "b")[0] == 0
    assert not Path("out.npz").exists()
