"""graphkit prune, and fine-tuning of pruned and quantised models on the command line"""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk

CHECK_FAILED, USAGE, UNSUPPORTED, INVALID = 1, 2, 3, 4


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def net(classifier):
    return classifier(200)


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def zeros(array):
    return array.size - np.count_nonzero(array)


def run(path, x):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_the_tables_and_the_file(call, net):
    code, out, err = call("prune", net, "-o", "p.onnx", "--sparsity", 0.5, "--scope", "layer", "--data", "data.npz")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert "2 weights pruned; zeros: 0.0% before, 50.0% after; 200 samples" in out.replace("\n", " ")
    assert ["w", "first", "128", "0.0%", "50.0%"] in lines
    assert ["v", "second", "48", "0.0%", "50.0%"] in lines
    accuracy = next(line for line in lines if line[:1] == ["accuracy"])
    data, made = np.load("data.npz"), weights("p.onnx")
    found = (np.maximum(data["x"] @ made["w"] + made["b"], 0) @ made["v"]).argmax(1)
    assert accuracy[1] == "1"
    assert float(accuracy[2]) == pytest.approx((found == data["y"]).mean(), abs=1e-5)
    assert "y: graphkit against ONNX Runtime" in out
    assert "wrote p.onnx" in err
    assert {p.key: p.value for p in onnx.load("p.onnx").metadata_props} == {"author": "me"}


@pytest.mark.full
def test_finetuning_keeps_the_zeros_and_raises_the_accuracy(call, net):
    options = ("--data", "data.npz", "--finetune", 15, "--finetune-lr", 0.01, "--finetune-seed", 1, "--json", "--time")
    code, out, err = call("prune", net, "-o", "p.onnx", "--sparsity", 0.7, *options)
    assert code == 0, err
    found = json.loads(out)
    metrics = found["evaluation"]
    assert metrics["before_finetuning"]["accuracy"] < metrics["after"]["accuracy"] <= metrics["before"]["accuracy"] == 1
    assert metrics["samples"] == 40
    assert "fine-tuning: 15 epochs on 160 samples" in err
    made = weights("p.onnx")
    assert zeros(made["w"]) + zeros(made["v"]) == round(0.7 * 176)
    assert {w["name"]: w["zeros"] for w in found["weights"]} == {"w": zeros(made["w"]), "v": zeros(made["v"])}
    assert found["seconds"].keys() == {"graphkit", "ONNX Runtime"}
    assert all(t > 0 for each in found["seconds"].values() for t in each.values())
    # The pruned file is trained further, and quantised: zeros stay 0.
    code, _, err = call("train", "p.onnx", "--data", "data.npz", "--epochs", 1, "--keep-zeros", "*", "-o", "run")
    assert code == 0, err
    assert "zeros" not in err
    assert call("train", "run", "--resume", "--epochs", 2)[0] == 0
    again = gk.load("run").params
    np.testing.assert_array_equal(again["w"] == 0, made["w"] == 0)
    assert (np.asarray(again["w"]) != made["w"]).any()
    options = ("--data", "data.npz", "--finetune", 1, "--keep-zeros", "--scales", "learned")
    code, out, err = call("quantize", "p.onnx", "q.onnx", *options)
    assert code == 0, err
    assert [line.split() for line in out.splitlines() if "fine-tuned" in line] == [
        ["before", "quantised", "fine-tuned"]
    ]
    assert zeros(weights("q.onnx")["w_quantized"]) >= zeros(made["w"])
    assert not weights("q.onnx")["w_quantized"][made["w"] == 0].any()


def test_finetuning_of_a_quantised_model(call, net):
    code, _, err = call("quantize", net, "q.onnx", "--data", "data.npz", "--method", "percentile", "--percentile", 70)
    assert code == 0, err
    options = ("--data", "data.npz", "--finetune", 10, "--finetune-lr", 0.003, "--json")
    code, out, err = call("quantize", "q.onnx", "t.onnx", *options)
    assert code == 0, err
    assert "the model has quantised weights, so it is fine-tuned and not quantised again" in err
    found = json.loads(out)
    assert found["evaluation"]["before"]["loss"] > found["evaluation"]["after"]["loss"]
    assert [layer["name"] for layer in found["layers"]] == ["first", "second"]
    x = np.load("data.npz")["x"][:20]
    np.testing.assert_allclose(run("t.onnx", x), gk.load("t.onnx").run({"x": x})["y"], atol=1e-4)
    assert {n.op_type for n in onnx.load("t.onnx").graph.node} == {n.op_type for n in onnx.load("q.onnx").graph.node}


