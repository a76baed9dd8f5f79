"""Sharded optimizer states: the results are those of one process, and files do not depend on sharding."""

import itertools

import numpy as np
import pytest
from cases import each_case
from combinations import covering
from job_server import command
from test_shared_step import assert_same, net, samples, trained

import graphkit as gk
from graphkit.dist.collectives.layout import Slices
from graphkit.dist.transport import Transport
from graphkit.errors import UsageError
from graphkit.train.programs.sharded import slices_of_rank

BUCKETS = [1, 2000, 1 << 20]


@pytest.fixture
def divide(monkeypatch):
    """`divide(size)`: all-reduce gradients in buckets of `size` bytes."""
    return lambda size: monkeypatch.setattr(Transport, "bucket_bytes", lambda store, fixed=False: size)


ARRAYS = [[1], [0], [0, 0], [40, 0, 0, 40], [5, 0, 1000, 3], [17, 16, 15], [100_000, 1]]
SLICES = list(itertools.product(ARRAYS, [1, 2, 3, 7], [2, 4, 8]))


@each_case(SLICES, group=lambda case: f"{case[1]} ranks")
def test_slices_are_everything_once(case):
    sizes, ranks, itemsize = case
    slices = Slices.of(sizes, itemsize, ranks)
    assert all(bound * itemsize % 64 == 0 for bound in slices.bounds[:-1] if bound < slices.bounds[-1])
    for index, size in enumerate(sizes):
        parts = [slices.part(index, rank) for rank in range(ranks)]
        listed = [(begin, end) for rank in range(ranks) for at, begin, end in slices.parts(rank) if at == index]
        assert listed == [(begin, end) for begin, end in parts if begin < end]
        covered = [element for begin, end in parts for element in range(begin, end)]
        assert covered == list(range(size))
    longest = max(slices.bounds[rank + 1] - slices.bounds[rank] for rank in range(ranks))
    assert longest <= sum(sizes) / ranks + (len(sizes) + 1) * 64 / itemsize


OPTIONS = [
    {},
    {"clip_norm": 0.05},
    {"ema": 0.9},
    {"recompute": "sqrt"},
    {"accumulate": 2},
    {"accumulate": 3, "clip_norm": 0.05},
    {"deterministic": True},
    {"on_nonfinite": "skip"},
    {"on_nonfinite": "ignore"},
    {"wd_mult": {"a*": 0.0}, "lr_mult": {"b*": 0.5}},
]


@pytest.mark.parametrize(("bucket", "options", "processes"), covering(BUCKETS, OPTIONS, [2, 3]))
def test_a_step_is_that_of_one_process(on_ranks, divide, bucket, options, processes):
    divide(bucket)
    check(on_ranks, options, processes, 1e-5)


@pytest.mark.onednn
@pytest.mark.parametrize(("bucket", "processes"), [(2000, 2), pytest.param(1, 3, marks=pytest.mark.full)])
def test_a_step_in_half_precision_is_that_of_one_process(on_ranks, divide, bucket, processes):
    divide(bucket)
    check(on_ranks, {"precision": "bf16"}, processes, 1e-2)


def check(on_ranks, options, processes, bound):
    """So many ranks that divide their states are one process."""
    whole, losses = trained(None, count=18, **options)
    for found, seen in on_ranks(lambda store: trained(store, count=18, shard_optimizer=True, **options), processes):
        assert_same(found, whole, bound)
        np.testing.assert_allclose(seen, losses, rtol=bound)
        assert found.updates == whole.updates


@pytest.mark.parametrize(("bucket", "sizes"), covering(BUCKETS, [(5, 11), (16, 0), (0, 16)]))
def test_parts_of_any_size_and_of_none(on_ranks, divide, bucket, sizes):
    divide(bucket)
    whole, _ = trained(None)

    def part(rank):
        return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    for found, _ in on_ranks(lambda store: trained(store, part=part, shard_optimizer=True)):
        assert_same(found, whole)


