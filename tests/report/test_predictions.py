"""Predictions are those of the model, compared by independent formulas."""

from __future__ import annotations

import io

import numpy as np
import pytest
from combinations import in_one_item
from scipy.sparse import coo_matrix
from scipy.special import expit, log_softmax

import graphkit as gk
from graphkit.errors import InputError, UsageError
from graphkit.inference.class_scores import class_scores, most_confused
from graphkit.report.png import encode, is_picture, pixels
from graphkit.report.predictions import predict

RNG = np.random.default_rng(0)


def linear(features: int, outputs: int, activation=None) -> gk.Model:
    x = gk.input("x", ["N", features])
    y = gk.nn.linear(x, outputs, name="fc")
    return gk.Model({"y": y if activation is None else activation(y)})


def rows(count: int, features: int) -> np.ndarray:
    return RNG.normal(size=(count, features)).astype(np.float32)


@pytest.mark.parametrize("activation", [None, gk.softmax], ids=["logits", "probabilities"])
def test_classes(activation):
    x, y = rows(101, 6), RNG.integers(0, 4, 101)
    net = linear(6, 4, activation)
    logits = x.astype(np.float64) @ net.params["fc_weight"].T.astype(np.float64) + net.params["fc_bias"]
    found = predict(net, gk.data.Dataset(x, y, classes=list("abcd")), batch_size=16)
    np.testing.assert_allclose(found.loss, -log_softmax(logits, axis=1)[np.arange(101), y], rtol=1e-4)
    np.testing.assert_array_equal(found.predicted, logits.argmax(1))
    np.testing.assert_array_equal(found.index, np.arange(101))
    expected = coo_matrix((np.ones(101), (y, logits.argmax(1))), (4, 4)).toarray()
    np.testing.assert_array_equal(found.confusion, expected)
    assert found.correct == np.trace(expected) / 101
    assert found.classes == ("a", "b", "c", "d")
    assert list(found.worst(5)) == sorted(range(101), key=lambda i: -found.loss[i])[:5]


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_yes_or_no(shape):
    x, y = rows(40, 3), RNG.integers(0, 2, shape)
    net = linear(3, 1)
    score = (x.astype(np.float64) @ net.params["fc_weight"].T.astype(np.float64) + net.params["fc_bias"])[:, 0]
    found = predict(net, gk.data.Dataset(x, y), loss="sigmoid_binary_cross_entropy")
    right = np.where(y.reshape(-1) == 1, expit(score), expit(-score))
    np.testing.assert_allclose(found.loss.reshape(-1), -np.log(right), rtol=1e-4)
    assert found.confusion.sum() == 40
    assert found.correct == np.mean((score > 0) == y.reshape(-1))


def test_whole_numbers_are_classes_or_numbers_as_the_loss_says():
    x, y = rows(30, 3), RNG.integers(0, 5, 30)
    found = predict(linear(3, 1), gk.data.Dataset(x, y), loss="mse")
    assert not found.of_classes
    np.testing.assert_array_equal(found.target, y)
    np.testing.assert_allclose(found.loss, (found.predicted - y) ** 2)


@in_one_item()
@pytest.mark.parametrize(
    ("loss", "of_classes"),
    [
        ("softmax_cross_entropy(class_weights=(1.0, 2.0))", True),
        ("z=mse, y=softmax_cross_entropy(label_smoothing=0.1)", True),
        ("y=mse, z=softmax_cross_entropy", False),
        ("mine", True),
        (None, True),
    ],
)  # fmt: skip
def test_losses_in_the_words_of_a_checkpoint(loss, of_classes):
    x, y = rows(30, 3), RNG.integers(0, 2, (30, 2) if not of_classes else 30)
    assert predict(linear(3, 2), gk.data.Dataset(x, y), loss=loss).of_classes is of_classes


def test_several_numbers_of_a_sample_have_one_error():
    x = rows(10, 3)
    net = linear(3, 2)
    y = rows(10, 2)
    found = predict(net, gk.data.Dataset(x, y))
    np.testing.assert_allclose(found.loss, ((net.run({"x": x})["y"] - y) ** 2).mean(1), rtol=1e-5)
    assert found.target is None


def test_some_of_the_samples():
    data = gk.data.Dataset(rows(100, 3), RNG.integers(0, 2, 100))
    found = predict(linear(3, 2), data, batch_size=8, most=20)
    assert (len(found), found.total) == (24, 100)
    assert list(found.spread(3)) == [0, 11, 23]


def test_a_class_that_the_model_does_not_have():
    with pytest.raises(InputError, match="has 2 classes, numbered from 0, but the targets contain class 7"):
        predict(linear(3, 2), gk.data.Dataset(rows(3, 3), np.array([0, 7, 1])))


