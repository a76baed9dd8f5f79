"""Batches that are divided among stages, ranks and servers weigh as one batch of one process; so do half parameters."""

import numpy as np
import pytest
from pipelines import AB, ABC, group, labelled
from serving import workers

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ops import F

pytestmark = pytest.mark.full

WEIGHTED = gk.losses.get("softmax_cross_entropy", class_weights=[1.0, 30.0, 0.2])


def chain(dtype="float32"):
    h = gk.input("x", ["N", 6], dtype)
    for name, shape in {"a": [6, 8], "b": [8, 8], "c": [8, 3]}.items():
        with group(name):
            h = gk.tanh(gk.mat_mul(h, gk.parameter(name, shape, dtype=dtype)))
    return gk.Model({"y": h * 4.0}, name="net", seed=1)


def there_and_back(dtype="float32"):
    """The first group is needed again after the second, so this is not a pipeline."""
    x = gk.input("x", ["N", 6], dtype)
    with group("a"):
        first = gk.tanh(gk.mat_mul(x, gk.parameter("a", [6, 8], dtype=dtype)))
    with group("b"):
        second = gk.tanh(gk.mat_mul(first, gk.parameter("b", [8, 8], dtype=dtype)))
    with group("a"):
        y = gk.mat_mul(second + first, gk.parameter("c", [8, 3], dtype=dtype))
    return gk.Model({"y": y}, name="net", seed=1)


def batches(dtype):
    """Sorted by class, so that parts of a batch weigh different amounts."""
    for seed in range(3):
        x, y = labelled(16, seed)
        order = np.argsort(y, kind="stable")
        yield x[order].astype(dtype), y[order]


def trained(model, store=None, dtype="float32", loss=WEIGHTED, optimizer=None, **options):
    optimizer = optimizer or gk.optim.SGD(0.1)
    trainer = gk.Trainer(model(dtype), loss, optimizer, kvstore=store, threads=1, **options)
    return [float(trainer.step(x, y)) for x, y in batches(dtype)], trainer


def assert_trained(found, whole, bound=1e-5):
    for name in found._exchange.held:
        np.testing.assert_allclose(found.net.params[name], whole.net.params[name], rtol=bound, atol=bound)


PLACED = {
    "pipeline": (chain, {"groups": ABC, "micro_batches": 4}, 3),
    "placed": (there_and_back, {"groups": AB}, 2),
}


@pytest.mark.parametrize("kind", PLACED)
def test_placed_models(on_ranks, kind):
    model, options, ranks = PLACED[kind]
    losses, whole = trained(model)
    data = next(batches("float32"))
    record = trained(model)[1].fit(data, data, epochs=1, batch_size=6, progress=False)[0]

    def work(store):
        found, trainer = trained(model, store, **options)
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        assert_trained(trainer, whole)
        return trainer.fit(data, epochs=1, batch_size=6, progress=False)[0]["loss"]

    for loss in on_ranks(work, ranks):
        np.testing.assert_allclose(loss, record["loss"], rtol=1e-4)


def test_a_weight_that_the_network_computes_has_no_place(on_ranks):
    def loss(y, target):
        return F.reduce_sum_square(y - target, keepdims=False), F.reduce_sum(F.abs(y), keepdims=False)

    def work(store):
        with pytest.raises(UsageError, match=r"groups= .*: the weight of the loss depends on '[abc]'"):
            trained(chain, store, loss=loss, targets={"target": gk.TensorType("float32", ["N", 3])}, groups=ABC)

    on_ranks(work, 3)


@pytest.mark.parametrize("kind", PLACED)
def test_half_parameters_of_placed_models(on_ranks, kind):
    """Adam's steps of 1e-4 vanish in float16."""
    model, options, ranks = PLACED[kind]
    adam = gk.optim.Adam(1e-4)
    _, whole = trained(model, dtype="float16", optimizer=adam)

    def work(store):
        _, trainer = trained(model, store, "float16", optimizer=adam, **options)
        held = trainer._exchange.held
        assert_trained(trainer, whole, 2e-3)
        for name in held:
            found, expected = (t._stepper.slots[f"{name}/master"] for t in (trainer, whole))
            assert found.dtype == np.float32
            moved = whole._stepper.slots[f"{name}/master"] - model("float16").params[name].astype(np.float32)
            assert np.abs(moved).max() > 1e-4
            np.testing.assert_allclose(found, expected, atol=1e-4)
        return len(held)

    assert sum(on_ranks(work, ranks)) == 3


def test_servers():
    """Accumulated gradients of one push are weighted."""
    losses, whole = trained(chain, accumulate=3)
    found, trainer = trained(chain, workers(1, 2)[0][0], accumulate=3)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    with trainer._exchange.gathered():
        pass
    assert_trained(trainer, whole)


UNWEIGHTED = gk.losses.get("softmax_cross_entropy", class_weights=[0.0, 0.0, 1.0])
SHARED = {
    "all-reduce": {},
    "accumulated": {"accumulate": 2},
    "sharded": {"shard_optimizer": True},
    "pipeline": {"groups": ABC, "micro_batches": 4},
}


def assert_unchanged(store=None, **options):
    trainer = gk.Trainer(chain(), UNWEIGHTED, gk.optim.SGD(0.1), kvstore=store, threads=1, **options)
    before = {name: np.array(trainer.net.params[name]) for name in trainer._exchange.held}
    x, _ = labelled(8, 0)
    assert [float(trainer.step(x, np.zeros(8, np.int64))) for _ in range(2)] == [0.0, 0.0]
    trainer.flush()
    assert before
    for name, array in before.items():
        np.testing.assert_array_equal(trainer.net.params[name], array)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=["fused", "accumulated"])
def test_batches_without_weight_change_nothing(options):
    assert_unchanged(**options)


@pytest.mark.parametrize("options", SHARED.values(), ids=SHARED)
def test_ranks_without_weight_change_nothing(on_ranks, options):
    on_ranks(lambda store: assert_unchanged(store, **options), 3)


def test_servers_without_weight_change_nothing():
    assert_unchanged(workers(1, 2)[0][0], accumulate=2)
