"""Commands on files of MXNet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

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


def _scaled(folder, factor):
    """A symbol, and parameters in a file of another name. The model multiplies three numbers by `factor`."""
    nodes = [node("null", "data"), node("null", "w"), node("FullyConnected", "fc", [(0, 0), (1, 0)])]
    nodes[2]["attrs"] = {"num_hidden": "3", "no_bias": "True"}
    path = write_model(folder, symbol(nodes, [(2, 0)]), {"arg:w": factor * np.eye(3, dtype=np.float32)}, epoch=1)
    (folder / "net-0001.params").rename(folder / "tuned.params")
    return path, folder / "tuned.params"


@pytest.mark.parametrize("command", ["run", "predict", "export"])
def test_commands_take_symbol_and_parameter_file(call, tmp_path, command):
    path, params = _scaled(tmp_path, 5)
    np.savez("data.npz", data=np.ones((1, 3), np.float32))
    inputs = {
        "run": ("data.npz", "-o", "out.npz"),
        "predict": ("data.npz", "-o", "out.npz"),
        "export": ("-o", "n.onnx"),
    }
    code, out, err = call(command, path, params, *inputs[command])
    assert code == 0, out + err
    if command == "export":
        assert (gk.load("n.onnx").run({"data": np.ones((1, 3), np.float32)})["fc_output"] == 5).all()
    else:
        assert any((array == 5).all() for array in np.load("out.npz").values())


def test_one_symbol_with_two_parameter_files_is_an_error(call, tmp_path):
    """The second file would be read for both models, so they would be equal."""
    path, params = _scaled(tmp_path, 5)
    _scaled(tmp_path, 2)[1].rename(other := tmp_path / "other.params")
    for given in (("--against", path, params), ("--against", path), (f"--against={path}", params)):
        code, _, err = call("verify", path, other, *given)
        assert code == 2
        assert f"{path} is given twice" in err
    copied = tmp_path / "copied-symbol.json"
    copied.write_text(Path(path).read_text())
    for given in (("--against", copied), (f"--against={copied}",)):
        _scaled(tmp_path, 5)
        assert call("verify", path, other, *given, params)[0] == 1


def test_a_parameter_file_after_the_output_is_the_model(call, tmp_path):
    _scaled(tmp_path, 5)[1].rename(params := tmp_path / "net-0001.params")
    code, out, err = call("extract", "--output", "fc_output", "-o", "out.json", params)
    assert code == 0, out + err
    assert (gk.load("out.json").run({"data": np.ones((1, 3), np.float32)})["fc_output"] == 5).all()


def test_a_parameter_file_needs_a_symbol_of_mxnet(call, tmp_path):
    _, params = _scaled(tmp_path, 2)
    gk.load(tmp_path / "net-symbol.json", params=params).save("own.json")
    code, _, err = call("inspect", "own.json", params)
    assert code in (2, 4)
    assert "own.json" in err


def test_diff_takes_a_parameter_file_as_a_model(call, tmp_path):
    path, _ = _scaled(tmp_path, 2)
    for epoch in (1, 2):
        write_model(
            tmp_path, json.loads(Path(path).read_text()), {"arg:w": epoch * np.eye(3, dtype=np.float32)}, epoch=epoch
        )
    code, out, err = call("diff", path, tmp_path / "net-0001.params")
    assert code == 1, out + err
    assert "1 differing weight" in out


def test_sizes_of_a_dense_layer_behind_convolutions_are_found(call, tmp_path):
    """The dense layer has 32 inputs, so only images of 28 x 28 fit."""
    nodes = [node("null", "data"), node("null", "k"), node("null", "w")]
    nodes.append(node("Convolution", "c", [(0, 0), (1, 0)], attrs={"num_filter": "2", "kernel": "(25, 25)"}))
    nodes[3]["attrs"]["no_bias"] = "True"
    nodes.append(node("FullyConnected", "fc", [(3, 0), (2, 0)], attrs={"num_hidden": "3", "no_bias": "True"}))
    arrays = {"arg:k": np.ones((2, 1, 25, 25), np.float32), "arg:w": np.ones((3, 32), np.float32)}
    code, out, err = call("verify", write_model(tmp_path, symbol(nodes, [(4, 0)]), arrays))
    assert code == 0, out + err


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


def _needs_a_shape(folder):
    """A trainable model whose operators do not determine the shape of its input."""
    nodes = [node("null", "data"), node("null", "w_weight")]
    nodes += [node("broadcast_add", "added", [(0, 0), (1, 0)]), node("sum", "s", [(2, 0)], attrs={"axis": "2"})]
    nodes.append(node("SoftmaxOutput", "softmax", [(3, 0), (5, 0)]))
    nodes.insert(4, node("null", "label"))
    nodes[5]["inputs"] = [[3, 0, 0], [4, 0, 0]]
    return write_model(folder, symbol(nodes, [(5, 0)]), {"arg:w_weight": np.ones((1, 3, 4), np.float32)})


@pytest.mark.parametrize("command", [
    ("run",), ("verify",), ("inspect",), ("plan", "--no-run"), ("bench", "--runs", 1), ("ops",),
    ("grad", "--check"), ("evaluate", "--data", "data.npz"), ("diff",), ("predict", "data.npz", "-o", "out.csv"),
    ("train", "--data", "data.npz", "--valid", "data.npz", "-o", "run"), ("simplify", "small.onnx"),
    ("export", "-o", "net.onnx"),
], ids=lambda c: c[0])  # fmt: skip
def test_every_command_takes_the_shape_of_an_input(call, tmp_path, command):
    path = _needs_a_shape(tmp_path)
    x = np.random.default_rng(0).standard_normal((8, 3, 4)).astype(np.float32)
    np.savez("data.npz", data=x, y=np.arange(8) % 3)
    name, *options = command
    models = (path, path) if name == "diff" else (path,)
    code, _, err = call(name, *models, *options)
    assert code == 2, err
    assert "--shape data:1,10" in err
    code, _, err = call(name, *models, *options, "--shape", "date:2,3,4")
    assert code == 2
    assert "has no data input 'date'; did you mean 'data'?" in err
    batch = 4 if name in ("plan", "simplify") else "N"
    code, out, err = call(name, *models, *options, "--shape", f"data:{batch},3,4")
    assert code == 0, out + err


def test_an_empty_shape_is_an_error(call, tmp_path):
    code, _, err = call("inspect", _needs_a_shape(tmp_path), "--shape", "data:")
    assert code == 2
    assert "--shape 'data:': expected NAME:SIZES" in err
    code, _, err = call("inspect", _needs_a_shape(tmp_path), "--shape", "data:5")
    assert code != 0
    assert ".py" not in err


def test_a_shape_for_another_format_is_an_error(call, tmp_path):
    x = gk.input("x", ["N", 4])
    gk.Model({"y": gk.relu(x)}).save("net.onnx")
    code, _, err = call("run", "net.onnx", "--shape", "x:1,4")
    assert code == 2
    assert "--shape is for models of MXNet, not for 'net.onnx'" in err
    code, _, err = call("run", "net.onnx", "--shape", "x")
    assert "expected NAME:SIZES" in err


def test_export_writes_nothing_if_no_sizes_are_found(call, tmp_path):
    """Sizes whose product is 77, as the layer needs, are not among those that are tried."""
    nodes = [node("null", "data"), node("Flatten", "flat", [(0, 0)]), node("null", "fc_weight")]
    nodes.append(node("FullyConnected", "fc", [(1, 0), (2, 0)], attrs={"num_hidden": "2", "no_bias": "True"}))
    path = write_model(tmp_path, symbol(nodes, [(3, 0)]), {"arg:fc_weight": np.ones((2, 77), np.float32)})
    code, _, err = call("export", path, "-o", "net.onnx", "--shape", "data:N,H,W")
    assert code != 0
    assert "give shapes, such as NAME:" in err
    assert not (tmp_path / "net.onnx").exists()
    code, out, err = call("export", path, "-o", "net.onnx", "data:2,7,11", "--shape", "data:N,H,W")
    assert code == 0, out + err


def test_preprocessing_is_used_and_exported(call, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image.fromarray(pixels).save("a.png")
    nodes = [node("null", "data", attrs={"__shape__": "(0, 3, 4, 4)"})]
    nodes += [node("_minus_scalar", "minus", [(0, 0)], attrs={"scalar": "127.5"})]
    nodes += [node("_mul_scalar", "mul", [(1, 0)], attrs={"scalar": "0.0078125"}), node("Flatten", "flat", [(2, 0)])]
    path = write_model(tmp_path, symbol(nodes, [(3, 0)]), {})
    expected = ((pixels.astype(np.float32) - 127.5) / 128).transpose(2, 0, 1).reshape(1, -1)
    code, _, err = call("export", path, "-o", "net.onnx", "--preprocessing", "insightface")
    assert code == 0, err
    for model, options in ((path, ("--preprocessing", "insightface")), ("net.onnx", ())):
        code, _, err = call("run", model, "a.png", *options, "-o", "out.npz")
        assert code == 0, err
        with np.load("out.npz") as found:
            np.testing.assert_allclose(found["flat_output"], expected, atol=1e-6)
    code, _, err = call("run", path, "a.png", "--preprocessing", "gluon")
    assert code == 2
    assert "gluoncv-detection" in err
