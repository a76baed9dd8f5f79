"""Residuals of gradient compression in checkpoints: resumed runs are bit-identical, and no residual is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest
from combinations import covering, in_one_item
from serving import workers
from test_shared_step import net, samples

import graphkit as gk
from graphkit.dist.transport import Transport
from graphkit.errors import InvalidModel
from graphkit.train import checkpoint
from graphkit.train.exchange.residuals import residuals_of_rank

KINDS = ["2bit:0.01", "float16", "bfloat16", "top_k:0.1"]
HOSTS = [(), [(0, 1), (2, 3)], [(0, 2), (1, 3)]]


BUCKETS = [1, 1 << 20]


def divide(monkeypatch, bytes_):
    """All-reduce gradients in buckets of `bytes_` bytes."""
    monkeypatch.setattr(Transport, "bucket_bytes", lambda store, fixed=False: bytes_)


def trainer_of(store, kind, **options):
    if kind is not None:
        store.set_gradient_compression(kind)
    options = {"deterministic": True, **options}
    return gk.Trainer(net(), "mse", gk.optim.Adam(0.01), kvstore=store, threads=1, seed=3, **options)


def trained(store, kind, steps, folder=None, save=None, barrier=True, **options):
    """A trainer after steps, from the checkpoint in a folder on, with this rank's part of the samples."""
    trainer = trainer_of(store, kind, **options)
    if folder is not None:
        trainer.resume(folder)
    for step in steps:
        x, y = samples(24, step)
        rank, ranks = store.rank, store.num_workers
        mine = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
        trainer.step(x[mine], y[mine])
    if save is not None:
        trainer.save(save)
        if barrier:
            store.barrier()
    return trainer


def waiting(trainers):
    """Return the sum of the ranks' residuals, by parameter."""
    found = {}
    for trainer in trainers:
        for name, array in trainer._exchange.residuals().items():
            found[name] = found.get(name, 0) + array.astype(np.float64)
    return found


@pytest.mark.parametrize(
    ("bucket", "hosts", "kind", "options"), covering(BUCKETS, HOSTS, KINDS, [{}, {"accumulate": 2}])
)
def test_a_run_goes_on_to_the_bit(on_ranks, tmp_path, monkeypatch, bucket, hosts, kind, options):
    divide(monkeypatch, bucket)
    whole = on_ranks(lambda store: trained(store, kind, range(8), **options), 4, hosts=hosts)
    on_ranks(lambda store: trained(store, kind, range(4), save=tmp_path, **options), 4, hosts=hosts)
    found = on_ranks(lambda store: trained(store, kind, range(4, 8), tmp_path, **options), 4, hosts=hosts)
    for mine, expected in zip(found, whole, strict=True):
        for name, array in {**expected.net.params, **expected._stepper.slots}.items():
            np.testing.assert_array_equal({**mine.net.params, **mine._stepper.slots}[name], array)
        left = expected._exchange.residuals()
        assert list(mine._exchange.residuals()) == list(left)
        for name, array in left.items():
            np.testing.assert_array_equal(mine._exchange.residuals()[name], array)
    saved = checkpoint.load(tmp_path).residuals
    assert [bool(part) for part in saved] == [not hosts or rank in [h[0] for h in hosts] for rank in range(4)]
    assert any(array.any() for part in saved for array in part.values())


class Stop(Exception):
    pass


@pytest.mark.parametrize("hosts", [[(0, 1), (2,)], pytest.param((), marks=pytest.mark.full)], ids=str)
def test_a_run_that_is_stopped_within_an_epoch_goes_on_to_the_bit(on_ranks, tmp_path, hosts):
    data = samples(60)

    def fitted(store, folder, stop=None, resume=False):
        trainer = trainer_of(store, "2bit:0.01")
        if resume:
            trainer.resume(folder)
        taken = trainer._step

        def step(*args):
            if trainer.updates == stop:
                raise Stop
            return taken(*args)

        trainer._step = step
        try:
            trainer.fit(data, epochs=2, batch_size=5, folder=folder, checkpoint_every=1, progress=False)
        except Stop:
            assert (trainer.updates, trainer.batch) == (stop, stop - 4)
        store.barrier()
        return trainer

    whole = on_ranks(lambda store: fitted(store, tmp_path / "whole"), 3, hosts=hosts)
    on_ranks(lambda store: fitted(store, tmp_path / "run", stop=6), 3, hosts=hosts)
    found = on_ranks(lambda store: fitted(store, tmp_path / "run", resume=True), 3, hosts=hosts)
    for mine, expected in zip(found, whole, strict=True):
        assert mine.updates == expected.updates == 8
        for name, array in expected.net.params.items():
            np.testing.assert_array_equal(mine.net.params[name], array)


