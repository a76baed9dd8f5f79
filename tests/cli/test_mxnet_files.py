"""Commands on files of MXNet."""

from __future__ import annotations

import numpy as np

import graphkit as gk
from tests.mxnet_io.files import node, symbol, write_model


def _sum(folder):
    """A model of one node whose operator does not determine the shape of its input."""
    document = symbol([node("null", "data"), node("sum", "s", [(0, 0)], attrs={"axis": "1"})], [(1, 0)])
    return write_model(folder, document, {})


def test_a_symbol_is_inspected_and_its_parameters_are_verified(call, tmp_path):
    nodes = [node("null", "data"), node("null", "fc_weight")]
    nodes.append(node("FullyConnected", "fc", [(0, 0), (1, 0)], attrs={"num_hidden": "3", "no_bias": "True"}))
    path = write_model(tmp_path, symbol(nodes, [(2, 0)]), {"arg:fc_weight": np.ones((3, 4), np.float32)}, epoch=3)
    code, out, err = call("inspect", path)
    assert code == 0, err
    assert "fc_output" in out
    for model in (path, tmp_path / "net-0003.params", tmp_path / "net"):
        code, out, err = call("verify", model)
        assert code == 0, out + err
        assert "PASSED" in out


def test_export_asks_for_a_shape_and_takes_it(call, tmp_path):
    path, target = _sum(tmp_path), tmp_path / "net.onnx"
    code, _, err = call("export", path, "-o", target)
    assert code == 2
    assert "--shape data:1,10" in err
    assert not target.exists()
    code, out, err = call("export", path, "-o", target, "--shape", "data:N,6")
    assert code == 0, out + err
    assert str(gk.load(target).input_types["data"]) == "float32[N, 6]"


def test_a_wrong_shape_option_is_wrong_usage(call, tmp_path):
    path, target = _sum(tmp_path), tmp_path / "net.onnx"
    for given, words in (("data", "expected NAME:SIZES"), ("date:1,2", "no data input 'date'")):
        code, _, err = call("export", path, "-o", target, "--shape", given)
        assert code == 2
        assert words in err


def test_an_unsupported_operator_is_exit_code_3(call, tmp_path):
    path = write_model(tmp_path, symbol([node("null", "x"), node("Custom", "c", [(0, 0)])], [(1, 0)]), {})
    code, _, err = call("inspect", path)
    assert code == 3
    assert "Custom: 'c'" in err