def test_a_pattern_and_layers(call, net):
    code, out, _ = call("prune", net, "-o", "p.json", "--pattern", "2:4", "--include", "fir*", "x:4,8")
    assert code == 0
    assert "not included (include, --include)" in out
    code, out, _ = call("prune", net, "-o", "p.onnx", "--pattern", "2:4", "--exclude", "MatMul", "--no-verify")
    assert code == 0
    rows = np.moveaxis(weights("p.onnx")["w"], 0, -1).reshape(-1, 4)
    assert (np.count_nonzero(rows, 1) == 2).all()


def test_a_drop_of_the_accuracy_writes_nothing(call, net, tmp_path):
    options = ("--sparsity", 0.95, "--data", "data.npz", "--max-drop", 0.01)
    code, out, err = call("prune", net, "-o", "p.onnx", *options)
    assert code == CHECK_FAILED
    assert "was not written: the accuracy falls by" in err
    assert not (tmp_path / "p.onnx").exists()
    code, out, _ = call("prune", net, "-o", "p.onnx", *options, "--json")
    assert code == CHECK_FAILED
    assert json.loads(out)["file"] is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-o", "p.txt", "--sparsity", 0.5), "must end in .onnx or .json"),
        (("--sparsity", 0.5), "--output"),
        (("-o", "missing/p.onnx", "--sparsity", 0.5), "there is no folder missing"),
        (("-o", "p.onnx"), "give either sparsity"),
        (("-o", "p.onnx", "--sparsity", 0), "sparsity"),
        (("-o", "p.onnx", "--sparsity", 1), "sparsity"),
        (("-o", "p.onnx", "--pattern", "4:2"), "must be N:M"),
        (("-o", "p.onnx", "--pattern", "2:4", "--scope", "layer"), "only works with sparsity"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--finetune", 1), "--finetune needs labelled data"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--finetune-lr", 1), "--finetune-lr only works with --finetune"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--data", "x.npy", "--finetune", 1), "but not x.npy"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--data", "data.npz", "--finetune", 1, "--part", "all"), "--part test"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--max-drop", 0.1), "need labelled data"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--data", "absent.npz"), "absent.npz"),
        (("-o", "p.onnx", "--sparsity", 0.5, "--data", "data.npz", "--finetune", 1, "--finetune-loss", "hing"), "hing"),
    ],
)
def test_wrong_usage(call, net, tmp_path, arguments, text):
    np.save("x.npy", floats(4, 8))
    code, _, err = call("prune", net, *arguments)
    assert code == USAGE, err
    assert text in err
    assert not (tmp_path / "p.onnx").exists()


@pytest.mark.parametrize(
    "options", [("--keep-zeros",), ("--scales", "learned"), ("--scales", "fixed"), ("--finetune-loss", "mse")]
)
def test_options_of_finetuning_need_it(call, net, options):
    code, _, err = call("quantize", net, "q.onnx", "--data", "data.npz", *options)
    assert code == USAGE
    assert f"{options[0]} only works with --finetune" in err


def test_keep_zeros_needs_zeros(call, net):
    code, _, err = call("train", net, "--data", "data.npz", "--keep-zeros", "*", "-o", "run")
    assert code == USAGE
    assert "contains a zero" in err
    code, _, err = call("quantize", net, "q.onnx", "--data", "data.npz", "--finetune", 1, "--keep-zeros")
    assert code == USAGE


@pytest.mark.parametrize(("sparsity", "expected"), [(0.2, None), (0.7, "w (70% zeros), v (71% zeros)")])
def test_training_without_keep_zeros_prints_a_note(call, net, sparsity, expected):
    code, _, err = call("prune", net, "-o", "p.onnx", "--sparsity", sparsity, "--scope", "layer")
    assert code == 0, err
    for command in (("train", "p.onnx", "--epochs", 1, "-o", "run"), ("quantize", "p.onnx", "q.onnx", "--finetune", 1)):
        code, _, err = call(*command, "--data", "data.npz")
        assert code == 0, err
        note = "training changes these zeros. To keep them: --keep-zeros"
        assert (f"{expected}: {note}" in err) is (expected is not None), err
        assert (note in err) is (expected is not None)
    code, _, err = call("train", "p.onnx", "--data", "data.npz", "--epochs", 1, "--keep-zeros", "v", "-o", "part")
    assert code == 0, err
    assert ("w (70% zeros): training" in err) is (expected is not None)


def test_nothing_to_prune_and_damaged_files(call, net, tmp_path):
    code, _, err = call("prune", net, "-o", "p.onnx", "--sparsity", 0.5, "--exclude", "MatMul", "--exclude", "Gemm")
    assert code == UNSUPPORTED
    assert "nothing could be pruned. first (Gemm), second (MatMul): excluded" in err
    (tmp_path / "bad.onnx").write_bytes(b"\x08\xff\xff")
    assert call("prune", "bad.onnx", "-o", "p.onnx", "--sparsity", 0.5)[0] == INVALID
    assert call("prune", "absent.onnx", "-o", "p.onnx", "--sparsity", 0.5)[0] == USAGE
    assert not (tmp_path / "p.onnx").exists()


