"""`masks`: pruned elements stay exactly 0 in every optimizer, and others train as in a numpy computation."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InvalidModel, UsageError
from graphkit.train import optim
from graphkit.train.masks import note_on_zeros

RNG = np.random.default_rng(0)
X = RNG.standard_normal((48, 8)).astype(np.float32)
Y = RNG.integers(0, 3, 48)
MASK = RNG.random((16, 8)) < 0.5
# A row without any weight, and one with all of them.
MASK[0], MASK[1] = False, True


def net(mask=MASK):
    made = gk.models.build("mlp", inputs=8, hidden=(16,), classes=3)
    made.params["fc1_weight"] = np.where(mask, made.params["fc1_weight"], np.float32(0))
    return made


def trainer(optimizer="adam", mask=MASK, **options):
    return gk.Trainer(net(mask), optimizer=optimizer, masks={"fc1_weight": mask}, threads=1, seed=3, **options)


def check(made, mask=MASK):
    weight = np.asarray(made.params["fc1_weight"])
    assert not weight[~mask].any()
    assert weight[mask].all()


@in_one_item()
@pytest.mark.parametrize("name", sorted(optim.names()))
def test_pruned_elements_stay_zero_in_every_optimizer(name):
    made = trainer(optim.get(name), wd_mult={"fc1_weight": 2.0})
    before = np.array(made.net.params["fc1_weight"])
    for _ in range(4):
        made.step(X, Y)
    check(made.net)
    assert (np.asarray(made.net.params["fc1_weight"])[MASK] != before[MASK]).any()


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 3},
        {"ema": 0.9},
        {"clip_norm": 0.01},
        {"recompute": "sqrt"},
        {"on_nonfinite": "skip"},
        pytest.param({"precision": "bf16"}, marks=pytest.mark.onednn),
    ],
    ids=str,
)
def test_masks_hold_with_other_settings(options):
    made = trainer(gk.optim.SGD(0.1, momentum=0.9), **options)
    for _ in range(4):
        made.step(X, Y)
    made.flush()
    check(made.net)
    with made.averaged():
        check(made.net)


def test_a_step_with_momentum_and_decay_equals_numpy():
    """The gradient norm for clipping does not count pruned elements."""
    x = gk.input("x", ["N", 8])
    model = gk.Model({"y": gk.mat_mul(x, gk.parameter("w", [8, 3]))})
    mask = RNG.random((8, 3)) < 0.4
    w = np.where(mask, RNG.standard_normal((8, 3)), 0).astype(np.float32)
    model.params["w"] = w
    target = RNG.standard_normal((48, 3)).astype(np.float32)
    made = gk.Trainer(
        model, "mse", gk.optim.SGD(0.1, momentum=0.9, weight_decay=0.01), masks={"w": mask}, clip_norm=0.5
    )
    velocity = np.zeros_like(w)
    for _ in range(3):
        made.step(X, target)
        gradient = 2 * X.T @ (X @ w - target) / target.size * mask
        gradient *= min(1, 0.5 / np.linalg.norm(gradient))
        velocity = 0.9 * velocity + gradient + 0.01 * w
        w = w - np.float32(0.1) * velocity
    np.testing.assert_allclose(model.params["w"], w, rtol=1e-4, atol=1e-6)


def test_float16_parameters():
    x = gk.input("x", ["N", 8], "float16")
    model = gk.Model({"y": gk.mat_mul(x, gk.parameter("w", [8, 3], dtype="float16"))})
    mask = RNG.random((8, 3)) < 0.5
    model.params["w"] = np.where(mask, RNG.standard_normal((8, 3)), 0).astype(np.float16)
    made = gk.Trainer(model, "softmax_cross_entropy", gk.optim.Adam(1e-2), masks={"w": mask}, ema=0.5)
    for _ in range(3):
        made.step(X.astype(np.float16), Y)
    assert not np.asarray(model.params["w"])[~mask].any()
    assert np.asarray(model.params["w"])[mask].all()


def test_two_layers_share_a_masked_weight_inside_a_loop():
    x, w = gk.input("x", ["N", 8]), gk.parameter("w", [8, 8])
    looped, _ = gk.scan(lambda h, _: (gk.tanh(gk.mat_mul(h, w)), h), x, np.zeros((3, 1), np.float32))
    model = gk.Model({"y": gk.mat_mul(looped, w)})
    mask = RNG.random((8, 8)) < 0.5
    model.params["w"] = np.where(mask, RNG.standard_normal((8, 8)), 0).astype(np.float32)
    made = gk.Trainer(model, "softmax_cross_entropy", gk.optim.Adam(1e-2), masks={"w": mask})
    for _ in range(3):
        made.step(X, Y)
    assert not np.asarray(model.params["w"])[~mask].any()
    assert np.asarray(model.params["w"])[mask].all()


def test_a_resumed_run_is_bit_identical_and_has_the_masks_of_the_checkpoint(tmp_path):
    whole = trainer(ema=0.9)
    whole.fit((X, Y), epochs=4, batch_size=16)
    first = trainer(ema=0.9)
    first.fit((X, Y), epochs=2, batch_size=16, folder=tmp_path / "run")
    second = trainer(mask=np.ones_like(MASK), ema=0.9)
    second.resume(tmp_path / "run")
    np.testing.assert_array_equal(second.masks()["fc1_weight"], MASK)
    second.fit((X, Y), epochs=4, batch_size=16)
    for name, array in whole.net.params.items():
        np.testing.assert_array_equal(array, second.net.params[name], err_msg=name)
    check(second.net)
    without = gk.Trainer(net(), optimizer="adam", ema=0.9)
    with pytest.raises(InvalidModel, match="fc1_weight/mask"):
        without.resume(tmp_path / "run")


def test_masks_are_replaced():
    made = trainer(ema=0.9)
    made.step(X, Y)
    mask = MASK & (RNG.random(MASK.shape) < 0.5)
    made.set_masks({"fc1_weight": mask.astype(np.int64)})
    check(made.net, mask)
    made.step(X, Y)
    check(made.net, mask)
    with made.averaged():
        check(made.net, mask)
    with pytest.raises(UsageError, match="no mask for 'fc2_weight'"):
        made.set_masks({"fc2_weight": mask})
    with pytest.raises(UsageError, match=r"has shape \[3\], the parameter \[16, 8\]"):
        made.set_masks({"fc1_weight": np.ones(3)})


def zeros(model, names=("fc1_weight", "fc2_weight")):
    arrays = [np.asarray(model.params[name]) for name in names]
    return sum(a.size - np.count_nonzero(a) for a in arrays) / sum(a.size for a in arrays)


@pytest.mark.parametrize("scope", ["global", pytest.param("layer", marks=pytest.mark.full)])
def test_gradual_pruning_follows_its_schedule_and_resumes(tmp_path, scope):
    def start():
        model = gk.models.build("mlp", inputs=8, hidden=(16,), classes=3)
        masks = {name: np.ones(model.params[name].shape) for name in ("fc1_weight", "fc2_weight")}
        return gk.Trainer(model, optimizer=gk.optim.Adam(1e-2), masks=masks, threads=1)

    seen = []

    class Watch(gk.Callback):
        def on_step_end(self, trainer, numbers):
            seen.append((numbers["updates"], zeros(trainer.net)))

    def schedule():
        return gk.callbacks.GradualPruning(0.75, end=10, start=1, every=2, scope=scope)

    whole = start()
    whole.fit((X, Y), epochs=4, batch_size=16, callbacks=[schedule(), Watch()])
    for updates, found in seen:
        last = max((u for u in (3, 5, 7, 9, 10) if u <= updates), default=None)
        wanted = 0.0 if last is None else 0.75 * (1 - (1 - (last - 1) / 9) ** 3)
        assert found == pytest.approx(wanted, abs=0.01), updates
    first = start()
    first.fit((X, Y), epochs=2, batch_size=16, callbacks=[schedule()], folder=tmp_path / "run")
    second = start()
    second.resume(tmp_path / "run")
    second.fit((X, Y), epochs=4, batch_size=16, callbacks=[schedule()])
    for name, array in whole.net.params.items():
        np.testing.assert_array_equal(array, second.net.params[name], err_msg=name)
    with pytest.raises(UsageError, match="the Trainer has no masks"):
        gk.Trainer(net()).fit((X, Y), callbacks=[schedule()])


def test_gradual_pruning_of_a_pruned_model_keeps_its_zeros():
    """At first, the schedule's share of zeros is below the share that the model has already."""
    made = trainer()
    before = np.mean(np.asarray(made.net.params["fc1_weight"]) == 0)
    schedule = gk.callbacks.GradualPruning(0.9, end=12, every=1)
    assert schedule.sparsity_after(1) < before
    shares = []

    class Watch(gk.Callback):
        def on_step_end(self, trainer, numbers):
            check(trainer.net, trainer.masks()["fc1_weight"])
            assert not trainer.masks()["fc1_weight"][~MASK].any()
            shares.append(np.mean(~trainer.masks()["fc1_weight"]))

    made.fit((X, Y), epochs=4, batch_size=16, callbacks=[schedule, Watch()])
    assert shares[0] == before
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.9, abs=0.01)


