"""Optimizers that run in the store, compared with the Trainer's."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InvalidModel, RuntimeFailure, UsageError
from graphkit.ir.weights import read_arrays, write_arrays

OPTIMIZERS = {
    "sgd": gk.optim.SGD(0.1),
    "momentum": gk.optim.SGD(gk.optim.Cosine(0.1, steps=8), momentum=0.9),
    "adam": gk.optim.Adam(0.05, weight_decay=0.01),
    "adagrad": gk.optim.Adagrad(0.1),
    "lamb": gk.optim.Lamb(0.1),
}


def gradients(seed=0, steps=5):
    rng = np.random.default_rng(seed)
    return [{"w": rng.standard_normal((3, 4)).astype(np.float32), 7: rng.standard_normal(2)} for _ in range(steps)]


def started(optimizer, store=None):
    store = gk.kvstore.create() if store is None else store
    store.init(["w", 7], [np.ones((3, 4), np.float32), np.full(2, 2.0)])
    store.set_optimizer(optimizer)
    return store


def pushed(store, steps):
    for step in steps:
        store.push(["w", 7], [step["w"], step[7]])
    return store.pull(["w", 7])


@in_one_item()
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_a_trainer_updates(name):
    """Train with the same optimizer on a loss whose gradients are the pushed values."""
    steps = gradients()
    w, _ = pushed(started(OPTIMIZERS[name]), steps)
    x = gk.input("x", ["N", 3, 4])
    net = gk.Model({"y": x * gk.parameter("w", (3, 4), "ones")})
    trainer = gk.Trainer(net, "mse", OPTIMIZERS[name], threads=1)
    for step in steps:
        # d/dw of mean((x w - t)^2) is 2 x (x w - t) / 12, which is the gradient for x = 1 and t = w - 6 g.
        target = net.params["w"] - 6 * step["w"]
        trainer.step(np.ones((1, 3, 4), np.float32), target[None])
    np.testing.assert_allclose(w, net.params["w"], rtol=1e-4, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_go_on_in_another_store(tmp_path, name):
    steps = gradients()
    whole = pushed(started(OPTIMIZERS[name]), steps)
    first = started(OPTIMIZERS[name])
    values = pushed(first, steps[:3])
    first.save_optimizer_states(tmp_path / "states.safetensors")
    second = gk.kvstore.create()
    second.init(["w", 7], values)
    second.set_optimizer(OPTIMIZERS[name])
    second.load_optimizer_states(tmp_path / "states.safetensors")
    for got, expected in zip(pushed(second, steps[3:]), whole, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_all_processes_update_alike(on_ranks):
    steps = gradients()
    (alone,) = on_ranks(lambda store: pushed(started(OPTIMIZERS["adam"], store), steps), 1)

    def work(store):
        parts = [{key: g * (store.rank + 1) / 3 for key, g in step.items()} for step in steps]
        return pushed(started(OPTIMIZERS["adam"], store), [{"w": p["w"].astype(np.float32), 7: p[7]} for p in parts])

    for found in on_ranks(work):
        for got, expected in zip(found, alone, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_keys_of_the_same_text_are_apart(tmp_path):
    store = gk.kvstore.create()
    store.init([1, "1"], [np.zeros(2), np.zeros(2)])
    store.set_optimizer(gk.optim.SGD(1.0, momentum=0.5))
    store.push(1, np.ones(2))
    store.save_optimizer_states(tmp_path / "s")
    assert sorted(read_arrays(tmp_path / "s")) == ["i:1/momentum", "i:1/updates"]
    store.push("1", np.ones(2))
    store.save_optimizer_states(tmp_path / "s")
    assert len(read_arrays(tmp_path / "s")) == 4


def test_states_that_do_not_fit(tmp_path):
    store = started(gk.optim.SGD(0.1, momentum=0.5))
    pushed(store, gradients(steps=1))
    path = tmp_path / "states"
    store.save_optimizer_states(path)
    with pytest.raises(InvalidModel, match="is not a slot of Adam, whose slots are: mean, variance"):
        started(gk.optim.Adam(0.1)).load_optimizer_states(path)
    arrays = dict(read_arrays(path))
    del arrays["s:w/momentum"]
    write_arrays(path, arrays)
    before = store.pull("w")
    with pytest.raises(InvalidModel, match="the states of key 'w' are incomplete"):
        store.load_optimizer_states(path)
    np.testing.assert_array_equal(store.pull("w"), before)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InvalidModel, match="truncated or damaged"):
        store.load_optimizer_states(path)
    with pytest.raises(InvalidModel, match="cannot be read"):
        store.load_optimizer_states(tmp_path / "absent")


def test_a_store_without_an_optimizer_has_no_states(tmp_path):
    store = gk.kvstore.create()
    store.set_updater(lambda key, total, stored: None)
    with pytest.raises(UsageError, match="no optimizer with states"):
        store.save_optimizer_states(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["device", "local"])
def test_names_of_mxnet(name):
    assert gk.kvstore.create(name).type == "local"


def test_states_that_cannot_be_written_are_an_error_that_names_the_file(tmp_path):
    with pytest.raises(RuntimeFailure, match=r"none/states cannot be written: No such file"):
        started(gk.optim.SGD(0.1, momentum=0.9)).save_optimizer_states(tmp_path / "none" / "states")
