import numpy as np
import graphkit as gk
import pytest


def mlp(seed=1):
    x = gk.input("x", ["N", 6])
    with gk.attr_scope(ctx_group="a"):
        h = gk.tanh(gk.nn.linear(x, 20, name="a"))
    with gk.attr_scope(ctx_group="b"):
        h = gk.tanh(gk.nn.linear(h, 30, name="b"))
    with gk.attr_scope(ctx_group="c"):
        y = gk.nn.linear(h, 2, name="c")
    return gk.Model(y, seed=seed)


def samples(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.standard_normal((count, 2), np.float32)


def parts(count, micro):
    from graphkit.dist import pipeline
    return pipeline.bounds(pipeline.sizes(count, micro))


def test_mlp(on_ranks):
    one = gk.Trainer(mlp(), "mse", gk.optim.Adam(0.01), accumulate=4, threads=1, seed=3)
    expected = []
    for step in range(4):
        x, y = samples(16, step)
        expected.append(np.mean([float(one.step(x[p], y[p])) for p in parts(16, 4)]))

    def work(store):
        t = gk.Trainer(mlp(), "mse", gk.optim.Adam(0.01), kvstore=store, threads=1, seed=3, groups={"a": 0, "b": 1, "c": 2}, micro_batches=4)
        losses = [float(t.step(*samples(16, step))) for step in range(4)]
        return t, losses

    for rank, (t, losses) in enumerate(on_ranks(work, 3)):
        np.testing.assert_allclose(losses, expected, rtol=1e-6)
        for name in t._stepper.held:
            np.testing.assert_array_equal(t.net.params[name], one.net.params[name])
        print(rank, t._stepper.held, t._stepper.peak_in_flight, t._stepper.peak_saved_bytes)