RANKS = [((4, ()), (2, ())), ((2, ()), (3, ())), ((4, HOSTS[1]), (4, ())), ((3, ()), (4, HOSTS[2]))]


@pytest.mark.parametrize(("bucket", "kind", "ranks"), covering(BUCKETS, KINDS, RANKS))
def test_other_ranks_take_over_the_sum(on_ranks, tmp_path, monkeypatch, bucket, kind, ranks):
    divide(monkeypatch, bucket)
    before, after = ranks
    first = on_ranks(lambda store: trained(store, kind, range(4), save=tmp_path), before[0], hosts=before[1])
    expected = waiting(first)
    second = on_ranks(lambda store: trained(store, kind, (), tmp_path), after[0], hosts=after[1])
    found = waiting(second)
    assert found.keys() == expected.keys() == set(first[0].trained)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6 * np.abs(array).max())
    shares = [{name: a.tobytes() for name, a in t._exchange.residuals().items()} for t in second]
    assert len({str(share) for share in shares if share}) == 1  # alike
    third = on_ranks(lambda store: trained(store, kind, range(4, 6), tmp_path), after[0], hosts=after[1])
    for name, array in third[0].net.params.items():
        np.testing.assert_array_equal(third[-1].net.params[name], array)


def of_ranks(*values):
    """Residuals of two parameters for each rank, or none for a rank whose value is None."""
    return [{} if v is None else {"a": np.float32([v, 0]), "b": np.float32([-v])} for v in values]


@in_one_item()
@pytest.mark.parametrize(
    ("before", "compressing", "after"),
    [
        ([1, 20], [0, 1], [1, 20]),
        ([1, 20], [1, 0], [1, 20]),
        ([1, None, 20, None], [0, 2], [1, None, 20, None]),
        # Other ranks compress now, so they share the sum.
        ([1, None, 20, None], [0, 1], [10.5, 10.5, None, None]),
        ([1, 20], [0, 1, 2], [7, 7, 7]),
        ([1, 20, 300], [0, 1], [160.5, 160.5]),
        ([1, 20], [1], [None, 21]),
        ([None, 20], [0], [20, None]),
    ],
    ids=str,
)
def test_rank_restores_its_own_residuals_or_a_share(before, compressing, after):
    for rank, expected in enumerate(of_ranks(*after)):
        found = residuals_of_rank(of_ranks(*before), rank, compressing)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == np.float32
            np.testing.assert_array_equal(found[name], array)


def test_a_checkpoint_before_the_first_step_and_one_right_after_a_resume(on_ranks, tmp_path):
    """Before the first step there is no residual. After a resume, the residual is unchanged."""

    def work(store):
        trained(store, "2bit:0.01", (), save=tmp_path / "start")
        trained(store, "2bit:0.01", range(3), save=tmp_path / "first")
        trained(store, "2bit:0.01", (), tmp_path / "first", save=tmp_path / "second")
        return trained(store, "2bit:0.01", (), tmp_path / "start")._exchange.residuals()

    for left in on_ranks(work, 2):
        assert not any(array.any() for array in left.values())
    start_, first, second = (checkpoint.load(tmp_path / name).residuals for name in ("start", "first", "second"))
    assert not any(start_)
    for mine, other in zip(first, second, strict=True):
        assert mine.keys() == other.keys()
        for name, array in mine.items():
            np.testing.assert_array_equal(other[name], array)


