"""Statistics of BatchNormalization over the samples of all processes."""

import numpy as np
import pytest
from combinations import covering, default_at, in_one_item
from job_server import command

import graphkit as gk
from graphkit.autodiff.reverse_mode import gradient
from graphkit.cli import invoke
from graphkit.dist.kvstore import REMOTE
from graphkit.dist.progress.engine import OVERLAPS
from graphkit.dist.transport import Transport
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.passes.training.sync_batch_norm import chained, synchronise
from graphkit.train.programs.statistics import sync_statistics


def net(seed=1):
    """Two branches with a BatchNormalization each, and one behind them, of vectors. No bias goes before one: its
    gradient would be nothing but rounding.
    """
    x = gk.input("x", ["N", 2, 4, 4])
    a = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 3, 3, bias=False, name="ca"), name="na"))
    b = gk.tanh(gk.nn.batch_norm(gk.nn.conv2d(x, 3, 3, bias=False, name="cb"), name="nb"))
    h = gk.reduce_mean(a * b + b, [2, 3], keepdims=False)
    h = gk.tanh(gk.nn.batch_norm(gk.nn.linear(h, 5, bias=False, name="fc"), name="nf"))
    return gk.Model(gk.nn.linear(h, 2, name="out"), seed=seed)


def samples(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 2, 4, 4), np.float32) * rng.uniform(0.2, 3, (count, 1, 1, 1)).astype(np.float32)
    return x, rng.standard_normal((count, 2), np.float32)


