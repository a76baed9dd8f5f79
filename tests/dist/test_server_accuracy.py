"""Digits that are learnt with servers, as well as without."""

import re

import pytest
from jobs import finish, start

# Both workers' pushes are updates, of half of a batch of dist_sync's each: they go as far with half of its rate. A
# worker of elastic makes as many updates as dist_sync, and the centre moves by a part of each.
RATES = {"dist_sync": 0.05, "dist_async": 0.025, "dist_bounded": 0.025, "elastic": 0.1}

LEARN = """
    import warnings
    import numpy as np, graphkit as gk
    warnings.filterwarnings("ignore", message="training may diverge")
    kind, rate, epochs, seed = {kind!r}, {rate}, 40, {seed}
    kv = gk.kvstore.create(kind, **({{"period": 4}} if kind == "elastic" else {{}}))
    train, test = gk.data.load("digits")
    h = gk.input("x", ["N", 1, 8, 8])
    for channels in (16, 32):
        h = gk.nn.max_pool2d(gk.relu(gk.nn.conv2d(h, channels, kernel=3, pad=1)), 2)
    net = gk.Model(gk.nn.linear(gk.relu(gk.nn.linear(gk.flatten(h), 64)), 10), seed=seed)
    updates = epochs * -(-len(train) // (32 * kv.num_workers))
    if kind in ("dist_async", "dist_bounded"):
        updates *= kv.num_workers
    schedule = gk.optim.Warmup(gk.optim.Cosine(rate, updates), updates // 20)
    optimizer = gk.optim.SGD(schedule, momentum=0.9, weight_decay=3e-3)
    trainer = gk.Trainer(net, "softmax_cross_entropy", optimizer, kvstore=kv, seed=seed, threads=1)
    trainer.fit(train, epochs=epochs, batch_size=32, progress=False)
    accuracy = trainer.evaluate(test)["accuracy"]
    print(f"rank {{kv.rank}} accuracy {{accuracy:.6f}}\\n", end="", flush=True)
"""


def accuracy(kind, seed=1):
    code = LEARN.format(kind=kind, rate=RATES[kind], seed=seed)
    status, out, errors = finish(start(2 if kind == "dist_sync" else 3, code, before=""), 300)
    assert (status, errors) == (0, "")
    found = [float(text) for text in re.findall(r"accuracy (\S+)", out)]
    assert len(found) == 2
    assert found[0] == found[1]  # all workers end with the same values
    return found[0]


@pytest.fixture(scope="module")
def without_servers():
    return accuracy("dist_sync")


@pytest.mark.full
def test_digits_are_learnt_without_servers(without_servers):
    assert without_servers > 0.98


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dist_async", "dist_bounded", "elastic"])
def test_digits_are_learnt_as_without_servers(kind, without_servers):
    assert accuracy(kind) >= without_servers - 0.01
