"""graphkit grad --training-step"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import graphkit as gk


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    h = gk.tanh(gk.nn.linear(gk.input("x", ["N", 6]), 8, name="fc1"))
    outputs = {"kind": gk.nn.linear(h, 3, name="fc2"), "size": gk.nn.linear(h, 1, name="fc3")}
    gk.Model(outputs, name="two", seed=0).save(folder / "two.json")
    gk.Model({"kind": outputs["kind"]}, name="small", seed=0).save(folder / "net.onnx")
    return folder


def loss_after(path, steps, feeds):
    """Train in ONNX Runtime; return the losses."""
    about = json.loads(path.with_name(f"{path.stem}_roles.json").read_text())
    step, first = (onnxruntime.InferenceSession(str(p)) for p in (path, path.parent / about["init"]))
    states = dict(zip([o.name for o in first.get_outputs()], first.run(None, {}), strict=True))
    found = []
    for _ in range(steps):
        results = dict(zip([o.name for o in step.get_outputs()], step.run(None, {**feeds, **states}), strict=True))
        states = {s["input"]: results[s["output"]] for s in about["states"]}
        found.append(float(results[about["loss"]]))
    return found


def test_the_step_of_the_command_is_that_of_a_trainer(call, net):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 6), np.float32), rng.integers(0, 3, 5)
    np.savez("batch.npz", x=x, target=y)
    code, out, err = call(
        "grad", net / "net.onnx", "batch.npz", "--training-step", "--optimizer", "adam", "--lr", "0.02",
        "--warmup", "3", "--train", "fc2*", "--clip-norm", "0.5", "--metric", "accuracy", "-o", "step.onnx",
    )  # fmt: skip
    assert code == 0, err
    assert "wrote step_init.onnx" in err
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:]}
    assert rows["parameter"][0] == "2"
    assert rows["optimizer"][0] == "4"
    optimizer = gk.optim.Adam(gk.optim.Warmup(0.02, 3))
    trainer = gk.Trainer(gk.load(net / "net.onnx"), optimizer=optimizer, train="fc2*", clip_norm=0.5)
    ours = [float(trainer.step(x, y)) for _ in range(10)]
    assert loss_after(Path("step.onnx"), 10, {"x": x, "target": y}) == pytest.approx(ours, rel=1e-5)


def test_json_lists_files_and_the_comparison(call, net):
    arguments = ("--loss", "kind=softmax_cross_entropy", "--loss", "size=mse", "--accumulate", "2", "--rate-input")
    code, out, err = call("grad", net / "two.json", "--training-step", *arguments, "-o", "step.onnx", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["files"] == ["step.onnx", "step_init.onnx", "step_roles.json"]
    assert all(Path(name).exists() for name in found["files"])
    assert found["verified"]["passed"]
    roles = [i["role"] for i in found["inputs"]]
    assert sorted(roles) == ["data", "flush", "learning_rate", "target", "target"]
    code, out, err = call(
        "grad", net / "net.onnx", "--training-step", "--lora", "rank=2", "--lora-layers", "fc2*", "--opset", "18",
        "--no-verify", "-o", "step.onnx", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["verified"] is None
    states = json.loads(Path("step_roles.json").read_text())["states"]
    assert len([s for s in states if s["role"] == "parameter"]) == 2


@pytest.mark.parametrize(("model", "output"), [("m.onnx", "m.onnx"), ("m_init.onnx", "m.onnx"),
                                               ("m_roles.json", "m.onnx")])  # fmt: skip
def test_the_model_is_not_overwritten(call, net, model, output):
    gk.load(net / "net.onnx").save(model)
    before = {p.name: p.read_bytes() for p in Path().iterdir()}
    code, _, err = call("grad", model, "--training-step", "-o", output, "--no-verify")
    assert code == 2
    assert f"{model} is MODEL itself" in err
    assert {p.name: p.read_bytes() for p in Path().iterdir()} == before


def test_plateau_with_the_rate_as_input_and_a_pruned_model(call, net):
    """Both only change messages and accepted options, so one run is enough."""
    model = gk.load(net / "net.onnx")
    weight = np.array(model.params["fc1_weight"])
    weight[:4] = 0
    model.params["fc1_weight"] = weight
    model.save("pruned.onnx")
    arguments = ("pruned.onnx", "--training-step", "--lr-schedule", "plateau", "--rate-input", "-o", "step.onnx")
    code, _, err = call("grad", *arguments, "--no-verify", "--metric", "mse", "--metric", "mse", "--loss", "mse")
    assert code == 0, err
    about = json.loads(Path("step_roles.json").read_text())
    assert "learning_rate" in [i["role"] for i in about["inputs"]]
    assert about["metrics"] == ["mse"]
    assert "training changes these zeros" in err
    assert "--keep-zeros" in err


def test_a_step_that_onnx_runtime_refuses_has_the_code_of_verify(call):
    gk.Model(gk.nn.linear(gk.input("x", ["N", 4], "bfloat16"), 3), seed=0).save("half.onnx")
    assert call("verify", "half.onnx")[0] == 4
    code, _, err = call("grad", "half.onnx", "--training-step", "-o", "step.onnx")
    assert code == 4
    assert "--no-verify" in err


@pytest.mark.full
def test_the_seed_is_that_of_dropout(call, net):
    h = gk.nn.dropout(gk.nn.linear(gk.input("x", ["N", 6]), 3), 0.5)
    gk.Model(h, seed=0).save("dropout.json")
    code, _, err = call("grad", "dropout.json", "--training-step", "--seed", "7", "-o", "step.onnx", "--no-verify")
    assert code == 0, err
    first = onnxruntime.InferenceSession("step_init.onnx")
    assert first.run(["random_state"], {})[0].tolist() == [7, 0]


@pytest.mark.parametrize(("arguments", "code", "text"), [
    (("--lr", "0.1", "-o", "g.onnx"), 2, "--lr only works with --training-step"),
    (("--no-verify", "-o", "g.onnx"), 2, "--verify only works with --training-step"),
    (("--loss", "kind=mse", "-o", "g.onnx"), 2, "only work with --training-step"),
    (("--training-step",), 2, "-o step.onnx"),
    (("--training-step", "-o", "step.json"), 2, "ends in .onnx"),
    (("--training-step", "--wrt", "x", "-o", "s.onnx"), 2, "--wrt is about gradients"),
    (("--training-step", "--lr-schedule", "cosine", "-o", "s.onnx"), 2, "--schedule-option steps=N"),
    (("--training-step", "--lr-schedule", "plateau", "-o", "s.onnx"), 2, "--rate-input"),
    (("--training-step", "--class-weights", "balanced", "-o", "s.onnx"), 2, "depends on data"),
    (("--training-step", "--head", "auto", "-o", "s.onnx"), 2, "--head classes=N"),
    (("--training-step", "--freeze", "nothing*", "-o", "s.onnx"), 2, "nothing*"),
    (("--training-step", "x=none.npy", "-o", "s.onnx"), 2, "none.npy"),
    (("--training-step", "-o", "missing/s.onnx"), 2, "there is no folder missing"),
    (("--training-step", "bad.npz", "-o", "s.onnx"), 1, "the loss is nan"),
])  # fmt: skip
def test_errors_write_nothing(call, net, arguments, code, text):
    np.savez("bad.npz", x=np.full((2, 6), np.nan, np.float32), target=np.zeros(2, np.int64))
    found, out, err = call("grad", net / "net.onnx", *arguments)
    assert (found, out) == (code, "")
    assert text in err
    assert [p.name for p in Path().iterdir()] == ["bad.npz"]
