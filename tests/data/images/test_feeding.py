"""Metadata for images: every file and command keeps them, and feeds are made with them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from PIL import Image

import graphkit as gk
from graphkit import data
from graphkit.data.description import described, preprocessing_of
from graphkit.data.images.feeding import Said, options_for, picture_input, pictures_for
from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from graphkit.errors import InputError, InvalidModel, UsageError
from graphkit.inference.labelled_data import read_labelled

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
MADE = Preprocess.of_size(8, 8, mean=IMAGENET[0], std=IMAGENET[1], filter="bicubic")


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def network(shape=("N", 3, 8, 8), dtype="float32", meta=None):
    x = gk.input("x", list(shape), dtype=dtype)
    model = gk.Model({"y": gk.identity(x)})
    return gk.Model.from_graph(model.graph, {}, meta={"preprocessing": meta} if meta else {})


def formula(made=MADE):
    """Return the image as torchvision prepares it: shorter side resized, centre cropped, normalised."""
    small = np.asarray(Image.fromarray(PIXELS).resize((12, 8), Image.Resampling.BICUBIC))[:, 2:10]
    return ((small / 255 - made.mean) / made.std).transpose(2, 0, 1)


def test_training_writes_them_and_every_file_keeps_them(photos, tmp_path):
    found = data.read(photos({"cat": 3, "dog": 3}, size=(30, 20)), preprocess=MADE)
    model = described(network(), found)
    assert preprocessing_of(model.meta) == MADE
    assert described(model, found) is model
    for name in ("net.json", "net.onnx"):
        model.save(tmp_path / name)
        assert preprocessing_of(gk.load(tmp_path / name).meta) == MADE
    stored = {p.key: p.value for p in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert json.loads(stored["preprocessing"])["filter"] == "bicubic"
    trainer = gk.Trainer(described(_classifier(), found), "softmax_cross_entropy", gk.optim.SGD(0.1))
    trainer.fit(found, epochs=1, batch_size=3, folder=tmp_path / "run")
    assert preprocessing_of(gk.load(tmp_path / "run").meta) == MADE


def _classifier():
    x = gk.input("x", ["N", 3, 8, 8])
    return gk.Model({"logits": gk.nn.linear(gk.flatten(x), 2, name="fc")}, name="classifier")


def test_pictures_of_a_model_are_those_of_its_data(photos):
    folder = photos({"cat": 3}, size=(30, 20))
    found = data.read(folder, preprocess=MADE)
    fed = pictures_for([folder / "cat" / f"{i}.png" for i in range(3)], "x", network().input_types["x"], MADE)
    np.testing.assert_array_equal(fed, found.take(slice(None))[0])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 3, 8, 8), "float32"), (("N", 3, "H", "W"), "float32"), (("N", "C", "H", "W"), "float64"),
        ((3, 8, 8), "float16"), (("N", 8, 8, 3), "float32"), (("N", 3, 8, 8), "uint8"), (("N", 8, 8, 3), "uint8"),
    ],
)  # fmt: skip
def test_layouts_and_types_of_inputs(photo, shape, dtype):
    nhwc = shape[-1] == 3
    made = MADE if not nhwc else Preprocess.from_json(MADE.to_json().replace("NCHW", "NHWC"))
    fed = pictures_for([photo], "x", network(shape, dtype).input_types["x"], made)
    assert fed.dtype.name == dtype
    wanted = formula()
    if dtype == "uint8":
        wanted = np.asarray(Image.fromarray(PIXELS).resize((12, 8), Image.Resampling.BICUBIC))[:, 2:10].transpose(
            2, 0, 1
        )
    wanted = wanted.transpose(1, 2, 0) if nhwc else wanted
    wanted = wanted if len(shape) == 3 else wanted[None]
    np.testing.assert_allclose(fed.astype(np.float64), wanted, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-3)


def test_what_a_caller_says_stands_above_the_metadata(photo):
    kind = network().input_types["x"]
    fed = pictures_for([photo], "x", kind, MADE, Said(scale=1.0, mean=(0.0,), std=(1.0,)))
    np.testing.assert_allclose(fed[0], formula(Preprocess(mean=(0.0,), std=(1 / 255,))), rtol=1e-5)


def test_no_metadata(photo):
    fed = pictures_for([photo], "x", network().input_types["x"])
    wanted = np.asarray(Image.fromarray(PIXELS).resize((8, 8), Image.Resampling.BILINEAR)) / 255
    np.testing.assert_allclose(fed[0], wanted.transpose(2, 0, 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("N", 1, 8, 8), r"metadata describe RGB images of 8 x 8 pixels, but 'x' is"),
        (("N", 3, 9, 8), "of 8 x 8 pixels"),
        (("N", 8, 8, 3), "in NCHW has 1, 3 or 4 channels"),
        ((2, 3, 8, 8), "one image, but 'x' .*: give 2 images"),
        (("N", 192), "N may be missing"),
    ],
)
def test_inputs_that_do_not_fit(photo, shape, message):
    with pytest.raises(InputError, match=rf"photo\.png: .*{message}"):
        pictures_for([photo], "x", network(shape).input_types["x"], MADE)


def test_pictures_of_sizes_that_a_batch_cannot_hold(photo, tmp_path):
    Image.fromarray(PIXELS[:10]).save(tmp_path / "other.png")
    kind = network(("N", 3, "H", "W")).input_types["x"]
    with pytest.raises(
        InputError, match=r"other\.png: its shape is \[3, 10, 30\], but that of .*photo\.png is \[3, 20, 30\]"
    ):
        pictures_for([photo, tmp_path / "other.png"], "x", kind)
    assert pictures_for([photo, photo], "x", kind).shape == (2, 3, 20, 30)


def test_the_input_that_takes_pictures():
    types = {**network().input_types, "mask": network(("N", 7)).input_types["x"]}
    assert picture_input(types) == "x"
    assert options_for(types) == {"preprocess": Preprocess(resize=(8, 8))}
    assert options_for(types, is_new=True) == {
        "layout": "NCHW", "colours": "RGB", "dtype": "float32", "size": (8, 8),
    }  # fmt: skip
    grey = network(("N", 5, 6, 1), "uint8").input_types
    made = Preprocess(resize=(5, 6), colours="L", layout="NHWC", dtype="uint8")
    assert options_for(grey) == {"preprocess": made}
    assert options_for(grey, is_new=True) == {
        "layout": "NHWC", "colours": "L", "dtype": "uint8", "size": (5, 6), "mean": (), "std": (),
    }  # fmt: skip
    assert options_for(network(("N", 3, "H", "W")).input_types) == {
        "layout": "NCHW", "colours": "RGB", "dtype": "float32", "mean": (), "std": (),
    }  # fmt: skip
    assert options_for({"x": types["mask"]}) == {}
    with pytest.raises(InputError, match=r"no input takes images \(mask"):
        picture_input({"mask": types["mask"]})
    with pytest.raises(InputError, match=r"several inputs take images .*choose an input: NAME=FILE"):
        picture_input({"x": types["x"], "y": types["x"]})


def test_undescribed_images_are_alike_in_labelled_data_and_files(photo, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(PIXELS).save(tmp_path / "photos" / name / "0.png")
    model = network()
    labelled = read_labelled(model, tmp_path / "photos").data
    files = pictures_for([photo], "x", model.input_types["x"])
    np.testing.assert_array_equal(labelled.preprocess.read(photo), files)
    assert 0 <= files.min() < files.max() <= 1


def test_files_in_python(photo, tmp_path):
    np.testing.assert_array_equal(
        MADE.read(photo, str(photo)), pictures_for([photo, photo], "x", network().input_types["x"], MADE)
    )
    Image.fromarray(PIXELS[:10]).save(tmp_path / "other.png")
    with pytest.raises(
        InputError, match=r"other\.png: its shape is \[3, 10, 30\], but that of .*photo\.png is \[3, 20, 30\]"
    ):
        Preprocess().read(photo, tmp_path / "other.png")
    with pytest.raises(InputError, match=r"none\.png"):
        MADE.read(tmp_path / "none.png")
    with pytest.raises(UsageError, match="no image"):
        MADE.read()


def test_metadata_that_are_damaged(tmp_path):
    model = network(meta=MADE.to_json().replace('"version": 1', '"version": 9'))
    model.save(tmp_path / "net.onnx")
    with pytest.raises(InvalidModel, match="metadata: preprocessing of images: its version is not known"):
        preprocessing_of(gk.load(tmp_path / "net.onnx").meta)
    assert preprocessing_of(network(meta="resize to 224").meta) is None
    assert preprocessing_of({}) is None
