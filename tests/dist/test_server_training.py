"""Training with servers: one worker has the results of one process for all options, and sends only some rows."""

import numpy as np
import pytest
from combinations import default_at, in_one_item
from serving import workers

import graphkit as gk
from graphkit.dist.servers import sharding
from graphkit.errors import InputError, UsageError
from graphkit.train import checkpoint

ROWS = 40
RNG = np.random.default_rng(0)
IDS, TARGETS = RNG.integers(0, ROWS, (70, 3)), RNG.normal(size=(70, 2)).astype(np.float32)
SGD = gk.optim.SGD(gk.optim.Step(0.2, every=4), momentum=0.9, weight_decay=0.01)


def network():
    """Reads six of 40 rows for a sample, three of them by indices that count from the end."""
    ids = gk.input("ids", ["N", 3], "int64")
    table = gk.parameter("table", [ROWS, 4], init=gk.init.Normal(1.0))
    near, far = gk.gather(table, ids), gk.gather(table, -1 - ids)
    pooled = gk.reduce_mean(near + 0.5 * far, np.array([1]), keepdims=False)
    return gk.Model(gk.nn.linear(gk.tanh(pooled), 2, name="fc"), seed=3)


def new_trainer(kvstore, optimizer=SGD, **options):
    return gk.Trainer(network(), "mse", optimizer, kvstore=kvstore, threads=1, seed=5, **options)


def fitted(kvstore, folder, resume=False, **options):
    """Return the checkpoint after two epochs of three batches, or after four, and the scores of an evaluation."""
    trainer = new_trainer(kvstore, **options)
    if resume:
        trainer.resume(folder)
    trainer.fit((IDS, TARGETS), epochs=4 if resume else 2, batch_size=28, folder=folder, progress=False)
    scores = trainer.evaluate((IDS, TARGETS), ["mse"])
    return checkpoint.load(folder).arrays | {"mse": np.array(scores["mse"])}


def assert_same(found, expected, rtol=2e-6):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=rtol, err_msg=name)


@default_at(0, 4, 6, 9)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": gk.optim.Adam(0.01)},
        {"lr_mult": {"fc_weight": 0.3, "fc_bias": 0}, "wd_mult": {"table": 3, "fc_bias": 0}},
        {"ema": 0.8},
        {"ema": gk.optim.EMA(0.9, warmup=True), "optimizer": gk.optim.RMSProp(0.01, centered=True)},
        {"accumulate": 2},
        {"accumulate": 2, "clip_norm": 0.05, "ema": 0.8, "lr_mult": {"*": 0.5}, "on_nonfinite": "skip"},
        {"accumulate": 5},
        {"lazy": ["table"]},
        {"lazy": ["table"], "optimizer": gk.optim.Adam(0.01), "clip_norm": 0.05, "on_nonfinite": "skip"},
        {"lazy": ["table"], "ema": 0.8, "lr_mult": {"table": 2.0}, "wd_mult": {"table": 0.5}},
    ],
    ids=str,
)
def test_one_worker_and_servers_are_one_process(options, tmp_path, monkeypatch):
    """The servers' parts of the table differ by a row. Both can resume the other's checkpoint."""
    monkeypatch.setattr(sharding, "LARGE", ROWS * 4)
    mine = fitted(workers(1, 3)[0][0], tmp_path / "remote", **options)
    other = fitted(None, tmp_path / "local", **options)
    assert_same(mine, other)
    mine = fitted(workers(1, 2)[0][0], tmp_path / "local", resume=True, **options)
    other = fitted(None, tmp_path / "remote", resume=True, **options)
    assert_same(mine, other, 1e-5)