def test_activations_that_are_computed_again_take_no_memory(on_ranks):
    """On every rank, the recomputation of a layer waits for its gradient, even if its operands are available before."""

    def deep(seed):
        h = gk.input("x", ["N", 6])
        for layer in range(9):
            h = gk.tanh(gk.nn.linear(h, 32, name=f"fc{layer}"))
        return gk.Model(gk.nn.linear(h, 2, name="out"), seed=seed)

    def work(store):
        sizes = []
        for recompute in (None, "sqrt"):
            trainer, _ = trained(store, steps=1, count=1536, model=deep, shard_optimizer=True, recompute=recompute)
            sizes.append(trainer.plan({"x": (512, 6), "target": (512, 2)}).arena_bytes)
        return sizes[1] / sizes[0]

    for ratio in on_ranks(work, 3):
        assert ratio < 0.8


def test_each_process_has_its_part_of_the_states(on_ranks):
    whole, _ = trained(None)
    slots = sum(array.nbytes for name, array in whole._stepper.slots.items() if "/" in name)

    def work(store):
        trainer, _ = trained(store, shard_optimizer=True)
        return sum(array.nbytes for name, array in trainer._stepper.slots.items() if "/" in name)

    for ranks in (2, 4):
        held = on_ranks(work, ranks)
        assert sum(held) == slots
        assert max(held) <= slots / ranks + 8 * 64 * 2


@pytest.mark.parametrize("bucket", BUCKETS)
def test_nothing_is_copied_to_lie_together(on_ranks, divide, bucket):
    divide(bucket)

    def work(store):
        trainer, _ = trained(store, shard_optimizer=True)
        return trainer._exchange.collectives.copied_bytes

    assert on_ranks(work) == [0, 0]


def test_sums_are_of_slices(on_ranks):
    """Each of two ranks gets half of the sums, and sends half of the parameters."""

    def work(store):
        seen = []
        links = store.transport.communicator
        scatter, gather = links.reduce_scatter, links.allgather_parts
        links.reduce_scatter = lambda a, bounds: seen.append("scatter") or scatter(a, bounds)
        links.allgather_parts = lambda data, sizes: seen.append(data.nbytes) or gather(data, sizes)
        trained(store, steps=1, shard_optimizer=True)
        return seen

    total = sum(array.nbytes for array in net().params.values())
    found = on_ranks(work)
    assert [seen[0] for seen in found] == ["scatter"] * 2
    assert total <= sum(seen[1] for seen in found) <= total + 6 * 64


@pytest.mark.parametrize(("bucket", "bad"), covering(BUCKETS, [0, 1]))
def test_a_nan_anywhere_is_seen_by_all_and_changes_nothing(on_ranks, divide, bucket, bad):
    divide(bucket)

    def work(store):
        trainer, _ = trained(store, steps=2, on_nonfinite="skip", shard_optimizer=True)
        before = {name: array.copy() for name, array in [*trainer.net.params.items(), *trainer._stepper.slots.items()]}
        x, y = samples(16)
        if store.rank == bad:
            x[3] = np.nan
        assert np.isnan(float(trainer.step(x[:8], y[:8])))
        assert trainer.skipped == 1
        for name, array in before.items():
            np.testing.assert_array_equal(({**trainer.net.params, **trainer._stepper.slots})[name], array)
        x, y = samples(16)  # later steps work
        assert np.isfinite(float(trainer.step(x[:8], y[:8])))
        return trainer.updates

    assert on_ranks(work) == [3, 3]


