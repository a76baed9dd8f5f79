"""graphkit quantize"""

import json
import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk

USAGE, UNSUPPORTED, CHECK_FAILED = 2, 3, 1


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def net(classifier):
    return classifier(50)


def run(path, x):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_the_tables_and_the_file(call, net, tmp_path):
    code, out, err = call("quantize", net, tmp_path / "q.onnx", "--data", tmp_path / "data.npz", "--samples", 40)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert "2 of 2 layers quantised (static); 50 samples" in out.replace("\n", " ")
    assert ["nodes", "3", "9"] in lines
    accuracy = next(line for line in lines if line[:1] == ["accuracy"])
    assert float(accuracy[1]) == 1
    assert float(accuracy[2]) >= 0.96
    x = np.load(tmp_path / "data.npz")["x"][np.linspace(0, 49, 40).astype(int)]
    exact, quantised = run(net, x).astype(np.float64), gk.load(tmp_path / "q.onnx").run({"x": x})["y"]
    ratio = 10 * np.log10(np.square(exact).sum() / np.square(exact - quantised).sum())
    row = next(line for line in lines if line[:1] == ["y"])
    assert row[1:3] == [f"{ratio:.1f}", "dB"]
    assert "y: graphkit against ONNX Runtime" in out
    assert "40 samples of 50 for calibration" in err
    assert f"wrote {tmp_path / 'q.onnx'}" in err
    made = onnx.load(tmp_path / "q.onnx")
    assert {p.key: p.value for p in made.metadata_props} == {"author": "me"}
    np.testing.assert_allclose(run(tmp_path / "q.onnx", x), quantised, atol=1e-4)


