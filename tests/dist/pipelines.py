"""Networks whose nodes are in groups, and trainers that take them through a pipeline, or in one process."""

from __future__ import annotations

import numpy as np

import graphkit as gk
from graphkit.dist import pipeline
from graphkit.models._transformer import attention, feed_forward
from graphkit.models._transformer import steps as places_of
from graphkit.ops import F


def group(name):
    return gk.attr_scope(ctx_group=name)


def mlp(seed=1):
    x = gk.input("x", ["N", 6])
    with group("a"):
        h = gk.tanh(gk.nn.linear(x, 20, name="a"))
    with group("b"):
        h = gk.tanh(gk.nn.linear(h, 30, name="b"))
    with group("c"):
        y = gk.nn.linear(h, 2, name="c")
    return gk.Model(y, seed=seed)


def images(seed=1, ratio=0.5):
    """The first stage's result is added in the third."""
    x = gk.input("x", ["N", 1, 8, 8])
    with group("a"):
        h = first = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 4, 3, pad=1, name="conv1"), name="norm1"))
    with group("b"):
        h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(h, 4, 3, pad=1, name="conv2"), name="norm2"))
        h = gk.nn.dropout(h, ratio) if ratio else h
    with group("c"):
        h = gk.nn.max_pool2d(F.add(h, first), 2)
        y = gk.nn.linear(F.flatten(h), 2, name="fc")
    return gk.Model(y, seed=seed)


def transformer(seed=1, vocab=11, width=8):
    """Its token table is read by two stages, so is the mask, which is in no group."""
    init = {"type": "normal", "std": 0.3}
    x = gk.input("x", ["N", "T"], "int64")
    table = gk.parameter("token", [vocab, width], init)
    places = places_of(x)
    causal = F.greater_or_equal(F.unsqueeze(places, np.array([1])), F.unsqueeze(places, np.array([0])))
    h = gk.nn.embedding(x, vocab, width, weight=table, name="token")
    for layer, name in enumerate("ab"):
        with group(name), gk.name_scope(f"block{layer}"):
            h = F.add(h, attention(gk.nn.layer_norm(h, name="norm1"), 2, causal, init=init, project_init=init))
            h = F.add(
                h, feed_forward(gk.nn.layer_norm(h, name="norm2"), 16, approximate="tanh", init=init, project_init=init)
            )
    with group("b"):
        logits = F.mat_mul(h, F.transpose(table, perm=(1, 0)))
    return gk.Model({"logits": logits}, seed=seed)


def lstm(seed=1, vocab=11, hidden=8):
    x = gk.input("x", ["T", "N"], "int64")
    with group("a"):
        h, _ = gk.nn.lstm(gk.nn.embedding(x, vocab, hidden, name="token"), hidden, name="lstm0")
    with group("b"):
        h, _ = gk.nn.lstm(h, hidden, name="lstm1")
        y = gk.nn.linear(h, vocab, name="fc")
    return gk.Model(y, seed=seed)


def vectors(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.standard_normal((count, 2), np.float32)


def pictures(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 1, 8, 8), np.float32), rng.standard_normal((count, 2), np.float32)


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 11, (count, 5)), rng.integers(0, 11, (count, 5))


def columns(count, seed=0):
    return tuple(np.ascontiguousarray(a.T) for a in rows(count, seed))


ABC, AB = {"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 1}
MSE, ENTROPY = "mse", "softmax_cross_entropy"
# Network, samples, loss, groups, the axis of samples, bound on the difference (0: the same bits).
NETWORKS = {
    "mlp": (mlp, vectors, MSE, ABC, 0, 0),
    "mlp backwards": (mlp, vectors, MSE, {"a": 2, "b": 1, "c": 0}, 0, 0),
    "mlp on two": (mlp, vectors, MSE, {"a": 0, "b": 0, "c": 1}, 0, 0),
    "images": (images, pictures, MSE, ABC, 0, 1e-6),
    "transformer": (transformer, rows, ENTROPY, AB, 0, 1e-5),
    "lstm": (lstm, columns, ENTROPY, AB, 1, 1e-6),
}


def optimizer(network):
    """Return Adam for an MLP, else SGD: Adam would amplify rounding errors in gradients of biases before a norm."""
    return gk.optim.Adam(0.01) if NETWORKS[network][0] is mlp else gk.optim.SGD(0.003, momentum=0.9)


def batches(data, axis, count, micro, steps):
    """Each step's micro-batches."""
    for step in range(steps):
        x, y = data(count, step)
        parts = pipeline.bounds(pipeline.sizes(count, micro))
        yield [tuple(a[(slice(None),) * axis + (part,)] for a in (x, y)) for part in parts]


def alone(network, micro=4, count=16, steps=3, **options):
    """One process that accumulates the micro-batches."""
    model, data, loss, _, axis, _ = NETWORKS[network]
    parts = pipeline.sizes(count, micro)
    trainer = gk.Trainer(model(), loss, optimizer(network), accumulate=len(parts), threads=1, seed=3, **options)
    seen = []
    for batch in batches(data, axis, count, micro, steps):
        losses = []
        for (x, y), size in zip(batch, parts, strict=True):
            results = trainer._step(x, y, size)
            losses.append(float(results[0]))
        seen.append(np.average(losses, weights=parts))
    return trainer, seen


def piped(store, network, micro=4, count=16, steps=3, **options):
    model, data, loss, groups, axis, _ = NETWORKS[network]
    trainer = gk.Trainer(
        model(), loss, optimizer(network), kvstore=store, threads=1, seed=3, groups=groups, micro_batches=micro,
        batch_axes={"x": axis, "target": axis}, **options,
    )  # fmt: skip
    return trainer, [float(trainer.step(*data(count, step))) for step in range(steps)]


def ranks_of(network):
    return len(set(NETWORKS[network][3].values()))


def assert_same(found, whole, bound):
    held = [n for n in found.net.params if found.net.params.holds(n)]
    assert held
    for name in held:
        expected = whole.net.params[name]
        if bound:
            np.testing.assert_allclose(found.net.params[name], expected, rtol=bound, atol=bound, err_msg=name)
        else:
            np.testing.assert_array_equal(found.net.params[name], expected, err_msg=name)


def classifier(seed=1):
    x = gk.input("x", ["N", 6])
    with group("a"):
        h = gk.tanh(gk.nn.batch_norm(gk.nn.linear(x, 20, name="a"), name="norm"))
    with group("b"):
        h = gk.nn.dropout(gk.tanh(gk.nn.linear(h, 30, name="b")), 0.2)
    with group("c"):
        y = gk.nn.linear(h, 3, name="c")
    return gk.Model(y, seed=seed)


def labelled(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.integers(0, 3, count)


def in_two_stages(store, model, optimizer, **options):
    """A trainer of a network of the groups a and b after three steps; in one process, one that accumulates."""
    how = {"accumulate": 4} if store is None else {"kvstore": store, "groups": AB, "micro_batches": 4}
    trainer = gk.Trainer(model, "mse", optimizer, threads=1, **how, **options)
    for step in range(3):
        x, y = vectors(16, step)
        for part in [slice(None)] if store else pipeline.bounds(pipeline.sizes(16, 4)):
            trainer.step(x[part], y[part])
    return trainer
