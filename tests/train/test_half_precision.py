"""float16 and bfloat16 parameters train like float32 ones: their states, accumulators and averages are float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.train.states import MASTER

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
OPTIMIZERS = {
    "sgd": gk.optim.SGD(1e-3, momentum=0.9, weight_decay=0.01),
    "adam": gk.optim.Adam(1e-3),
    "adamw": gk.optim.AdamW(1e-3),
    "rmsprop": gk.optim.RMSProp(1e-3, momentum=0.5, centered=True),
    "adagrad": gk.optim.Adagrad(1e-2),
    "adadelta": gk.optim.Adadelta(1.0),
    "ftrl": gk.optim.Ftrl(0.1),
    "lars": gk.optim.LARS(1.0, trust=0.01),
    "lamb": gk.optim.Lamb(1e-3),
    "lion": gk.optim.Lion(1e-3, weight_decay=0.01),
    "nadam": gk.optim.NAdam(1e-3, weight_decay=0.01),
}


def network(dtype: str, start: float = 0.5) -> gk.Model:
    x, w = gk.input("x", ["N", 1], dtype), gk.parameter("w", [1, 3], dtype=dtype)
    net = gk.Model({"y": gk.mat_mul(x, w)}, name="net")
    net.params["w"] = np.full((1, 3), start, dtype=HALVES.get(dtype, np.float32))
    return net


def loss_of(dtype: str) -> dict[str, Any]:
    """Return a loss whose gradient is the target, for any weights."""
    return {
        "loss": lambda y, target: gk.reduce_sum(y * target, keepdims=False),
        "targets": {"target": gk.TensorType(dtype, ["N", 3])},
    }


def batch(dtype: str, gradient: float) -> tuple[np.ndarray, np.ndarray]:
    kind = HALVES.get(dtype, np.float32)
    return np.ones((1, 1), kind), np.full((1, 3), gradient).astype(kind)


def trained(dtype: str, gradient: float, steps: int, **options: Any) -> gk.Trainer:
    trainer = gk.Trainer(network(dtype), **loss_of(dtype), threads=1, **options)
    # float32 gets the gradient rounded to the 16-bit type.
    x, target = batch(dtype, float(np.float16(gradient)) if dtype != "bfloat16" else gradient)
    for _ in range(steps):
        trainer.step(x, target)
    return trainer


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", ["nadam", pytest.param("sgd", marks=pytest.mark.full)])
def test_resume_within_epoch_of_weighted_run_is_bit_identical(tmp_path: Any, dtype: str, optimizer: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((11, 3)).astype(HALVES[dtype]), rng.integers(0, 2, 11)
    fit = {"batch_size": 3, "sample_weight": rng.random(11), "validation_split": 0.2}

    def make() -> gk.Trainer:
        given = gk.input("x", ["N", 3], dtype)
        net = gk.Model({"y": gk.mat_mul(given, gk.parameter("w", [3, 2], dtype=dtype))}, name="net", seed=0)
        return gk.Trainer(net, "softmax_cross_entropy", OPTIMIZERS[optimizer], threads=1, seed=2, accumulate=2)

    whole = make()
    straight = whole.fit((x, y), epochs=3, **fit)
    make().fit((x, y), max_steps=3, folder=tmp_path, **fit)
    last = make()
    last.resume(tmp_path)
    assert last.position.within
    done = last.epoch
    assert last.fit((x, y), epochs=3, **fit) == straight[done:]
    assert last.updates == whole.updates
    for name, array in [*whole.net.params.items(), *whole._stepper.slots.items()]:
        assert array.tobytes() == last._stepper.store[name].tobytes(), name


def weights(trainer: gk.Trainer) -> np.ndarray:
    return np.array(trainer.net.params["w"]).astype(np.float64)


@in_one_item("values")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "ema": 0.9}, {"clip_norm": 1e-3}], ids=str)
def test_half_parameters_change_like_float32(dtype: str, optimizer: str, options: dict[str, Any]) -> None:
    gradient = 2.0**-9 if dtype == "bfloat16" else 1e-3
    half, wide = (trained(d, gradient, 40, optimizer=OPTIMIZERS[optimizer], **options) for d in (dtype, "float32"))
    digits = float(ml_dtypes.finfo(HALVES[dtype]).eps)
    np.testing.assert_allclose(weights(half), weights(wide), rtol=digits, atol=1e-6)
    moved = np.abs(weights(wide) - 0.5).max()
    assert moved > 2e-5
    slots = half._stepper.slots
    np.testing.assert_allclose(slots[f"w/{MASTER}"], weights(wide), rtol=1e-4)
    for name in slots:
        if name.startswith("w/"):
            assert slots[name].dtype == np.float32
    if "ema" in options:
        np.testing.assert_allclose(slots["w/average"], wide._stepper.slots["w/average"], rtol=1e-4)


def test_gradients_whose_squares_overflow() -> None:
    half, wide = (trained(d, 20000.0, 20, optimizer=gk.optim.Adam(1e-3), clip_norm=1.0) for d in ("float16", "float32"))
    np.testing.assert_allclose(weights(half), weights(wide), rtol=1e-3)
    assert np.abs(weights(wide) - 0.5).max() > 1e-2


def test_assigned_parameter_replaces_master_weight() -> None:
    trainer = trained("float16", 1e-3, 5, optimizer=gk.optim.Adam(1e-3))
    trainer.net.params["w"] = np.full((1, 3), 2.0, np.float16)
    trainer.step(*batch("float16", 1e-3))
    np.testing.assert_allclose(weights(trainer), 2.0 - 1e-3, atol=2e-3)
    np.testing.assert_allclose(trainer._stepper.slots[f"w/{MASTER}"], 2.0 - 1e-3, rtol=1e-5)


def test_evaluation_does_not_round_averages() -> None:
    trainer = trained("float16", 1e-3, 10, optimizer=gk.optim.SGD(1.0), ema=0.9)
    before = {name: np.array(trainer._stepper.slots[name]) for name in trainer._stepper.slots}
    own = weights(trainer)
    with trainer.averaged():
        np.testing.assert_array_equal(weights(trainer), before["w/average"].astype(np.float16).astype(np.float64))
        assert trainer.net.params["w"].dtype == np.float16
    np.testing.assert_array_equal(weights(trainer), own)
    for name, array in before.items():
        np.testing.assert_array_equal(trainer._stepper.slots[name], array)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resume_is_bit_identical(tmp_path: Path, accumulate: int) -> None:
    options = {"optimizer": gk.optim.Adam(1e-3), "ema": 0.9, "accumulate": accumulate}
    whole, first = (trained("float16", 1e-3, steps, **options) for steps in (9, 5))
    first.save(tmp_path)
    again = gk.Trainer(gk.load(tmp_path), **loss_of("float16"), threads=1, **options)
    again.resume(tmp_path)
    for _ in range(4):
        again.step(*batch("float16", 1e-3))
    for name in whole._stepper.slots:
        assert whole._stepper.slots[name].tobytes() == again._stepper.slots[name].tobytes(), name
    assert whole.net.params["w"].tobytes() == again.net.params["w"].tobytes()


def test_rows_of_tables() -> None:
    def trained(dtype: str) -> np.ndarray:
        ids = gk.input("ids", ["N"], dtype="int64")
        table = gk.parameter("table", [5, 2], dtype=dtype)
        net = gk.Model({"y": gk.gather(table, ids)})
        net.params["table"] = np.full((5, 2), 0.5, HALVES.get(dtype, np.float32))
        trainer = gk.Trainer(
            net, lambda y, t: gk.reduce_sum(y * t, keepdims=False), gk.optim.Adam(1e-4), lazy=["table"],
            targets={"t": gk.TensorType(dtype, ["N", 2])},
        )  # fmt: skip
        for _ in range(30):
            trainer.step(np.array([1, 3, 1]), np.full((3, 2), 2.0**-10, HALVES.get(dtype, np.float32)))
        return np.array(trainer.net.params["table"]).astype(np.float64)

    half, wide = trained("float16"), trained("float32")
    assert (half[[0, 2, 4]] == 0.5).all()
    np.testing.assert_allclose(half, wide, rtol=1e-3)
    assert (half[[1, 3]] < 0.498).all()


def test_stores_that_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """`KVStore.set_optimizer` updates as servers do."""
    found = {}
    for dtype in (np.float16, np.float32):
        kv = gk.kvstore.create("local")
        kv.set_optimizer(gk.optim.Adam(1e-4))
        kv.init("w", np.full(3, 0.5, dtype))
        for _ in range(30):
            kv.push("w", np.full(3, 2.0**-10, dtype))
        found[dtype] = kv.pull("w")
    assert found[np.float16].dtype == np.float16
    np.testing.assert_allclose(found[np.float16], found[np.float32], rtol=1e-3)
    assert (found[np.float16] < 0.498).all()


def test_updaters_return_and_restore_states() -> None:
    updater = gk.optim.Adam(1e-3).updater()
    stored = np.full(3, 0.5, np.float16)
    for _ in range(3):
        updater(1, np.full(3, 1e-3, np.float16), stored)
    states = updater.states()
    assert {name: array.dtype for name, array in states.items()} == {
        "i:1/updates": np.int64, **dict.fromkeys(("i:1/master", "i:1/mean", "i:1/variance"), np.float32)
    }  # fmt: skip
    again, copied = gk.optim.Adam(1e-3).updater(), stored.copy()
    again.restore(states)
    for one, array in ((updater, stored), (again, copied)):
        one(1, np.full(3, 1e-3, np.float16), array)
    assert stored.tobytes() == copied.tobytes()
    assert updater.states()["i:1/master"].tobytes() == again.states()["i:1/master"].tobytes()
