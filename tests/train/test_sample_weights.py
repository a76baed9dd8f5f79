"""`sample_weight`: the loss is sum(w * l) / sum(w) over batches, accumulated batches, epochs and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, RanksDiffer, RuntimeFailure, UsageError

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((24, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 4, 24)
WEIGHTS = RNG.standard_normal((3, 4)).astype(np.float32)
# Uneven weights; a whole batch of 6 (samples 6 to 11) has weight 0.
SAMPLE = np.concatenate([RNG.random(6), np.zeros(6), RNG.random(12) * 10]).astype(np.float32)
CLASS_WEIGHTS = [1.0, 2.0, 3.0, 40.0]


def numeric(loss, targets, weights, classes_factor=None):
    """The weighted mean loss and its gradient by the weights of the network, by central differences in float64."""

    def value(w):
        each = loss(INPUTS.astype(np.float64) @ w, targets)
        factors = np.ones(len(each)) if classes_factor is None else np.asarray(classes_factor)[targets]
        return (weights * factors * each).sum() / (weights * factors).sum()

    w, gradient = WEIGHTS.astype(np.float64), np.zeros((3, 4))
    for at in np.ndindex(3, 4):
        step = np.zeros((3, 4))
        step[at] = 1e-6
        gradient[at] = (value(w + step) - value(w - step)) / 2e-6
    return value(w), gradient


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FLOATS = RNG.random((24, 4)).astype(np.float32)
SHARES = (FLOATS / FLOATS.sum(1, keepdims=True)).astype(np.float32)
T64, S64 = FLOATS.astype(np.float64), SHARES.astype(np.float64)
ROWS = np.arange(24)


def bce(x, t):
    return -(t * np.log(sigmoid(x)) + (1 - t) * np.log(1 - sigmoid(x)))


def huber(x, t):
    d = np.abs(x - t)
    return np.where(d <= 1, d * d / 2, d - 0.5)


def sigmoid_focal(x, t):
    p = sigmoid(x)
    hit = p * t + (1 - p) * (1 - t)
    return (0.25 * t + 0.75 * (1 - t)) * (1 - hit) ** 2 * bce(x, t)


# Name of the loss -> its options, targets, and the loss of each sample in float64.
LOSSES: dict[str, tuple[dict[str, Any], np.ndarray, Any]] = {
    "softmax_cross_entropy": ({}, CLASSES, lambda y, t: -log_softmax(y)[ROWS, t]),
    "focal": (
        {}, CLASSES, lambda y, t: -((1 - np.exp(log_softmax(y)[ROWS, t])) ** 2) * log_softmax(y)[ROWS, t],
    ),
    "mse": ({}, FLOATS, lambda y, t: ((y - T64) ** 2).mean(1)),
    "l1": ({}, FLOATS, lambda y, t: np.abs(y - T64).mean(1)),
    "huber": ({}, FLOATS, lambda y, t: huber(y, T64).mean(1)),
    "sigmoid_binary_cross_entropy": ({}, FLOATS, lambda y, t: bce(y, T64).mean(1)),
    "sigmoid_focal": ({}, FLOATS, lambda y, t: sigmoid_focal(y, T64).mean(1)),
    "categorical_cross_entropy": ({}, SHARES, lambda y, t: -(S64 * log_softmax(y)).sum(1)),
    "kl_divergence": ({}, SHARES, lambda y, t: (S64 * (np.log(S64) - log_softmax(y))).sum(1)),
    "dice": (
        {}, FLOATS,
        lambda y, t: 1 - (2 * (sigmoid(y) * T64).sum(1) + 1) / (sigmoid(y).sum(1) + T64.sum(1) + 1),
    ),
}  # fmt: skip


def trainer(loss: Any = "softmax_cross_entropy", rate: float = 1.0, **options: Any) -> gk.Trainer:
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3]), gk.parameter("w", [3, 4]))}, name="net")
    net.params["w"] = WEIGHTS.copy()
    return gk.Trainer(net, loss, gk.optim.SGD(rate), threads=1, seed=1, **options)


def gradient_of(made: gk.Trainer) -> np.ndarray:
    return WEIGHTS - np.array(made.net.params["w"])


def test_every_named_loss_is_checked():
    assert set(LOSSES) <= set(gk.losses.names())
    assert set(gk.losses.names()) - set(LOSSES) <= {"ctc", "contrastive", "triplet"}


# The other losses average in the same way.
FAST = ("softmax_cross_entropy", "mse", "dice")


@in_one_item()
@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.full) for name in LOSSES if name not in FAST)]
)
def test_weighted_step_has_the_weighted_mean_and_gradient(name):
    options, targets, each = LOSSES[name]
    value, gradient = numeric(each, targets, SAMPLE.astype(np.float64))
    made = trainer(gk.losses.get(name, **options))
    np.testing.assert_allclose(float(made.step(INPUTS, targets, SAMPLE)), value, rtol=1e-5)
    np.testing.assert_allclose(gradient_of(made), gradient, rtol=2e-4, atol=1e-6)
    weighted = made.evaluate((INPUTS, targets), ["loss"], batch_size=7, sample_weight=SAMPLE)["loss"]
    again = trainer(gk.losses.get(name, **options), rate=0.0)
    again.net.params["w"] = np.array(made.net.params["w"])
    np.testing.assert_allclose(weighted, float(again.step(INPUTS, targets, SAMPLE)), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [None, 0.2])
def test_class_weights_ignored_targets_and_sample_weights_multiply(smoothing):
    """The loss equals that of a data set in which each sample is repeated as often as its weight says."""
    times = np.array([0, 1, 2, 3] * 6)
    classes = CLASSES.copy()
    classes[:5] = -1
    loss = gk.losses.get(
        "softmax_cross_entropy", class_weights=CLASS_WEIGHTS, ignore_index=-1, label_smoothing=smoothing
    )
    made, repeated = trainer(loss), trainer(loss)
    value = float(made.step(INPUTS, classes, times))
    np.testing.assert_allclose(
        value, float(repeated.step(np.repeat(INPUTS, times, 0), np.repeat(classes, times))), rtol=1e-5
    )
    np.testing.assert_allclose(gradient_of(made), gradient_of(repeated), rtol=1e-4, atol=1e-6)


def test_steps_of_a_sequence_have_the_weight_of_their_sample():
    x = RNG.standard_normal((6, 5, 3)).astype(np.float32)
    classes, times = RNG.integers(0, 4, (6, 5)), np.array([0, 1, 2, 3, 1, 1])

    def step(rows, times=None):
        net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", "T", 3]), gk.parameter("w", [3, 4]))}, name="net")
        net.params["w"] = WEIGHTS.copy()
        made = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(1.0), threads=1)
        return float(made.step(x[rows], classes[rows], times)), gradient_of(made)

    for weighted, repeated in zip(step(slice(None), times), step(np.repeat(np.arange(6), times)), strict=True):
        np.testing.assert_allclose(weighted, repeated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [6, 7, *(pytest.param(n, marks=pytest.mark.full) for n in (24, 5))])
def test_mean_over_accumulated_batches_is_weighted(batch):
    """The last batch is shorter, and with 6 one batch has only weights 0."""
    _, targets, each = LOSSES["softmax_cross_entropy"]
    value, gradient = numeric(each, targets, SAMPLE.astype(np.float64))
    made = trainer(accumulate=-(-24 // batch))
    history = made.fit(
        (INPUTS, targets), (INPUTS, targets, SAMPLE), batch_size=batch, sample_weight=SAMPLE, metrics=["accuracy"],
    )  # fmt: skip
    assert made.updates == 1
    np.testing.assert_allclose(history[0]["loss"], value, rtol=1e-5)
    np.testing.assert_allclose(gradient_of(made), gradient, rtol=2e-4, atol=1e-6)
    after = trainer(rate=0.0)
    after.net.params["w"] = np.array(made.net.params["w"])
    np.testing.assert_allclose(history[0]["valid_loss"], float(after.step(INPUTS, targets, SAMPLE)), rtol=1e-5)
    unweighted = made.evaluate((INPUTS, targets), ["loss"])["loss"]
    np.testing.assert_allclose(unweighted, float(after.step(INPUTS, targets)), rtol=1e-5)
    assert history[0]["valid_loss"] != pytest.approx(unweighted, rel=1e-3)


@pytest.mark.parametrize(
    ("accumulate", "batch"), [(3, 5), *(pytest.param(*n, marks=pytest.mark.full) for n in ((1, 12), (6, 2)))]
)
def test_mean_over_ranks_is_weighted(on_ranks, accumulate, batch):
    """Ranks have uneven parts; of the batches of 4 samples, some have weight 0 on one rank, or on both."""
    _, targets, each = LOSSES["softmax_cross_entropy"]
    value, gradient = numeric(each, targets, SAMPLE.astype(np.float64))

    def work(store):
        made = trainer(kvstore=store, accumulate=accumulate)
        history = made.fit((INPUTS, targets), batch_size=batch, sample_weight=SAMPLE)
        return history[0]["loss"], gradient_of(made), made.updates

    for loss, found, updates in on_ranks(work):
        assert updates == 1
        np.testing.assert_allclose(loss, value, rtol=1e-5)
        np.testing.assert_allclose(found, gradient, rtol=2e-4, atol=1e-6)


def test_one_rank_without_samples_or_weight(on_ranks):
    _, targets, each = LOSSES["softmax_cross_entropy"]
    value, gradient = numeric(each, targets, SAMPLE.astype(np.float64))

    def work(store, rows):
        made = trainer(kvstore=store)
        part = slice(*rows[store.rank])
        return float(made.step(INPUTS[part], targets[part], SAMPLE[part])), gradient_of(made)

    for rows in (((0, 24), (24, 24)), ((0, 6), (6, 24))):
        for loss, found in on_ranks(lambda store, rows=rows: work(store, rows)):
            np.testing.assert_allclose(loss, value, rtol=1e-5)
            np.testing.assert_allclose(found, gradient, rtol=2e-4, atol=1e-6)


def test_weights_on_one_rank_only_are_an_error(on_ranks):
    def work(store):
        made = trainer(kvstore=store)
        with pytest.raises(RanksDiffer, match="sample_weight"):
            made.fit((INPUTS, CLASSES), batch_size=6, sample_weight=SAMPLE if store.rank else None)
        return made.updates

    assert on_ranks(work) == [0, 0]


def test_batch_of_weight_zero_changes_nothing():
    made = trainer()
    assert float(made.step(INPUTS[:4], CLASSES[:4], np.zeros(4))) == 0.0
    assert not gradient_of(made).any()
    assert made.updates == 1


def test_whole_data_of_weight_zero_is_an_error():
    made = trainer()
    with pytest.raises(InputError, match="all weights of train are 0"):
        made.fit((INPUTS, CLASSES), sample_weight=np.zeros(24))


def test_steps_without_weights_weigh_one():
    made, plain = trainer(), trainer()
    made.step(INPUTS, CLASSES, np.ones(24))
    plain.step(INPUTS, CLASSES)
    first, second = float(made.step(INPUTS, CLASSES)), float(plain.step(INPUTS, CLASSES))
    np.testing.assert_allclose(first, second, rtol=1e-6)
    np.testing.assert_allclose(gradient_of(made), gradient_of(plain), rtol=1e-5)


def dropout_trainer(**options):
    x = gk.input("x", ["N", 3])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    net = gk.Model({"y": gk.nn.linear(h, 4, name="fc2")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=gk.optim.Adam(1e-2), seed=3, threads=1, **options)


def same_bits(a, b):
    assert a.updates == b.updates
    assert all(a.net.params[n].tobytes() == b.net.params[n].tobytes() for n in a.net.params)
    assert all(a._stepper.slots[n].tobytes() == b._stepper.slots[n].tobytes() for n in a._stepper.slots)
    assert a.executor.rng == b.executor.rng


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2, "ema": 0.9},
        *(pytest.param(each, marks=pytest.mark.full) for each in [{}, {"mixup": 0.4}, {"precision": "bf16"}]),
    ],
)
def test_resume_is_bit_identical(tmp_path, options):
    fit = {"batch_size": 5, "sample_weight": SAMPLE, "metrics": ["accuracy"]}
    valid = (INPUTS, CLASSES, SAMPLE)
    whole = dropout_trainer(**options)
    straight = whole.fit((INPUTS, CLASSES), valid, epochs=3, **fit)
    dropout_trainer(**options).fit((INPUTS, CLASSES), valid, max_steps=2, folder=tmp_path, **fit)
    last = dropout_trainer(**options)
    last.resume(tmp_path)
    assert last.fit((INPUTS, CLASSES), valid, epochs=3, **fit) == straight
    same_bits(whole, last)


def test_weights_after_steps_without_keep_all_states():
    """The first weighted step makes new programs. Optimizer states, random state and averages continue."""
    made, plain = dropout_trainer(ema=0.9), dropout_trainer(ema=0.9)
    for _ in range(3):
        made.step(INPUTS, CLASSES)
        plain.step(INPUTS, CLASSES)
    made.step(INPUTS, CLASSES, np.ones(24))
    plain.step(INPUTS, CLASSES)
    assert made.updates == plain.updates
    assert made.executor.rng == plain.executor.rng
    for name in made._stepper.slots:
        np.testing.assert_allclose(made._stepper.slots[name], plain._stepper.slots[name], rtol=1e-5, atol=1e-7)
    for name, array in made.net.params.items():
        np.testing.assert_allclose(array, plain.net.params[name], rtol=1e-5, atol=1e-6)


def test_mixup_mixes_weights():
    """Both samples of a pair count by their shares and by their own weights."""
    made = trainer(mixup=0.5, rate=0.0)
    found = float(made.step(INPUTS, CLASSES, SAMPLE))
    mixed = made._mixing.mixed({"x": INPUTS}, {"target": CLASSES, "w": SAMPLE}, None, (made.seed, 0, 0, 0, 0))
    share, scores = mixed["mix"], log_softmax(mixed["x"].astype(np.float64) @ WEIGHTS)
    top = share * (mixed["w"] * -scores[ROWS, mixed["target"]]).sum()
    top += (1 - share) * (mixed["w_second"] * -scores[ROWS, mixed["target_second"]]).sum()
    weight = share * mixed["w"].sum() + (1 - share) * mixed["w_second"].sum()
    np.testing.assert_allclose(found, top / weight, rtol=1e-5)


def test_several_outputs_share_the_weights():
    x = gk.input("x", ["N", 3])
    net = gk.Model({"kind": gk.nn.linear(x, 4, name="a"), "size": gk.nn.linear(x, 1, name="b")}, seed=0)
    losses = {"kind": "softmax_cross_entropy", "size": "mse"}
    targets = {"kind": CLASSES, "size": FLOATS[:, :1]}
    made = gk.Trainer(net, losses, gk.optim.SGD(0.0), loss_weights={"size": 0.5}, threads=1)
    kind, size = (gk.Trainer(net, losses[n], gk.optim.SGD(0.0), output=n, threads=1) for n in losses)
    expected = float(kind.step(INPUTS, CLASSES, SAMPLE)) + 0.5 * float(size.step(INPUTS, FLOATS[:, :1], SAMPLE))
    np.testing.assert_allclose(float(made.step(INPUTS, targets, SAMPLE)), expected, rtol=1e-5)
    loss = made.fit((INPUTS, targets), batch_size=5, sample_weight=SAMPLE)[0]["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_output_called_sample_weight_is_another_thing():
    x = gk.input("x", ["N", 3])
    net = gk.Model({"sample_weight": gk.nn.linear(x, 1, name="a"), "size": gk.nn.linear(x, 1, name="b")}, seed=0)
    targets = {"sample_weight": FLOATS[:, :1], "size": FLOATS[:, 1:2]}
    made = gk.Trainer(net, dict.fromkeys(targets, "mse"), gk.optim.SGD(0.0), threads=1)
    plain = float(made.step(INPUTS, targets))
    np.testing.assert_allclose(float(made.step(INPUTS, targets, np.ones(24))), plain, rtol=1e-6)
    assert float(made.step(INPUTS, targets, SAMPLE)) != pytest.approx(plain, rel=1e-3)


def test_input_called_sample_weight_is_another_thing():
    given = gk.input("sample_weight", ["N", 3])
    net = gk.Model({"y": gk.mat_mul(given, gk.parameter("w", [3, 4]))}, name="net")
    net.params["w"] = WEIGHTS.copy()
    made = gk.Trainer(net, optimizer=gk.optim.SGD(0.0), threads=1)
    expected = float(trainer(rate=0.0).step(INPUTS, CLASSES, SAMPLE))
    np.testing.assert_allclose(float(made.step({"sample_weight": INPUTS}, CLASSES, SAMPLE)), expected, rtol=1e-6)
    found = made.fit(({"sample_weight": INPUTS}, CLASSES), sample_weight=SAMPLE, batch_size=7)
    np.testing.assert_allclose(found[0]["loss"], expected, rtol=1e-5)


def test_float16_sums_are_float32():
    """The total weight of 4,200 samples of weight 40 overflows in float16."""
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3], "float16"), gk.parameter("w", [3, 4], dtype="float16"))})
    net.params["w"] = WEIGHTS.astype(np.float16)
    for loss in ("softmax_cross_entropy", "mse"):
        targets = CLASSES if loss == "softmax_cross_entropy" else FLOATS.astype(np.float16)
        made = gk.Trainer(net, loss, gk.optim.SGD(0.0), threads=1)
        x, y = np.tile(INPUTS, (175, 1)).astype(np.float16), np.concatenate([targets] * 175)
        found = float(made.step(x, y, np.full(4200, 40.0)))
        np.testing.assert_allclose(found, float(made.step(x, y)), rtol=2e-3)


# --- where weights come from ---------------------------------------------------------------------------


class Samples:
    """A map-style data set whose samples contain their weights."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return {"x": INPUTS[i], "target": CLASSES[i], "weight": SAMPLE[i]}


