"""Compare the Trainer with a numpy implementation: steps, accumulation, clipping, freezing, schedules."""

import gc
import weakref

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import InputError, NotFinite, UsageError
from graphkit.executor.run.program import Program
from graphkit.train.programs import step as steps
from graphkit.train.selection import ParameterSelection, select_parameters


def linear_model(seed=0):
    x = gk.input("x", ["N", 3])
    return gk.Model({"y": gk.nn.linear(x, 2, name="fc")}, name="linear", seed=seed)


def batch(n=8, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3), np.float32), rng.standard_normal((n, 2), np.float32)


def mse_gradients(weight, bias, x, t):
    difference = 2 * (x @ weight.T + bias - t) / t.size
    return difference.T @ x, difference.sum(0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_equals_the_formula(nesterov):
    net = linear_model()
    weight, bias = net.params["fc_weight"].copy(), net.params["fc_bias"].copy()
    velocity = [np.zeros_like(weight), np.zeros_like(bias)]
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.01))
    x, t = batch()
    for _ in range(5):
        expected_loss = np.mean((x @ weight.T + bias - t) ** 2)
        assert float(trainer.step(x, t)) == pytest.approx(expected_loss, rel=1e-5)
        for i, (p, g) in enumerate(zip((weight, bias), mse_gradients(weight, bias, x, t), strict=True)):
            g = g + 0.01 * p
            velocity[i] = 0.9 * velocity[i] + g
            p -= 0.1 * (g + 0.9 * velocity[i] if nesterov else velocity[i])
    np.testing.assert_allclose(net.params["fc_weight"], weight, rtol=1e-5)
    np.testing.assert_allclose(net.params["fc_bias"], bias, rtol=1e-5)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_equals_the_formula(decoupled):
    net = linear_model()
    weight, bias = net.params["fc_weight"].astype(np.float64), net.params["fc_bias"].astype(np.float64)
    optimizer = (gk.optim.AdamW if decoupled else gk.optim.Adam)(0.01, weight_decay=0.1)
    trainer = gk.Trainer(net, "mse", optimizer)
    x, t = batch()
    mean, var = [0.0, 0.0], [0.0, 0.0]
    for step in range(1, 6):
        trainer.step(x, t)
        for i, (p, g) in enumerate(zip((weight, bias), mse_gradients(weight, bias, x, t), strict=True)):
            if decoupled:
                p *= 1 - 0.01 * 0.1
            else:
                g = g + 0.1 * p
            mean[i] = 0.9 * mean[i] + 0.1 * g
            var[i] = 0.999 * var[i] + 0.001 * g * g
            p -= 0.01 * (mean[i] / (1 - 0.9**step)) / (np.sqrt(var[i] / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(net.params["fc_weight"], weight, rtol=1e-4)
    np.testing.assert_allclose(net.params["fc_bias"], bias, rtol=1e-4)


def test_accumulation_equals_one_large_batch_also_when_ragged():
    x, t = batch(12)
    whole, parts = linear_model(), linear_model()
    gk.Trainer(whole, "mse", gk.optim.SGD(0.1, momentum=0.9)).step(x, t)
    trainer = gk.Trainer(parts, "mse", gk.optim.SGD(0.1, momentum=0.9), accumulate=3)
    for piece in (slice(0, 5), slice(5, 10), slice(10, 12)):
        before = parts.params["fc_weight"].copy()
        trainer.step(x[piece], t[piece])
    assert trainer.updates == 1
    assert not np.array_equal(before, parts.params["fc_weight"])
    np.testing.assert_allclose(parts.params["fc_weight"], whole.params["fc_weight"], rtol=1e-5, atol=1e-7)


def test_clipping_limits_the_global_norm():
    net, free = linear_model(), linear_model()
    x, t = batch()
    start = {n: net.params[n].copy() for n in net.params}
    gk.Trainer(net, "mse", gk.optim.SGD(1.0), clip_norm=0.01).step(x, t)
    moved = np.sqrt(sum(np.sum((net.params[n] - start[n]) ** 2) for n in start))
    assert moved == pytest.approx(0.01, rel=1e-4)
    gk.Trainer(free, "mse", gk.optim.SGD(1.0), clip_norm=1e6).step(x, t)
    plain = linear_model()
    gk.Trainer(plain, "mse", gk.optim.SGD(1.0)).step(x, t)
    np.testing.assert_allclose(free.params["fc_weight"], plain.params["fc_weight"], rtol=1e-6)


def test_frozen_parameters_keep_their_bits():
    net = linear_model()
    before = {n: net.params[n].copy() for n in net.params}
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), freeze=["*_weight"])
    trainer.step(*batch())
    assert trainer.trained == ("fc_bias",)
    np.testing.assert_array_equal(net.params["fc_weight"], before["fc_weight"])
    assert not np.array_equal(net.params["fc_bias"], before["fc_bias"])


