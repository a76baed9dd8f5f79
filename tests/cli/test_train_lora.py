"""graphkit train --lora and --head auto, and graphkit export of models with adapters."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphkit as gk

FILES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def train(call, task):
    """Train small networks: returns (exit code, stdout, stderr)."""

    def run(*arguments):
        return call("train", task / "net.json", "--data", task / "data.npz", "--batch-size", 32, *arguments)

    return run


def test_lora_trains_adapters_alone_and_says_how_many(train, task):
    code, _, err = train("--lora", "rank=2", "--lora", "dora=true", "--epochs", 1, "-o", "run")
    assert code == 0, err
    # A and B of 8 * 6 and 3 * 8 weights, and the lengths of 8 + 3 rows.
    trained = 2 * (6 + 8) + 2 * (8 + 3) + 8 + 3
    assert f"of which {trained} are trained" in err
    assert f"DoRA of rank 2, scaling 8: {trained} parameters in 2 layers (fc1, fc2)" in err
    assert "wrote run: model.json, adapter_config.json, adapter_model.safetensors, checkpoint.json" in err
    base, model = gk.load(task / "net.json"), gk.load("run")
    assert all(np.array_equal(model.params[name], array) for name, array in base.params.items())
    x = {"x": np.ones((2, 6), np.float32)}
    assert np.array_equal(gk.load_adapter(base, "run").run(x)["logits"], model.run(x)["logits"])


def test_resumed_adapters_are_bit_identical(train, call):
    options = ("--lora", "rank=2", "--lora", "dropout=0.3", "--lora-layers", "fc*", "--seed", 4)
    assert train(*options, "--epochs", 3, "-o", "whole")[0] == 0
    assert train(*options, "--epochs", 1, "-o", "parts")[0] == 0
    code, _, err = call("train", "parts", "--resume", "--epochs", 3)
    assert code == 0, err
    assert "--lora rank=2 --lora dropout=0.3" in err
    for name in FILES:
        assert Path("whole", name).read_bytes() == Path("parts", name).read_bytes()


def test_a_configuration_file_has_the_settings(train, call):
    assert train("--lora", "rank=2", "--lora", "rslora=true", "--epochs", 1, "-o", "run")[0] == 0
    code, _, err = call("train", "run/config.toml", "-o", "again")
    assert code == 0, err
    assert json.loads(Path("again/adapter_config.json").read_text()) == json.loads(
        Path("run/adapter_config.json").read_text()
    )
    assert json.loads(Path("again/adapter_config.json").read_text())["use_rslora"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lora", "rnk=2"], "--lora rnk=2: there is no setting 'rnk'; did you mean 'rank'?"),
        (["--lora", "rank=two"], "--lora rank=two: expected an integer"),
        (["--lora", "rank=0"], "rank must be an integer of at least 1"),
        (["--lora", "dora=1"], "--lora dora=1: expected true or false"),
        (["--lora-layers", "fc1"], "--lora-layers selects the layers of --lora: also give --lora rank=8"),
        (["--lora", "rank=2", "--lora-layers", "attn*"], "layers pattern 'attn*' matches no layer of model 'small'"),
    ],
)
def test_wrong_settings_are_errors(train, arguments, message):
    code, _, err = train(*arguments, "--epochs", 1, "-o", "run")
    assert code == 2
    assert message in err


def test_a_new_last_layer_is_trained_beside_adapters(call, task, tmp_path):
    rng = np.random.default_rng(0)
    np.savez("five.npz", x=rng.standard_normal((60, 6)).astype(np.float32), y=np.arange(60) % 5)
    code, _, err = call(
        "train", task / "net.json", "--data", "five.npz", "--head", "auto", "--lora", "rank=2", "--epochs", 1,
        "-o", "run",
    )  # fmt: skip
    assert code == 0, err
    assert "2 layers" not in err
    assert "in 1 layer (fc1); also trained: fc2_weight, fc2_bias" in err
    assert gk.load("run").output_types["logits"].shape[-1] == 5
    code, _, err = call("train", "run", "--resume", "--epochs", 2)
    assert code == 0, err


def test_head_auto_counts_the_classes_of_the_data(call, task):
    x = np.ones((40, 6), np.float32)
    np.savez("ignored.npz", x=x, y=np.where(np.arange(40) % 4 == 3, -1, np.arange(40) % 4))
    code, _, err = call(
        "train", task / "net.json", "--data", "ignored.npz", "--head", "auto", "--ignore-index", -1, "--epochs", 1,
        "-o", "run",
    )  # fmt: skip
    assert code == 0, err
    assert gk.load("run").output_types["logits"].shape[-1] == 3
    np.savez("floats.npz", x=x, y=np.ones((40, 3), np.float32))
    code, _, err = call("train", task / "net.json", "--data", "floats.npz", "--head", "auto", "-o", "other")
    assert code == 2
    assert "--head auto: floats.npz (train) has neither class names nor class numbers from 0" in err
    code, _, err = call("train", task / "net.json", "--data", "floats.npz", "--head", "auto", "--head", "classes=3")
    assert code == 2
    assert "--head auto and --head classes=3 contradict each other" in err


def test_export_merges_adapters_and_verifies(train, call, task):
    assert train("--lora", "rank=2", "--epochs", 1, "-o", "run")[0] == 0
    for arguments, merged in (
        (["run"], True), (["run", "--keep-adapters"], False), ([task / "net.json", "--adapter", "run"], True),
    ):  # fmt: skip
        code, out, err = call("export", *arguments, "-o", "net.onnx", "--json")
        assert code == 0, err
        assert json.loads(out)["passed"] is True
        names = {tensor.name for tensor in onnx.load("net.onnx").graph.initializer}
        assert ("fc1.lora_A.weight" not in names) is merged
        assert ("merged the adapters" in err) is merged
    code, _, err = call("export", task / "net.json", "--keep-adapters", "-o", "net.onnx")
    assert code == 2
    assert "has no adapters; leave out this option" in err
    assert call("export", "run", "--adapter", "run", "-o", "net.onnx")[0] == 2
    assert call("export", task / "net.json", "--adapter", "absent", "-o", "net.onnx")[0] == 2


def test_models_with_adapters_are_merged_before_other_changes(train, call, task):
    """quantize and prune would change the matrices of adapters one by one. build --weights merges them."""
    assert train("--lora", "rank=2", "--epochs", 1, "-o", "run")[0] == 0
    for command in (
        ("quantize", "run", "out.onnx", "--mode", "weights"),
        ("prune", "run", "-o", "out.onnx", "--sparsity", 0.5),
    ):
        code, _, err = call(*command)
        assert code == 2
        assert "run: the model has LoRA adapters; merge them into the weights first: graphkit export run" in err
    Path("again.py").write_text(
        f"import graphkit as gk\n\n\ndef make():\n    return gk.load({str(task / 'net.json')!r})\n"
    )
    code, _, err = call("build", "again.py:make", "--weights", "run", "-o", "built.json")
    assert code == 0, err
    x = {"x": np.ones((2, 6), np.float32)}
    expected = gk.load("run").run(x)["logits"]
    np.testing.assert_allclose(gk.load("built.json").run(x)["logits"], expected, rtol=1e-5)


def test_build_lists_weights_that_it_does_not_use(call):
    x = gk.input("x", ["N", 6])
    gk.Model({"y": gk.nn.linear(gk.nn.linear(x, 8, name="fc1"), 3, name="more")}, seed=0).save("big.json")
    gk.Model({"y": gk.nn.linear(x, 8, name="fc1")}, name="small", seed=0).save("small.json")
    Path("again.py").write_text("import graphkit as gk\n\n\ndef make():\n    return gk.load('small.json')\n")
    code, _, err = call("build", "again.py:make", "--weights", "big.json", "-o", "built.json")
    assert code == 0, err
    assert "not in small, so these parameters of model are not used: more_weight, more_bias" in err