def test_weights_by_name_come_from_arrays_samples_and_iterables():
    def items():
        for i in range(0, 24, 5):
            rows = slice(i, i + 5)
            yield INPUTS[rows], {"target": CLASSES[rows], "weight": SAMPLE[rows]}

    arrays = gk.data.Dataset({"x": INPUTS, "weight": SAMPLE}, CLASSES)
    expected = float(trainer(rate=0.0).step(INPUTS, CLASSES, SAMPLE))
    for data in (arrays, (INPUTS, {"target": CLASSES, "weight": SAMPLE}), Samples(), items):
        made = trainer(rate=0.0)
        (record,) = made.fit(data, data, batch_size=5, sample_weight="weight", metrics=["accuracy"])
        np.testing.assert_allclose([record["loss"], record["valid_loss"]], expected, rtol=1e-5)
        found = made.evaluate(data, sample_weight="weight")
        np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
        assert set(found) == {"loss", "accuracy"}
    assert arrays.names == ("x", "weight"), "the data set of the user is unchanged"


def test_validation_split_divides_weights_and_classes():
    made = trainer(rate=0.0)
    (record,) = made.fit((INPUTS, CLASSES), batch_size=5, sample_weight=SAMPLE, validation_split=0.25)
    parts = [gk.data.Dataset({"x": INPUTS, "i": np.arange(24)}, CLASSES).split(0.25, 1)]
    for name, part in zip(("loss", "valid_loss"), parts[0], strict=True):
        rows = part.arrays["i"]
        expected = float(trainer(rate=0.0).step(INPUTS[rows], CLASSES[rows], SAMPLE[rows]))
        np.testing.assert_allclose(record[name], expected, rtol=1e-5)


