"""graphkit bench: its output, JSON and exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphkit import cli


@pytest.fixture
def call(capsys):
    """Run `graphkit bench` in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = cli.invoke(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    for name in ("net.json", "net.onnx"):
        assert cli.invoke(["build", "mlp", "-p", "inputs=8", "--seed", "0", "-o", str(path / name)]) == 0
    return path


@pytest.mark.parametrize("name", ["net.onnx", "net.json"])
def test_against_onnx_runtime(call, folder, name):
    code, out, _ = call(folder / name, "--batch", "3", "--threads", "2", "--runs", "40", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["schema"] == "graphkit.bench"
    assert result["inputs"] == {"x": [3, 8]}
    assert result["threads"] == 2
    assert result["rounds"] == 20
    for engine in ("graphkit", "onnxruntime"):
        times = result["seconds"][engine]
        assert times["runs"] == 40
        assert 0 < times["best"] <= times["p50"] <= times["p90"] <= times["p99"] < 5
    assert 0 < result["ratio"]["low"] <= result["ratio"]["median"] <= result["ratio"]["high"]
    (output,) = result["outputs"]
    assert output["passed"]
    assert output["shape"] == [3, 10]


def test_the_table_for_people(call, folder):
    code, out, err = call(folder / "net.onnx", "--runs", "5", "--threads", "1")
    assert code == 0
    title, head, mine, theirs, ratio, output = out.splitlines()
    assert title == "mlp: x[2, 8]; 1 thread on cpu"
    assert head.split() == ["milliseconds", "p50", "p90", "p99", "best", "runs"]
    assert mine.startswith("graphkit")
    assert theirs.startswith("ONNX Runtime")
    assert "times the speed of ONNX Runtime (95% interval" in ratio
    assert output.endswith("PASSED")
    assert "guessed dimensions: N=2" in err


def test_alone(call, folder):
    code, out, _ = call(folder / "net.onnx", "--against", "nothing", "--runs", "3", "--json")
    result = json.loads(out)
    assert code == 0
    assert list(result["seconds"]) == ["graphkit"]
    assert result["seconds"]["graphkit"]["runs"] == 3
    assert "ratio" not in result
    assert "outputs" not in result


def test_given_arrays_set_the_shape(call, folder, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 8), np.float32))
    _, out, err = call(folder / "net.onnx", f"x={tmp_path / 'x.npy'}", "--runs", "1", "--json")
    assert json.loads(out)["inputs"] == {"x": [5, 8]}
    assert "guessed" not in err


def test_different_outputs_are_exit_code_1(call, folder, monkeypatch):
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    right = OnnxRuntimeModel.run
    monkeypatch.setattr(
        OnnxRuntimeModel, "run", lambda self, feeds: {n: a + 0.1 for n, a in right(self, feeds).items()}
    )
    code, out, _ = call(folder / "net.onnx", "--runs", "1")
    assert code == 1
    assert "FAILED" in out
    assert call(folder / "net.onnx", "--runs", "1", "--atol", "0.2")[0] == 0


def test_models_that_draw_are_timed_and_not_compared(call, tmp_path):
    import graphkit as gk

    x = gk.input("x", ["N", 4])
    gk.Model({"y": x + gk.random_normal_like(x)}, name="noise").save(tmp_path / "noise.json")
    code, out, err = call(tmp_path / "noise.json", "--runs", "1", "--json")
    assert code == 0
    assert json.loads(out)["outputs"] is None
    assert "not compared" in err


def test_a_training_step(call, folder):
    options = ["--training", "--batch", "6", "--optimizer", "adam", "--threads", "1", "--runs", "20"]
    code, out, _ = call(folder / "net.onnx", *options, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["inputs"] == {"x": [6, 8], "target": [6]}
    assert list(result["seconds"]) == ["graphkit"]
    assert result["seconds"]["graphkit"]["runs"] == 20
    training = result["training"]
    assert training["optimizer"] == "adam"
    assert training["samples_per_second"] == pytest.approx(6 / result["seconds"]["graphkit"]["p50"])
    assert 0 < training["activation_bytes"] <= training["arena_bytes"]


def test_targets_are_those_that_the_loss_takes(call, folder, tmp_path):
    options = ["--training", "--loss", "sigmoid_binary_cross_entropy", "--runs", "1", "--threads", "1"]
    assert call(folder / "net.onnx", *options)[0] == 0
    np.savez(tmp_path / "batch.npz", target=np.full((5, 10), 3, np.float32))
    code, _, err = call(folder / "net.onnx", "x:5,8", tmp_path / "batch.npz", *options)
    assert code == 2
    assert "targets from 0 to 1" in err


def test_recomputation_shows_in_the_memory_of_a_step(call, tmp_path):
    deep = ["-p", "inputs=8", "-p", f"hidden={','.join(['64'] * 16)}"]
    assert cli.invoke(["build", "mlp", *deep, "-o", str(tmp_path / "net.json")]) == 0
    options = ["--training", "--batch", "256", "--threads", "1", "--runs", "1", "--json"]
    plain = json.loads(call(tmp_path / "net.json", *options)[1])["training"]
    less = json.loads(call(tmp_path / "net.json", *options, "--recompute", "sqrt")[1])["training"]
    assert (plain["recompute"], less["recompute"]) == (None, "sqrt")
    assert less["activation_bytes"] < plain["activation_bytes"]


def test_a_training_step_on_given_arrays(call, folder, tmp_path):
    np.savez(tmp_path / "batch.npz", x=np.ones((5, 8), np.float32), target=np.zeros((5, 10), np.float32))
    options = ["--training", "--loss", "mse", "--runs", "1", "--threads", "1"]
    code, out, err = call(folder / "net.onnx", tmp_path / "batch.npz", *options)
    assert code == 0
    assert "guessed" not in err
    title, _, mine, speed = out.splitlines()
    assert title == "mlp, a training step: x[5, 8], target[5, 10]; 1 thread on cpu"
    assert mine.startswith("graphkit")
    assert "samples per second; arena" in speed


@pytest.mark.parametrize("options", [["--training"], ["--against", "nothing"]])
def test_the_time_of_operators(call, folder, tmp_path, options):
    trace = tmp_path / "trace.json"
    code, out, _ = call(folder / "net.onnx", *options, "--runs", "1", "--threads", "1", "--profile", trace, "--json")
    assert code == 0
    operators = json.loads(out)["operators"]
    assert sum(o["share"] for o in operators) == pytest.approx(1)
    assert any("Update" in o["operator"] for o in operators) == ("--training" in options)
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training", "--against", "onnxruntime"], "--against"),
        (["--training", "targets:2"], "did you mean 'target'"),
        (["--training", "--loss", "mse_loss"], "mse_loss"),
        (["--training", "--optimizer", "sdg"], "sgd"),
        (["--recompute", "sqrt"], "--training"),
        (["--swap-memory"], "--training"),
        (["--against", "tensorflow"], "tensorflow"),
        (["y:2,8"], "no input 'y'"),
        (["--runs", "0"], "--runs"),
        (["--batch", "0"], "--batch"),
    ],
)
def test_usage_errors(call, folder, arguments, message):
    code, _, err = call(folder / "net.onnx", *arguments)
    assert code == 2
    assert message in err