@in_one_item()
@pytest.mark.parametrize("wrong", [{"sparsity": 1.0}, {"sparsity": 0.0}, {"end": 0}, {"every": 0}, {"scope": "all"}])
def test_wrong_schedules(wrong):
    with pytest.raises(UsageError):
        gk.callbacks.GradualPruning(**{"sparsity": 0.5, "end": 10, **wrong})


@in_one_item()
@pytest.mark.parametrize(
    ("masks", "text"),
    [
        ({"fc1_weight": np.ones((8, 16))}, r"has shape \[8, 16\], the parameter \[16, 8\]"),
        ({"fc1_weight": np.full((16, 8), 0.5)}, "must contain booleans"),
        ({"fc1_weight": np.zeros((16, 8))}, "not 0 everywhere where its mask is False"),
        ({"fc3_weight": np.zeros((16, 8))}, "no parameter 'fc3_weight'.*did you mean 'fc2_weight'"),
        ({"fc1_weigh*": MASK}, "Masks take exact names, not patterns; did you mean 'fc1_weight'"),
    ],
)
def test_wrong_masks(masks, text):
    with pytest.raises(UsageError, match=text):
        gk.Trainer(net(), masks=masks)


def test_lazy_tables_have_no_masks():
    table = gk.Model({"y": gk.gather(gk.parameter("w", [9, 3]), gk.input("x", ["N"], "int64"))})
    with pytest.raises(UsageError, match="masks= cannot be combined with row-sparse updates"):
        gk.Trainer(table, lazy="w", masks={"w": np.ones((9, 3))})
    table.params["w"] = np.where(np.arange(27).reshape(9, 3) % 2, table.params["w"], np.float32(0))
    made = gk.Trainer(table, optimizer="adam", masks=gk.zero_masks(table))
    made.step(np.arange(9), np.arange(9) % 3)
    assert zeros(table, ["w"]) == 14 / 27