def masked(y, target, sample_weight=None):
    each = gk.reduce_sum(gk.abs(y - target), [1], keepdims=False)
    if sample_weight is None:
        return gk.reduce_mean(each, keepdims=False)
    return gk.reduce_sum(each * sample_weight, keepdims=False), gk.reduce_sum(sample_weight, keepdims=False)


def test_loss_function_with_the_parameter_gets_the_weights():
    types = {"target": gk.TensorType("float32", ["N", 4])}
    made = trainer(masked, rate=0.0, targets=types)
    each = np.abs(INPUTS @ WEIGHTS - FLOATS).sum(1)
    np.testing.assert_allclose(float(made.step(INPUTS, FLOATS)), each.mean(), rtol=1e-5)
    found = made.fit((INPUTS, FLOATS), batch_size=5, sample_weight=SAMPLE)[0]["loss"]
    np.testing.assert_allclose(found, (SAMPLE * each).sum() / SAMPLE.sum(), rtol=1e-5)


def plain_function(y, target):
    return gk.reduce_mean(gk.abs(y - target), keepdims=False)


def mean_function(y, target, sample_weight=None):
    return gk.reduce_mean(gk.abs(y - target), keepdims=False)


@pytest.mark.parametrize(
    ("function", "message"), [(plain_function, "without the parameter"), (mean_function, "must return the pair")]
)
def test_loss_function_that_ignores_weights_is_an_error(function, message):
    made = trainer(function, targets={"target": gk.TensorType("float32", ["N", 4])})
    with pytest.raises(UsageError, match=message):
        made.step(INPUTS, FLOATS, SAMPLE)
    made.step(INPUTS, FLOATS)
    assert made.updates == 1


