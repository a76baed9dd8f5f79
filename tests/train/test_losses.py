"""Losses with options, of several outputs and of mixed samples, compared with PyTorch and with their definitions."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, UsageError
from graphkit.train.losses import attach, with_loss

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((7, 4)).astype(np.float32)
CLASSES = np.array([0, 1, 3, 3, 2, 0, 1])
WEIGHTS = (0.5, 2.0, 1.0, 0.25)


def value_and_gradient(loss, logits, target):
    """Return value and gradient of a loss whose logits are a parameter."""
    x = gk.parameter("logits", list(logits.shape))
    net = with_loss(gk.Model({"y": gk.identity(x)}), loss)
    net.params["logits"] = logits
    feeds = {"target": target}
    gradient = gk.grad(net, of="loss").run(feeds)
    return float(net.run(feeds)["loss"]), next(a for n, a in gradient.items() if np.shape(a) == logits.shape)


def pytorchs(function, logits, target, **options):
    torch = pytest.importorskip("torch")
    leaf = torch.tensor(logits, requires_grad=True)
    if "weight" in options:
        options["weight"] = torch.as_tensor(np.asarray(options["weight"], np.float32))
    value = getattr(torch.nn.functional, function)(leaf, torch.tensor(target), **options)
    value.backward()
    return float(value.detach()), leaf.grad.numpy()


@pytest.mark.pytorch
@pytest.mark.parametrize("smoothing", [None, 0.0, 0.1, 0.7])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_cross_entropy_is_that_of_pytorch(smoothing, weights):
    loss = gk.losses.get("softmax_cross_entropy", label_smoothing=smoothing, class_weights=weights)
    options = {} if weights is None else {"weight": weights}
    wanted = pytorchs("cross_entropy", LOGITS, CLASSES, label_smoothing=smoothing or 0.0, **options)
    found = value_and_gradient(loss, LOGITS, CLASSES)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-6)


@pytest.mark.pytorch
@pytest.mark.parametrize("smoothing", [None, 0.2])
@pytest.mark.parametrize("weights", [None, (0.3, 2.0)], ids=["alike", "weighted"])
def test_binary_cross_entropy_is_that_of_pytorch(smoothing, weights):
    target = (RNG.random((7, 4)) > 0.5).astype(np.float32)
    smooth = target if smoothing is None else target * (1 - smoothing) + smoothing / 2
    if weights is None:
        wanted = pytorchs("binary_cross_entropy_with_logits", LOGITS, smooth)
    else:
        # no * (1 - t) * softplus(x) + yes * t * softplus(-x): PyTorch's pos_weight, except for a common factor.
        torch = pytest.importorskip("torch")
        wanted = pytorchs(
            "binary_cross_entropy_with_logits", LOGITS, smooth, pos_weight=torch.tensor(weights[1] / weights[0])
        )
        wanted = wanted[0] * weights[0], wanted[1] * np.float32(weights[0])
    loss = gk.losses.get("sigmoid_binary_cross_entropy", label_smoothing=smoothing, class_weights=weights)
    found = value_and_gradient(loss, LOGITS, target)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-6)


@pytest.mark.pytorch
def test_pixels_have_weights_too():
    """Class weights apply to each pixel of logits [N, H, W, classes]."""
    logits = RNG.standard_normal((2, 3, 5, 4)).astype(np.float32)
    target = RNG.integers(0, 4, (2, 3, 5))
    loss = gk.losses.get("softmax_cross_entropy", label_smoothing=0.1, class_weights=WEIGHTS)
    wanted, _ = pytorchs(
        "cross_entropy", logits.transpose(0, 3, 1, 2).copy(), target, label_smoothing=0.1, weight=WEIGHTS
    )
    assert value_and_gradient(loss, logits, target)[0] == pytest.approx(wanted, rel=1e-5)


def test_balanced_weights():
    """The weights are n_samples / (n_classes * count), as for scikit-learn's class_weight="balanced"."""
    found = gk.losses.balanced([0, 0, 0, 1, 1, 2], 3)
    assert found == pytest.approx((6 / 9, 6 / 6, 6 / 3))
    for targets, message in [
        ([0, 0, 2], "the targets have none of class 1; give"), ([0.5, 1.0], "class numbers as targets"),
        ([0, 3], "from 0 to 2, but are from 0 to 3")
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            gk.losses.balanced(targets, 3)


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "mse",
            {"label_smoothing": 0.1},
            "label_smoothing= and --label-smoothing only work with softmax_cross",
        ),
        ("softmax_cross_entropy", {"label_smoothing": 1.0}, r"finite number in \[0, 1\)"),
        ("softmax_cross_entropy", {"class_weights": [1.0, -1.0]}, "of at least 0"),
        ("softmax_cross_entropy", {"class_weights": [1.0, float("nan")]}, "finite"),
        ("cross_entropy", {}, "did you mean 'softmax_cross_entropy'"),
    ],
)
def test_options_that_no_loss_has(name, options, message):
    with pytest.raises(UsageError, match=message):
        gk.losses.get(name, **options)


