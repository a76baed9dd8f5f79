"""Row-sparse tables over processes: rows that any process reads get one update, and other rows are not sent."""

import numpy as np
import pytest
from combinations import covering, default_at
from job_server import FOLDERS
from jobs import finish, start

import graphkit as gk

USERS, ITEMS = 60, 40
TABLES = ["user*", "item*"]


def net(seed=1):
    return gk.models.build("matrix_factorization", users=USERS, items=ITEMS, factors=8)


def ratings(count, seed=0):
    rng = np.random.default_rng(seed)
    inputs = {"user": rng.integers(0, USERS, count), "item": rng.integers(0, ITEMS, count)}
    return inputs, rng.standard_normal(count, np.float32)


def part_of(store, count, sizes=None):
    rank, ranks = (0, 1) if store is None else (store.rank, store.num_workers)
    if sizes is None or store is None:
        return slice(rank * count // ranks, (rank + 1) * count // ranks)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def trained(store, steps=5, count=16, sizes=None, optimizer=None, data=ratings, **options):
    """Take `steps` steps with this rank's part of the samples; return the trainer and the losses."""
    optimizer = gk.optim.Adam(0.01) if optimizer is None else optimizer
    trainer = gk.Trainer(net(), "mse", optimizer, kvstore=store, threads=1, seed=3, lazy=TABLES, **options)
    losses = []
    for step in range(steps):
        inputs, target = data(count, step)
        mine = part_of(store, count, sizes)
        losses.append(float(trainer.step({n: a[mine] for n, a in inputs.items()}, target[mine])))
    return trainer, losses


def states(trainer):
    return {**trainer.net.params, **trainer._stepper.slots}


def assert_same(found, expected, bound=1e-5):
    for name, array in states(expected).items():
        difference = np.linalg.norm(states(found)[name].astype(np.float64) - array)
        assert difference <= bound * np.linalg.norm(array), name


@pytest.mark.parametrize("processes", [2, 3])
def test_a_step_is_that_of_one_process(on_ranks, processes):
    whole, losses = trained(None)
    for found, seen in on_ranks(lambda store: trained(store), processes):
        assert_same(found, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)


@default_at(2, 5, 7, 8)
@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.05},
        {"ema": 0.9},
        {"recompute": "sqrt"},
        pytest.param({"precision": "bf16"}, marks=pytest.mark.onednn),
        {"deterministic": True},
        {"on_nonfinite": "skip"},
        {"on_nonfinite": "ignore"},
        {"lr_mult": {"user*": 3.0, "item_bias*": 0.5}, "wd_mult": {"item*": 2.0}},
        {"optimizer": gk.optim.SGD(0.1, momentum=0.9, weight_decay=0.1)},
        {"optimizer": gk.optim.Adagrad(0.1)},
        {"freeze": ["item_weight"]},
    ],
    ids=str,
)
def test_whatever_else_a_step_does(on_ranks, options):
    whole, losses = trained(None, **options)
    bound = 1e-2 if "precision" in options else 1e-5
    found = on_ranks(lambda store: trained(store, **options))
    for trainer, seen in found:
        assert_same(trainer, whole, bound)
        np.testing.assert_allclose(seen, losses, rtol=bound)
    first, second = (states(trainer) for trainer, _ in found)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])  # to the bit


@pytest.mark.parametrize("compression", ["float16", "2bit:0.001"])
def test_rows_are_not_compressed(on_ranks, compression):
    """Only `mean` is compressed, because it is not a table."""

    def work(store):
        store.set_gradient_compression(compression)
        return trained(store, steps=1)[0]

    whole, _ = trained(None, steps=1)
    for found in on_ranks(work):
        for name in TABLES_BY_NAME:
            np.testing.assert_allclose(found.net.params[name], whole.net.params[name], rtol=1e-5, atol=1e-7)


TABLES_BY_NAME = ["user_weight", "item_weight", "user_bias_weight", "item_bias_weight"]


@default_at(0, 2)
@pytest.mark.parametrize(
    ("sizes", "options"),
    covering(
        [(5, 11), (16, 0), (0, 16), (1, 15)],
        [{}, {"deterministic": True}, {"clip_norm": 0.05, "on_nonfinite": "skip"}],
    ),
)
def test_parts_of_any_size_and_of_none(on_ranks, sizes, options):
    whole, losses = trained(None, **options)
    for found, seen in on_ranks(lambda store: trained(store, sizes=sizes, **options)):
        assert_same(found, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)