def test_what_cannot_be_compared():
    with pytest.raises(
        UsageError, match=r"shape \[3, 2\] and the target float64\[3, 5\]: they can be compared neither"
    ):
        predict(linear(3, 2), gk.data.Dataset(rows(3, 3), np.zeros((3, 5))))
    with pytest.raises(UsageError, match="has no targets"):
        predict(linear(3, 2), gk.data.Dataset(rows(3, 3)))
    with pytest.raises(UsageError, match="no output 'z'"):
        predict(linear(3, 2), gk.data.Dataset(rows(3, 3), np.zeros(3)), output="z")


def test_a_model_that_gives_nan_has_its_samples_first():
    x = gk.input("x", ["N", 2])
    net = gk.Model({"y": gk.log(x)})
    found = predict(net, gk.data.Dataset(np.array([[1, 1], [-1, 1], [1, 2]], np.float32), np.array([0, 1, 0])))
    assert np.isnan(found.loss[1])
    assert found.worst(1)[0] == 1


def test_running_text_is_one_sample_a_token(tmp_path):
    (tmp_path / "book.txt").write_text("abcd" * 200)
    train, test = gk.data.load(f"text:{tmp_path / 'book.txt'}", length=7)
    net = gk.models.build("lstm_lm", vocab=len(train.vocabulary), hidden=8, layers=1, stateful=True)
    found = predict(net, test, output="logits", carry={"h": "last_h", "c": "last_c"}, batch_size=4)
    assert len(found) == len(test) // 4 * 4
    np.testing.assert_array_equal(found.target, test.take(found.index)[1])
    assert found.classes == train.vocabulary.tokens


# --- scores of classes ----------------------------------------------------------------------------------


def test_scores_of_classes():
    confusion = np.array([[3, 1, 0], [0, 4, 0], [2, 0, 0]])
    a, b, c = class_scores(confusion, "abc")
    assert (a.precision, a.recall, a.count, a.predicted) == (3 / 5, 3 / 4, 4, 5)
    assert b.f1 == pytest.approx(2 * (4 / 5) * 1 / (4 / 5 + 1))
    assert np.isnan(c.precision)
    assert (c.recall, c.f1) == (0.0, 0.0)
    assert most_confused(confusion, 5) == [(2, 0, 2), (0, 1, 1)]


# --- pictures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_read_back_by_pillow(channels):
    from PIL import Image

    image = RNG.integers(0, 256, (5, 7, channels)).astype(np.uint8)
    with Image.open(io.BytesIO(encode(image))) as read:
        assert read.mode == ("L" if channels == 1 else "RGB")
        np.testing.assert_array_equal(np.asarray(read).reshape(image.shape), image)


def test_pixels_of_samples():
    np.testing.assert_array_equal(pixels(np.array([[[0.0, 0.5], [1.0, 0.25]]])), [[[0], [128]], [[255], [64]]])
    np.testing.assert_array_equal(pixels(np.array([[[-2.0, 0.0], [2.0, np.nan]]])), [[[0], [128]], [[255], [0]]])
    np.testing.assert_array_equal(pixels(np.full((1, 2, 2), np.nan)), np.zeros((2, 2, 1)))
    np.testing.assert_array_equal(pixels(np.full((1, 2, 2), 7.0)), np.zeros((2, 2, 1)))
    np.testing.assert_array_equal(pixels(np.array([[[-1e308, 1e308]]])), [[[0], [255]]])
    same = RNG.integers(0, 256, (3, 4, 4)).astype(np.uint8)
    np.testing.assert_array_equal(pixels(same), np.moveaxis(same, 0, -1))


def test_what_is_a_picture():
    assert is_picture((1, 8, 8))
    assert is_picture((3, 2, 9))
    assert not any(map(is_picture, [(2, 8, 8), (8, 8), (1, 1, 8), (3,), ()]))


# --- samples that are made when they are asked for --------------------------------------------------------


class Made(gk.data.LazyDataset):
    def sample(self, number, draw):
        generator = np.random.default_rng(number)
        return generator.random((1, 4, 4)).astype(np.float32), np.int64(number % 3)


def test_samples_that_are_made(tmp_path):
    from graphkit.report.samples import shown

    x = gk.input("x", ["N", 1, 4, 4])
    net = gk.Model({"y": gk.nn.linear(gk.flatten(x), 3, name="fc")})
    data = Made(20, classes=["a", "b", "c"])
    found = predict(net, data, batch_size=8)
    arrays = np.stack([data.sample(i, None)[0] for i in range(20)])
    np.testing.assert_array_equal(found.predicted, net.run({"x": arrays})["y"].argmax(1))
    np.testing.assert_array_equal(found.target, np.arange(20) % 3)
    assert shown(found, found.worst(5)).count("data:image/png") == 5
