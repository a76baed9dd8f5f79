"""graphkit predict: files of predictions, errors, exit codes, and removal of temporary files."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import graphkit as gk
from graphkit.data.preprocessing.image import Preprocess
from graphkit.data.preprocessing.vocabulary import Vocabulary

RNG = np.random.default_rng(0)
MADE = Preprocess(resize=(8, 8), mean=(0.5,), std=(0.25,))
NAMES = ("ant", "b,ee", "cow")


@pytest.fixture
def net(tmp_path):
    x = gk.input("x", ["N", 3, 8, 8])
    model = gk.Model({"logits": gk.nn.linear(gk.flatten(x), 3, name="fc")}, seed=2, name="insects")
    meta = {"preprocessing": MADE.to_json(), "classes": json.dumps(NAMES)}
    gk.Model.from_graph(model.graph, model.params.entries(), meta=meta).save(tmp_path / "net.onnx")
    return "net.onnx"


@pytest.fixture
def photos(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (12, 10, 3), np.uint8)).save(tmp_path / "photos" / name)
    return ["photos/a/1.png", "photos/a/2.png", "photos/b/1.png"]


@pytest.fixture
def probabilities(net, photos):
    """Return the result of Pillow, ONNX Runtime and a softmax, [images, classes]."""
    rows = []
    for name in photos:
        with Image.open(name) as image:
            rows.append((np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR), np.float32) / 255 - 0.5) / 0.25)
    feeds = {"x": np.stack(rows).transpose(0, 3, 1, 2).astype(np.float32)}
    logits = onnxruntime.InferenceSession(net, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def leftovers(folder):
    return [path.name for path in folder.iterdir() if "tmp" in path.name or path.name.startswith(("o.", ".o"))]


@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
def test_csv_of_classes(call, net, photos, probabilities, engine):
    code, out, err = call("predict", net, "photos", "-o", "o.csv", "--top", 2, "--engine", engine, "--batch-size", 2)
    assert code == 0, err
    assert out.startswith("wrote o.csv: 3 samples, in ")
    assert "3 images for input 'x': resized to 8 x 8, RGB, (pixel / 255 - 0.5) / 0.25" in err
    header, *rows = rows_of("o.csv")
    assert header == ["file", "class", "probability", "class_2", "probability_2"]
    assert [row[0] for row in rows] == photos
    order = np.argsort(-probabilities, axis=1)
    assert [[row[1], row[3]] for row in rows] == [[NAMES[i] for i in best[:2]] for best in order]
    wanted = np.sort(probabilities, axis=1)[:, ::-1][:, :2]
    np.testing.assert_allclose([[float(row[2]), float(row[4])] for row in rows], wanted, rtol=1e-4)


def test_jsonl_of_classes(call, net, photos, probabilities):
    code, out, _ = call("predict", net, *photos, "-o", "o.jsonl", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "graphkit.predict"
    assert [found[key] for key in ("model", "samples", "failed", "class_output")] == ["insects", 3, 0, "logits"]
    with open("o.jsonl") as file:
        rows = [json.loads(line) for line in file]
    assert [row["file"] for row in rows] == photos
    assert [row["classes"][0]["class"] for row in rows] == probabilities.argmax(1).tolist()
    assert [row["classes"][0]["name"] for row in rows] == [NAMES[i] for i in probabilities.argmax(1)]


def test_names_on_stdin_and_in_lists(call, net, photos, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"photos/b/1.png\r\n\nphotos/a\n")))
    (tmp_path / "list").write_text("photos/a/*.png\n")
    assert call("predict", net, "-", "@list", "-o", "o.csv")[0] == 0
    names = ["photos/b/1.png", "photos/a/1.png", "photos/a/2.png", "photos/a/1.png", "photos/a/2.png"]
    assert [row[0] for row in rows_of("o.csv")[1:]] == names
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    code, _, err = call("predict", net, "-", "-o", "o.csv")
    assert code == 2
    assert "no name on stdin" in err


def test_values_of_outputs_that_score_no_classes(call, tmp_path):
    x = gk.input("x", ["N", 2])
    gk.Model({"y": gk.identity(x), "s": gk.reduce_sum(x, axes=[1]), "i": gk.arg_max(x, axis=1, keepdims=False)}).save(
        tmp_path / "n.json"
    )
    np.save("x.npy", np.array([[1, 2], [0.1, np.nan]], np.float32))
    assert call("predict", "n.json", "x.npy", "-o", "o.csv")[0] == 0
    header, *rows = rows_of("o.csv")
    assert header == ["row", "y[0]", "y[1]", "s", "i"]
    assert rows[0] == ["0", "1.0", "2.0", "3.0", "1"]
    assert rows[1][1:4] == ["0.1", "nan", "nan"]
    assert call("predict", "n.json", "x.npy", "-o", "o.csv", "--output-name", "s")[0] == 0
    assert rows_of("o.csv")[0] == ["row", "s"]


def test_damaged_images(call, net, photos, tmp_path):
    (tmp_path / photos[0]).write_bytes((tmp_path / photos[0]).read_bytes()[:60])
    (tmp_path / "o.csv").write_text("before")
    for name in ("o.csv", "o.jsonl", "o.npz"):
        code, out, err = call("predict", net, "photos", "-o", name, "--json")
        assert code == 2
        assert "photos/a/1.png cannot be read as an image" in err
        assert json.loads(out)["kind"] == "InputError"
    assert (tmp_path / "o.csv").read_text() == "before"
    assert leftovers(tmp_path) == ["o.csv"]
    code, out, err = call("predict", net, "photos", "-o", "o.csv", "--skip-errors")
    assert code == 1
    assert "wrote o.csv: 3 samples, 1 of them with an error" in out
    assert "skipped: photos/a/1.png" in err
    header, *rows = rows_of("o.csv")
    assert header == ["file", "class", "probability", "error"]
    assert [row[0] for row in rows] == photos
    assert [bool(row[1]) for row in rows] == [False, True, True]
    assert "photos/a/1.png cannot be read" in rows[0][3]
    code, out, _ = call("predict", net, "photos", "gone.png", "-o", "o.jsonl", "--skip-errors", "--json")
    assert code == 2, "a name of no file is an error of usage"
    code, out, _ = call("predict", net, "photos", "-o", "o.jsonl", "--skip-errors", "--json")
    assert code == 1
    assert json.loads(out)["failed"] == 1
    with open("o.jsonl") as file:
        assert "error" in json.loads(next(file))
    code, _, err = call("predict", net, "photos", "-o", "o.npz", "--skip-errors")
    assert code == 2
    assert "no place for errors" in err


def test_only_damaged_images(call, net, tmp_path):
    (tmp_path / "a.png").write_text("no image")
    assert call("predict", net, "a.png", "-o", "o.csv", "--skip-errors")[0] == 1
    assert rows_of("o.csv")[0] == ["file", "error"]
    assert len(rows_of("o.csv")) == 2


def test_wrong_command_lines(call, net, photos, tmp_path):
    (tmp_path / "folder").mkdir()
    gk.Model({"y": gk.reduce_sum(gk.input("x", [3, 8]))}).save("scalar.json")
    np.save("x.npy", np.zeros((2, 3, 8, 8), np.float32))
    for words, code, message in (
        ("net.onnx photos -o o.txt", 2, "must end in .csv, .jsonl or .npz"),
        ("net.onnx photos -o missing/o.csv", 5, "missing/o.csv cannot be written"),
        ("net.onnx missing -o o.csv", 2, "missing: no such file or folder"),
        ("net.onnx folder -o o.csv", 2, "contains an image"),
        ("gone.onnx photos -o o.csv", 2, "gone.onnx"),
        ("photos/a/1.png photos -o o.csv", 4, "photos/a/1.png"),
        ("scalar.json x.npy -o o.csv", 2, "graphkit run"),
        ("- photos -o o.csv", 2, "cannot read MODEL from stdin"),
        ("net.onnx photos -o o.csv --device cuda --engine onnxruntime", 2, "runs on the CPU only"),
        ("net.onnx photos -o o.csv --output-name none", 2, "none"),
    ):
        found, _, err = call("predict", *words.split())
        assert found == code, (words, err)
        assert message in err, words
    assert leftovers(tmp_path) == []


def test_the_output_never_replaces_the_input(call, tmp_path):
    gk.Model({"y": gk.identity(gk.input("x", ["N", 2]))}).save("n.json")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    code, _, err = call("predict", "n.json", "t.csv", "-o", "./t.csv")
    assert code == 2
    assert "t.csv is an input" in err
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,2\n"


def test_file_names_that_are_not_utf8(call, net, photos, tmp_path):
    odd = os.fsdecode(b"photos/\xff.png")
    os.rename(photos[0], odd)
    assert call("predict", net, odd, "-o", "o.csv")[0] == 0
    assert b"photos/\xff.png," in (tmp_path / "o.csv").read_bytes()
    assert call("predict", net, odd, "-o", "o.jsonl")[0] == 0
    assert json.loads((tmp_path / "o.jsonl").read_text())["file"] == odd


@pytest.mark.full
def test_ctrl_c_leaves_nothing(net, photos, tmp_path):
    """The command is interrupted while it writes rows: the temporary file exists then."""
    (tmp_path / "list").write_text("\n".join(photos * 20_000))
    words = ["graphkit", "predict", net, "@list", "-o", "o.csv", "--batch-size", "4"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".o.csv*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    assert list(tmp_path.glob(".o.csv*"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert leftovers(tmp_path) == []


def test_options_of_tables(call, tmp_path):
    (tmp_path / "a.csv").write_text("größe;y\n1,5;0\n2,5;1\n", encoding="latin-1")
    given = {"decimal": ",", "encoding": "latin-1"}
    train = gk.data.read("a.csv", **given)
    x = gk.input("x", ["N", 1])
    gk.data.described(gk.Model({"y": x * np.float32(2)}), train).save("n.json")
    options = [text for name, value in given.items() for text in ("--data-option", f"{name}={value}")]
    assert call("predict", "n.json", "a.csv", "-o", "o.csv", *options)[0] == 0
    assert rows_of("o.csv")[1:] == [["0", "3.0"], ["1", "5.0"]]
    assert [found.outputs["y"].item() for found in gk.predict("n.json", "a.csv", data_options=given)] == [3, 5]
    code, _, err = call("predict", "n.json", "a.csv", "-o", "o.csv", "--data-option", "missing=mean")
    assert code == 2
    assert "tables have no option 'missing'; known: 'header', 'delimiter', 'encoding', 'decimal'" in err
    code, _, err = call("predict", "n.json", "x.npy", "-o", "o.csv", "--data-option", "decimal=,")
    assert code == 2
    assert "the option 'decimal' is for tables (.csv, .tsv)" in err
    Vocabulary(("<pad>", "<unk>", "a")).save(tmp_path / "vocabulary.json")
    code, _, err = call(
        "predict", "n.json", "a.csv", "-o", "o.csv", *options, "--tokenizer", tmp_path / "vocabulary.json"
    )
    assert code == 2
    assert "a.csv: the option 'decimal' is for tables, but this file is read as texts" in err
