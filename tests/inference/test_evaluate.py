"""Evaluations agree with formulas written out in numpy, for any batch size, and in both engines."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from scipy.special import expit, log_softmax

import graphkit as gk
from graphkit.errors import InputError, UsageError

RNG = np.random.default_rng(7)
ENGINES = ("graphkit", "onnxruntime")


def linear(features: int, outputs: int, activation=None, batch="N", dtype="float32", meta=None) -> gk.Model:
    x = gk.input("x", [batch, features], dtype=dtype)
    y = gk.nn.linear(x, outputs, name="fc")
    return gk.Model({"y": y if activation is None else activation(y)}, meta=meta)


def rows(count: int, features: int) -> np.ndarray:
    return RNG.normal(scale=2, size=(count, features)).astype(np.float32)


def logits_of(net: gk.Model, x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ net.params["fc_weight"].T.astype(np.float64) + net.params["fc_bias"]


def expected_calibration_error(probability: np.ndarray, correct: np.ndarray) -> float:
    """The formula of Guo et al. (2017), section 2, with loops."""
    error = 0.0
    for m in range(1, 16):
        inside = [i for i, p in enumerate(probability) if (m - 1) / 15 < p <= m / 15]
        if inside:
            error += len(inside) / len(probability) * abs(np.mean(correct[inside]) - np.mean(probability[inside]))
    return error


@in_one_item()
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("activation", [None, gk.softmax], ids=["logits", "probabilities"])
def test_classification_agrees_with_formulas(activation, engine):
    x, y = rows(101, 6), RNG.integers(0, 7, 101)
    net = linear(6, 7, activation)
    found = gk.evaluate(net, (x, y), batch_size=16, engine=engine, worst=5)
    log_p = log_softmax(logits_of(net, x), axis=1)
    predicted, loss = log_p.argmax(1), -log_p[np.arange(101), y]
    confusion = np.zeros((7, 7), np.int64)
    for target, guess in zip(y, predicted, strict=True):
        confusion[target, guess] += 1
    np.testing.assert_array_equal(found.confusion, confusion)
    assert (found.task, found.output, found.engine, found.samples) == ("classification", "y", engine, 101)
    assert list(found.metrics) == ["loss", "accuracy", "f1", "top5"]
    np.testing.assert_allclose(found.metrics["loss"], loss.mean(), rtol=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(np.mean(predicted == y))
    best = np.argsort(-log_p, axis=1)[:, :5]
    assert found.metrics["top5"] == pytest.approx(np.mean([t in b for t, b in zip(y, best, strict=True)]))
    hits, seen, given = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    for i, score in enumerate(found.class_scores):
        assert (score.name, score.count, score.predicted) == (str(i), given[i], seen[i])
        assert score.recall == pytest.approx(hits[i] / given[i])
        assert score.precision == pytest.approx(hits[i] / seen[i], nan_ok=True)
        assert score.f1 == pytest.approx(2 * hits[i] / (given[i] + seen[i]))
    assert found.metrics["f1"] == pytest.approx(np.mean(2 * hits / (given + seen)))
    probability = np.exp(log_p.max(1))
    assert found.calibration_error == pytest.approx(expected_calibration_error(probability, predicted == y), rel=1e-5)
    assert found.calibration.count.sum() == 101
    order = np.argsort(-loss, kind="stable")[:5]
    assert [s.index for s in found.worst] == list(order)
    for sample, i in zip(found.worst, order, strict=True):
        assert (sample.target, sample.predicted, sample.name) == (str(y[i]), str(predicted[i]), None)
        assert (sample.loss, sample.probability) == pytest.approx((loss[i], probability[i]), rel=1e-4)


@in_one_item()
@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_])
@pytest.mark.parametrize("activation", [None, gk.sigmoid], ids=["logits", "probabilities"])
def test_binary_classification_agrees_with_formulas(activation, kind):
    x, y = rows(50, 3), RNG.integers(0, 2, 50)
    net = linear(3, 1, activation)
    found = gk.evaluate(net, (x, y.astype(kind)), batch_size=7)
    score = logits_of(net, x)[:, 0]
    right = np.where(y == 1, expit(score), expit(-score))
    predicted = (score > 0).astype(int)
    pairs = [(a > b) + 0.5 * (a == b) for a in score[y == 1] for b in score[y == 0]]
    assert found.task == "binary classification"
    np.testing.assert_allclose(found.metrics["loss"], -np.log(right).mean(), rtol=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(np.mean(predicted == y))
    assert found.metrics["auc"] == pytest.approx(np.mean(pairs))
    hits = np.sum(predicted * y)
    assert found.metrics["f1"] == pytest.approx(2 * hits / (predicted.sum() + y.sum()))
    np.testing.assert_array_equal(
        found.confusion, [[np.sum((y == t) & (predicted == p)) for p in (0, 1)] for t in (0, 1)]
    )
    probability = np.maximum(expit(score), expit(-score))
    assert found.calibration_error == pytest.approx(expected_calibration_error(probability, predicted == y), rel=1e-4)


@in_one_item()
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_agrees_with_formulas(outputs, engine):
    x, y = rows(41, 4), RNG.normal(size=(41, outputs)).astype(np.float32)
    net = linear(4, outputs)
    found = gk.evaluate(net, (x, y), batch_size=8, engine=engine)
    error = logits_of(net, x) - y
    assert found.task == "regression"
    assert found.metrics["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert found.metrics["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert found.metrics["mae"] == pytest.approx(np.mean(np.abs(error)), rel=1e-5)
    assert (found.confusion, found.calibration, found.class_scores) == (None, None, [])
    each = np.mean(error**2, axis=1)
    assert [s.index for s in found.worst] == list(np.argsort(-each, kind="stable")[:10])
    assert (found.worst[0].target is None) is (outputs > 1)
    assert (found.pairs is None) is (outputs > 1)


def test_multi_label_loss():
    x, y = rows(30, 4), RNG.integers(0, 2, (30, 5))
    net = linear(4, 5)
    found = gk.evaluate(net, (x, y), batch_size=8)
    z = logits_of(net, x)
    assert found.task == "multi-label"
    assert list(found.metrics) == ["loss"]
    assert found.metrics["loss"] == pytest.approx(np.mean(np.logaddexp(0, z) - y * z), rel=1e-5)


@pytest.mark.parametrize("axis", [1, 3])
def test_segmentation_counts_every_pixel(axis):
    shape = ["N", 4, 5, 5] if axis == 1 else ["N", 5, 5, 4]
    x = gk.input("x", shape)
    net = gk.Model({"y": gk.mul(x, np.float32(3))})
    scores, y = RNG.normal(size=(9, 5, 5, 4)).astype(np.float32), RNG.integers(0, 4, (9, 5, 5))
    given = np.ascontiguousarray(np.moveaxis(scores, -1, axis))
    found = gk.evaluate(net, (given, y), batch_size=4)
    log_p = log_softmax(3.0 * scores.astype(np.float64), axis=-1)
    loss = -np.take_along_axis(log_p, y[..., None], -1)[..., 0]
    assert found.metrics["loss"] == pytest.approx(loss.mean(), rel=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(np.mean(log_p.argmax(-1) == y))
    assert (found.samples, found.confusion.sum(), found.calibration.count.sum()) == (9, y.size, y.size)
    assert [s.index for s in found.worst] == list(np.argsort(-loss.mean((1, 2)), kind="stable"))
    assert found.worst[0].target is None


def test_binary_mask_counts_every_pixel():
    net = gk.Model({"y": gk.sigmoid(gk.input("x", ["N", 1, 4, 4]))})
    x, y = RNG.normal(size=(5, 1, 4, 4)).astype(np.float32), RNG.integers(0, 2, (5, 1, 4, 4))
    found = gk.evaluate(net, (x, y), batch_size=2)
    assert found.metrics["accuracy"] == pytest.approx(np.mean((x > 0) == y))
    assert found.confusion.sum() == 80


def test_one_hot_rows_are_classes():
    x, y = rows(20, 3), RNG.integers(0, 4, 20)
    net = linear(3, 4)
    given = gk.evaluate(net, (x, np.eye(4, dtype=np.float32)[y]), batch_size=6)
    expected = gk.evaluate(net, (x, y), batch_size=6)
    assert given.metrics == expected.metrics
    np.testing.assert_array_equal(given.confusion, expected.confusion)


@in_one_item()
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 8])
def test_padding_of_a_fixed_batch_never_counts(tmp_path, size, engine):
    x, y = rows(19, 3), RNG.integers(0, 4, 19)
    free, fixed = linear(3, 4), linear(3, 4, batch=size)
    fixed.params.update(dict(free.params.items()))
    fixed.save(tmp_path / "fixed.onnx")
    expected = gk.evaluate(free, (x, y))
    for batch_size in (64, 8, 5):
        found = gk.evaluate(tmp_path / "fixed.onnx", (x, y), batch_size=batch_size, engine=engine)
        assert found.samples == 19
        assert dict(found.metrics) == pytest.approx(dict(expected.metrics), rel=1e-5)
        np.testing.assert_array_equal(found.confusion, expected.confusion)
        assert [s.index for s in found.worst] == [s.index for s in expected.worst]


def test_onnxruntime_runs_the_file_itself(tmp_path):
    x, y = rows(40, 3), RNG.integers(0, 4, 40)
    net, other = linear(3, 4), linear(3, 4)
    other.params["fc_weight"] = -net.params["fc_weight"]
    other.save(tmp_path / "other.onnx")
    expected = gk.evaluate(other, (x, y)).metrics["loss"]
    assert gk.evaluate(net, (x, y)).metrics["loss"] != pytest.approx(expected, rel=0.01)
    found = gk.evaluate(net, (x, y), engine="onnxruntime", file=tmp_path / "other.onnx")
    assert found.metrics["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(UsageError, match="runs on the CPU only"):
        gk.evaluate(net, (x, y), engine="onnxruntime", device="cuda")


@in_one_item()
@pytest.mark.parametrize(
    "loss",
    [
        "softmax_cross_entropy",
        gk.losses.get("softmax_cross_entropy", label_smoothing=0.1),
        gk.losses.get("softmax_cross_entropy", class_weights=[1, 5, 0.5, 2]),
    ],
    ids=str,
)
def test_loss_and_metrics_are_those_of_the_trainer(loss):
    x, y = rows(50, 3), RNG.integers(0, 4, 50)
    net = linear(3, 4)
    names = ["loss", "accuracy", "top2", "perplexity", "f1"]
    expected = gk.Trainer(net, loss, gk.optim.SGD(0.1)).evaluate((x, y), names, batch_size=16)
    found = gk.evaluate(net, (x, y), loss=loss, metrics=names, batch_size=16)
    assert dict(found.metrics) == pytest.approx(expected, rel=1e-6)
    assert found.loss == str(loss)


def test_running_text_with_recurrent_state():
    vocabulary = gk.data.Vocabulary.build(["abcd" * 30], "char")
    data = gk.data.TokenStream(RNG.integers(0, len(vocabulary), 200), vocabulary, length=9)
    net = gk.models.build("lstm_lm", vocab=len(vocabulary), hidden=5, layers=1, stateful=True)
    carry = dict(zip(net.inputs[1:], net.outputs[1:], strict=True))
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), output=net.outputs[0], carry=carry)
    expected = trainer.evaluate(data, ["loss", "accuracy"], batch_size=4)
    found = gk.evaluate(net, data, metrics=["accuracy"], batch_size=4, carry=carry, output=net.outputs[0])
    assert dict(found.metrics) == pytest.approx(expected, rel=1e-5)
    assert found.samples == found.confusion.sum() == 196
    assert found.classes == tuple(vocabulary.tokens)
    assert all(found.worst[0].loss >= s.loss for s in found.worst)
    x, y = (np.asarray(a)[found.worst[0].index] for a in (data.arrays["x"], data.targets))
    assert (found.worst[0].target, 0 <= x < len(vocabulary)) == (vocabulary.tokens[y], True)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_models_take_float32_data(dtype):
    x, y = rows(20, 3), RNG.integers(0, 4, 20)
    net = linear(3, 4, dtype=np.dtype(dtype).name)
    found = gk.evaluate(net, (x, y), batch_size=6)
    scores = np.asarray(net.run({"x": x.astype(dtype)})["y"]).astype(np.float64)
    loss = -log_softmax(scores, axis=1)[np.arange(20), y]
    assert found.metrics["loss"] == pytest.approx(loss.mean(), rel=1e-5)


def test_inputs_are_converted_only_if_their_numbers_fit():
    ids = gk.input("x", ["N", 3], dtype="int32")
    net = gk.Model({"y": gk.cast(ids, to="float32")})
    given = RNG.integers(0, 9, (8, 3))
    expected = -log_softmax(given.astype(np.float64), axis=1)[:, 0].mean()
    assert gk.evaluate(net, (given, np.zeros(8, np.int64))).metrics["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match=r"'x' is int32.*cannot represent"):
        gk.evaluate(net, (given + 2**40, np.zeros(8, np.int64)))
    with pytest.raises(InputError, match="cannot represent"):
        gk.evaluate(linear(3, 4, dtype="float16"), (rows(8, 3) * np.float32(1e9), np.zeros(8, np.int64)))


@pytest.mark.parametrize("engine", ENGINES)
def test_maps_of_probabilities_are_classes(tmp_path, engine):
    zipped = helper.make_node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    nodes = [
        helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
        helper.make_node("Softmax", ["x"], ["p"]),
        zipped,
    ]
    element = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]),
        helper.make_value_info("z", helper.make_sequence_type_proto(element)),
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    x, y = rows(23, 3), RNG.integers(0, 3, 23)
    found = gk.evaluate(tmp_path / "m.onnx", (x, y), batch_size=10, engine=engine)
    assert found.output == "z"
    expected = -log_softmax(x.astype(np.float64), axis=1)[np.arange(23), y]
    assert found.metrics["loss"] == pytest.approx(expected.mean(), rel=1e-5)


def test_probabilities_are_recognised_by_their_values():
    net = gk.Model({"y": gk.mul(gk.input("x", ["N", 3]), np.float32(1))})
    p = RNG.dirichlet([1, 1, 1], 30).astype(np.float32)
    y = RNG.integers(0, 3, 30)
    expected = -np.log(p[np.arange(30), y].astype(np.float64)).mean()
    assert gk.evaluate(net, (p, y)).metrics["loss"] == pytest.approx(expected, rel=1e-4)
    as_logits = -log_softmax(p.astype(np.float64), axis=1)[np.arange(30), y].mean()
    assert gk.evaluate(net, (p, y), probabilities=False).metrics["loss"] == pytest.approx(as_logits, rel=1e-5)


def test_logits_that_look_like_probabilities_at_first_are_an_error():
    net = gk.Model({"y": gk.mul(gk.input("x", ["N", 2]), np.float32(1))})
    data = (np.array([[0.25, 0.75], [3, -1]], np.float32), np.array([0, 1]))
    with pytest.raises(InputError, match="not in all batches"):
        gk.evaluate(net, data, batch_size=1)
    expected = np.mean([np.log1p(np.exp(0.5)), np.log1p(np.exp(4.0))])
    for options in ({"probabilities": False, "batch_size": 1}, {}):
        assert gk.evaluate(net, data, **options).metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_probability_of_zero_has_a_finite_loss():
    net = gk.Model({"y": gk.mul(gk.input("x", ["N", 2]), np.float32(1))})
    found = gk.evaluate(net, (np.array([[1, 0], [0.5, 0.5]], np.float32), np.array([1, 0])))
    assert found.metrics["loss"] == pytest.approx((-np.log(np.finfo(np.float32).tiny) + np.log(2)) / 2, rel=1e-5)


def test_nan_is_counted_and_comes_first():
    net = gk.Model({"y": gk.log(gk.input("x", ["N", 3]))})
    x = RNG.uniform(0.1, 1, (10, 3)).astype(np.float32)
    x[4, 1] = -1
    found = gk.evaluate(net, (x, np.zeros(10, np.int64)), batch_size=4)
    assert (found.nonfinite, found.worst[0].index) == (1, 4)
    assert np.isnan(found.metrics["loss"])
    assert np.isnan(found.calibration_error)
    assert found.calibration.count.sum() == 9


def test_worst_samples_are_few_and_ordered_by_position():
    x = np.zeros((30, 2), np.float32)
    found = gk.evaluate(linear(2, 2), (x, np.zeros(30, np.int64)), batch_size=4, worst=3)
    assert [s.index for s in found.worst] == [0, 1, 2]
    assert gk.evaluate(linear(2, 2), (x, np.zeros(30, np.int64)), worst=0).worst == ()


def test_a_metric_of_the_user():
    class Count:
        name = "count"

        def reset(self):
            self.value = 0

        def update(self, output, target):
            self.value += len(target)

    found = gk.evaluate(linear(2, 3), (rows(11, 2), np.zeros(11, np.int64)), metrics=[Count()], batch_size=4)
    assert found.metrics["count"] == 11


def test_damaged_samples_that_are_replaced_are_noted():
    class Damaged(gk.data.LazyDataset):
        def sample(self, number, draw):
            if number == 2:
                raise gk.errors.DamagedSample("sample 2 is damaged")
            return np.full(2, number, np.float32), None

    data = Damaged(7, np.arange(7) % 3)
    with pytest.raises(InputError, match="sample 2 is damaged"):
        gk.evaluate(linear(2, 3), data)
    with pytest.warns(gk.GraphkitWarning, match="replaced"):
        found = gk.evaluate(linear(2, 3), data.configured(on_damaged="skip"), batch_size=3)
    assert found.notes == ("1 damaged sample replaced by the next readable one, which therefore counts twice",)
    assert found.samples == 7


CLASSES = {"classes": '["ant", "bee", "cat"]'}


def test_classes_are_matched_by_name():
    net = linear(2, 3, meta=CLASSES)
    x, y = rows(20, 2), RNG.integers(0, 3, 20)
    expected = gk.evaluate(net, gk.data.Dataset(x, y, classes=["ant", "bee", "cat"]))
    other = gk.data.Dataset(x, (2 - y), classes=["cat", "bee", "ant"])
    found = gk.evaluate(net, other)
    np.testing.assert_array_equal(found.confusion, expected.confusion)
    assert found.classes == ("ant", "bee", "cat")
    assert "cat, bee, ant" in found.notes[0]
    assert "ant, bee, cat" in found.notes[0]
    assert expected.notes == ()
    few = gk.evaluate(net, gk.data.Dataset(x, np.zeros(20, np.int64), classes=["bee"]))
    assert few.confusion[1].sum() == 20


def test_unknown_classes_are_an_error_that_names_both():
    x, y = rows(20, 2), RNG.integers(0, 3, 20)
    with pytest.raises(InputError, match=r"no class 'dog'.*ant, bee, dog.*ant, bee, cat"):
        gk.evaluate(linear(2, 3, meta=CLASSES), gk.data.Dataset(x, y, classes=["ant", "bee", "dog"]))
    with pytest.raises(InputError, match=r"2 classes \(ant, bee\).*'y'.*has 3; .*have no class names"):
        gk.evaluate(linear(2, 3), gk.data.Dataset(x, y % 2, classes=["ant", "bee"]))
    with pytest.raises(InputError, match="contain 5"):
        gk.evaluate(linear(2, 3), (x, np.full(20, 5)))


def test_data_that_cannot_be_compared():
    x = rows(20, 2)
    with pytest.raises(InputError, match="has no targets"):
        gk.evaluate(linear(2, 3), gk.data.Dataset(x))
    with pytest.raises(InputError, match="there were no data"):
        gk.evaluate(linear(2, 3), lambda: iter([]))
    with pytest.raises(UsageError, match=r"no output of 'model' can be compared.*y float32\[20, 3\].*float32\[20, 4\]"):
        gk.evaluate(linear(2, 3), (x, rows(20, 4)))
    with pytest.raises(UsageError, match="loss must be a name"):
        gk.evaluate(linear(2, 3), (x, np.zeros(20, np.int64)), loss=lambda *_: None)
    target = np.eye(3, dtype=np.float32)[RNG.integers(0, 3, 20)]
    batches = [(x[:10], target[:10]), (x[10:], target[10:] * 2)]
    with pytest.raises(InputError, match="one-hot rows in the first batch"):
        gk.evaluate(linear(2, 3), lambda: iter(batches))


def test_several_outputs_need_a_choice():
    x = gk.input("x", ["N", 2])
    net = gk.Model(
        {"a": gk.nn.linear(x, 3, name="f"), "b": gk.nn.linear(x, 3, name="g"), "c": gk.nn.linear(x, 1, name="h")}
    )
    inputs, y = rows(20, 2), RNG.integers(0, 3, 20)
    with pytest.raises(UsageError, match=r"'a' and 'b'.*--output-name"):
        gk.evaluate(net, (inputs, y))
    assert gk.evaluate(net, (inputs, y), output="b").output == "b"
    assert gk.evaluate(net, (inputs, {"a": y})).output == "a"
    assert gk.evaluate(net, (inputs, y), loss="mse", output="c").task == "regression"
    with pytest.raises(UsageError, match="no output 'd'"):
        gk.evaluate(net, (inputs, y), output="d")


def test_several_inputs_and_an_axis_that_counts_samples():
    a, b = gk.input("a", [2, 3]), gk.input("b", [3, 2, 4])
    net = gk.Model({"y": gk.concat([a, gk.reduce_sum(b, np.array([0], np.int64), keepdims=False)], axis=1)})
    first, second = rows(7, 3), RNG.normal(size=(3, 7, 4)).astype(np.float32)
    data = gk.data.Dataset({"a": first, "b": second}, RNG.integers(0, 7, 7), axes={"b": 1})
    found = gk.evaluate(net, data)
    scores = np.concatenate([first, second.sum(0)], axis=1).astype(np.float64)
    expected = -log_softmax(scores, axis=1)[np.arange(7), data.targets]
    assert found.metrics["loss"] == pytest.approx(expected.mean(), rel=1e-5)


def test_different_fixed_batch_sizes_are_an_error():
    a, b = gk.input("a", [2, 3]), gk.input("b", [4, 3])
    net = gk.Model({"y": gk.concat([a, b], axis=0)})
    with pytest.raises(UsageError, match="a has 2, b has 4"):
        gk.evaluate(net, ({"a": rows(8, 3), "b": rows(8, 3)}, np.zeros(8, np.int64)))
