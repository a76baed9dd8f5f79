"""From a folder of pictures to an ONNX file that answers in names, by the commands that the README has."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from PIL import Image

import graphkit as gk
from graphkit.cli import invoke


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Cats are red and dogs are blue, more or less."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, colour in (("cat", 0), ("dog", 2)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(0, 150, (36, 40, 3), np.uint8)
            pixels[:, :, colour] += 90
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path


def run(*words):
    assert invoke([str(word) for word in words]) == 0


def test_three_commands(photos, capsys):
    run("build", "lenet", "--data", "photos/", "--data-option", "size=32", "-o", "net.json")
    run("train", "net.json", "--data", "photos/", "--epochs", 8, "--batch-size", 8, "-o", "run/")
    run("export", "run/", "-o", "photos.onnx")
    capsys.readouterr()
    for name in ("cat", "dog"):
        run("run", "photos.onnx", f"photos/{name}/0.png", "--top", 2, "--json")
        (sample,) = json.loads(capsys.readouterr().out)["top"]["samples"]
        best = sample["classes"][0]
        assert best["name"] == name
        assert best["probability"] > 0.9
    # Several, and a folder, are a batch.
    run("run", "photos.onnx", "photos/cat/1.png", "photos/dog/1.png", "--top", 1, "--json")
    found = json.loads(capsys.readouterr().out)["top"]["samples"]
    assert [s["classes"][0]["name"] for s in found] == ["cat", "dog"]
    run("run", "photos.onnx", "photos/dog", "--top", 1, "--json")
    assert len(json.loads(capsys.readouterr().out)["top"]["samples"]) == 30
    # What the file says is what the data went through.
    stored = {entry.key: entry.value for entry in onnx.load("photos.onnx").metadata_props}
    assert json.loads(stored["classes"]) == ["cat", "dog"]
    model = gk.load("photos.onnx")
    data = gk.data.read("photos/", size=32)
    assert gk.data.Preprocess.from_json(stored["preprocessing"]) == data.preprocess
    run("run", "photos.onnx", "photos/cat/0.png", "-o", "out.npz")
    with np.load("out.npz") as outputs:
        expected = model.compile().run({model.inputs[0]: data.take(slice(0, 1))[0]})
        for name, array in expected.items():
            np.testing.assert_array_equal(outputs[name], array)


def test_options_come_before_metadata(photos, capsys):
    x = gk.input("x", [1, 3, 6, 5])
    gk.Model({"y": gk.identity(x)}, name="same").save("same.json")
    run("run", "same.json", "photos/cat/0.png", "-o", "plain.npz")
    run("run", "same.json", "photos/cat/0.png", "--image-mean", "0.5", "--image-std", "0.25", "-o", "scaled.npz")
    with np.load("plain.npz") as plain, np.load("scaled.npz") as scaled:
        np.testing.assert_allclose(scaled["y"], (plain["y"] - 0.5) / 0.25, rtol=1e-5, atol=1e-6)


def test_problems(photos, capsys):
    run("build", "lenet", "--data", "photos/", "--data-option", "size=32", "-o", "net.json")
    (photos / "bad.png").write_bytes(b"junk")
    assert invoke(["run", "net.json", "bad.png"]) == 2
    assert "bad.png cannot be read as a picture" in capsys.readouterr().err
    model = gk.load("net.json")
    gk.Model.from_graph(model.graph, model.params.entries(), meta={**model.meta, "preprocessing": "{}"}).save(
        "odd.json"
    )
    run("run", "odd.json", "photos/cat/0.png")
    capsys.readouterr()
    broken = json.dumps(json.loads(model.meta["preprocessing"]) | {"std": [0]})
    gk.Model.from_graph(model.graph, model.params.entries(), meta={**model.meta, "preprocessing": broken}).save(
        "b.json"
    )
    assert invoke(["run", "b.json", "photos/cat/0.png"]) == 4
    assert "preprocessing of pictures" in capsys.readouterr().err
    (photos / "empty").mkdir()
    assert invoke(["run", "net.json", "empty"]) == 2
    assert "there is no picture in it" in capsys.readouterr().err