@in_one_item()
@pytest.mark.parametrize(
    "made", [lambda y: 1.0, lambda y: y, lambda y: gk.reduce_sum(gk.cast(y, to="int64"), keepdims=False)]
)
def test_a_loss_is_a_float_scalar(made):
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2))
    with pytest.raises(UsageError, match="a loss must be a float scalar, not"):
        gk.Trainer(net, made, targets={})


def test_targets_are_inputs_behind_those_of_the_data():
    x, w = gk.input("x", ["N", 3]), gk.parameter("w", [3, 2])
    net = gk.Model(gk.mat_mul(x, w) + gk.input("y", ["N", 2]))
    assert attach(net.graph, "mse").input_names == ("x", "y", "target", "w")
    only = gk.Model(gk.mat_mul(gk.parameter("v", [4, 3]), w))
    assert attach(only.graph, "mse").input_names[0] == "target"


def test_number_of_class_weights_must_match():
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2))
    for name, weights, message in [
        ("softmax_cross_entropy", [1.0] * 3, r"3 class weights .* for 2 classes"),
        ("sigmoid_binary_cross_entropy", [1.0] * 3, r"\(negative, positive\)"),
    ]:
        with pytest.raises(UsageError, match=message):
            gk.Trainer(net, gk.losses.get(name, class_weights=weights))


# --- several outputs -------------------------------------------------------------------------------


def two_heads():
    x = gk.input("x", ["N", 3])
    h = gk.tanh(gk.nn.linear(x, 5, name="trunk"))
    outputs = {"kind": gk.nn.linear(h, 4, name="kind"), "size": gk.nn.linear(h, 1, name="size")}
    return gk.Model(outputs, name="two", seed=0)


X = RNG.standard_normal((7, 3)).astype(np.float32)
SIZES = RNG.standard_normal(7).astype(np.float32)
BOTH = {"kind": "softmax_cross_entropy", "size": "mse"}


def test_a_loss_for_each_output():
    net = two_heads()
    found = net.run({"x": X})
    logits, sizes = found["kind"], found["size"][:, 0]
    shifted = logits - logits.max(1, keepdims=True)
    entropy = np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(7), CLASSES])
    error = np.mean((sizes - SIZES) ** 2)
    for weights, wanted in [(None, entropy + error), ({"size": 0.25}, entropy + error / 4), ({"kind": 0.0}, error)]:
        trainer = gk.Trainer(two_heads(), BOTH, gk.optim.SGD(0.1), loss_weights=weights)
        for targets in ({"size": SIZES, "kind": CLASSES}, {"target_kind": CLASSES, "size": SIZES}, (CLASSES, SIZES)):
            again = gk.Trainer(two_heads(), BOTH, gk.optim.SGD(0.1), loss_weights=weights)
            assert float(again.step(X, targets)) == pytest.approx(float(wanted), rel=1e-5)
        history = trainer.fit((X, {"kind": CLASSES, "size": SIZES}), (X, {"kind": CLASSES, "size": SIZES}),
                              epochs=30, metrics=["accuracy"])  # fmt: skip
        assert history[-1]["valid_loss"] < history[0]["valid_loss"]
        assert 0 <= history[-1]["accuracy"] <= 1


def test_metrics_use_the_chosen_output():
    trainer = gk.Trainer(two_heads(), BOTH, gk.optim.SGD(0.0), output="size")
    targets = {"kind": CLASSES, "size": SIZES}
    (record,) = trainer.fit((X, targets), (X, targets), metrics=["mae"])
    assert record["valid_mae"] == pytest.approx(
        float(np.mean(np.abs(two_heads().run({"x": X})["size"][:, 0] - SIZES))), rel=1e-5
    )


def test_gradients_of_several_losses_are_their_sum():
    """A step with both losses changes the trunk by the sum of the changes with each."""
    start = two_heads().params["trunk_weight"]

    def moved(**options):
        net = two_heads()
        targets = {"kind": CLASSES, "size": SIZES}
        loss = options.get("loss", BOTH)
        gk.Trainer(net, loss, gk.optim.SGD(0.1), loss_weights=options.get("weights")).step(
            X, {name: targets[name] for name in loss}
        )
        return net.params["trunk_weight"] - start

    one, other = moved(loss={"kind": BOTH["kind"]}), moved(loss={"size": "mse"})
    np.testing.assert_allclose(moved(weights={"size": 0.5}), one + 0.5 * other, rtol=1e-4, atol=1e-7)