def test_a_checkpoint_goes_on_with_any_number_divided_or_not(on_ranks, tmp_path):
    def begun(store, **options):
        trainer, _ = trained(store, steps=3, count=24, deterministic=True, **options)
        trainer.save(tmp_path / "run")
        return None

    on_ranks(lambda store: begun(store, shard_optimizer=True), 3)

    def resumed(store, ranks, **options):
        trainer = gk.Trainer(
            net(5), "mse", gk.optim.Adam(0.01), kvstore=store, threads=1, seed=3, deterministic=True, **options
        )
        trainer.resume(tmp_path / "run")
        rank = 0 if store is None else store.rank
        for step in range(3):
            x, y = samples(24, step + 10)
            mine = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
            trainer.step(x[mine], y[mine])
        return trainer

    one = resumed(None, 1)
    two = on_ranks(lambda store: resumed(store, 2, shard_optimizer=True), 2)
    plain = on_ranks(lambda store: resumed(store, 2), 2)
    for found in (*two, *plain):
        assert_same(found, one)
    for name, array in plain[0].net.params.items():
        np.testing.assert_array_equal(two[0].net.params[name], array)  # to the bit


def test_what_cannot_be_divided_is_refused(on_ranks):
    def work(store):
        for optimizer, options, message in [
            (gk.optim.Lamb(0.1), {}, "needs norms of whole parameters"),
            (gk.optim.LARS(0.1), {}, "needs norms of whole parameters"),
            (gk.optim.SGD(0.1), {"compressed": True}, "cannot be combined with gradient compression"),
        ]:
            if options.pop("compressed", False):
                store.set_gradient_compression("2bit")
            with pytest.raises(UsageError, match=f"shard_optimizer.*{message}"):
                gk.Trainer(net(), "mse", optimizer, kvstore=store, shard_optimizer=True)

    on_ranks(work)


def test_every_element_has_one_owner():
    from graphkit.train.programs.all_reduce import Buckets

    graph = net().graph
    values = [v for v in graph.inputs if v.role == "parameter"]
    owned = {}
    for rank in range(3):
        buckets = Buckets((tuple(range(0, 6, 2)), tuple(range(1, 6, 2))), place=(rank, 3))
        for index, begin, end in slices_of_rank(values, buckets, rank):
            owned.setdefault(index, []).extend(range(begin, end))
    assert {i: sorted(elements) for i, elements in owned.items()} == {
        i: list(range(int(np.prod(v.tensor.static_shape)))) for i, v in enumerate(values)
    }


DIVIDED = """
    import numpy as np
    from test_shared_step import trained
    from graphkit.dist import kvstore
    options = dict(deterministic=True, steps=3)
    plain, _ = trained(kvstore.create("dist_sync"), **options)
    divided, _ = trained(kvstore.create("dist_sync"), shard_optimizer=True, **options)
    held = lambda trainer: sum(a.nbytes for name, a in trainer._stepper.slots.items() if "/" in name)
    assert held(divided) < held(plain)
    for name, array in plain.net.params.items():
        np.testing.assert_array_equal(divided.net.params[name], array)
    # Not in the order of the ranks: by MPI's own sum of slices.
    divided, _ = trained(kvstore.create("dist_sync"), shard_optimizer=True, steps=3)
    for name, array in plain.net.params.items():
        np.testing.assert_allclose(divided.net.params[name], array, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.full)])
def test_ranks_that_divide_states_compute_the_same(jobs, processes):
    jobs.run(DIVIDED, processes)


@pytest.mark.full
def test_the_command_divides_states(jobs, tmp_path):
    x = gk.input("x", ["N", 1, 8, 8])
    hidden = gk.relu(gk.nn.linear(gk.flatten(x), 64))
    gk.Model(gk.nn.linear(hidden, 10), name="net").save(tmp_path / "net.json")
    train = ["train", tmp_path / "net.json", "--data", "digits", "--epochs", "2", "--optimizer", "adam"]
    train += ["--lr", "0.003", "--kvstore", "dist_sync", "--batch-size", "32", "--deterministic", "--seed", "1", "-o"]
    for folder, more in (("divided", ["--shard-optimizer"]), ("plain", [])):
        jobs.run(command(*train, tmp_path / folder, *more), 3)
    divided, plain = (gk.load(tmp_path / folder / "model.json") for folder in ("divided", "plain"))
    for name, array in plain.params.items():
        np.testing.assert_array_equal(divided.params[name], array)
