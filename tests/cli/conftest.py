"""Fixtures of the tests of commands."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit import cli


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Commands that write into the current folder leave the checkout as it is."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = cli.invoke([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with lenet for digits as net.json and net.onnx."""
    path = tmp_path_factory.mktemp("models")
    for name in ("net.json", "net.onnx"):
        assert cli.invoke(["build", "lenet", "--dataset", "digits", "--seed", "0", "-o", str(path / name)]) == 0
    return path


@pytest.fixture(scope="module")
def write_task(tmp_path_factory):
    """Write a network with dropout, and its data: 96 training samples, 24 for validation. Return their folder.

    Keywords are further arrays of the data.
    """

    def write(**arrays):
        folder = tmp_path_factory.mktemp("task")
        x = gk.input("x", ["N", 6])
        h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
        gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0).save(folder / "net.json")
        rng = np.random.default_rng(5)
        inputs, targets = rng.standard_normal((120, 6), np.float32), rng.integers(0, 3, 120)
        np.savez(folder / "data.npz", x=inputs, y=targets, **arrays)
        return folder

    return write


@pytest.fixture(scope="module")
def task(write_task):
    return write_task()


@pytest.fixture
def classifier(tmp_path):
    """Write net.onnx, two matrix products that classify, and data.npz, whose targets are the classes that it predicts.

    Return a function of the number of samples that returns the path of the model.
    """

    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def floats(*shape, seed):
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def write(samples):
        arrays = {"w": floats(8, 16, seed=0), "b": floats(16, seed=1), "v": floats(16, 3, seed=2)}
        nodes = [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first"),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "v"], ["y"], "second"),
        ]
        graph = helper.make_graph(
            nodes, "g", [info("x", ["N", 8])], [info("y", ["N", 3])],
            [numpy_helper.from_array(a, n) for n, a in arrays.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, {"author": "me"})
        onnx.save(model, tmp_path / "net.onnx")
        x = floats(samples, 8, seed=3)
        y = (np.maximum(x @ arrays["w"] + arrays["b"], 0) @ arrays["v"]).argmax(1)
        np.savez(tmp_path / "data.npz", x=x, y=y)
        return tmp_path / "net.onnx"

    return write