def test_a_comparison_that_compares_nothing_does_not_pass(call, net, tmp_path):
    np.save("x.npy", np.full((2, 8), np.nan, np.float32))
    code, _, err = call("prune", net, "-o", "p.onnx", "--sparsity", 0.5, "x=x.npy")
    assert code == CHECK_FAILED
    assert "NOT TESTED" in err
    assert not (tmp_path / "p.onnx").exists()


def test_export_in_float16(call, net, tmp_path):
    code, out, err = call("export", net, "-o", "h.onnx", "--precision", "fp16", "--data", "data.npz")
    assert code == 0, err
    assert "3 nodes in fp16; 2 Casts added; 200 samples" in out.replace("\n", " ")
    assert "PASSED" in out
    assert {a.dtype for a in weights("h.onnx").values()} == {np.dtype(np.float16)}
    x = np.load("data.npz")["x"]
    np.testing.assert_allclose(run("h.onnx", x), run(str(net), x), rtol=2e-2, atol=2e-2)
    code, out, _ = call("export", net, "-o", "b.onnx", "--precision", "bf16", "--keep-float32", "second", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "graphkit.export"
    assert [entry["name"] for entry in found["lowered"]] == ["first", "relu"]
    assert found["verification"]["verdict"] == "PASSED"
    np.save("x.npy", np.full((2, 8), np.nan, np.float32))
    code, _, err = call("export", net, "-o", "n.onnx", "--precision", "fp16", "x=x.npy")
    assert code == UNSUPPORTED
    assert "no node would compute in fp16" in err
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--keep-float32", "a"), "--keep-float32 only works with --precision"),
        (("--data", "data.npz"), "--data only works with --precision"),
        (("--precision", "bf16", "--opset", "17"), "bf16 needs opset 22"),
        (("--precision", "fp16", "--keep-float32", "frist"), "no node has such a name or operator"),
        (("--precision", "fp8"), "fp8"),
    ],
)
def test_wrong_usage_of_precision(call, net, tmp_path, options, text):
    code, _, err = call("export", net, "-o", "h.onnx", *options)
    assert code == USAGE
    assert text in err
    assert not (tmp_path / "h.onnx").exists()


def test_output_of_reduced_precision_is_checked_first(call, net):
    code, _, err = call("export", net, "-o", "nowhere/h.onnx", "--precision", "fp16")
    assert (code, "there is no folder nowhere" in err) == (USAGE, True)
    code, _, err = call("export", net, "-o", net, "--precision", "fp16")
    assert (code, "is MODEL itself" in err) == (USAGE, True)


@pytest.mark.parametrize("command", ["prune", "quantize"])
def test_models_with_a_fixed_batch_of_one_are_finetuned(call, net, command):
    proto = onnx.load(net)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(proto, "one.onnx")
    options = ("--data", "data.npz", "--finetune", 4, "--finetune-lr", 0.01, "--json")
    own = (
        ("-o", "p.onnx", "--sparsity", 0.7)
        if command == "prune"
        else ("p.onnx", "--method", "percentile", "--percentile", 70)
    )
    code, out, err = call(command, "one.onnx", *own, *options)
    assert code == 0, err
    metrics = json.loads(out)["evaluation"]
    assert metrics["after"]["loss"] < metrics["before_finetuning"]["loss"]
    assert onnx.load("p.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_a_file_with_enough_zeros_needs_a_larger_sparsity(call, net):
    assert call("prune", net, "-o", "half.onnx", "--sparsity", 0.5)[0] == 0
    code, _, err = call("prune", "half.onnx", "-o", "p.onnx", "--sparsity", 0.5)
    assert code == UNSUPPORTED
    assert "50.0% are 0 already; give a larger sparsity (--sparsity)" in err


@pytest.mark.parametrize("arguments", [("prune", "-o", "net.onnx", "--sparsity", 0.5), ("quantize", "./net.onnx")])
def test_the_input_file_is_not_overwritten(call, net, arguments):
    before = net.read_bytes()
    code, _, err = call(arguments[0], net, *arguments[1:])
    assert code == USAGE
    assert "net.onnx is MODEL itself" in err
    assert net.read_bytes() == before


def test_one_epoch_of_finetuning_prints_one_loss(call, net):
    code, _, err = call("prune", net, "-o", "p.onnx", "--sparsity", 0.5, "--data", "data.npz", "--finetune", 1)
    assert code == 0, err
    assert "loss " in err
    assert "first epoch" not in err


def test_dynamic_models_are_not_finetuned(call, net):
    code, _, err = call("quantize", net, "q.onnx", "--mode", "dynamic", "--data", "data.npz", "--finetune", 1)
    assert code == USAGE
    assert "--finetune does not work with --mode dynamic" in err
