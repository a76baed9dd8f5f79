"""The step of several processes equals one process with all samples, with any overlap, and without copies."""

import numpy as np
import pytest
from combinations import covering, default_at

import graphkit as gk
from graphkit.dist.progress.engine import OVERLAPS
from graphkit.dist.transport import Transport


def images(count, seed=0):
    digits = gk.data.read("digits", held_out=False)
    chosen = np.random.default_rng(seed).integers(0, len(digits), count)
    x, y = digits.take(chosen)
    return x["x"] if isinstance(x, dict) else x, y


def texts(count, seed=0):
    """Sentences that go up by one or by two, one in each column."""
    rng = np.random.default_rng(seed)
    whole = (rng.integers(0, 50, count) + rng.integers(1, 3, count) * np.arange(13)[:, None]) % 50
    return whole[:-1], whole[1:]


NETWORKS = {
    "lenet": (lambda: gk.models.build("lenet", image=(1, 8, 8)), images),
    "lstm_lm": (lambda: gk.models.build("lstm_lm", vocab=50, hidden=32, layers=2, dropout=0.0), texts),
}


def net(seed=1):
    x = gk.input("x", ["N", 6])
    h = gk.tanh(gk.nn.linear(x, 40, name="a"))
    h = gk.tanh(gk.nn.linear(h, 30, name="b"))
    return gk.Model(gk.nn.linear(h, 2, name="c"), seed=seed)


def samples(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.standard_normal((count, 2), np.float32)


def trained(store, steps=4, count=16, model=net, data=samples, part=None, seed=1, **options):
    """Take `steps` steps with this rank's part of the samples; return the trainer."""
    trainer = gk.Trainer(model(seed), "mse", gk.optim.Adam(0.01), kvstore=store, threads=1, seed=3, **options)
    rank, ranks = (0, 1) if store is None else (store.rank, store.num_workers)
    losses = []
    for step in range(steps):
        x, y = data(count, step)
        mine = slice(rank * count // ranks, (rank + 1) * count // ranks) if part is None else part(rank)
        losses.append(float(trainer.step(x[mine], y[mine])))
    trainer.flush()
    return trainer, losses


def assert_same(found, expected, bound=1e-5):
    for name, array in expected.net.params.items():
        difference = np.linalg.norm(found.net.params[name] - array)
        assert difference <= bound * np.linalg.norm(array), name


@pytest.fixture
def small_buckets(monkeypatch):
    """Give every parameter its own bucket."""
    monkeypatch.setattr(Transport, "bucket_bytes", lambda store, fixed=False: 1)


# --- what is computed ---------------------------------------------------------------------------------


@default_at(0, 3, 5, 6)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": 0.05},
        {"ema": 0.9},
        {"recompute": "sqrt"},
        {"accumulate": 2},
        {"accumulate": 3},  # the last update is of one batch
        pytest.param({"precision": "bf16"}, marks=pytest.mark.onednn),
        {"deterministic": True},
        {"on_nonfinite": "skip"},
        {"on_nonfinite": "ignore"},
    ],
    ids=str,
)
def test_a_step_is_that_of_one_process(on_ranks, small_buckets, options):
    whole, losses = trained(None, **options)
    for found, seen in on_ranks(lambda store: trained(store, **options)):
        assert_same(found, whole, 1e-2 if "precision" in options else 1e-5)
        np.testing.assert_allclose(seen, losses, rtol=1e-2 if "precision" in options else 1e-5)
        assert found.updates == whole.updates


@pytest.mark.parametrize(("overlap", "processes"), covering(OVERLAPS, [2, 3]))
def test_however_sums_go_on(on_ranks, small_buckets, overlap, processes):
    whole, _ = trained(None, count=18)

    def work(store):
        store.transport.communicator.engine.overlap = overlap
        return trained(store, count=18)[0]

    for found in on_ranks(work, processes):
        assert_same(found, whole)


@pytest.mark.parametrize(("accumulate", "sizes"), covering([1, 2], [(5, 11), (16, 0), (0, 16), (1, 15)]))
def test_parts_of_any_size_and_of_none(on_ranks, small_buckets, sizes, accumulate):
    whole, losses = trained(None, accumulate=accumulate)

    def part(rank):
        return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    for found, seen in on_ranks(lambda store: trained(store, part=part, accumulate=accumulate)):
        assert_same(found, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)


def test_deterministic_ranks_are_one_process_that_accumulates(on_ranks, small_buckets):
    """To the bit, for any number of them; weights of batches are powers of two, which round nothing."""
    one = gk.Trainer(net(), "mse", gk.optim.Adam(0.01), accumulate=4, threads=1, seed=3, deterministic=True)
    for step in range(5):
        x, y = samples(64, step)
        for rank in range(4):
            one.step(x[16 * rank : 16 * rank + 16], y[16 * rank : 16 * rank + 16])
    for found, _ in on_ranks(lambda store: trained(store, steps=5, count=64, deterministic=True), 4):
        for name, array in one.net.params.items():
            np.testing.assert_array_equal(found.net.params[name], array)


