"""Preprocessing by the name of a library, against the arithmetic of these libraries in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.cli import _options
from graphkit.data.description import preprocessing_of
from graphkit.data.preprocessing import families
from graphkit.errors import UsageError

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
IMAGENET = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def _network(height, width, first=lambda x: x):
    x = gk.input("data", ["N", 3, height, width])
    return gk.Model({"y": gk.relu(first(x))})


# The formula of each library, for RGB pixels [H, W, 3].
EXPECTED = {
    "gluoncv": lambda x: (x / 255 - IMAGENET[0]) / IMAGENET[1],
    "gluoncv-detection": lambda x: (x / 255 - IMAGENET[0]) / IMAGENET[1],
    "insightface": lambda x: (x - 127.5) / 128,
    "mxnet-imagenet": lambda x: x - np.array([123.68, 116.779, 103.939]),
    "raw": lambda x: x,
}


@in_one_item()
@pytest.mark.parametrize("name", families.NAMES)
def test_an_image_becomes_what_the_library_computes(tmp_path, name):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    net = gk.data.with_preprocessing(_network(8, 8), name)
    net.save(tmp_path / "net.onnx")
    made = preprocessing_of(gk.load(tmp_path / "net.onnx").meta)
    assert made.size == (8, 8)
    expected = EXPECTED[name](PIXELS.astype(np.float64)).transpose(2, 0, 1)[None]
    np.testing.assert_allclose(made.read(tmp_path / "a.png"), expected, rtol=1e-6, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("name", families.NAMES)
def test_sizes_that_vary_have_defaults(name):
    made = preprocessing_of(gk.data.with_preprocessing(_network("H", "W"), name).meta)
    sizes = {"insightface": ((112, 112), None), "gluoncv-detection": (512, None)}
    assert (made.resize, made.crop) == sizes.get(name, (256, (224, 224)))


@pytest.mark.parametrize("first", [
    lambda x: gk.mul(gk.sub(x, np.float32(127.5)), np.float32(1 / 128)),
    lambda x: gk.div(gk.identity(x), np.float32([255])),
])  # fmt: skip
def test_insightface_networks_that_normalise_get_raw_pixels(first):
    made = preprocessing_of(gk.data.with_preprocessing(_network(112, 112, first), "insightface").meta)
    assert (made.scale, made.mean, made.std) == (1.0, (), ())


def test_a_channel_wise_scale_is_not_a_normalisation():
    net = _network(112, 112, lambda x: gk.mul(x, np.ones((1, 3, 1, 1), np.float32)))
    assert preprocessing_of(gk.data.with_preprocessing(net, "insightface").meta).mean == (127.5,)


def test_a_preprocess_is_stored_as_it_is():
    made = gk.data.Preprocess(colours="BGR", resize=(4, 4))
    assert preprocessing_of(gk.data.with_preprocessing(_network(4, 4), made).meta) == made


def test_unknown_names_and_other_inputs_are_errors():
    with pytest.raises(UsageError, match="did you mean 'gluoncv'"):
        gk.data.with_preprocessing(_network(8, 8), "gluonvc")
    with pytest.raises(UsageError, match=r"needs an input of images, \[N, 3, H, W\]"):
        gk.data.with_preprocessing(gk.Model({"y": gk.relu(gk.input("x", ["N", 4]))}), "raw")


def test_the_command_line_has_the_same_names():
    assert families.NAMES == _options._FAMILIES
