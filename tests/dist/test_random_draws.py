"""Random operators draw different numbers on each rank, as one process does that accumulates the ranks' batches."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import default_at, in_one_item
from serving import workers

import graphkit as gk
from graphkit.ops import F


def dropout(x):
    return gk.nn.dropout(x, 0.5)


def uniform(x):
    return x * gk.floor(gk.random_uniform_like(x) + 0.5)


def own_seed(x):
    return F.dropout(x, np.float32(0.5), np.array(True), seed=7)[0]


def in_a_loop(x):
    return gk.while_loop(lambda s: F.less(gk.reduce_max(s, keepdims=False), np.float32(1e9)), dropout, x, 2)


LAYERS = {each.__name__: each for each in (dropout, uniform, own_seed, in_a_loop)}


def model(layer=dropout, width=6):
    x = gk.input("x", ["N", width])
    return gk.Model(gk.nn.linear(layer(gk.tanh(gk.nn.linear(x, 16, name="a"))), 2, name="b"), seed=1)


def samples(count, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.standard_normal((count, 2), np.float32)


def trainer_of(store, layer=dropout, **options):
    given = {"deterministic": True, "seed": 3, **options}
    return gk.Trainer(model(layer), "mse", gk.optim.Adam(0.01), kvstore=store, threads=1, **given)


def take(trainer, steps, ranks, rank=None):
    """Take steps with the batches of `ranks` ranks: with those of one rank, or of all, one after the other."""
    for step in steps:
        x, y = samples(8 * ranks, step)
        for each in range(ranks) if rank is None else [rank]:
            trainer.step(x[8 * each : 8 * each + 8], y[8 * each : 8 * each + 8])


def assert_equal(found, expected, bound=0.0):
    for name, array in expected.net.params.items():
        np.testing.assert_allclose(found.net.params[name], array, rtol=bound, atol=bound, err_msg=name)


@pytest.mark.parametrize("layer", [dropout, uniform], ids=lambda layer: layer.__name__)
def test_masks_of_ranks_differ(on_ranks, layer):
    """Gradients of 2 ranks add up to as many different sums as those of 2 batches of one process."""

    def sizes(store, batches):
        x = gk.input("x", ["N", 200])
        weight = gk.parameter("w", [200, 1], {"type": "constant", "value": 1.0})
        net = gk.Model(gk.mat_mul(layer(x), weight), seed=1)
        trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.001), kvstore=store, threads=1, seed=3, accumulate=batches)
        for _ in range(batches):
            trainer.step(np.ones((1, 200), np.float32), np.zeros((1, 1), np.float32))
        return len(np.unique(np.round(1 - net.params["w"], 6)))

    assert sizes(None, 2) == 4
    assert on_ranks(lambda store: sizes(store, 1)) == [4, 4]


@default_at(0)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layer", LAYERS)
def test_ranks_draw_what_one_process_draws_that_accumulates(on_ranks, layer, ranks):
    one = trainer_of(None, LAYERS[layer], accumulate=ranks)
    take(one, range(4), ranks)

    def work(store):
        trainer = trainer_of(store, LAYERS[layer])
        take(trainer, range(4), ranks, store.rank)
        return trainer

    for found in on_ranks(work, ranks):
        assert_equal(found, one)


@pytest.mark.parametrize(
    ("of_one", "of_ranks", "bound"),
    [({"accumulate": 4}, {"accumulate": 2}, 1e-5), ({"accumulate": 2, "mixup": 0.4}, {"mixup": 0.4}, 0.0)],
    ids=["accumulate", "mixup"],
)
def test_two_ranks_draw_what_one_process_draws_that_accumulates_twice_as_much(on_ranks, of_one, of_ranks, bound):
    """Ranks that accumulate add up the same gradients in other orders."""
    one = trainer_of(None, **of_one)
    take(one, range(4), 2)

    def work(store):
        trainer = trainer_of(store, **of_ranks)
        take(trainer, range(4), 2, store.rank)
        return trainer

    for found in on_ranks(work):
        assert_equal(found, one, bound)


def test_ranks_without_samples_keep_the_same_state(on_ranks):
    """A rank without samples in one step draws the same numbers afterwards as with samples."""

    def work(store):
        trainer = trainer_of(store)
        for step in range(3):
            x, y = samples(8, step)
            count = 0 if step == 1 and store.rank else 8
            trainer.step(x[:count], y[:count])
        return trainer.executor.rng

    assert on_ranks(work) == [(3, 6), (3, 7)]


@default_at(0, 2)
@pytest.mark.parametrize("after", [1, 2, 4], ids=lambda ranks: f"{ranks} ranks")
@pytest.mark.parametrize("before", [1, 2], ids=lambda ranks: f"{ranks} ranks")
def test_a_resumed_run_draws_on(on_ranks, tmp_path, before, after):
    """4 batches an update, whether of one process or of 2 or 4 ranks: the bits are those of a run without a break."""
    ranks = {1: lambda work: [work(None)], 2: lambda work: on_ranks(work, 2), 4: lambda work: on_ranks(work, 4)}

    def trainer(store, number):
        return trainer_of(store, accumulate=4 // number)

    def part(number, resumes):
        def work(store):
            found = trainer(store, number)
            if resumes:
                found.resume(tmp_path)
            steps = range(3, 6) if resumes else range(3)
            for step in steps:
                x, y = samples(32, step)
                for batch in range(4 // number):
                    at = 8 * (batch * number + (0 if store is None else store.rank))
                    found.step(x[at : at + 8], y[at : at + 8])
            if not resumes and found.rank == 0:
                found.save(tmp_path)
            return found

        return work

    ranks[before](part(before, False))
    whole = trainer(None, 1)
    for step in range(6):
        x, y = samples(32, step)
        for at in range(0, 32, 8):
            whole.step(x[at : at + 8], y[at : at + 8])
    for found in ranks[after](part(after, True)):
        assert_equal(found, whole, 0 if {before, after} <= {1, 4} else 1e-5)


def test_an_interrupted_run_of_ranks_ends_with_the_same_bits(on_ranks, tmp_path):
    data = samples(64, 0)

    def whole(store):
        trainer = trainer_of(store)
        trainer.fit(data, batch_size=8, epochs=3)
        return trainer

    class Fails(gk.Callback):
        def on_step_end(self, trainer, numbers):
            if numbers["updates"] == 7:  # in the middle of the second epoch
                raise gk.errors.InputError("no more")

    def first(store):
        with pytest.raises(gk.errors.GraphkitError, match="no more"):
            trainer_of(store).fit(
                data, batch_size=8, epochs=3, folder=tmp_path / "run", checkpoint_every=3, callbacks=Fails()
            )

    def second(store):
        trainer = trainer_of(store)
        trainer.resume(tmp_path / "run")
        assert (trainer.updates, trainer.batch) == (6, 2)
        trainer.fit(data, batch_size=8, epochs=3)
        return trainer

    expected = on_ranks(whole)
    on_ranks(first)
    for found in on_ranks(second):
        assert_equal(found, expected[0])


def test_parameters_and_validation_are_the_same_on_all_ranks(on_ranks):
    def work(store):
        trainer = gk.Trainer(model(uniform), "mse", gk.optim.SGD(0.1), kvstore=store, threads=1, seed=3)
        first = {name: array.copy() for name, array in trainer.net.params.items()}
        return first, trainer.evaluate(samples(16, 0), ["loss"])

    (first, score), (second, other) = on_ranks(work)
    assert score == other
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("idle", [0, 1])
def test_rank_without_samples_draws_again_after_skipped_step(on_ranks, accumulate, idle):
    """As the rank with samples, which repeats the random numbers of a step that failed."""

    def work(store):
        trainer = trainer_of(store, accumulate=accumulate, on_nonfinite="skip")
        x, y = samples(8, 0)
        count, found = 0 if store.rank == idle else 8, []
        for inputs in (np.full_like(x, np.nan), x):
            for _ in range(accumulate):
                trainer.step(inputs[:count], y[:count])
            found.append(trainer.executor.rng)
        assert (trainer.updates, trainer.skipped) == (1, 1)
        return found

    assert on_ranks(work) == [[(3, rank), (3, rank + 2 * accumulate)] for rank in range(2)]


@in_one_item("values")
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_workers_with_servers_draw_what_one_process_draws(layer, accumulate):
    """The parameters stay the same, so only the random numbers change the loss of a batch."""

    def trainer_of_worker(store):
        rate = gk.optim.SGD(0.0)
        return gk.Trainer(model(layer), "mse", rate, kvstore=store, threads=1, seed=3, accumulate=accumulate)

    stores, _ = workers(2)
    for store in stores:
        store.transport.communicator.size = 2
    trainers = [trainer_of_worker(store) for store in stores]
    alone, data = trainer_of_worker(None), samples(8, 0)
    found = [float(trainer.step(*data)) for _ in range(2) for trainer in trainers]
    assert [trainer.executor.rng for trainer in trainers] == [(3, 4), (3, 5)]
    assert found == pytest.approx([float(alone.step(*data)) for _ in range(4)], rel=1e-6)
    assert len(set(found)) == 4


SERVED = """
    import numpy as np, graphkit as gk
    from test_random_draws import model, samples
    trainer = gk.Trainer(model(), "mse", gk.optim.SGD(0.1), kvstore=kv, threads=1, seed=3)
    print(trainer.executor.rng, end=" ")
    trainer.step(*samples(8, 0))
    print(trainer.executor.rng)
"""


@pytest.mark.full
def test_workers_with_servers_draw_apart(jobs):
    assert jobs.run(SERVED, 3, store="dist_async", servers=1) == ["(3, 0) (3, 2)\n", "(3, 1) (3, 3)\n"]