def test_freezing_nothing_or_everything_is_an_error():
    with pytest.raises(UsageError, match="matches no parameter"):
        gk.Trainer(linear_model(), "mse", freeze=["conv*"])
    with pytest.raises(UsageError, match=r"nothing to train\. A parameter is trained if"):
        gk.Trainer(linear_model(), "mse", freeze=["*"])


def test_learning_rate_multiplier_from_attributes():
    x = gk.input("x", ["N", 3])
    with gk.attr_scope(lr_mult="0.5"):
        y = gk.nn.linear(x, 2, name="fc")
    half, full = gk.Model({"y": y}, seed=0), linear_model()
    start = full.params["fc_weight"].copy()
    np.testing.assert_array_equal(half.params["fc_weight"], start)
    for net in (half, full):
        gk.Trainer(net, "mse", gk.optim.SGD(0.1)).step(*batch())
    np.testing.assert_allclose(half.params["fc_weight"] - start, (full.params["fc_weight"] - start) / 2, rtol=1e-4)


def test_batch_norm_statistics_follow_the_batches():
    x = gk.input("x", ["N", 3, 4])
    net = gk.Model({"y": gk.reduce_mean(gk.nn.batch_norm(x, name="bn"), [2], keepdims=False)}, name="bn")
    data = np.random.default_rng(0).normal(2.0, 3.0, (16, 3, 4)).astype(np.float32)
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.0))
    for _ in range(200):
        trainer.step(data, np.zeros((16, 3), np.float32))
    np.testing.assert_allclose(net.params["bn_running_mean"], data.mean((0, 2)), rtol=1e-3)
    np.testing.assert_allclose(net.params["bn_running_var"], data.var((0, 2)), rtol=1e-3)


def test_dropout_masks_depend_on_seed_and_step():
    def losses(seed):
        x = gk.input("x", ["N", 3])
        net = gk.Model({"y": gk.nn.linear(gk.nn.dropout(x, 0.5), 2, name="fc")}, seed=0)
        trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.0), seed=seed)
        return [float(trainer.step(*batch())) for _ in range(3)]

    first = losses(1)
    assert len(set(first)) == 3
    assert first == losses(1)
    assert first != losses(2)


def test_loss_function_with_its_own_targets():
    net = linear_model()
    trainer = gk.Trainer(
        net, lambda y, a, b: gk.reduce_mean(gk.abs(y - a) * b, keepdims=False), gk.optim.SGD(0.1),
        targets={"a": gk.TensorType("float32", ["N", 2]), "b": gk.TensorType("float32", [])},
    )  # fmt: skip
    x, t = batch()
    expected = np.mean(np.abs(x @ net.params["fc_weight"].T + net.params["fc_bias"] - t)) * 2
    assert float(trainer.step(x, (t, np.float32(2)))) == pytest.approx(float(expected), rel=1e-5)


def test_a_diverging_loss_stops_training_with_a_message():
    trainer = gk.Trainer(linear_model(), "mse", gk.optim.SGD(1e30))
    with pytest.raises(NotFinite, match=r"the loss is (inf|nan) at epoch 1, batch 2"):
        trainer.fit(batch(), epochs=1, batch_size=2)


def test_wrong_targets_are_named():
    with pytest.raises(InputError, match="target"):
        gk.Trainer(linear_model(), "mse").step(batch()[0], np.zeros((8, 3), np.float32))
    with pytest.raises(UsageError, match="did you mean 'mse'"):
        gk.Trainer(linear_model(), "mze")