@in_one_item()
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(23), r"expected one weight per sample, \[24\], not an array \[23\]"),
        (np.ones((24, 2)), "expected one weight per sample"),
        (np.full(24, -1.0), "at least 0, but one is -1.0"),
        (np.full(24, np.nan), "at least 0, but one is nan"),
        (np.full(24, 1e39), "finite float32 numbers of at least 0"),
        (np.array(["a"] * 24), "expected one number per sample"),
        (None, "has no array 'weigth'; did you mean"),
    ],
)
def test_wrong_weights_are_errors(weights, message):
    made = trainer()
    data: Any = (INPUTS, CLASSES)
    given = weights
    if weights is None:
        data, given = gk.data.Dataset({"x": INPUTS, "weight": SAMPLE}, CLASSES), "weigth"
    with pytest.raises(InputError, match=message):
        made.fit(data, sample_weight=given)
    if weights is not None:
        with pytest.raises(InputError, match=message):
            made.step(INPUTS, CLASSES, weights)
    assert made.updates == 0


def test_weights_of_validation_may_be_an_array_beside_a_name():
    data = (INPUTS, {"target": CLASSES, "weight": SAMPLE})
    made = trainer(rate=0.0)
    valid = (INPUTS, CLASSES, list(SAMPLE[::-1]))
    (record,) = made.fit(data, valid, batch_size=5, sample_weight="weight")
    np.testing.assert_allclose(record["loss"], float(made.step(INPUTS, CLASSES, SAMPLE)), rtol=1e-5)
    np.testing.assert_allclose(record["valid_loss"], float(made.step(INPUTS, CLASSES, SAMPLE[::-1])), rtol=1e-5)