@in_one_item()
@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ({"kin": "mse"}, {}, "no output 'kin'; did you mean 'kind'"),
        ({"kind": "mze"}, {}, "did you mean 'mse'"),
        ({}, {}, "give a loss for at least one output"),
        (BOTH, {"loss_weights": {"sise": 1.0}}, "no output with a loss is called 'sise'; did you mean 'size'"),
        (BOTH, {"loss_weights": {"size": -1.0}}, "of at least 0"),
        ({"kind": print}, {}, "losses by output must be names"),
        ("mse", {"output": "size", "loss_weights": {"size": 2.0}}, "needs a dict of losses by output"),
        (BOTH, {"targets": {"a": gk.TensorType("float32", [])}}, "a dict of losses determines the targets"),
    ],
)
def test_losses_that_do_not_fit_the_outputs(loss, options, message):
    with pytest.raises(UsageError, match=message):
        gk.Trainer(two_heads(), loss, **options)


def test_targets_that_do_not_fit_are_named():
    trainer = gk.Trainer(two_heads(), BOTH)
    for targets, message in [
        (
            {"kind": CLASSES, "size": np.zeros((7, 2), np.float32)},
            r"loss 'mse' needs targets of the shape of the output, float32\[.*; the targets given have shape \[7, 2\]",
        ),
        (CLASSES, r"expected 2 targets \(kind, size\), got 1"),
        ({"kind": CLASSES}, "'target_size'"),
        ({"kind": CLASSES + 4, "size": SIZES}, "class numbers from 0 to 3"),
    ]:
        with pytest.raises(InputError, match=message):
            trainer.step(X, targets)


# --- mixed samples ---------------------------------------------------------------------------------


def classifier():
    return gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 4, name="fc"), seed=0)


class Fed:
    """Records the feeds of each step of a trainer."""

    def __init__(self, trainer):
        self.feeds = []
        take = trainer._stepper.take
        trainer._stepper.take = lambda feeds, *rest: self.feeds.append(dict(feeds)) or take(feeds, *rest)


def entropy(logits, target):
    shifted = logits - logits.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(target)), target]))


def test_mixup_is_its_definition():
    trainer = gk.Trainer(classifier(), optimizer=gk.optim.SGD(0.0), mixup=0.4, seed=3)
    fed = Fed(trainer)
    losses = [float(trainer.step(X, CLASSES)) for _ in range(20)]
    shares = [float(feeds["mix"]) for feeds in fed.feeds]
    assert len(set(shares)) == 20
    assert 0 <= min(shares) < 0.2
    assert 0.8 < max(shares) <= 1
    for feeds, share, loss in zip(fed.feeds, shares, losses, strict=True):
        order = [int(np.flatnonzero([np.allclose(share * X[i] + (1 - share) * X[j], feeds["x"][i], atol=1e-6)
                                     for j in range(7)])[0]) for i in range(7)]  # fmt: skip
        if share < 0.99:
            assert sorted(order) == list(range(7))
            np.testing.assert_array_equal(CLASSES[order], feeds["target_second"])
        logits = classifier()(feeds["x"])
        wanted = share * entropy(logits, feeds["target"]) + (1 - share) * entropy(logits, feeds["target_second"])
        assert loss == pytest.approx(wanted, rel=1e-5)


def test_cutmix_is_its_definition():
    x = gk.input("x", ["N", 1, 6, 8])
    net = gk.Model(gk.nn.linear(gk.reshape(x, np.array([-1, 48])), 4, name="fc"), seed=0)
    images = np.arange(5, dtype=np.float32)[:, None, None, None] + np.zeros((5, 1, 6, 8), np.float32)
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.0), cutmix=1.0, seed=3)
    fed = Fed(trainer)
    targets = np.array([0, 1, 2, 3, 0])
    for _ in range(10):
        trainer.step(images, targets)
    areas = set()
    for feeds in fed.feeds:
        for i, image in enumerate(feeds["x"]):
            others = image[image != i]
            assert len(set(others.tolist())) <= 1, "of one other image"
            if len(others):
                assert others.size / 48 == pytest.approx(1 - float(feeds["mix"]), abs=1e-6)
                assert targets[int(others[0])] == feeds["target_second"][i]
                areas.add(others.size)
    assert len(areas) > 3
    np.testing.assert_array_equal(images[:, 0, 0, 0], range(5))


def test_validation_and_metrics_use_unmixed_samples():
    trainer = gk.Trainer(classifier(), optimizer=gk.optim.SGD(0.0), mixup=1.0)
    (record,) = trainer.fit((X, CLASSES), (X, CLASSES), metrics=["accuracy"])
    assert record["valid_loss"] == pytest.approx(entropy(classifier()(X), CLASSES), rel=1e-5)
    assert abs(record["loss"] - record["valid_loss"]) > 1e-3