def test_schedules():
    cosine = gk.optim.Cosine(1.0, 10, final=0.1)
    assert [cosine(0), cosine(10), cosine(50)] == pytest.approx([1.0, 0.1, 0.1])
    warm = gk.optim.Warmup(gk.optim.Step(1.0, every=3, factor=0.1), 4)
    assert [warm(i) for i in range(8)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.1])
    assert gk.optim.schedule(warm.describe()) == warm


def test_optimizer_descriptions_read_back():
    for optimizer in (gk.optim.SGD(0.1, momentum=0.5), gk.optim.AdamW(gk.optim.Cosine(1e-3, 5))):
        assert gk.optim.get(optimizer.describe()).describe() == optimizer.describe()
    with pytest.raises(UsageError, match="did you mean 'momentum'"):
        gk.optim.get("sgd", lr=0.1, momentun=0.9)


def test_the_split_programs_share_their_sums():
    graph = gk.losses.attach(linear_model().graph, "mse")
    accumulate, update = steps.split_step(
        graph, select_parameters(graph, ParameterSelection()), steps.UpdateRule(gk.optim.SGD(0.1))
    )
    sums = {n for n in accumulate.input_names if n.endswith(steps.GRADIENT_SUM)}
    assert sums == {n for n in update.input_names if n.endswith(steps.GRADIENT_SUM)} == {
        "fc_weight/gradient_sum", "fc_bias/gradient_sum"
    }  # fmt: skip


@pytest.mark.parametrize("lr", [0.25, gk.optim.Step(0.5, every=2, factor=0.5)], ids=["number", "schedule"])
def test_updates_and_optimizer_set_the_rate(lr):
    """Users may set both between steps: `updates` for another place on the schedule, the optimizer for another rate."""
    optimizer = gk.optim.SGD(lr)
    assert [optimizer.rate(n) for n in range(5)] == [optimizer.schedule(n) for n in range(5)]
    net = linear_model()
    trainer = gk.Trainer(net, "mse", optimizer, threads=1)
    x, t = batch()

    def moved():
        weight, bias = net.params["fc_weight"].copy(), net.params["fc_bias"].copy()
        trainer.step(x, t)
        return (weight - net.params["fc_weight"]) / mse_gradients(weight, bias, x, t)[0]

    np.testing.assert_allclose(moved(), optimizer.schedule(0), rtol=1e-3)
    trainer.updates = 4
    np.testing.assert_allclose(moved(), optimizer.schedule(4), rtol=1e-3)
    assert trainer.updates == 5
    trainer.optimizer = gk.optim.SGD(0.0625)
    np.testing.assert_allclose(moved(), 0.0625, rtol=1e-3)


def test_deleted_trainer_frees_memory_immediately():
    """Arenas and parameters are not part of reference cycles."""

    def programs():
        return {id(held): held for held in gc.get_objects() if type(held) is Program}

    before = programs().keys()
    trainer = gk.Trainer(linear_model(), "mse")
    x, t = batch()
    trainer.step(x, t)
    trainer.evaluate((x, t), ["loss"])
    found = [weakref.ref(trainer), *(weakref.ref(held) for key, held in programs().items() if key not in before)]
    assert len(found) > 2
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert [reference() for reference in found] == [None] * len(found)
    finally:
        gc.enable()


def test_stop_gradient_acts_in_a_graph_with_formulas() -> None:
    """A Sigmoid makes the trainer look for formulas, which must not remove StopGradient."""
    x = gk.input("x", ["N", 3])
    s = gk.sigmoid(gk.nn.linear(x, 1, bias=False, name="fc"))
    net = gk.Model({"y": gk.mul(s, gk.stop_gradient(s))}, seed=0)
    w, data = np.array(net.params["fc_weight"]), np.arange(15, dtype=np.float32).reshape(5, 3) / 15
    gk.Trainer(net, "mse", gk.optim.SGD(1.0), threads=1).step(data, np.zeros((5, 1), np.float32))
    sigmoid = 1 / (1 + np.exp(-data @ w.T))
    expected = np.mean(2 * sigmoid**2 * sigmoid * sigmoid * (1 - sigmoid) * data, axis=0)
    np.testing.assert_allclose(w[0] - net.params["fc_weight"][0], expected, rtol=1e-5)