def trained(store, steps=4, count=32, sizes=None, model=net, data=samples, **options):
    trainer = gk.Trainer(
        model(), "mse", options.pop("optimizer", None) or gk.optim.SGD(0.1, momentum=0.9), kvstore=store, threads=1,
        seed=3, sync_batch_norm=True, **options,
    )  # fmt: skip
    rank, ranks = (0, 1) if store is None else (store.rank, store.num_workers)
    losses = []
    for step in range(steps):
        x, y = data(count, step)
        mine = slice(rank * count // ranks, (rank + 1) * count // ranks)
        if sizes is not None and store is not None:
            mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        losses.append(float(trainer.step(x[mine], y[mine])))
    trainer.flush()
    return trainer, losses


def assert_same(found, expected, bound=1e-5):
    for name, array in expected.net.params.items():
        difference = np.linalg.norm(found.net.params[name].astype(np.float64) - array)
        assert difference <= bound * np.linalg.norm(array), name


@pytest.mark.parametrize("processes", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 4))])
def test_processes_are_one_with_all_samples(on_ranks, processes):
    whole, losses = trained(None)
    found = on_ranks(lambda store: trained(store), processes)
    for trainer, seen in found:
        assert_same(trainer, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
    for name, array in found[0][0].net.params.items():
        for trainer, _ in found[1:]:
            np.testing.assert_array_equal(trainer.net.params[name], array)  # running statistics as well


OPTIONS = [
    {"clip_norm": 0.05},
    {"ema": 0.9},
    {"recompute": "sqrt"},
    {"deterministic": True},
    {"on_nonfinite": "skip"},
    {"on_nonfinite": "ignore"},
    {"freeze": ["na_weight", "na_bias"]},
    {"shard_optimizer": True, "clip_norm": 0.05},
]
SIZES = [None, (20, 12), (1, 31), (0, 32), (32, 0)]


@pytest.mark.parametrize(("sizes", "options"), covering(SIZES, OPTIONS))
def test_whatever_else_a_step_does_and_however_many_samples_each_has(on_ranks, sizes, options):
    check(on_ranks, sizes, options)


@pytest.mark.onednn
@pytest.mark.parametrize("sizes", [pytest.param(s, marks=() if s == (20, 12) else pytest.mark.full) for s in SIZES])
def test_half_precision_and_however_many_samples_each_has(on_ranks, sizes):
    check(on_ranks, sizes, {"precision": "bf16"}, 1e-1)


def check(on_ranks, sizes, options, bound=1e-5):
    """Two ranks with `sizes` samples give the same result as one process with all samples."""
    whole, losses = trained(None, **options)
    for trainer, seen in on_ranks(lambda store: trained(store, sizes=sizes, **options)):
        assert_same(trainer, whole, bound)
        np.testing.assert_allclose(seen, losses, rtol=bound)


@pytest.mark.parametrize("sizes", [(20, 12), (0, 32)])
def test_variances_by_the_rule_of_pytorch(on_ranks, sizes):
    def model():
        plain = net()
        return gk.Model.from_graph(plain.graph, plain.params.entries(), meta={"running_statistics": "pytorch"})

    whole, _ = trained(None, steps=1, model=model)
    biased, _ = trained(None, steps=1)
    for trainer, _ in on_ranks(lambda store: trained(store, steps=1, sizes=sizes, model=model)):
        assert_same(trainer, whole)
    # `nf` normalises 32 rows.
    before = 0.9 * np.ones(5)
    found, plain = (t.net.params["nf_running_var"] - before for t in (whole, biased))
    np.testing.assert_allclose(found, plain * 32 / 31, rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "options"),
    covering([None, (20, 12), (0, 32), (32, 0)], [{}, {"deterministic": True}, {"on_nonfinite": "ignore"}]),
)
def test_gradients_of_several_batches(on_ranks, sizes, options):
    whole, losses = trained(None, accumulate=2, steps=5, **options)
    for trainer, seen in on_ranks(lambda store: trained(store, sizes=sizes, accumulate=2, steps=5, **options)):
        assert_same(trainer, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        assert trainer.updates == 3


def test_without_the_option_and_in_one_process_statistics_are_those_of_each(on_ranks):
    def work(store):
        model = net()
        trainer = gk.Trainer(model, "mse", gk.optim.SGD(0.1), kvstore=store, threads=1, seed=3)
        x, y = samples(32)
        mine = slice(16 * store.rank, 16 * store.rank + 16)
        trainer.step(x[mine], y[mine])
        return model.params["nf_running_mean"]

    first, second = on_ranks(work)
    assert not np.allclose(first, second)
    (alone,) = on_ranks(lambda store: trained(store), 1)
    assert_same(alone[0], trained(None)[0], 0)


@default_at(1)
@pytest.mark.parametrize(("accumulate", "sizes"), covering([1, 2], [(16, 16), (32, 0), (0, 32)]))
def test_a_nan_anywhere_is_seen_by_all_and_changes_nothing(on_ranks, sizes, accumulate):
    def work(store):
        trainer, _ = trained(store, steps=2, accumulate=accumulate, on_nonfinite="skip")
        before = {name: array.copy() for name, array in trainer.net.params.items()}
        mine = slice(sum(sizes[: store.rank]), sum(sizes[: store.rank + 1]))
        x, y = samples(32, 7)
        bad = x.copy()
        bad[3] = np.nan
        for _ in range(accumulate):
            assert np.isnan(float(trainer.step(bad[mine], y[mine])))
        assert trainer.skipped == 1
        for name, array in before.items():
            np.testing.assert_array_equal(trainer.net.params[name], array)
        for _ in range(accumulate):
            assert np.isfinite(float(trainer.step(x[mine], y[mine])))
        return trainer.updates

    assert on_ranks(work) == [2 // accumulate + 1] * 2


@default_at(1)
@pytest.mark.parametrize("sizes", [(16, 16), (32, 0), (0, 32)])
def test_an_error_says_where_a_nan_comes_from(on_ranks, sizes):
    def work(store):
        trainer, _ = trained(store, steps=1)
        before = trainer.net.params["nf_running_var"].copy()
        x, y = samples(32, 7)
        x[3 if sizes[0] else 20] = np.nan
        mine = slice(sum(sizes[: store.rank]), sum(sizes[: store.rank + 1]))
        with pytest.raises(gk.errors.NotFinite) as caught:
            trainer.step(x[mine], y[mine])
        np.testing.assert_array_equal(trainer.net.params["nf_running_var"], before)
        return "from another process" in str(caught.value)

    assert sorted(on_ranks(work)) == [False, True]


def test_what_is_marked_is_computed_again_but_statistics_are_not(on_ranks):
    def marked():
        with gk.attr_scope(recompute=True):
            return net()

    def work(store):
        trainer, _ = trained(store, model=marked, sizes=(20, 12))
        names = [node.op.name for node in trainer.graph.nodes]
        assert names.count("AllReduceMoments") == 3
        return trainer, names.count("Conv")

    whole, _ = trained(None)
    for trainer, convolutions in on_ranks(work):
        assert convolutions > 2
        assert_same(trainer, whole)


# --- accuracy -------------------------------------------------------------------------------------------------


def moments_of(store, x, epsilon=1e-5, momentum=0.5):
    """Return the running statistics after a step on x, and the normalised x of this process."""
    given = gk.input("x", ["N", *x.shape[1:]])
    model = gk.Model(gk.nn.batch_norm(given, name="n", momentum=momentum, epsilon=epsilon), seed=0)
    trainer = gk.Trainer(model, "mse", gk.optim.SGD(0.0), kvstore=store, threads=1, sync_batch_norm=True)
    rank, ranks = (0, 1) if store is None else (store.rank, store.num_workers)
    mine = slice(rank * len(x) // ranks, (rank + 1) * len(x) // ranks)
    loss = float(trainer.step(x[mine], np.zeros_like(x[mine])))
    return loss, {name: array for name, array in model.params.items() if "running" in name}


@pytest.mark.parametrize("mean", [1e4, -1e6])
def test_a_variance_does_not_vanish_beside_a_large_mean(on_ranks, mean):
    """Chan, Golub and LeVeque: that E[x^2] - E[x]^2 loses all digits here. Each process has another mean."""
    rng = np.random.default_rng(0)
    x = (mean * (1 + 1e-5 * (np.arange(64) // 16)[:, None]) + rng.standard_normal((64, 3))).astype(np.float32)
    exact = x.astype(np.float64)
    for loss, running in on_ranks(lambda store: moments_of(store, x), 4):
        np.testing.assert_allclose(running["n_running_mean"], 0.5 * exact.mean(0), rtol=1e-6)
        np.testing.assert_allclose(running["n_running_var"], 0.5 + 0.5 * exact.var(0), rtol=1e-5)
        np.testing.assert_allclose(loss, (exact.var(0) / (exact.var(0) + 1e-5)).mean(), rtol=1e-5)


def test_channels_of_one_sample_in_all_and_in_each(on_ranks):
    x = np.array([[3.0, -2.0], [5.0, 4.0]], np.float32)
    for loss, running in on_ranks(lambda store: moments_of(store, x, momentum=0.0)):
        np.testing.assert_allclose(running["n_running_mean"], [4, 1])
        np.testing.assert_allclose(running["n_running_var"], [1, 9])
        np.testing.assert_allclose(loss, 1, rtol=1e-4)
    # One sample in the job: its variance is 0, and its gradient.
    for loss, running in on_ranks(lambda store: moments_of(store, x[:1], momentum=0.0)):
        np.testing.assert_array_equal(running["n_running_var"], [0, 0])
        np.testing.assert_allclose(running["n_running_mean"], [3, -2])
        assert loss == 0


def test_the_gradient_through_the_statistics_of_others_is_exact(on_ranks):
    """Differentiate a weighted sum of all results numerically in float64, with respect to the samples of each rank."""
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((5, 2, 3)), rng.standard_normal((5, 2, 3))
    scale, offset = rng.standard_normal(2), rng.standard_normal(2)
    sizes = [2, 3]

    def function(whole):
        mean, var = whole.mean((0, 2), keepdims=True), whole.var((0, 2), keepdims=True)
        y = (whole - mean) / np.sqrt(var + 1e-5) * scale[:, None] + offset[:, None]
        return (np.sin(y) * weights).sum()

    def work(store):
        mine = slice(sum(sizes[: store.rank]), sum(sizes[: store.rank + 1]))
        given = gk.input("x", ["N", 2, 3], "float64")
        kinds = {n: gk.input(n, [2], "float64") for n in ("scale", "offset", "mean", "var")}
        y, *_ = gk.batch_normalization(given, *kinds.values(), training_mode=True)
        weighted = gk.input("weights", ["N", 2, 3], "float64")
        loss = gk.reduce_sum(gk.sin(y) * weighted, keepdims=False)
        graph = synchronise(Graph([given, *kinds.values(), weighted], [loss]))
        wanted = [graph.inputs[i] for i in (0, 1, 2)]
        graph = chained(graph.replace(outputs=gradient(graph.outputs, wanted)), graph.outputs[0])
        executor = Executor(graph, ParamStore({}, {}), collectives=store.transport.collectives(), threads=1)
        feeds = dict(zip(("x", *kinds, "weights"), (x[mine], scale, offset, offset, scale, weights[mine]), strict=True))
        return list(executor.run(feeds).values())

    found = on_ranks(work)
    numeric = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        numeric[place] = (function(x + step) - function(x - step)) / 2e-5
    np.testing.assert_allclose(np.concatenate([dx for dx, *_ in found]), numeric, rtol=1e-6, atol=1e-8)
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    h = (x - mean) / np.sqrt(var + 1e-5)
    slope = np.cos(h * scale[:, None] + offset[:, None]) * weights
    np.testing.assert_allclose(sum(f[1] for f in found), (slope * h).sum((0, 2)), rtol=1e-9)
    np.testing.assert_allclose(sum(f[2] for f in found), slope.sum((0, 2)), rtol=1e-9)


# --- how ------------------------------------------------------------------------------------------------------


def test_bytes_and_calls(on_ranks):
    """For each normalisation, number, mean and deviations go once, and the sums of the two gradients, in float64."""

    def work(store):
        trainer, _ = trained(store, steps=1)
        sent = store.sent_bytes
        x, y = samples(32)
        trainer.step(x[:16], y[:16])
        plain = sum(trainer.net.params[name].nbytes for name in trainer.trained) + 16
        channels = [3, 3, 5]
        return store.sent_bytes - sent - plain, sum((1 + 2 * c) + 2 * c for c in channels) * 8

    for sent, expected in on_ranks(work):
        # Between gradients of one bucket there may be gaps.
        assert 0 <= sent - expected <= 64 * 11


def test_statistics_in_a_branch_are_refused(on_ranks):
    """Another process might not take the branch."""

    def branched():
        x = gk.input("x", ["N", 3])
        large = gk.reduce_max(x, keepdims=False) > 1.0
        return gk.Model(gk.cond(large, lambda v: gk.nn.batch_norm(v, name="n"), lambda v: v, x))

    def work(store):
        with pytest.raises(gk.errors.UnsupportedError, match="inside of"):
            gk.Trainer(branched(), "mse", kvstore=store, sync_batch_norm=True)
        return True

    assert all(on_ranks(work))


def test_one_that_keeps_its_statistics_sends_nothing(on_ranks):
    """As those whose scale and offset are frozen."""

    def work(store):
        frozen = [f"n{letter}_{what}" for letter in "abf" for what in ("weight", "bias")]
        trainer, _ = trained(store, steps=1, freeze=frozen)
        return [n.op.name for n in trainer.graph.nodes if n.op.name in ("AllReduceMoments", "AllReduce")]

    assert on_ranks(work) == [[], []]


@pytest.mark.parametrize(
    "overlap", [pytest.param(o, marks=() if o == "concurrent" else pytest.mark.full) for o in OVERLAPS]
)
def test_however_sums_go_on(on_ranks, monkeypatch, overlap):
    """Each gradient has its own bucket."""
    monkeypatch.setattr(Transport, "bucket_bytes", lambda store, fixed=False: 1)
    whole, _ = trained(None)

    def work(store):
        store.transport.communicator.engine.overlap = overlap
        return trained(store, sizes=(9, 0, 23))[0]

    for trainer in on_ranks(work, 3):
        assert_same(trainer, whole)


def test_statistics_are_not_compressed(on_ranks):
    """The all-reduced gradients of statistics are not compressed, either."""

    def work(store):
        store.set_gradient_compression("2bit:0.001")
        return moments_of(store, samples(32)[0])

    _, expected = moments_of(None, samples(32)[0])
    for _, running in on_ranks(work):
        for name, array in expected.items():
            np.testing.assert_allclose(running[name], array, rtol=1e-5, atol=1e-7)


def test_another_choice_in_another_process_is_an_error_and_no_hang(on_ranks):
    def work(store):
        with pytest.raises(gk.errors.RanksDiffer, match="rank 0 has sync_batch_norm True, rank 1 has False"):
            gk.Trainer(net(), "mse", kvstore=store, threads=1, sync_batch_norm=store.rank == 0)
        return True

    assert all(on_ranks(work))


@in_one_item()
@pytest.mark.parametrize("kind", REMOTE)
def test_workers_that_take_steps_of_their_own_are_refused(kind):
    class Workers:
        type, num_workers = kind, 2

    graph = net().graph
    with pytest.raises(gk.errors.UsageError, match=rf"sync_batch_norm.*{kind}"):
        sync_statistics(graph, Workers())
    assert sync_statistics(graph, None) is graph


@pytest.mark.full
def test_a_network_of_residuals(on_ranks):
    """Some normalisations of a ResNet are on parallel branches."""

    def images(count, seed):
        rng = np.random.default_rng(seed)
        return rng.standard_normal((count, 3, 32, 32), np.float32), rng.integers(0, 4, count)

    def work(store):
        model = gk.models.build("resnet", layers=18, classes=4, image=(3, 32, 32))
        trainer = gk.Trainer(
            model, "softmax_cross_entropy", gk.optim.SGD(0.02), kvstore=store, threads=1, sync_batch_norm=True
        )
        x, y = images(12, 0)
        parts = {None: slice(0, 12)} if store is None else [slice(0, 9), slice(9, 12)]
        mine = parts[None if store is None else store.rank]
        return float(trainer.step(x[mine], y[mine])), trainer

    loss, whole = work(None)
    for seen, trainer in on_ranks(work):
        np.testing.assert_allclose(seen, loss, rtol=1e-5)
        assert_same(trainer, whole)
        # The offsets of two that are added have one gradient, which goes to two places.
        assert trainer._exchange.collectives.copied_bytes <= 2 * (128 + 256 + 512) * 4


# --- jobs -----------------------------------------------------------------------------------------------------

JOB = """
    import numpy as np, graphkit as gk
    from test_sync_batch_norm import trained
    kv = gk.kvstore.create("dist_sync")
    trainer, _ = trained(kv, steps=10, sizes={sizes})
    kv.barrier()
    np.savez({out!r} + str(kv.rank), **trainer.net.params)
"""


@pytest.mark.parametrize(
    "sizes",
    [
        (23, 9),
        pytest.param((8, 8, 8, 8), marks=pytest.mark.full),
        pytest.param((3, 0, 20, 9), marks=pytest.mark.full),
    ],
)
def test_processes_are_one(jobs, tmp_path, sizes):
    jobs.run(JOB.format(out=str(tmp_path / "weights"), sizes=sizes), len(sizes))
    one, _ = trained(None, steps=10)
    found = [np.load(tmp_path / f"weights{rank}.npz") for rank in range(len(sizes))]
    for name, array in one.net.params.items():
        assert np.linalg.norm(found[0][name] - array) <= 1e-5 * np.linalg.norm(array), name
        for other in found[1:]:
            np.testing.assert_array_equal(other[name], found[0][name])


@pytest.mark.full
def test_from_the_command_line_with_an_end_of_one_sample(jobs, tmp_path):
    """There are 97 samples, 24 per step: in the last step of an epoch, two of three processes have none."""
    rng = np.random.default_rng(5)
    x = gk.input("x", ["N", 6])
    h = gk.tanh(gk.nn.batch_norm(gk.nn.linear(x, 8, bias=False, name="fc1"), name="bn"))
    gk.Model({"y": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0).save(tmp_path / "net.json")
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((97, 6), np.float32), y=rng.integers(0, 3, 97))
    train = ["train", tmp_path / "net.json", "--data", tmp_path / "data.npz", "--epochs", "2", "--seed", "1"]
    train += ["--threads", "1", "-o"]
    assert invoke([*map(str, train), str(tmp_path / "one"), "--batch-size", "24"]) == 0
    together = ["--batch-size", "8", "--kvstore", "dist_sync", "--sync-batch-norm"]
    jobs.run(command(*train, tmp_path / "three", *together), 3)
    one, three = gk.load(tmp_path / "one"), gk.load(tmp_path / "three")
    for name, array in one.params.items():
        assert np.linalg.norm(three.params[name] - array) <= 1e-5 * np.linalg.norm(array), name
