"""gk.losses.distillation: the loss, compared with its formula in numpy, and its use in a Trainer."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 4)).astype(np.float32), np.array([0, 2, 1, 1, 0, 2])


def network(seed, name="x", probabilities=False, classes=3):
    x = gk.input(name, ["N", 4])
    y = gk.nn.linear(gk.nn.dropout(gk.nn.linear(x, 5, name="a"), 0.5), classes, name="b")
    return gk.Model({"y": gk.softmax(y) if probabilities else y}, seed=seed, name="net")


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def expected(student, teacher, temperature, weight, sample_weight=None):
    """Hinton, Vinyals and Dean 2015, with the divergence instead of the cross entropy."""
    w = np.ones(len(X)) if sample_weight is None else sample_weight
    logits, wanted = (np.asarray(net.run({name: X})["y"], np.float64) for net, name in ((student, "x"), (teacher, "t")))
    hard = -log_softmax(logits)[np.arange(len(X)), Y]
    p, log_p = np.exp(log_softmax(wanted / temperature)), log_softmax(wanted / temperature)
    soft = (p * (log_p - log_softmax(logits / temperature))).sum(-1)
    each = (1 - weight) * hard + weight * temperature**2 * soft
    return (w * each).sum() / w.sum()


@in_one_item("values")
@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 0.5), (3.0, 0.25), (2.0, 1.0), (2.0, 0.0)])
@pytest.mark.parametrize("probabilities", [False, True])
def test_loss_follows_the_formula(temperature, weight, probabilities):
    student, teacher = network(0), network(1, "t")
    given = network(1, "t", probabilities)
    loss = gk.losses.distillation(given, temperature=temperature, weight=weight)
    trainer = gk.Trainer(student, loss, gk.optim.SGD(0.1), threads=1)
    found = trainer.evaluate((X, Y), ["loss"])["loss"]
    np.testing.assert_allclose(found, expected(student, teacher, temperature, weight), rtol=1e-5)


def test_gradient_is_that_of_the_formula():
    student = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 4]), 3, name="b")}, seed=0)
    teacher, before = network(1, "t"), np.array(student.params["b_bias"])
    logits, wanted = student.run({"x": X})["y"], teacher.run({"t": X})["y"]
    gk.Trainer(student, gk.losses.distillation(teacher), gk.optim.SGD(1.0), threads=1).step(X, Y)
    hard = np.exp(log_softmax(logits)) - np.eye(3)[Y]
    soft = 2.0 * (np.exp(log_softmax(logits / 2)) - np.exp(log_softmax(wanted / 2)))
    expected = (0.5 * hard + 0.5 * soft).mean(0)
    np.testing.assert_allclose(before - student.params["b_bias"], expected, rtol=1e-4, atol=1e-6)


def test_teacher_is_neither_trained_nor_saved(tmp_path):
    student, teacher = network(0), network(1, "t")
    before = {name: np.array(array) for name, array in teacher.params.items()}
    trainer = gk.Trainer(student, gk.losses.distillation(teacher), gk.optim.Adam(0.01), threads=1, mixup=0.2)
    trainer.fit((X, Y), epochs=2, batch_size=4, folder=tmp_path, progress=False)
    assert all(np.array_equal(teacher.params[name], array) for name, array in before.items())
    saved = gk.load(tmp_path)
    assert set(saved.params) == set(student.params)
    assert [node.op.name for node in saved.graph.nodes] == [node.op.name for node in student.graph.nodes]


def test_sample_weights_weigh_both_parts():
    student, teacher = network(0), network(1, "t")
    weights = np.array([1, 0, 2, 1, 3, 0.5], np.float32)
    trainer = gk.Trainer(student, gk.losses.distillation(teacher), gk.optim.SGD(0.1), threads=1)
    found = trainer.evaluate((X, Y), ["loss"], sample_weight=weights, batch_size=4)["loss"]
    np.testing.assert_allclose(found, expected(student, teacher, 2.0, 0.5, weights), rtol=1e-5)


def test_a_student_of_the_teacher_alone_learns_its_outputs():
    student, teacher = network(0), network(1, "t")
    x = RNG.standard_normal((256, 4)).astype(np.float32)
    trainer = gk.Trainer(student, gk.losses.distillation(teacher, weight=1.0), gk.optim.Adam(0.02), threads=1)
    first = trainer.evaluate((x, np.zeros(256, np.int64)), ["loss"])["loss"]
    trainer.fit((x, np.zeros(256, np.int64)), epochs=15, batch_size=32, progress=False)
    assert trainer.evaluate((x, np.zeros(256, np.int64)), ["loss"])["loss"] < 0.2 * first


def test_wrong_teachers_are_errors():
    student, teacher = network(0), network(1, "t")
    with pytest.raises(UsageError, match="the loss 'mse' is not a loss of logits with a Softmax"):
        gk.losses.distillation(teacher, "mse")
    with pytest.raises(UsageError, match="weight must be a finite number in"):
        gk.losses.distillation(teacher, weight=1.5)
    with pytest.raises(UsageError, match="the teacher has no output 'z'"):
        gk.losses.distillation(teacher, output="z")
    for net, message in (
        (network(1, classes=4), r"is float32\[N, 4\], but the model's logits are float32\[N, 3\]"),
        (gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 7]), 3)}, seed=0), "does not accept the inputs of the model"),
        (gk.Model({"y": gk.input("u", ["N", 3]) + gk.input("v", ["N", 3])}), "needs an input 'u'"),
    ):
        with pytest.raises(UsageError, match=message):
            gk.Trainer(student, gk.losses.distillation(net))
    with pytest.raises(UsageError, match="has no class_weights and no ignore_index"):
        gk.Trainer(student, gk.losses.distillation(teacher, gk.losses.get("softmax_cross_entropy", ignore_index=-1)))
