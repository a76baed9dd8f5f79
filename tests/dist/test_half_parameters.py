"""Parameters of float16 and bfloat16 on several ranks and on servers: states in float32, results of one process."""

import ml_dtypes
import numpy as np
import pytest
from combinations import default_at, in_one_item
from serving import workers

import graphkit as gk
from graphkit.train import checkpoint
from graphkit.train.states import MASTER

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Powers of two, so that a mean over ranks rounds nothing.
GRADIENT = 2.0**-10


def trained(store, dtype, rank=0, ranks=1, steps=30, resume=None, **options):
    """A trainer after some steps of a loss whose gradient is GRADIENT, whatever the weights are."""
    kind = DTYPES.get(dtype, np.float32)
    x, w, bias = gk.input("x", ["N", 1], dtype), gk.parameter("w", [1, 3], dtype=dtype), gk.parameter("b", [5], "zeros")
    net = gk.Model({"y": gk.mat_mul(x, w) + gk.cast(gk.reduce_sum(bias), to=dtype)}, name="net")
    net.params["w"] = np.full((1, 3), 0.5, kind)
    options = {"optimizer": gk.optim.Adam(1e-4), "loss": weighted, "wd_mult": {"b": 0}, **options}
    targets = {"target": gk.TensorType(dtype, ["N", 3])}
    trainer = gk.Trainer(net, kvstore=store, threads=1, targets=targets, **options)
    if resume is not None:
        trainer.resume(resume)
    rows = 8 // ranks
    for _ in range(steps):
        trainer.step(np.ones((rows, 1), kind), np.full((rows, 3), GRADIENT * 3, kind))
    return trainer


def weighted(y, target):
    return gk.reduce_mean(y * target, keepdims=False)


def weights(trainer):
    return np.array(trainer.net.params["w"]).astype(np.float64)


@default_at(1, 3)
@pytest.mark.parametrize("options", [{}, {"shard_optimizer": True}, {"ema": 0.9}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_are_one_process_in_float32(on_ranks, dtype, options):
    alone = {name: value for name, value in options.items() if name != "shard_optimizer"}
    wide = weights(trained(None, "float32", **alone))
    assert np.abs(wide - 0.5).max() > 1e-3
    digits = float(ml_dtypes.finfo(DTYPES[dtype]).eps)

    def work(store):
        trainer = trained(store, dtype, store.rank, 2, **options)
        slots = trainer._stepper.slots
        assert all(slots[name].dtype == np.float32 for name in slots if "/" in name)
        return weights(trainer)

    first, second = on_ranks(work)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, wide, rtol=digits)


def test_divided_states_are_saved_whole_and_resumed(on_ranks, tmp_path):
    def work(store):
        trained(store, "float16", store.rank, 2, 15, shard_optimizer=True).save(tmp_path / "run")

    on_ranks(work)
    saved = checkpoint.load(tmp_path / "run").arrays
    master = next(array for name, array in saved.items() if name.endswith(f"w/{MASTER}"))
    assert (master.dtype, master.shape) == (np.float32, (1, 3))
    two = on_ranks(
        lambda store: weights(
            trained(store, "float16", store.rank, 2, 15, resume=tmp_path / "run", shard_optimizer=True)
        )
    )
    one = weights(trained(None, "float16", steps=15, resume=tmp_path / "run"))
    whole = weights(trained(None, "float16", steps=30))
    for found in (*two, one):
        np.testing.assert_allclose(found, whole, rtol=1e-3)


@in_one_item()
@pytest.mark.parametrize("options", [{}, {"ema": 0.9}, {"accumulate": 2}], ids=str)
def test_servers_are_one_process_in_float32(options):
    wide = weights(trained(None, "float32", **options))
    half = weights(trained(workers(1, 2)[0][0], "float16", **options))
    np.testing.assert_allclose(half, wide, rtol=1e-3)
