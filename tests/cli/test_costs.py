"""Tables of commands: operators and costs, files that cannot run, and tolerances of a comparison."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphkit as gk
from graphkit import cli
from graphkit.checks.verify import OutputReport, Report
from graphkit.cli.verify import print_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with lenet for digits of 28 x 28 pixels as net.json and net.onnx."""
    path = tmp_path_factory.mktemp("models")
    for name in ("net.json", "net.onnx"):
        assert cli.invoke(["build", "lenet", "--seed", "0", "-o", str(path / name)]) == 0
    return path


def test_ops_of_a_model_tells_flops_and_bytes(call, folder):
    rows = json.loads(call("ops", folder / "net.onnx", "x:2,1,28,28", "--json")[1])
    conv = next(r for r in rows["operators"] if r["operator"] == "Conv")
    # 5x5 windows: 20 filters of one channel at 24x24, 50 of 20 channels at 8x8 places.
    assert conv["flops"] == 2 * 2 * (20 * 24 * 24 * 25 + 50 * 8 * 8 * 20 * 25)
    assert rows["shapes"] == {"x": [2, 1, 28, 28]}
    assert rows["total"]["flops"] > conv["flops"]
    assert rows["notes"] == []
    text = call("inspect", folder / "net.json", "--costs", "x:2,1,28,28")[1]
    assert "total" in text
    assert call("inspect", folder / "net.json", "x:2,1,28,28")[0] == 2


def test_bodies_of_loops_are_counted_at_the_sizes_given(call, tmp_path):
    x = gk.input("x", ["T", "N", 3])
    start = gk.expand(gk.constant(np.float32(0)), gk.concat(gk.shape(x)[1:2], np.array([4]), axis=0))
    last, _ = gk.scan(lambda h, row: (gk.tanh(gk.nn.linear(row, 4, name="in") + h), None), start, x)
    gk.Model({"y": last}).save(tmp_path / "net.json")
    total = json.loads(call("inspect", tmp_path / "net.json", "--costs", "x:5,2,3", "--json")[1])["total"]
    assert total["flops"] == 5 * 2 * (2 * 3 * 4)


def test_a_file_that_cannot_be_run_is_shown_all_the_same(call, tmp_path):
    shape = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("N", 4)) for n in ("x", "a", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, (4,), [1.0, 2.0, 3.0, 4.0])
    nodes = [
        helper.make_node("Flash", ["x", "w"], ["a"], name="first", domain="com.example"),
        helper.make_node("Relu", ["a"], ["y"], name="second"),
        helper.make_node("ThresholdedRelu", ["y"], ["z"], name="third"),
    ]
    graph = helper.make_graph(nodes, "g", shape[:1], shape[2:], [weight], value_info=shape[1:2])
    path = tmp_path / "net.onnx"
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports).SerializeToString())
    code, out, err = call("inspect", path)
    assert code == 0
    for part in ("first", "com.example.Flash", "float32[N, 4]", "third", "1 tensors, 16 B"):
        assert part in out
    assert "com.example.Flash" in err
    facts = json.loads(call("inspect", path, "--json")[1])
    assert facts["inputs"] == {"x": "float32[N, 4]"}
    assert facts["stored"] == {"w": "float32[4]"}
    assert facts["operators"] == {"com.example.Flash": 1, "Relu": 1, "ThresholdedRelu": 1}
    code, out, _ = call("ops", path, "--json")
    assert code == 3
    by_name = {r["operator"]: r["runs"] for r in json.loads(out)["operators"]}
    assert by_name == {"com.example.Flash": "no", "Relu": "native", "ThresholdedRelu": by_name["ThresholdedRelu"]}
    assert call("inspect", path, "--text")[0] == 3


def test_ops_tells_what_the_import_writes_as_others(call, tmp_path):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    function = helper.make_function(
        "mine", "Act", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 9)]
    )
    nodes = [
        helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("Affine", ["a"], ["b"], alpha=2.0),
        helper.make_node("Act", ["b"], ["y"], domain="mine"),
    ]
    imports = [helper.make_opsetid("", 9), helper.make_opsetid("mine", 1)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=imports, functions=[function]).SerializeToString())
    found = json.loads(call("ops", path, "--json")[1])
    assert {"Relu", "Mul"} <= {r["operator"] for r in found["operators"]}
    by = {r["operator"]: r["by"] for r in found["rewritten"]}
    assert by == {"com.microsoft.Gelu": "rule", "Affine": "rule", "mine.Act": "function"}
    assert all(r["count"] == 1 for r in found["rewritten"])
    text = call("ops", path)[1]
    assert "by its definition" in text
    assert "rewritten on import" in text


def test_ops_of_a_file_of_known_operators_that_cannot_be_run(call, tmp_path):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    node = helper.make_node("Gemm", ["x", "x"], ["y"], name="ours", domain="com.microsoft.nchwc")
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    path = tmp_path / "net.onnx"
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports).SerializeToString())
    code, out, err = call("ops", path)
    assert code == 3
    assert out.startswith("1 operator\n")
    assert "com.microsoft.nchwc.Gemm" in out
    assert f"graphkit cannot run this file: {path}: " in err
    assert "ORT_ENABLE_EXTENDED" in err


@pytest.mark.parametrize(
    ("largest", "atol", "rtol", "text"),
    [
        (0.0, 0.0, 0.0, "none"),
        (1e-6, 0.0, 0.0, "either rtol or atol"),
        (1e-6, 0.0, 1e-4, "only rtol"),
        (1e-6, 1e-5, 0.0, "only atol"),
        (1e-6, 1e-5, 1e-4, "atol 1.0e-05 or rtol 1.0e-04"),
        (1.0, 0.5, np.inf, "atol 5.0e-01"),
        (np.inf, np.inf, np.inf, "no tolerance is enough"),
    ],
)
def test_needed_tolerances(capsys, largest, atol, rtol, text):
    output = OutputReport(
        name="y", dtype="float32", shape=(1,), passed=True, max_abs=largest, mean_abs=0.0, max_rel=0.0, rtol=1e-4,
        atol=1e-5, needed_atol=atol, needed_rtol=rtol, mismatches=0,
    )  # fmt: skip
    print_report(Report((output,), 21, ()), as_json=False)
    header, row = capsys.readouterr().out.splitlines()[1:3]
    assert header.endswith("needed tolerance")
    assert row.rstrip().endswith(f"  {text}")