def test_three_samples_for_validation_are_not_weights():
    valid = tuple((INPUTS[i], CLASSES[i]) for i in range(3))
    made = trainer(rate=0.0)
    (record,) = made.fit((INPUTS, CLASSES), valid, batch_size=5)
    np.testing.assert_allclose(record["valid_loss"], float(made.step(INPUTS[:3], CLASSES[:3])), rtol=1e-5)


def test_first_step_with_weights_on_one_rank_only_is_an_error(on_ranks):
    def work(store):
        made = trainer(kvstore=store)
        return made.step(INPUTS[:4], CLASSES[:4], SAMPLE[:4] if store.rank else None)

    first, second = on_ranks(work, ends=RuntimeFailure)
    for error in (first, second):
        assert isinstance(error, RuntimeFailure)
        assert "the processes make different calls: rank 0: sum of loss" in str(error)
        assert "sample_weight=" in str(error)


def test_metrics_without_the_loss_are_an_error():
    with pytest.raises(UsageError, match="sample_weight= has no effect"):
        trainer().evaluate((INPUTS, CLASSES), ["accuracy"], sample_weight=SAMPLE)


def test_samples_made_on_request_need_a_name():
    with pytest.raises(UsageError, match="made on request"):
        trainer().fit(Samples(), sample_weight=SAMPLE)

    class Without(Samples):
        def __getitem__(self, i):
            return {"x": INPUTS[i], "target": CLASSES[i]}

    with pytest.raises(InputError, match="the data have no sample weights: there is no target 'weight'"):
        trainer().fit(Without(), sample_weight="weight")