def test_a_checkpoint_in_the_middle_of_a_group_holds_what_waits(tmp_path):
    def steps(trainer, batches):
        for batch in batches:
            chosen = slice(10 * batch, 10 * batch + 10)
            trainer.step(IDS[chosen], TARGETS[chosen])
        return trainer

    def ended(kvstore, folder):
        trainer = new_trainer(kvstore, accumulate=3)
        trainer.resume(folder)
        assert trainer._stepper.accumulated == 1
        steps(trainer, [4, 5]).flush()
        assert trainer.updates == 2
        trainer.save(folder)
        return checkpoint.load(folder).arrays

    store = workers(1)[0][0]
    steps(new_trainer(store, accumulate=3), range(4)).save(tmp_path / "remote")
    steps(new_trainer(None, accumulate=3), range(4)).save(tmp_path / "local")
    assert_same(ended(workers(1)[0][0], tmp_path / "local"), ended(None, tmp_path / "remote"))
    pushes = [fields for fields in store._client._connection.sent if fields["call"] == "push"]
    assert len(pushes) == 1  # of a group
    steps(new_trainer(None, accumulate=3), range(1)).save(tmp_path / "other")
    one_batch = new_trainer(workers(1)[0][0])
    with pytest.raises(UsageError, match="resume with accumulate=2"):
        one_batch.resume(tmp_path / "other")


@pytest.mark.parametrize("kind", ["dist_async", "elastic"])
def test_what_waits_in_a_checkpoint_is_rank_0s(kind, tmp_path):
    """The first group of another worker contains only its own batches."""
    whole = new_trainer(None, accumulate=3)
    whole.step(IDS[:10], TARGETS[:10])
    whole.save(tmp_path)
    stores, _ = workers(2, type=kind, period=100)
    for store in stores:
        store.transport.communicator.size = 2
    trainers = [new_trainer(store, accumulate=3) for store in stores]
    for trainer in trainers:
        trainer.resume(tmp_path)
    for _ in range(2):
        trainers[1].step(IDS[10:20], TARGETS[10:20])
    alone = new_trainer(None)
    alone.step(IDS[10:20], TARGETS[10:20])
    found = trainers[1].net.params["table"] if kind == "elastic" else stores[1].pull("table")
    np.testing.assert_allclose(found, alone.net.params["table"], rtol=1e-5, atol=1e-6)
    assert trainers[1].updates == 1


def test_a_group_pulls_once_and_its_steps_are_one_of_the_bound():
    """While one worker has an unfinished group, another one may begin as many groups as the bound allows."""
    (slow, fast), _ = workers(2, type="dist_bounded", bound=1)
    first, second = new_trainer(slow, accumulate=3), new_trainer(fast, accumulate=3)

    def group(trainer):
        for _ in range(3):
            trainer.step(IDS[:4], TARGETS[:4])

    first.step(IDS[:4], TARGETS[:4])
    group(second)
    group(second)
    assert [f["call"] for f in fast._client._connection.sent].count("pull") == 2
    with pytest.raises(TimeoutError):
        group(second)
    assert fast.staleness == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_workers_without_samples_count_updates_all_the_same(accumulate):
    (store,), _ = workers(1)
    trainer = new_trainer(store, accumulate=accumulate)
    before = {name: np.array(array) for name, array in trainer.net.params.items()}
    none = {"ids": IDS[:0]}, {"target": TARGETS[:0]}
    for _ in range(2):
        trainer._step(*none, 0)
    assert trainer.updates == 2 // accumulate
    trainer.flush()
    assert all((trainer.net.params[name] == array).all() for name, array in before.items())


def test_a_step_that_is_skipped_pushes_nothing():
    (store,), _ = workers(1)
    trainer = new_trainer(store, on_nonfinite="skip", lazy=["table"])
    before = {name: np.array(array) for name, array in trainer.net.params.items()}
    loss = trainer.step(IDS, np.full_like(TARGETS, np.nan))
    assert np.isnan(float(loss))
    trainer.flush()
    assert all((trainer.net.params[name] == before[name]).all() for name in before)
    assert trainer.skipped == 1
    assert "push" not in [fields["call"] for fields in store._client._connection.sent]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_group_with_a_bad_batch_is_dropped_and_counts(bad):
    (store,), _ = workers(1)
    trainer = new_trainer(store, accumulate=2, on_nonfinite="skip")
    before = {name: np.array(array) for name, array in trainer.net.params.items()}
    for batch in range(2):
        trainer.step(IDS, np.full_like(TARGETS, np.nan) if batch == bad else TARGETS)
    trainer.flush()
    assert all((trainer.net.params[name] == before[name]).all() for name in before)
    assert (trainer.skipped, trainer.updates) == (1, 1)
    trainer.step(IDS, TARGETS)
    trainer.flush()
    assert not (trainer.net.params["table"] == before["table"]).all()
    assert trainer.updates == 2