def test_a_process_that_has_samples_now_and_none_then(on_ranks):
    def parts(store, step):
        rank = 0 if store is None else store.rank
        return slice(0, 16) if store is None else [slice(0, 16), slice(0, 0)][(rank + step) % 2]

    def work(store):
        trainer = gk.Trainer(net(), "mse", gk.optim.Adam(0.01), kvstore=store, threads=1, seed=3, lazy=TABLES)
        for step in range(4):
            inputs, target = ratings(16, step)
            mine = parts(store, step)
            trainer.step({n: a[mine] for n, a in inputs.items()}, target[mine])
        return trainer

    whole = work(None)
    for found in on_ranks(work):
        assert_same(found, whole)


@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=str)
def test_ids_that_repeat_in_processes_and_between_them(on_ranks, options):
    """Negative ids are included. Rows that no rank reads, and their slots, keep their bits."""

    def repeated(count, seed=0):
        _, target = ratings(count, seed)
        users = np.array([3, 3, 7, -1, 3, USERS - 1, 7, 3] * (count // 8))
        return {"user": users, "item": np.arange(count) // 3}, target

    start_ = {name: array.copy() for name, array in net().params.items()}
    whole, _ = trained(None, data=repeated, **options)
    for found, _ in on_ranks(lambda store: trained(store, data=repeated, **options), 3 if not options else 2):
        assert_same(found, whole)
        assert found._stepper.slots["user_weight/mean"][[3, 7, -1]].any()
        others = [row for row in range(USERS - 1) if row not in (3, 7)]
        np.testing.assert_array_equal(found.net.params["user_weight"][others], start_["user_weight"][others])
        for slot in ("mean", "variance"):
            assert not found._stepper.slots[f"user_weight/{slot}"][others].any()


def test_only_rows_that_were_read_travel(on_ranks):
    """Each once: an index of 8 bytes, and its row. Beside them 40 bytes of loss, weight and fingerprint, and `mean`."""
    others = 40 + 4

    def work(store):
        trainer, _ = trained(store, steps=0)
        found = []
        for step in range(3):
            inputs, target = ratings(16, step)
            mine = {n: a[part_of(store, 16)] for n, a in inputs.items()}
            sent = store.sent_bytes
            trainer.step(mine, target[part_of(store, 16)])
            rows = {n: len(np.unique(a)) for n, a in mine.items()}
            expected = sum(count * (8 + 8 * 4 + 8 + 4) for count in rows.values()) + others
            found.append((store.sent_bytes - sent, expected))
        return found

    for found in on_ranks(work, 3):
        for sent, expected in found:
            assert sent == expected


@pytest.mark.parametrize(("bad", "how"), covering([0, 1], ["skip", "raise"]))
def test_a_nan_anywhere_is_seen_by_all_and_changes_nothing(on_ranks, bad, how):
    def work(store):
        trainer, _ = trained(store, steps=2, on_nonfinite=how)
        before = {name: array.copy() for name, array in states(trainer).items()}
        inputs, target = ratings(16, 9)
        mine = part_of(store, 16)
        inputs, target = {n: a[mine] for n, a in inputs.items()}, target[mine]
        broken = np.where(np.arange(8) == 3, np.nan, target).astype(np.float32) if store.rank == bad else target
        if how == "raise":
            with pytest.raises(gk.errors.NotFinite):
                trainer.step(inputs, broken)
        else:
            assert np.isnan(float(trainer.step(inputs, broken)))
            assert trainer.skipped == 1
        for name, array in before.items():
            np.testing.assert_array_equal(states(trainer)[name], array)
        assert np.isfinite(float(trainer.step(inputs, target)))  # later steps work
        return trainer.updates

    assert on_ranks(work) == [3, 3]


def test_a_vector_and_a_table_that_is_read_twice(on_ranks):
    def build():
        first, second = (gk.input(n, ["N"], dtype="int64") for n in ("first", "second"))
        with gk.attr_scope(lazy="1"):
            table, vector = gk.parameter("table", [9, 2, 2], "normal"), gk.parameter("vector", [9], "normal")
        score = gk.reduce_sum(gk.gather(table, first) * gk.gather(table, second), [1, 2], keepdims=False)
        return gk.Model({"y": score + gk.gather(vector, second)}, seed=0)

    def work(store):
        net = build()
        trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1, momentum=0.9), kvstore=store, threads=1)
        rng = np.random.default_rng(0)
        for _ in range(4):
            ids, target = rng.integers(0, 9, (2, 6)), rng.standard_normal(6, np.float32)
            mine = part_of(store, 6, (5, 1))
            trainer.step({"first": ids[0][mine], "second": ids[1][mine]}, target[mine])
        return trainer

    whole = work(None)
    for found in on_ranks(work):
        assert_same(found, whole)


def test_processes_must_choose_the_same_tables(on_ranks):
    def work(store):
        lazy = TABLES if store.rank else []
        with pytest.raises(gk.errors.RanksDiffer, match=r"'user_weight' .* rank 1 has .*, lazy"):
            gk.Trainer(net(), "mse", gk.optim.SGD(0.1), kvstore=store, threads=1, lazy=lazy)
        return True

    assert all(on_ranks(work))


def test_what_is_lazy_needs_one_batch_per_update_still(on_ranks):
    def work(store):
        with pytest.raises(gk.errors.UsageError, match="one batch per update"):
            trained(store, steps=0, accumulate=2)
        with pytest.raises(gk.errors.UsageError, match="norms of whole parameters"):
            trained(store, steps=0, optimizer=gk.optim.Lamb())
        return True

    assert all(on_ranks(work))


def test_it_goes_on_with_another_number_of_processes(on_ranks, tmp_path):
    whole, _ = trained(None, steps=6)

    def first(store):
        trainer, _ = trained(store, steps=3)
        if store.rank == 0:
            trainer.save(tmp_path)
        store.barrier()

    on_ranks(first, 3)

    def second(store):
        trainer, _ = trained(store, steps=0)
        trainer.resume(tmp_path)
        for step in range(3, 6):
            inputs, target = ratings(16, step)
            mine = part_of(store, 16)
            trainer.step({n: a[mine] for n, a in inputs.items()}, target[mine])
        return trainer

    for found in [*on_ranks(second), second(None)]:
        assert_same(found, whole)


def test_steps_are_native(on_ranks):
    def work(store):
        trainer, _ = trained(store, steps=1)
        plan = trainer.plan({"user": (8,), "item": (8,), "target": (8,)})
        return [step.op for step in plan.steps if step.kernel == "interpreted"]

    assert on_ranks(work) == [[], []]


# --- jobs -------------------------------------------------------------------------------------------------

JOB = """
    import numpy as np, graphkit as gk
    from test_row_sums import large, ratings_of_large, LARGE
    kv = gk.kvstore.create("dist_sync")
    trainer = large(kv)
    sent, most = kv.sent_bytes, 0
    for step in range({steps}):
        inputs, target = ratings_of_large(step)
        each = LARGE // kv.num_workers
        mine = slice(each * kv.rank, each * (kv.rank + 1))
        inputs = {{name: array[mine] for name, array in inputs.items()}}
        most += sum(len(np.unique(array)) for array in inputs.values()) * (8 + 32 * 4 + 8 + 4) + 40 + 4
        trainer.step(inputs, target[mine])
    assert kv.sent_bytes - sent == most, (kv.sent_bytes - sent, most)
    kv.barrier()
    if kv.rank == 0:
        np.savez({out!r}, **trainer.net.params)
"""

LARGE = 64


def large(kv):
    """Tables of the size of MovieLens 100K."""
    net = gk.models.build("matrix_factorization")
    return gk.Trainer(net, "mse", gk.optim.Adam(0.01), kvstore=kv, threads=1, seed=0, lazy=TABLES)


def ratings_of_large(step):
    rng = np.random.default_rng(step)
    inputs = {"user": rng.zipf(1.3, LARGE) % 943, "item": rng.zipf(1.3, LARGE) % 1682}
    return inputs, rng.standard_normal(LARGE, np.float32)


@pytest.mark.parametrize(
    ("processes", "per_host", "steps"),
    [
        (2, None, 5),
        pytest.param(4, None, 20, marks=pytest.mark.full),
        pytest.param(4, 2, 20, marks=pytest.mark.full),
    ],
)
def test_processes_reach_the_weights_of_one(jobs, tmp_path, processes, per_host, steps):
    out = tmp_path / "weights.npz"
    jobs.run(JOB.format(out=str(out), steps=steps), processes, ranks_per_host=per_host)
    one = large(None)
    for step in range(steps):
        one.step(*ratings_of_large(step))
    found = np.load(out)
    whole = one.net.params
    apart = np.linalg.norm([np.linalg.norm(found[name] - array) for name, array in whole.items()])
    assert apart <= 1e-4 * np.linalg.norm([np.linalg.norm(array) for array in whole.values()])


OUT_OF_RANGE = """
    import sys, numpy as np, graphkit as gk
    from graphkit.dist.job import ending
    sys.path[:0] = {folders}
    from test_row_sums import ratings, trained, USERS
    with ending.abort_on_error():
        kv = gk.kvstore.create("dist_sync", timeout=30)
        trainer, _ = trained(kv, steps=2)
        inputs, target = ratings(4)
        if kv.rank == 1:
            inputs["user"][2] = USERS
        trainer.step(inputs, target)
        print("went on", flush=True)
"""


@pytest.mark.full
def test_an_id_out_of_range_is_named_and_ends_the_job():
    job = OUT_OF_RANGE.format(folders=FOLDERS)
    status, out, errors = finish(start(2, job, before=""), 90)
    assert status != 0
    assert "went on" not in out
    assert "rank 1" in errors
    assert f"{USERS}" in errors
    assert "out of range" in errors or "outside" in errors