def test_zero_masks_of_a_model():
    made = net()
    found = gk.zero_masks(made)
    assert list(found) == ["fc1_weight"]  # biases start at 0, and have one axis
    np.testing.assert_array_equal(found["fc1_weight"], MASK)
    assert list(gk.zero_masks(made, ["fc1_bias", "fc1*"])) == ["fc1_weight", "fc1_bias"]
    with pytest.raises(UsageError, match="pattern 'conv' matches no parameter"):
        gk.zero_masks(made, "conv")
    with pytest.raises(UsageError, match="contains a zero"):
        gk.zero_masks(made, "fc2*")


@in_one_item()
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"freeze": "fc1*"}, r"fc1_weight cannot have masks.*frozen \(freeze="),
        ({"train": "fc2*"}, "fc1_weight cannot have masks.*train= does not select"),
        ({"lora": gk.settings.Lora(rank=2)}, r"fc1_weight cannot have masks, because LoRA \(lora="),
    ],
)
def test_masks_of_parameters_that_are_not_trained(options, text):
    with pytest.raises(UsageError, match=text):
        trainer(**options)


def test_set_masks_takes_only_zeros_and_ones():
    made = trainer()
    before = np.array(made.net.params["fc1_weight"])
    with pytest.raises(UsageError, match="set_masks: the mask of 'fc1_weight' must contain booleans"):
        made.set_masks({"fc1_weight": np.full(MASK.shape, 0.3)})
    with pytest.raises(UsageError, match=r"set_masks: the mask of 'fc1_weight' has shape \[8, 16\]"):
        made.set_masks({"fc1_weight": MASK.T})
    np.testing.assert_array_equal(made.net.params["fc1_weight"], before)
    made.set_masks({"fc1_weight": np.zeros(MASK.shape, np.float32)})
    assert not np.asarray(made.net.params["fc1_weight"]).any()


@in_one_item()
@pytest.mark.parametrize(
    ("zeros", "expected"),
    [(38, None), (39, "fc1_weight (30% zeros): "), (127, "fc1_weight (99% zeros): "), (128, None)],
)
def test_pruned_weights_are_noted_unless_all_elements_are_zero(zeros, expected):
    made = net(np.arange(128).reshape(16, 8) >= zeros)
    made.params["fc1_bias"] = np.zeros(16, np.float32)
    note = note_on_zeros(made, made.trainable, (), "advice")
    assert note is None if expected is None else note.startswith(expected)
    assert note_on_zeros(made, made.trainable, ("fc1_weight",), "advice") is None
    assert note_on_zeros(made, ("fc2_weight",), (), "advice") is None