# --- tables -----------------------------------------------------------------------------------------------


def big_lookup(rows, width=16):
    ids = gk.input("ids", ["N"], "int64")
    table = gk.nn.embedding(ids, rows, width, name="table")
    return gk.Model(gk.nn.linear(table, 1, name="fc"), seed=0)


@pytest.mark.parametrize("servers", [1, 3])
def test_only_rows_that_are_used_travel_both_ways(servers):
    """The table has 2 million bytes. A step reads 3 rows of 64 bytes, once each."""
    (store,), there = workers(1, servers)
    trainer = gk.Trainer(big_lookup(70_000), "mse", gk.optim.SGD(0.1), kvstore=store, threads=1, lazy=["table_weight"])
    before, answered = store.sent_bytes, []
    for server in there:
        server.handle = counting(server.handle, answered)
    ids = np.array([5, 69_999, 30_000, 5])
    for _ in range(2):
        trainer.step(ids, np.ones((4, 1), np.float32))
    rows = 2 * 3 * (8 + 64 + 8)  # asked for by index, and pushed with it
    assert 0 < store.sent_bytes - before - rows < 2 * 2000 * servers
    assert 0 < sum(answered) - 2 * 3 * 64 < 2 * 1000 * servers


def counting(handle, answered):
    def count(worker, message):
        for to, answer in handle(worker, message):
            answered.append(answer.nbytes)
            yield to, answer

    return count


def test_what_a_worker_reads_is_what_others_have_pushed():
    """Rows that another one changed come with the step that reads them; the rest of the table waits for a meeting."""
    (one, other), _ = workers(2)
    first, second = (
        gk.Trainer(big_lookup(10, 2), "mse", gk.optim.SGD(0.1), kvstore=kv, threads=1, lazy=["*table*"], seed=0)
        for kv in (one, other)
    )
    start = np.array(first.net.params["table_weight"])
    target = np.ones((1, 1), np.float32)
    first.step(np.array([3]), target)
    changed = one.row_sparse_pull("table_weight", [3]).values
    assert (changed != start[3]).any()
    second.step(np.array([4]), target)
    assert (second.net.params["table_weight"] == start).all()
    second.step(np.array([3]), target)
    np.testing.assert_array_equal(second.net.params["table_weight"][[3]], changed)
    second.flush()
    np.testing.assert_array_equal(second.net.params["table_weight"], other.pull("table_weight"))


def test_rows_that_are_drawn_are_those_that_the_step_draws():
    """For example, negative samples: the program that computes the row numbers draws the same ones as the step."""
    noise = gk.random_uniform_like(gk.cast(gk.input("ids", ["N"], "int64"), to="float32"), low=0.0, high=999.0)
    table = gk.parameter("table", [1000, 2], init=gk.init.Normal(1.0))
    net = gk.Model(gk.reduce_mean(gk.gather(table, gk.cast(noise, to="int64")), np.array([1])), seed=0)
    (store,), _ = workers(1)
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), kvstore=store, threads=1, lazy=["table"], seed=1)
    asked, pull = [], store.row_sparse_pull
    store.row_sparse_pull = lambda keys, ids: asked.append(np.unique(ids[0])) or pull(keys, ids)
    pushed, push = [], store.push
    store.push = lambda keys, values: pushed.append(values[0].indices) or push(keys, values)
    for step in range(3):
        trainer.step(np.arange(5), np.zeros((5, 1), np.float32))
        trainer.executor.rng = 7, 10 * step  # as `resume` does
    for wanted, sent in zip(asked, pushed, strict=True):
        np.testing.assert_array_equal(wanted, np.sort(sent))
    assert len({tuple(sent) for sent in pushed}) == 3


