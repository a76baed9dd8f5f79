"""`graphkit evaluate` prints what the library computes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import graphkit as gk
from graphkit.inference.labelled_data import read_labelled

RNG = np.random.default_rng(5)


@pytest.fixture
def digits(tmp_path):
    """A model of digits in three formats: net.json, net.onnx, and fixed.onnx with a batch of 8."""
    for batch, names in (("N", ("net.json", "net.onnx")), (8, ("fixed.onnx",))):
        x = gk.input("x", [batch, 1, 8, 8])
        flat = gk.reshape(x, np.array([-1, 64], np.int64))
        net = gk.Model({"logits": gk.nn.linear(flat, 10, name="fc")}, meta={"classes": json.dumps(list("0123456789"))})
        for name in names:
            net.save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
@pytest.mark.parametrize("file", ["net.json", "net.onnx", "fixed.onnx"])
def test_json_agrees_with_the_library(call, digits, file, engine):
    code, out, err = call("evaluate", digits / file, "--data", "digits", "--part", "test", "--json", "--engine", engine)
    result = json.loads(out)
    net = gk.load(digits / file)
    expected = gk.evaluate(net, read_labelled(net, "digits", part="test").data)
    assert (code, result["schema"], result["samples"]) == (0, "graphkit.evaluate", 359)
    assert result["metrics"] == pytest.approx(dict(expected.metrics), rel=1e-5)
    assert result["confusion"] == expected.confusion.tolist()
    assert [s["index"] for s in result["worst"]] == [s.index for s in expected.worst]
    assert result["calibration"]["expected_error"] == pytest.approx(expected.calibration_error, rel=1e-4)
    assert len(result["calibration"]["bins"]) == 15
    assert "digits (test): 359 samples" in err


def test_tables_and_page(call, digits):
    page = digits / "page.html"
    code, out, err = call("evaluate", digits / "net.onnx", "--data", "digits", "--html", page, "--worst", "3")
    assert code == 0
    for text in ("loss (softmax_cross_entropy)", "expected calibration error", "confusion matrix", "largest losses"):
        assert text in out
    assert "--part test takes only" in err
    assert page.read_text().count("data:image/png") == 3
    assert not list(digits.glob("*.tmp*"))


def test_counts_of_one_are_singular(call, digits):
    np.savez("one.npz", x=RNG.random((1, 1, 8, 8), np.float32), y=np.array([3]))
    gk.Model({"logits": gk.input("x", ["N", 3]) * np.float32(2)}).save("three.json")
    np.savez("two.npz", x=np.float32([[9, 0, 0], [9, 0, 0]]), y=np.array([0, 2]))
    code, out, err = call("evaluate", digits / "net.json", "--data", "one.npz")
    assert code == 0
    assert "one.npz: 1 sample (all" in err
    assert ", 1 sample in " in out
    code, out, _ = call("evaluate", "three.json", "--data", "two.npz")
    assert "1 more class occurs neither in the targets nor in the predictions" in out


def test_options(call, digits):
    np.savez("numbers.npz", x=RNG.normal(size=(9, 3)).astype(np.float32), y=RNG.normal(size=(9, 1)).astype(np.float32))
    gk.Model({"a": gk.nn.linear(gk.input("x", ["N", 3]), 1, name="fc")}).save("n.json")
    code, out, _ = call(
        "evaluate", "n.json", "--data", "numbers.npz", "--loss", "l1", "--metric", "rmse", "--worst", "0"
    )
    assert code == 0
    assert "loss (l1)" in out
    assert "rmse" in out
    assert "largest losses" not in out
    code, out, _ = call(
        "evaluate", digits / "net.json", "--data", "digits", "--metric", "top3", "--probabilities", "--json"
    )
    assert code == 0
    assert set(json.loads(out)["metrics"]) == {"loss", "top3"}


def test_many_classes_are_listed_by_their_confusions(call):
    np.savez("c.npz", x=RNG.normal(size=(60, 3)).astype(np.float32), y=RNG.integers(0, 30, 60))
    gk.Model({"a": gk.nn.linear(gk.input("x", ["N", 3]), 40, name="fc")}).save("c.json")
    code, out, _ = call("evaluate", "c.json", "--data", "c.npz")
    assert code == 0
    assert "most frequent confusions" in out
    assert "more classes occur neither" in out


def test_tokens_are_quoted(call, tmp_path):
    (tmp_path / "a.txt").write_text("a b\n" * 40)
    assert (
        call("build", "lstm_lm", "--data", "text:a.txt", "-p", "hidden=4", "-p", "stateful=true", "-o", "lm.json")[0]
        == 0
    )
    states = ("--recurrent-state", "h=last_h", "--recurrent-state", "c=last_c")
    code, out, err = call("evaluate", "lm.json", "--data", "text:a.txt", "--batch-size", "4", *states)
    assert code == 0
    assert "a.txt: 159 tokens" in err
    assert "' '" in out
    assert "'\\n'" in out


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.onnx", "--data", "digits"], "none.onnx: no such file"),
        (["net.onnx", "--data", "none.npz"], "none.npz: no such file"),
        (["net.onnx", "--data", "unlabelled.npz"], "unlabelled.npz has no targets"),
        (["net.onnx", "--data", "empty.npz"], "the data set has no samples"),
        (["net.onnx", "--data", "named.npz"], "no class 'ten'"),
        (["net.onnx", "--data", "digits", "--html", "page.txt"], "must end in .html"),
        (["net.onnx", "--data", "digits", "--html", "no/such/page.html"], "there is no folder"),
        (["net.onnx", "--data", "digits", "--loss", "cross"], "unknown loss"),
        (["net.onnx", "--data", "digits", "--metric", "acc"], "unknown metric"),
        (["net.onnx", "--data", "digits", "--data-option", "size=4"], "no options"),
        (["net.onnx", "--data", "digits", "--engine", "onnxruntime", "--device", "cuda"], "CPU only"),
        (["bad.onnx", "--data", "digits"], "bad.onnx"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_errors(call, digits, arguments, message, as_json):
    x = np.zeros((4, 1, 8, 8), np.float32)
    np.savez("unlabelled.npz", x=x)
    np.savez("empty.npz", x=x[:0], y=np.zeros(0, np.int64))
    np.savez("named.npz", x=x, y=np.arange(4), classes=np.array(["0", "1", "ten", "3"]))
    (digits / "bad.onnx").write_bytes((digits / "net.onnx").read_bytes()[:-400])
    code, out, err = call("evaluate", *arguments, *(["--json"] if as_json else []))
    assert code in (2, 4, 5)
    assert message in (json.loads(out)["message"] if as_json else err)
    assert as_json or not out


def test_classes_of_a_folder_are_matched_by_name(call, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("dark", 10), ("light", 240)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            image.fromarray(np.full((5, 5), shade + i, np.uint8)).save(tmp_path / "photos" / name / f"{i}.png")
    x = gk.input("x", ["N", 1, 5, 5])
    mean = gk.reduce_mean(gk.reshape(x, np.array([-1, 25], np.int64)), np.array([1], np.int64))
    scores = gk.concat([mean, 1 - mean], axis=1)
    gk.Model({"y": scores}, meta={"classes": '["light", "dark"]'}).save("m.onnx")
    code, out, err = call("evaluate", "m.onnx", "--data", "photos", "--json", "--engine", "onnxruntime")
    result = json.loads(out)
    assert (code, result["metrics"]["accuracy"]) == (0, 1.0)
    assert [c["name"] for c in result["classes"]] == ["light", "dark"]
    assert {s["name"] for s in result["worst"]} == {f"photos/{n}/{i}.png" for n in ("dark", "light") for i in range(3)}
    assert "classes are matched by name" in err
    line = "image preprocessing (chosen by the input's shape, because the metadata have none): resized to 5 x 5, grey"
    assert f"{line}, pixel / 255, NCHW float32" in err


def test_note_if_the_data_contain_training_samples(call, digits):
    arguments = ["--data", "digits", "--epochs", 1, "-o", "run"]
    assert call("train", digits / "net.json", *arguments)[0] == 0
    for model in ("run", "run/model.json"):
        code, _, err = call("evaluate", model, "--data", "digits")
        assert code == 0
        assert f"{model} was trained on digits" in err
        assert "--part test" in err
    for more in (["--part", "test"], ["--part", "train"], ["--part", "all"]):
        assert "was trained on" not in call("evaluate", "run", "--data", "digits", *more)[2]
    assert "was trained on" not in call("evaluate", digits / "net.onnx", "--data", "digits")[2]
    code, out, _ = call("evaluate", "run", "--data", "digits", "--json")
    assert json.loads(out)["samples"] == 1797


def test_note_if_the_adapter_was_trained_on_the_data(call, digits):
    arguments = ["--data", "digits", "--epochs", 1, "--lora", "rank=1", "-o", "tuned"]
    assert call("train", digits / "net.json", *arguments)[0] == 0
    for adapter in ("tuned", "tuned:0.5"):
        code, _, err = call("evaluate", digits / "net.json", "--data", "digits", "--adapter", adapter)
        assert code == 0, err
        assert "tuned was trained on digits" in err
    more = ["--adapter", "tuned", "--part", "test"]
    assert "was trained on" not in call("evaluate", digits / "net.json", "--data", "digits", *more)[2]


def test_note_if_the_file_of_the_data_was_trained_on(call, digits):
    names = ("a", "b")
    for name in names:
        np.savez(f"{name}.npz", x=RNG.normal(size=(20, 1, 8, 8)).astype(np.float32), y=np.arange(20) % 10)
    assert call("train", digits / "net.json", "--data", "a.npz", "--epochs", 1, "-o", "run")[0] == 0
    assert "run was trained on ./a.npz" in call("evaluate", "run", "--data", "./a.npz")[2]
    assert "was trained on" not in call("evaluate", "run", "--data", "b.npz")[2]
