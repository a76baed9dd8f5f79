"""graphkit simplify"""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.checks import simplified as checks

USAGE, UNSUPPORTED, INVALID = 2, 3, 4


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def net(tmp_path):
    """Conv, BatchNormalization and two nodes without effect, opset 11."""
    rng = np.random.default_rng(0)
    vectors = {n: np.abs(rng.standard_normal(4)).astype(np.float32) for n in ("s", "b", "m", "v")}
    constants = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32), **vectors}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Identity", ["n"], ["i"]),
        helper.make_node("Dropout", ["i"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", ["N", 3, 8, 8])], [info("y", ["N", 4, 6, 6])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6), path)
    return path


def run(path, x):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_the_table_shows_both_models(call, net, tmp_path):
    code, out, err = call("simplify", net, tmp_path / "small.onnx", "x:2,3,8,8")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["Conv", "1", "1"] in lines
    assert ["BatchNormalization", "1", "0"] in lines
    assert ["all", "nodes", "5", "2"] in lines
    assert "y: max error" in out
    assert "wrote" in err
    x = np.random.default_rng(1).standard_normal((3, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run(tmp_path / "small.onnx", x), run(net, x), rtol=1e-4, atol=1e-5)
    assert onnx.load(tmp_path / "small.onnx").opset_import[0].version == 11


def test_json_output(call, net, tmp_path):
    code, out, _ = call("simplify", net, tmp_path / "small.onnx", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["schema"] == "graphkit.simplify"
    assert (result["before"]["nodes"], result["after"]["nodes"]) == (5, 2)
    assert result["after"]["operators"] == {"Conv": 1, "Relu": 1}
    assert result["verification"]["verdict"] == "PASSED"
    code, out, _ = call("simplify", net, tmp_path / "small.onnx", "--json", "--no-verify")
    assert code == 0
    assert json.loads(out)["verification"] is None


def test_shapes_are_fixed(call, net, tmp_path):
    assert call("simplify", net, tmp_path / "small.onnx", "--shape", "x:2,3,8,8")[0] == 0
    dims = onnx.load(tmp_path / "small.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [2, 3, 8, 8]


def test_json_files(call, net, tmp_path):
    assert call("simplify", net, tmp_path / "small.json")[0] == 0
    assert call("simplify", tmp_path / "small.json", tmp_path / "again.onnx")[0] == 0
    x = np.ones((1, 3, 8, 8), np.float32)
    np.testing.assert_allclose(run(tmp_path / "again.onnx", x), run(net, x), rtol=1e-4, atol=1e-5)


def test_a_file_that_differs_is_not_written(call, net, tmp_path, monkeypatch):
    def wrong(found, feeds, **options):
        for tensor in found.message.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
        return verify(found, feeds, **options)

    verify = checks.verify_simplified
    monkeypatch.setattr(checks, "verify_simplified", wrong)
    code, out, err = call("simplify", net, tmp_path / "small.onnx")
    assert code == 1
    assert "FAILED" in out
    assert "was not written" in err
    assert not (tmp_path / "small.onnx").exists()
    code, out, _ = call("simplify", net, tmp_path / "small.onnx", "--json")
    assert code == 1
    assert json.loads(out)["file"] is None


def test_nothing_compared_is_no_success(call, tmp_path):
    """Both engines return NaN only."""
    nodes = [helper.make_node("Log", ["c"], ["l"]), helper.make_node("Mul", ["x", "l"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [info("x", [2])], [info("y", [2])], [numpy_helper.from_array(np.float32(-1), "c")]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    assert call("simplify", tmp_path / "n.onnx", tmp_path / "small.onnx")[0] == 1
    assert not (tmp_path / "small.onnx").exists()


def test_models_that_draw_are_only_written_unverified(call, tmp_path):
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info("x", [2])], [info("y", [2])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    code, _, err = call("simplify", tmp_path / "n.onnx", tmp_path / "small.onnx")
    assert code == USAGE
    assert "--no-verify" in err
    assert call("simplify", tmp_path / "n.onnx", tmp_path / "small.onnx", "--no-verify")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("absent.onnx", "y.onnx"), USAGE, "absent.onnx"),
        (("net.onnx", "y.txt"), USAGE, "must end in .onnx or .json"),
        (("net.onnx", "y.onnx", "--shape", "x"), USAGE, "expected NAME:SIZES"),
        (("net.onnx", "y.onnx", "--shape", "z:1"), USAGE, "no input 'z'"),
        (("net.onnx", "y.onnx", "--shape", "x:1,3,8,8", "--shape", "x:1,3,8,8"), USAGE, "given twice"),
        (("net.onnx", "y.onnx", "--shape", "x:1,4,8,8"), USAGE, "does not fit"),
        (("damaged.onnx", "y.onnx"), INVALID, "damaged.onnx"),
        (("net.onnx", "absent/y.onnx"), 5, "absent/y.onnx"),
    ],
)
def test_errors(call, net, tmp_path, arguments, code, words):
    (tmp_path / "damaged.onnx").write_bytes(net.read_bytes()[:500])
    found, _, err = call("simplify", *arguments)
    assert found == code
    assert words in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged.onnx", "net.onnx"]