def test_rows_that_only_other_rows_tell_are_refused():
    table = gk.parameter("table", [10, 1], init=gk.init.Normal(1.0))
    which = gk.reshape(gk.cast(gk.abs(gk.gather(table, gk.input("ids", ["N"], "int64"))), to="int64"), np.array([-1]))
    net = gk.Model(gk.gather(table, which), seed=0)
    with pytest.raises(UsageError, match=r"'table' cannot have row-sparse updates on servers .*: the rows that a"):
        gk.Trainer(net, "mse", gk.optim.SGD(0.1), kvstore=workers(1)[0][0], lazy=["table"])


@pytest.mark.parametrize("ids", [[3, 10], [-11, 0]])
def test_rows_that_a_table_lacks_are_named(ids):
    (store,), _ = workers(1)
    trainer = gk.Trainer(big_lookup(10), "mse", gk.optim.SGD(0.1), kvstore=store, threads=1, lazy=["table*"])
    with pytest.raises(InputError, match=r"has 10 rows, so index 10 is out of range|must be at least 0, not -1"):
        trainer.step(np.array(ids), np.zeros((2, 1), np.float32))


def test_options_that_do_not_go_with_tables_are_refused():
    (store,), _ = workers(1)
    with pytest.raises(UsageError, match=r"row-sparse updates .* of table need one batch .* leave out accumulate="):
        new_trainer(store, lazy=["table"], accumulate=2)
    with pytest.raises(UsageError, match="lamb takes norms of whole parameters"):
        new_trainer(store, gk.optim.Lamb(0.1), lazy=["table"])


# --- elastic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_elastic_worker_exchanges_once_a_period_of_updates(accumulate):
    (store,), _ = workers(1, type="elastic", period=3)
    trainer = new_trainer(store, accumulate=accumulate)
    for _ in range(7 * accumulate):
        trainer.step(IDS[:10], TARGETS[:10])
    assert [f["call"] for f in store._client._connection.sent].count("elastic") == 2
    assert "pull" not in [f["call"] for f in store._client._connection.sent]


def test_an_elastic_exchange_is_of_the_strength_over_the_workers():
    (store,), _ = workers(1, type="elastic", period=1, strength=0.25)
    trainer = new_trainer(store)
    before = np.array(trainer.net.params["table"])
    alone = new_trainer(None)
    for each in (trainer, alone):
        each.step(IDS[:10], TARGETS[:10])
    moved = alone.net.params["table"] - before
    np.testing.assert_allclose(trainer.net.params["table"], before + 0.75 * moved, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(store.pull("table"), before + 0.25 * moved, rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("options", [{"ema": 0.8}, {"accumulate": 2}, {"lazy": ["table"]}, {"lr_mult": {"*": 0.5}}])
def test_an_elastic_worker_before_its_first_exchange_is_one_process(options):
    (store,), _ = workers(1, type="elastic", period=100)
    mine, other = new_trainer(store, **options), new_trainer(None, **options)
    for each in (mine, other):
        for _ in range(4):
            each.step(IDS[:10], TARGETS[:10])
    assert_same(dict(mine.net.params) | dict(mine._stepper.slots), dict(other.net.params) | dict(other._stepper.slots))


@pytest.mark.parametrize("type", ["dist_async", "elastic"])
def test_losses_are_not_scaled(type):
    (store,), _ = workers(1, type=type)
    with pytest.raises(UsageError, match=r"precision='f16' .* cannot be used with parameter servers"):
        new_trainer(store, precision="f16")


def test_servers_store_the_parameters_of_one_trainer():
    ((store,), _) = workers(1)
    new_trainer(store).fit((IDS, TARGETS), batch_size=28, progress=False)
    with pytest.raises(UsageError, match=r"'[a-z_]+', from another Trainer .* train a second model in another job"):
        new_trainer(store).fit((IDS, TARGETS), batch_size=28, progress=False)