def test_an_earlier_checkpoint_takes_the_place_of_what_waits(on_ranks, tmp_path):
    """In the store that it was made in."""

    def work(store):
        trainer = trained(store, "top_k:0.1", range(2), save=tmp_path)
        after = []
        for _ in range(2):
            trainer.resume(tmp_path)
            for step in range(2, 5):
                trainer.step(*samples(24, step))
            after.append({name: array.copy() for name, array in trainer.net.params.items()})
        return after

    for first, second in on_ranks(work):
        for name, array in first.items():
            np.testing.assert_array_equal(second[name], array)


def test_gradients_that_are_sent_whole_say_what_is_dropped(on_ranks, tmp_path):
    on_ranks(lambda store: trained(store, "2bit:0.01", range(2), save=tmp_path))
    with pytest.warns(UserWarning, match="residuals of gradient compression, which are dropped"):
        gk.Trainer(net(), "mse", gk.optim.Adam(0.01), threads=1).resume(tmp_path)


@pytest.mark.parametrize("damage", ["size", "name", "type"])
def test_what_does_not_fit_is_refused(on_ranks, tmp_path, damage):
    on_ranks(lambda store: trained(store, "float16", range(2), save=tmp_path))
    saved = checkpoint.load(tmp_path)
    parts = [dict(part) for part in saved.residuals]
    name, array = next(iter(parts[1].items()))
    match damage:
        case "size":
            parts[1][name] = array[:-1]
        case "name":
            parts[1]["other"] = parts[1].pop(name)
        case "type":
            parts[1][name] = array.astype(np.float64)
    saved.residuals = parts
    checkpoint.save(tmp_path, saved)

    def work(store):
        trainer = trainer_of(store, "float16")
        before = {n: a.copy() for n, a in trainer.net.params.items()}
        with pytest.raises(
            InvalidModel, match=r"does not fit this model: it contains a residual of .* for the gradient"
        ):
            trainer.resume(tmp_path)
        return all(np.array_equal(trainer.net.params[n], a) for n, a in before.items())

    assert on_ranks(work) == [True, True]


def test_a_checkpoint_of_before_holds_none(on_ranks, tmp_path):
    on_ranks(lambda store: trained(store, None, range(2), save=tmp_path if store.rank == 0 else None, barrier=False))
    manifest = json.loads((tmp_path / checkpoint.MANIFEST).read_text())
    assert manifest.pop("residuals") == []
    (tmp_path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    for trainer in on_ranks(lambda store: trained(store, "2bit:0.01", range(2, 3), tmp_path)):
        assert any(array.any() for array in trainer._exchange.residuals().values())


@in_one_item()
@pytest.mark.parametrize(("kind", "after"), covering(KINDS, [1, 3]))
def test_a_worker_of_servers_goes_on_to_the_bit(tmp_path, kind, after):
    """With as many servers, or others."""

    def run(servers, steps, **options):
        ((store,), _) = workers(1, servers)
        return trained(store, kind, steps, deterministic=False, **options)

    whole = run(1, range(6))
    run(1, range(3), save=tmp_path)
    found = run(after, range(3, 6), folder=tmp_path)
    for trainer in (whole, found):
        with trainer._exchange.gathered():
            pass
    for name, array in whole.net.params.items():
        np.testing.assert_array_equal(found.net.params[name], array)
    left = whole._exchange.residuals()
    assert any(array.any() for array in left.values())
    for name, array in found._exchange.residuals().items():
        np.testing.assert_array_equal(array, left[name])


def test_all_ranks_save(on_ranks, tmp_path):
    """If only one rank calls `save`, it gets an error, and no incomplete checkpoint is written."""

    def work(store):
        trainer = trained(store, "2bit:0.01", range(2))
        if store.rank == 0:
            with pytest.raises(gk.errors.RuntimeFailure, match="gathered bytes"):
                trainer.save(tmp_path / "run")
        else:
            with pytest.raises(gk.errors.RuntimeFailure, match="gathered bytes"):
                store.barrier()

    on_ranks(work)
    assert not (tmp_path / "run").exists()
