"""From a folder of images to a file that classifies an image, with commands only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import graphkit as gk
from graphkit.cli.train.data import read_data
from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from tests.mxnet_io.files import node, symbol, write_model

README = Path(__file__).parents[2] / "README.md"
META = Preprocess.of_size(6, 6, mean=(0.5,), std=(0.25,))


def striped(draw, down):
    """Stripes of any width, place and colour: across for a cat, down for a dog."""
    wave = np.sign(np.sin(np.arange(40) * draw.uniform(0.5, 1.2) + draw.uniform(0, 6)))
    wave = wave[None, :, None] if down else wave[:, None, None]
    pixels = draw.integers(60, 200, 3) + 60 * wave + draw.normal(0, 10, (40, 40, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture
def photos(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            striped(draw, name == "dog").save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "new").mkdir()
    for number in range(6):
        striped(draw, number % 2).save(tmp_path / "new" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def run(call, line):
    code, out, err = call(*line.split())
    assert code == 0, f"{line}: {err}"
    return out


def commands_of_the_readme():
    section = README.read_text().partition("## Train from a folder of images\n")[2].partition("\n## ")[0]
    return re.findall(r"^`?graphkit ([^`\n]+)", section, re.MULTILINE)


def test_from_a_folder_to_names(call, photos):
    """Run the commands of the README unchanged."""
    build, train, export, ask = commands_of_the_readme()
    run(call, build)
    assert gk.load("net.json").classes == ("cat", "dog")
    run(call, train)
    assert "PASSED" in run(call, export)
    assert ask == "run photos.onnx photos/cat/0.png --top 2"
    out = run(call, ask)
    lines = [line.split() for line in out.splitlines() if line.startswith("photos/cat/0.png")]
    assert [line[2] for line in lines] == ["cat", "dog"]
    assert float(lines[0][3]) > 0.9
    # Images that it was not trained on.
    found = json.loads(run(call, "run photos.onnx new/ --top 1 --json"))["top"]["samples"]
    assert [sample["file"] for sample in found] == [f"new/{i}.png" for i in range(6)]
    best = [sample["classes"][0] for sample in found]
    assert [b["name"] for b in best] == ["cat", "dog"] * 3
    assert min(b["probability"] for b in best) > 0.8
    assert "PASSED" in run(call, "verify photos.onnx new/0.png new/1.png")
    # An image that is run went through what those did that it was trained on, to the bit.
    run(call, "run photos.onnx photos/dog/ -o out.npz")
    dogs = gk.data.read("photos/", size=32).take(slice(40, 80))[0]  # in the order of their names, too
    with np.load("out.npz") as found:
        np.testing.assert_array_equal(found["logits"], gk.load("photos.onnx").compile().run({"x": dogs})["logits"])
    stored = {p.key: p.value for p in onnx.load("photos.onnx").metadata_props}
    assert json.loads(stored["classes"]) == ["cat", "dog"]
    assert Preprocess.from_json(stored["preprocessing"]).size == (32, 32)
    run(call, "export photos.onnx -o again.onnx")
    assert gk.load("again.onnx").meta["preprocessing"] == stored["preprocessing"]


@pytest.mark.full
def test_a_run_that_goes_on_is_the_same_to_the_bit(call, photos):
    run(call, "build lenet --data photos/ --data-option size=32 --seed 0 -o net.json")
    options = "--data photos/ --data-option augment=pad:2,flip --seed 3 --deterministic"
    run(call, f"train net.json {options} --epochs 3 --workers 0 -o whole/")
    run(call, f"train net.json {options} --epochs 1 --workers 2 -o parts/")
    run(call, "train net.json --resume --epochs 3 --workers 2 -o parts/")
    whole, parts = gk.load("whole"), gk.load("parts")
    for name in whole.params:
        np.testing.assert_array_equal(whole.params[name], parts.params[name])


def test_data_for_a_model_that_says_nothing_have_its_size(call, photos):
    """An imported network without metadata: layout, size and channels are those of its input."""
    x = gk.input("x", ["N", 16, 20, 3])
    gk.Model({"logits": gk.nn.linear(gk.flatten(x), 2, name="fc")}, name="flat").save("flat.onnx")
    run(call, "train flat.onnx --data photos/ --epochs 1 -o run/")
    made = Preprocess.from_json(gk.load("run").meta["preprocessing"])
    assert (made.layout, made.size, made.colours) == ("NHWC", (16, 20), "RGB")


def test_training_prepares_images_for_an_imported_model_as_other_commands(photos):
    x = gk.input("x", ["N", 3, 8, 8])
    new = gk.Model({"y": gk.identity(x)})
    new.save("net.onnx")
    document = symbol([node("null", "data"), node("identity", "y", [(0, 0)])], [(1, 0)])
    of_mxnet = gk.load(write_model(Path.cwd(), document, {}), shapes={"data": ("N", 3, 8, 8)})
    nets = (new, gk.load("net.onnx"), of_mxnet)
    read = [read_data(net, "photos", None, {}, {}).train.preprocess for net in nets]
    assert read == [
        Preprocess.of_size(8, 8, mean=IMAGENET[0], std=IMAGENET[1]), *[Preprocess(resize=(8, 8))] * 2,
    ]  # fmt: skip


def test_what_validates_goes_through_the_same(call, photos):
    run(call, "build lenet --data photos/ --data-option size=16 --data-option mean=0.5 -o net.json")
    for number in range(4):
        (photos.parent / "held" / "dog").mkdir(parents=True, exist_ok=True)
        striped(np.random.default_rng(number), True).resize((90, 70)).save(
            photos.parent / "held" / "dog" / f"{number}.png"
        )
    run(call, "train net.json --data photos/ --valid held/ --epochs 1 -o run/")
    assert Preprocess.from_json(gk.load("run").meta["preprocessing"]).mean == (0.5,)


@pytest.fixture
def identity(photos):
    x = gk.input("x", ["N", 3, 6, 6])
    model = gk.Model({"y": gk.identity(x)})
    gk.Model.from_graph(model.graph, {}, meta={"preprocessing": META.to_json()}).save("net.onnx")


def fed(call, words):
    run(call, f"run net.onnx {words} -o out.npz")
    with np.load("out.npz") as found:
        return found["y"]


def formula(name, scale=1 / 255, mean=0.5, std=0.25):
    with Image.open(name) as image:
        pixels = np.asarray(image.resize((6, 6), Image.Resampling.BILINEAR), np.float64)
    return ((pixels * scale - mean) / std).transpose(2, 0, 1)


def test_options_stand_above_the_metadata(call, identity):
    name = "new/0.png"
    for words in (name, f"x={name}"):
        np.testing.assert_allclose(fed(call, words)[0], formula(name), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fed(call, f"{name} --image-mean 0")[0], formula(name, mean=0), rtol=1e-5)
    given = fed(call, f"{name} --image-scale 1 --image-mean 9,8,7 --image-std 2")
    wanted = formula(name, 1, np.array([9, 8, 7]), 2)
    np.testing.assert_allclose(given[0], wanted, rtol=1e-5)


def test_several_pictures_and_folders_are_a_batch(call, identity):
    wanted = np.stack([formula(f"new/{i}.png") for i in (0, 1, 2, 3, 4, 5, 0)])
    for words in ("new/ new/0.png",):
        np.testing.assert_allclose(fed(call, words), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fed(call, "x=new"), wanted[:6], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fed(call, "new/3.png new/1.png"), wanted[[3, 1]], rtol=1e-5, atol=1e-6)


def test_what_is_wrong_with_pictures_is_said(call, identity, photos):
    for name in ("none", "empty", "text"):
        (photos.parent / name).mkdir()
    (photos.parent / "text" / "a.png").write_text("no image")
    for words, message in (
        ("gone.png", "gone.png"),
        ("empty", "empty: the folder itself contains no image"),
        ("text", "text/a.png cannot be read as an image"),
        ("x=new/0.png x=new/1.png", "input 'x' is given twice"),
        ("new/0.png x:1,3,6,6", "input 'x' is given twice"),
    ):
        code, out, err = call("run", "net.onnx", *words.split(), "--json")
        assert code == 2, words
        assert message in err
        assert json.loads(out)["kind"] in ("InputError", "UsageError")


def test_damaged_metadata_are_named(call, identity):
    model = gk.load("net.onnx")
    meta = {"preprocessing": META.to_json().replace('"bilinear"', '"cubical"')}
    gk.Model.from_graph(model.graph, {}, meta=meta).save("odd.onnx")
    code, _, err = call("run", "odd.onnx", "new/0.png")
    assert code == 4
    assert "metadata: preprocessing of images: filter" in err
    assert call("run", "odd.onnx")[0] == 0, "only images need them"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_uint8(call, photos, layout):
    """A network that has the arithmetic in itself."""
    x = gk.input("x", ["N", 3, 6, 6] if layout == "NCHW" else ["N", 6, 6, 3], dtype="uint8")
    model = gk.Model({"y": gk.identity(x)})
    made = Preprocess.of_size(6, 6, dtype="uint8", layout=layout)
    gk.Model.from_graph(model.graph, {}, meta={"preprocessing": made.to_json()}).save("net.onnx")
    wanted = np.round(formula("new/0.png", 1, 0, 1))
    wanted = wanted if layout == "NCHW" else wanted.transpose(1, 2, 0)
    np.testing.assert_array_equal(fed(call, "new/0.png")[0], wanted)
    code, _, err = call("run", "net.onnx", "new/0.png", "--image-mean", "0.5")
    assert code == 2
    assert "dtype uint8 keeps pixels unchanged" in err