@pytest.mark.parametrize(("accumulate", "bad"), covering([1, 2], [0, 1]))
def test_a_nan_anywhere_is_seen_by_all_and_changes_nothing(on_ranks, small_buckets, bad, accumulate):
    def work(store):
        trainer, _ = trained(store, steps=2, accumulate=accumulate, on_nonfinite="skip")
        before = {name: array.copy() for name, array in trainer.net.params.items()}
        x, y = samples(16)
        if store.rank == bad:
            x[3] = np.nan
        for _ in range(accumulate):
            assert np.isnan(float(trainer.step(x[:8], y[:8])))
        assert trainer.skipped == 1
        for name, array in before.items():
            np.testing.assert_array_equal(trainer.net.params[name], array)
        x, y = samples(16)  # later steps work
        for _ in range(accumulate):
            assert np.isfinite(float(trainer.step(x[:8], y[:8])))
        return trainer.updates

    assert on_ranks(work) == [2 // accumulate + 1] * 2


def test_who_has_no_nan_says_that_another_one_has(on_ranks):
    def work(store):
        trainer, _ = trained(store, steps=1)
        x, y = samples(16)
        if store.rank:
            x[3] = np.nan
        with pytest.raises(gk.errors.NotFinite) as caught:
            trainer.step(x[:8], y[:8])
        return str(caught.value)

    first, second = on_ranks(work)
    assert "from another process" in first
    assert "from another process" not in second


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("idle", [0, 1])
def test_rank_without_samples_reports_nan_of_others(on_ranks, accumulate, idle):
    """It raises the error in the same step as the rank that has the NaN, and keeps its parameters."""

    def work(store):
        trainer, _ = trained(store, steps=2, accumulate=accumulate)
        before = {name: array.copy() for name, array in trainer.net.params.items()}
        x, y = samples(8)
        x[3] = np.nan
        count = 0 if store.rank == idle else 8
        with pytest.raises(gk.errors.NotFinite, match=r"^the loss is nan at update ") as caught:
            trainer.step(x[:count], y[:count])
        for name, array in before.items():
            np.testing.assert_array_equal(trainer.net.params[name], array)
        return "from another process" in str(caught.value)

    assert on_ranks(work) == [rank == idle for rank in range(2)]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("idle", [0, 1])
def test_rank_without_samples_ignores_infinite_loss_of_others(on_ranks, accumulate, idle):
    """The gradient of the mean absolute error is finite, so all ranks update."""

    def work(store):
        options = {"accumulate": accumulate, "on_nonfinite": "ignore", "threads": 1, "seed": 3}
        trainer = gk.Trainer(net(), "l1", gk.optim.SGD(0.1), kvstore=store, **options)
        before = {name: array.copy() for name, array in trainer.net.params.items()}
        x, y = samples(8)
        y[3] = np.inf
        count = 0 if store.rank == idle else 8
        assert [float(trainer.step(x[:count], y[:count])) for _ in range(accumulate)] == [np.inf] * accumulate
        assert all((trainer.net.params[name] != array).any() for name, array in before.items())
        return dict(trainer.net.params)

    first, second = on_ranks(work)
    for name, array in first.items():
        assert np.isfinite(array).all()
        np.testing.assert_array_equal(second[name], array)


# --- how --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 500, 2000, 1 << 20])
def test_gradients_of_a_bucket_lie_together(on_ranks, monkeypatch, limit):
    monkeypatch.setattr(Transport, "bucket_bytes", lambda store, fixed=False: limit)

    def work(store):
        trainer, _ = trained(store)
        stepper = trainer._stepper
        groups = stepper.exchange.buckets.groups
        assert sorted(i for group in groups for i in group) == list(range(6))
        bytes_ = {name: trainer.net.params[name].nbytes for name in trainer.trained}
        held = [sum(bytes_[trainer.trained[i]] for i in group) for group in groups]
        last = [bytes_[trainer.trained[group[-1]]] for group in groups]
        # The rest is added to the last bucket.
        assert all(total - size < limit for total, size in zip(held[:-1], last[:-1], strict=True))
        assert held[-1] >= min(limit / 2, sum(held))
        return stepper.exchange.collectives.copied_bytes, stepper.exchange.collectives.waited_seconds, len(groups)

    for copied, waited, count in on_ranks(work):
        assert copied == 0
        assert waited > 0
        assert count == {1: 6, 500: 2, 2000: 2, 1 << 20: 1}[limit]


@pytest.mark.parametrize("name", ["lenet", "lstm_lm"])
def test_no_gradient_is_copied_in_networks_either(on_ranks, name):
    build, data = NETWORKS[name]

    def work(store):
        trainer = gk.Trainer(build(), "softmax_cross_entropy", gk.optim.SGD(0.1), kvstore=store, threads=1)
        trainer.step(*data(4))
        return trainer._exchange.collectives.copied_bytes

    assert on_ranks(work) == [0, 0]


def test_sums_begin_while_the_backward_pass_goes_on(on_ranks, small_buckets):
    """The gradient of the last layer is sent before that of the first layer is computed, without waiting."""

    def work(store):
        trainer, _ = trained(store, steps=1)
        return [s.op.rpartition(".")[2] for s in trainer.plan({"x": (8, 6), "target": (8, 2)}).steps]

    for names in on_ranks(work):
        begun = [i for i, op in enumerate(names) if op == "AllReduceStart"]
        awaited = [i for i, op in enumerate(names) if op == "AllReduceWait"]
        assert len(begun) == len(awaited) == 7  # six buckets and the loss
        products = [i for i, op in enumerate(names) if "MatMul" in op or "Gemm" in op]
        assert sum(i > begun[1] for i in products) >= 3  # of the backward pass, behind the first bucket
        assert awaited[-1] > awaited[-2] > max(begun)


def test_arrays_that_lie_apart_are_summed_all_the_same(on_ranks):
    def work(store):
        carrier = store.transport.collectives()
        whole = np.zeros((10, 10), np.float32)
        apart = [whole[0], whole[5], np.ones(3, np.float32)]
        for step in range(3):
            for number, array in enumerate(apart):
                array[:] = number + step
            carrier.start("apart", apart, 0)
            carrier.wait(["apart"])
            for number, array in enumerate(apart):
                assert (array == 2 * (number + step)).all()
        assert (whole[1:5] == 0).all()
        return carrier.copied_bytes

    assert on_ranks(work) == [3 * 2 * 23 * 4] * 2


def test_gaps_between_arrays_hold_nothing_that_counts(on_ranks):
    def work(store):
        store.set_gradient_compression({"type": "top_k", "ratio": 0.1})
        carrier = store.transport.collectives()
        memory = np.full(64, np.nan, np.float32)
        parts = [memory[0:3], memory[16:21], memory[32:40]]
        for _ in range(2):
            memory[:] = np.nan
            for part in parts:
                part[:] = 1
            carrier.start("gaps", parts, 0)
            carrier.wait(["gaps"])
            assert np.isnan(memory[40:]).all()
        return all(np.isfinite(part).all() for part in parts)

    assert all(on_ranks(work))


def test_an_empty_parameter_takes_part(on_ranks):
    def work(store):
        carrier = store.transport.collectives()
        carrier.start("empty", [np.zeros((0, 3), np.float32)], 0)
        carrier.wait(["empty"])
        return True

    assert all(on_ranks(work))


def test_a_network_with_other_parameters_is_an_error_and_no_hang(on_ranks):
    def work(store):
        x = gk.input("x", ["N", 6])
        model = gk.Model(gk.nn.linear(x, 2 + store.rank, name="c"), seed=0)
        with pytest.raises(gk.errors.RuntimeFailure, match=r"differ in the set-up .* 'c_weight'"):
            gk.Trainer(model, "mse", gk.optim.SGD(0.1), kvstore=store, threads=1)
        return True

    assert all(on_ranks(work))


# --- jobs -------------------------------------------------------------------------------------------------

JOB = """
    import numpy as np, graphkit as gk
    from test_shared_step import NETWORKS
    kv = gk.kvstore.create("dist_sync")
    build, data = NETWORKS[{name!r}]
    trainer = gk.Trainer(build(), "softmax_cross_entropy", gk.optim.SGD(0.05), kvstore=kv, threads=1, seed=0)
    for step in range({steps}):
        trainer.step(*(np.split(array, kv.num_workers, {axis})[kv.rank] for array in data(64, step)))
    assert trainer._exchange.collectives.copied_bytes == 0
    if kv.rank == 0:
        np.savez({out!r}, **trainer.net.params)
"""


@pytest.mark.parametrize(
    ("name", "processes", "steps"),
    [
        ("lstm_lm", 2, 5),
        pytest.param("lenet", 4, 20, marks=pytest.mark.full),
        pytest.param("lstm_lm", 4, 20, marks=pytest.mark.full),
    ],
)
def test_processes_reach_the_weights_of_one(jobs, tmp_path, name, processes, steps):
    out = tmp_path / "weights.npz"
    axis = 1 if name == "lstm_lm" else 0
    jobs.run(JOB.format(name=name, out=str(out), axis=axis, steps=steps), processes)
    build, data = NETWORKS[name]
    one = gk.Trainer(build(), "softmax_cross_entropy", gk.optim.SGD(0.05), threads=1, seed=0)
    for step in range(steps):
        one.step(*data(64, step))
    found = np.load(out)
    apart, whole = (
        np.linalg.norm([np.linalg.norm(array) for array in arrays])
        for arrays in ([found[n] - a for n, a in one.net.params.items()], one.net.params.values())
    )
    assert apart <= 1e-4 * whole
