"""Bad input: the message names the problem, the exit code its kind, and no file is written partially."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit import cli
from graphkit.ir import atomic

USAGE, UNSUPPORTED, INVALID, RUNTIME = 2, 3, 4, 5


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = cli.invoke([str(a) for a in arguments])
        return code, capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "net.json"
    assert cli.invoke(["build", "mlp", "-p", "inputs=6", "-p", "hidden=5", "-p", "classes=3", "-o", str(path)]) == 0
    return path


def write_onnx(path, nodes, inputs=("x",), outputs=("y",), initializers=(), shape=("N", 4)):
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in initializers],
    )  # fmt: skip
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


GOOD = helper.make_node("Relu", ["x"], ["y"], name="relu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        ("truncated", "truncated"),
        (b"\x00\x01\x02 this is not a protobuf message at all" * 5, "ONNX"),
        (b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "LFS"),
    ],
    ids=["empty", "truncated", "garbage", "html", "lfs"],
)
def test_files_that_are_not_models(call, tmp_path, content, message):
    path = tmp_path / "model.onnx"
    if content == "truncated":
        big = write_onnx(
            path, [helper.make_node("Add", ["x", "w"], ["y"])], initializers=[("w", np.ones(4, np.float32))]
        )
        content = big.read_bytes()[:-20]
    path.write_bytes(content)
    code, err = call("inspect", path)
    assert code == INVALID
    assert message.lower() in err.lower()
    assert "model.onnx" in err


@pytest.mark.parametrize("name", ["none.onnx", "none.json", "none"])
def test_a_file_that_does_not_exist_is_a_matter_of_usage(call, tmp_path, name):
    code, err = call("inspect", tmp_path / name)
    assert code == USAGE
    assert name in err
    assert "no such file" in err


def test_a_network_of_the_zoo_is_built_first(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, err = call("inspect", "lenet")
    assert code == USAGE
    assert "To build the model lenet of the zoo: graphkit build lenet -o lenet.json" in err


def test_a_damaged_json_is_named(call, tmp_path):
    for text, message in (("{", "net.json"), ('{"format": "other"}', "net.json")):
        (tmp_path / "net.json").write_text(text)
        code, err = call("inspect", tmp_path / "net.json")
        assert code == INVALID
        assert message in err


def test_wrong_input_name_suggests_the_right_one(call, net):
    code, err = call("run", net, "xx:2,6")
    assert code == USAGE
    assert "no input 'xx'; did you mean 'x'?" in err


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 6, 1), np.float32), "x.npy: the array for input 'x' has shape [2, 6, 1]"),
        (np.zeros((2, 7), np.float32), "7"),
        (np.zeros((2, 6), np.float64), "float64"),
        (np.zeros((2, 6), np.int64), "int64"),
    ],
    ids=["rank", "size", "float64", "int64"],
)
def test_arrays_that_do_not_fit(call, net, tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    code, err = call("run", net, f"x={tmp_path / 'x.npy'}")
    assert code == USAGE
    assert "'x'" in err
    assert message in err


def test_nan_in_data(call, net, tmp_path):
    data = np.zeros((5, 6), np.float32)
    data[3, 1] = np.nan
    np.savez(tmp_path / "data.npz", x=data, y=np.zeros(5, np.int64))
    code, err = call("train", net, "--data", tmp_path / "data.npz")
    assert code == USAGE
    assert "data.npz" in err
    assert "NaN in 1 of 5 samples, first in sample 3" in err
    np.save(tmp_path / "x.npy", data)
    code, err = call("run", net, f"x={tmp_path / 'x.npy'}", "--check-finite")
    assert code == USAGE
    assert "'x'" in err


def test_unknown_operators_are_listed_all_at_once(call, tmp_path):
    nodes = [
        helper.make_node("FlashThing", ["x"], ["a"], name="first", domain="com.example"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Strange", ["b"], ["y"], name="second"),
    ]
    path = write_onnx(tmp_path / "model.onnx", nodes)
    code, err = call("run", path)
    assert code == UNSUPPORTED
    for part in ("com.example", "FlashThing", "Strange", "first", "second", "model.onnx"):
        assert part in err
    assert call("ops", path)[0] == UNSUPPORTED


def test_a_shape_conflict_names_node_and_shapes(call, tmp_path):
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], name="broken")]
    path = write_onnx(tmp_path / "model.onnx", nodes, initializers=[("w", np.ones((3, 5), np.float32))])
    code, err = call("run", path)
    assert code == INVALID
    for part in ("model.onnx", "broken", "Add", "[N, 4]", "[3, 5]"):
        assert part in err


def test_a_shape_conflict_found_at_binding_names_the_node(call, tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    path = write_onnx(
        tmp_path / "model.onnx", nodes, initializers=[("w", np.ones((5, 2), np.float32))], shape=("N", "K")
    )
    code, err = call("run", path, "x:3,4")
    assert code == INVALID
    assert "product" in err
    assert "[3, 4]" in err


def test_parameters_that_do_not_fit_the_graph(call, net, tmp_path):
    import json

    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "copy"
    folder.mkdir()
    (weights,) = net.parent.glob("net.*.safetensors")
    tensors = load_file(weights)
    name = next(iter(tensors))
    tensors[name] = np.zeros((2, 2), np.float32)
    save_file(tensors, folder / weights.name)
    (folder / "net.json").write_text(json.dumps(json.loads(net.read_text())))
    code, err = call("inspect", folder / "net.json")
    assert code == INVALID
    assert name in err or weights.name in err


def test_errors_about_something_else_do_not_name_the_model(call, net, tmp_path):
    code, err = call("run", net, "-o", tmp_path / "none" / "out.npz")
    assert (code, err.splitlines()[-1]) == (
        RUNTIME, f"graphkit: {tmp_path / 'none' / 'out.npz'} cannot be written: No such file or directory",
    )  # fmt: skip
    np.savez(tmp_path / "data.npz", x=np.ones((8, 6), np.float32), y=np.arange(8) % 3)
    train = ["train", net, "--data", tmp_path / "data.npz", "--epochs", 1, "-o", tmp_path / "run"]
    assert call(*train)[0] == 0
    (tmp_path / "run" / "checkpoint.json").write_text("{ x")
    code, err = call(*train, "--resume")
    assert code == INVALID
    assert err.splitlines()[-1].startswith(
        f"graphkit: {tmp_path / 'run' / 'checkpoint.json'} is damaged: it is not valid JSON (Expecting"
    )
    assert err.rstrip().endswith("use another folder or --overwrite")


def test_errors_of_the_run_name_the_model(call, tmp_path):
    path = tmp_path / "gather.onnx"
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    write_onnx(path, [cast, helper.make_node("Gather", ["x", "i"], ["y"], name="take")])
    code, err = call("run", path, "x:2,4", "--fill", "arange")
    assert code == RUNTIME
    assert err.splitlines()[-1].startswith(f"graphkit: {path}: ")
    assert "take" in err


def test_a_file_of_functions_needs_the_name_of_one(call, tmp_path):
    code, err = call("build", "mk.py", "-o", tmp_path / "net.json")
    assert code == USAGE
    assert "also name the function that builds the model: mk.py:FUNCTION" in err


def test_an_input_file_of_another_kind(call, net, tmp_path):
    (tmp_path / "mk.py").write_text("x = 1")
    code, err = call("run", net, f"x={tmp_path / 'mk.py'}")
    assert code == USAGE
    assert (
        "not a .npy or .npz file: it is empty or has another format. An input file must be .npy, .npz or an im" in err
    )


@pytest.mark.parametrize("suffix", [".json", ".onnx"])
def test_a_full_disk_leaves_nothing_half_written(call, net, tmp_path, monkeypatch, suffix):
    target = tmp_path / f"out{suffix}"
    assert call("build", "mlp", "-o", target)[0] == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.PendingFile, "write", full)
    code, err = call("build", "mlp", "-p", "hidden=7", "-o", target)
    assert code == RUNTIME
    assert "No space left on device" in err
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean 'train'"),
        (["build", "lenett", "-o", "x.json"], "did you mean 'lenet'"),
        (["build", "lenet", "-p", "clases=3", "-o", "x.json"], "did you mean 'classes'"),
        (["build", "lenet", "-o", "x.bin"], "use .json, .onnx or .gkp"),
        (["build", "vit", "--data", "digits", "-o", "x.json"], "From the data digits (train): image=(1, 8, 8)"),
        (["train", "{net}", "--data", "digitz"], "did you mean 'digits'"),
        (["train", "{net}", "--data", "digits", "--loss", "mze"], "did you mean 'mse'"),
        (["train", "{net}", "--data", "digits", "--optimizer", "adan"], "did you mean 'adam'"),
        (["train", "{net}", "--data", "digits", "--kvstore", "dist_sinc"], "did you mean 'dist_sync'"),
        (
            ["train", "{net}", "--data", "digits", "--compression", "2bit"],
            "--compression only works with --kvstore dist_sync or ",
        ),
        (["train", "{net}", "--data", "digits", "--processes", "2"], "--kvstore dist_sync"),
        (
            [
                "train",
                "{net}",
                "--data",
                "digits",
                "--processes",
                "2",
                "--kvstore",
                "dist_async",
                "--elastic-period",
                "5",
            ],
            "--elastic-period only works with --kvstore elastic, not with --kvstore dist_async",
        ),
        (
            ["train", "{net}", "--data", "digits", "--elastic-strength", "0.5"],
            "--elastic-strength only works with --kvstore elastic, not with --kvstore local",
        ),
        (["train", "{net}", "--data", "digits", "--elastic-strength", "1.5"], "0<x<=1"),
        (["train", "{net}", "--data", "digits", "--resume"], "-o"),
        (
            ["train", "{net}", "--data", "digits", "--compression", "3bit"],
            "unknown compression '3bit'; did you mean '2bit'?",
        ),
        (
            ["train", "{net}", "--data", "digits", "--staleness", "3"],
            "--staleness only works with --kvstore dist_bounded",
        ),
        (["train", "{net}", "--data", "digits", "--lr-mult", "foo"], "expected PATTERN=X, such as fc*=0.1"),
        (["train", "{net}", "--data", "digits", "--lr-mult", "fc*=x"], "--lr-mult fc*=x: 'x' is not a number"),
        (
            ["train", "{net}", "--data", "digits", "--optimizer-option", "weight_decay=x"],
            "--optimizer-option weight_decay=x: 'x' is not a number",
        ),
        (["train", "{net}", "--data", "digits", "--kvstore", "dist_foo"], "The types are local, dist_sync, dist_async"),
        (["run", "{net}", "x:2,six"], "not a shape"),
        (["train", "{net}", "--data", "digits", "--loss", "a=mse", "--loss-weight", "a"], "expected OUTPUT=X"),
        (
            ["train", "{net}", "--data", "digits", "--head", "pool=max"],
            "must be mean, first or none; also give --head cl",
        ),
        (["train", "{net}", "--data", "digits", "--data-option", "size=3"], "digits has no options"),
        (["run", "."], "'.' is not a run folder: it contains no model.json"),
        (["run", "{net}", "x:1:8"], "'1:8' is not a shape"),
        (["run", "{net}", "x:1,x,8,8"], "'1,x,8,8' is not a shape"),
        (["run", "{net}", "--output-name", "logit"], "did you mean 'logits'"),
        (["run", "{net}", "--device", "cuba"], "did you mean 'cuda'"),
        (["grad", "{net}", "--check", "--wrt", "wait"], "wait"),
    ],
    ids=lambda v: "-".join(v[:3]) if isinstance(v, list) else "",
)
def test_usage_errors_suggest(call, net, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, err = call(*[a.format(net=net) for a in arguments])
    assert code in (USAGE, UNSUPPORTED)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_external_data_outside_the_folder_is_refused(call, tmp_path):
    outside = tmp_path / "secret.bin"
    outside.write_bytes(np.ones(4, np.float32).tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret.bin")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])], [tensor],
    )  # fmt: skip
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    code, err = call("run", path)
    assert code == INVALID
    assert "w" in err
    assert call("run", path, "--allow-external-root", tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("command", "arguments", "code", "message"),
    [
        ("plan", ["--shape", "x:-1,4"], USAGE, "'-1,4' is not a shape"),
        ("run", ["x:-1,4"], USAGE, "'-1,4' is not a shape; give integers of at least 0"),
        ("plan", ["--shape", "x:2,4", "--shape", "x:3,4"], USAGE, "input 'x' has two shapes"),
        ("run", ["x:999999999999999,4"], RUNTIME, "out of memory"),
        ("bench", ["--rtol", "-1"], USAGE, "--rtol"),
    ],
    ids=["plan", "run", "twice", "memory", "tolerance"],
)
def test_sizes_that_cannot_be(call, tmp_path, command, arguments, code, message):
    found, err = call(command, write_onnx(tmp_path / "m.onnx", [GOOD]), *arguments)
    assert found == code
    assert message in err