def test_json_output(call, net, tmp_path):
    code, out, _ = call(
        "quantize", net, tmp_path / "q.json", "--data", tmp_path / "data.npz", "--exclude", "sec*", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "graphkit.quantize"
    assert found["file"] == str(tmp_path / "q.json")
    assert found["layers"] == [{"name": "first", "operator": "Gemm"}]
    assert found["kept"] == [{"name": "second", "operator": "MatMul", "reason": "excluded (exclude, --exclude)"}]
    assert found["evaluation"]["before"]["accuracy"] == 1
    assert found["verification"]["verdict"] == "PASSED"
    assert [d["name"] for d in found["differences"]] == ["y"]
    assert found["after"]["bytes"] != found["before"]["bytes"]
    assert gk.load(tmp_path / "q.json").outputs == ("y",)


@pytest.mark.parametrize("options", [("--mode", "dynamic"), ("--mode", "weights", "--bits", "4", "--block-size", "16")])
def test_modes_without_data_use_generated_inputs(call, net, tmp_path, options):
    code, out, err = call("quantize", net, tmp_path / "q.onnx", *options, "x:4,8")
    assert code == 0
    assert "dB" in out
    assert "wrote" in err
    kinds = {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert kinds & {"MatMulInteger", "MatMulNBits"}


@pytest.mark.full
def test_a_drop_of_the_accuracy_writes_nothing(call, net, tmp_path):
    options = ("--data", tmp_path / "data.npz", "--method", "percentile", "--percentile", "51", "--max-drop", "0.001")
    code, out, err = call("quantize", net, tmp_path / "q.onnx", *options)
    assert code == CHECK_FAILED
    assert "accuracy" in out
    assert "was not written: the accuracy falls by" in err
    assert not (tmp_path / "q.onnx").exists()
    code, out, _ = call("quantize", net, tmp_path / "q.onnx", *options, "--json")
    assert code == CHECK_FAILED
    assert json.loads(out)["file"] is None
    code, _, err = call("quantize", net, tmp_path / "q.onnx", *options[:-1], "0.2", "--search")
    assert code in (0, CHECK_FAILED)
    if code:
        assert "search: the accuracy falls too much even if only the layer" in err


@pytest.mark.full
def test_search_finds_the_layer_that_must_stay_in_float(call, tmp_path):
    """The weights of one layer lose everything in 4 bits: a large one and many small ones share a scale."""
    w = floats(32, 4)
    w[:, 0] *= 1e-3
    w[0, 0] = 50
    arrays = {"one": np.eye(32, dtype=np.float32), "two": w}
    nodes = [
        helper.make_node("MatMul", ["x", "one"], ["h"], "harmless"),
        helper.make_node("MatMul", ["h", "two"], ["y"], "sensitive"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", ["N", 32])], [info("y", ["N", 4])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    x = floats(200, 32, seed=4)
    x[:, 0] = 0
    y = (x @ w)[:, 1:].argmax(1) + 1
    np.savez(tmp_path / "d.npz", x=x, y=y)
    options = ("--data", tmp_path / "d.npz", "--mode", "weights", "--bits", 4, "--max-drop", "0.01")
    assert call("quantize", "n.onnx", "q.onnx", *options)[0] == CHECK_FAILED
    code, out, err = call("quantize", "n.onnx", "q.onnx", *options, "--search")
    assert code == 0
    assert "the search left 1 layer in float: 'sensitive'" in err
    assert "1 of 2 layers quantised" in out


@pytest.mark.full
def test_run_folders_are_quantised(call, tmp_path):
    assert call("build", "lenet", "--data", "digits", "-o", tmp_path / "net.json")[0] == 0
    assert call("train", tmp_path / "net.json", "--data", "digits", "--epochs", 1, "-o", tmp_path / "run")[0] == 0
    code, out, err = call("quantize", tmp_path / "run", tmp_path / "q.onnx", "--data", "digits", "--part", "test")
    assert code == 0, err
    assert "360 samples" in out or "359 samples" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("q.txt", "--mode", "dynamic"), "must end in .onnx or .json"),
        (("q.onnx",), "static quantisation needs data for calibration"),
        (("q.onnx", "--mode", "dynamic", "--max-drop", "0.1"), "need labelled data"),
        (("q.onnx", "--data", "x.npy", "--max-drop", "0.1"), "has no targets"),
        (("q.onnx", "--data", "data.npz", "--search"), "--search needs the largest drop"),
        (("q.onnx", "--data", "data.npz", "x:3,8"), "either inputs"),
        (("q.onnx", "--data", "x.npy", "--part", "test"), "are for labelled data"),
        (("q.onnx", "--data", "data.npz", "--image-scale", "2"), "use --data-option"),
        (("q.onnx", "--mode", "weights", "--include", "thrid"), "no node has such a name or operator"),
        (("q.onnx", "--data", "absent.npz"), "absent.npz"),
        (("missing/q.onnx", "--mode", "dynamic"), "missing"),
    ],
)
def test_wrong_usage(call, net, tmp_path, arguments, text):
    np.save(tmp_path / "x.npy", floats(4, 8))
    code, _, err = call("quantize", net, *arguments)
    assert code == USAGE, err
    assert text in err
    assert not (tmp_path / "q.onnx").exists()


def test_nothing_to_quantise_is_an_error(call, net, tmp_path):
    code, _, err = call("quantize", net, "q.onnx", "--mode", "dynamic", "--exclude", "MatMul", "--exclude", "Gemm")
    assert code == UNSUPPORTED
    assert f"{net}: nothing could be quantised. first (Gemm), second (MatMul): excluded" in err
    assert os.listdir(tmp_path).count("q.onnx") == 0


def test_damaged_files_keep_their_names_in_errors(call, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\x08\xff\xff")
    code, _, err = call("quantize", "bad.onnx", "q.onnx", "--mode", "dynamic")
    assert code == 4
    assert "bad.onnx" in err
    assert call("quantize", "absent.onnx", "q.onnx", "--mode", "dynamic")[0] == USAGE


def test_a_comparison_that_compares_nothing_does_not_pass(call, net, tmp_path):
    """The outputs are NaN for the given input."""
    np.save("x.npy", np.full((2, 8), np.nan, np.float32))
    code, _, err = call("quantize", net, "q.onnx", "--mode", "weights", "x=x.npy")
    assert code == CHECK_FAILED
    assert "NOT TESTED" in err
    assert not (tmp_path / "q.onnx").exists()
    assert call("quantize", net, "q.onnx", "--mode", "weights", "x=x.npy", "--no-verify")[0] == 0