@pytest.mark.parametrize("options", [{"mixup": 0.3}, {"mixup": 0.3, "accumulate": 3}])
def test_resume_with_mixing_is_bit_identical(tmp_path, options):
    class Stop(gk.Callback):
        def __init__(self, at):
            self.at = at

        def on_step_end(self, trainer, numbers):
            if (numbers["epoch"], numbers["batch"]) == self.at:
                raise KeyboardInterrupt

    def trainer():
        return gk.Trainer(classifier(), optimizer="adam", seed=5, threads=1, **options)

    straight = trainer()
    straight.fit((X, CLASSES), epochs=4, batch_size=2)
    for at in [(1, 1), (2, 3), (4, 4)]:
        folder = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            trainer().fit((X, CLASSES), epochs=4, batch_size=2, folder=folder, callbacks=[Stop(at)])
        again = trainer()
        again.resume(folder)
        again.fit((X, CLASSES), folder=folder, batch_size=2)
        for name, array in straight.net.params.items():
            np.testing.assert_array_equal(again.net.params[name], array)
    other = gk.Trainer(classifier(), optimizer="adam", seed=6, threads=1, **options)
    other.fit((X, CLASSES), epochs=4, batch_size=2)
    assert not np.array_equal(other.net.params["fc_weight"], straight.net.params["fc_weight"])


def test_two_processes_mix_their_own_parts(on_ranks):
    def work(store):
        trainer = gk.Trainer(classifier(), optimizer=gk.optim.SGD(0.1), mixup=0.5, kvstore=store, threads=1, seed=1)
        fed = Fed(trainer)
        trainer.fit((X, CLASSES), epochs=2, batch_size=2)
        return [float(feeds["mix"]) for feeds in fed.feeds], trainer.net.params["fc_weight"].copy()

    (first, weights), (second, others) = on_ranks(work)
    assert not set(first) & set(second)
    np.testing.assert_array_equal(weights, others)


def test_error_names_inputs_that_cannot_be_mixed():
    ids = gk.input("ids", ["N"], dtype="int64")
    net = gk.Model(gk.nn.embedding(ids, rows=10, features=4, name="embed"))
    with pytest.raises(InputError, match="input 'ids' is int64"):
        gk.Trainer(net, mixup=1.0).step(np.arange(4), np.arange(4))
    with pytest.raises(InputError, match="cutmix needs images"):
        gk.Trainer(classifier(), cutmix=1.0).step(X, CLASSES)
    with pytest.raises(UsageError, match="mixup must be a finite number above 0"):
        gk.Trainer(classifier(), mixup=0.0)


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "focal"])
def test_classes_on_axis_1(name):
    rng = np.random.default_rng(0)
    pixels = rng.standard_normal((10, 3, 4, 6)).astype(np.float32)
    masks = rng.integers(0, 5, (10, 4, 6))
    masks[:2, 0] = 5 if name == "focal" else 255
    masks[masks == 5] = 0
    options = {} if name == "focal" else {"ignore_index": 255}
    found = []
    for axis, softmax in ((-1, False), (1, False), (1, True)):
        logits = gk.nn.conv2d(gk.input("x", ["N", 3, 4, 6]), 5, kernel=1, name="c")
        if axis == -1:
            logits = gk.transpose(logits, perm=[0, 2, 3, 1])
        net = gk.Model({"y": gk.softmax(logits, axis=1) if softmax else logits}, seed=0)
        loss = gk.losses.get(name, **options, **({"axis": 1} if axis == 1 else {}))
        trainer = gk.Trainer(net, loss, optimizer=gk.optim.SGD(0.1))
        trainer.fit((pixels, masks), epochs=1, batch_size=4, progress=False)
        found.append(list(trainer.evaluate((pixels, masks), ["loss", "accuracy", "f1"], batch_size=4).values()))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5)


def test_targets_that_need_another_axis_or_loss():
    pixels = gk.Model({"y": gk.nn.conv2d(gk.input("x", ["N", 3, 8, 8]), 4, kernel=1, name="c")}, seed=0)
    with pytest.raises(gk.errors.InputError, match=r"set axis=1: .*--loss-option axis=1"):
        gk.Trainer(pixels).fit((np.zeros((2, 3, 8, 8), np.float32), np.zeros((2, 8, 8), int)), epochs=1)
    with pytest.raises(gk.errors.UsageError, match=r"axis=4: the output .* has 4 axes"):
        gk.Trainer(pixels, gk.losses.get("softmax_cross_entropy", axis=4))
    rows = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 4, name="f")}, seed=0)
    with pytest.raises(gk.errors.InputError, match=r'probabilities of the classes: use loss="categorical_cross'):
        gk.Trainer(rows).fit((np.zeros((2, 3), np.float32), np.full((2, 4), 0.25, np.float32)), epochs=1)
