"""Several ranks in one training: metrics over all of them, and another number of them after resuming.

Ranks are threads here: see `on_ranks`.
"""

import json

import numpy as np
import pytest
from combinations import default_at

import graphkit as gk
from graphkit.errors import NotFinite, UsageError


def trainer(store=None, accumulate=1):
    x = gk.input("x", ["N", 3])
    net = gk.Model(gk.nn.linear(gk.tanh(gk.nn.linear(x, 5, name="a")), 2, name="b"))
    optimizer = gk.optim.Adam(0.1)
    return gk.Trainer(net, "mse", optimizer, kvstore=store, accumulate=accumulate, threads=1, seed=3)


def batch(number, rank=0, ranks=1):
    rng = np.random.default_rng(number)
    x, y = rng.random((8, 3), np.float32), rng.random((8, 2), np.float32)
    return x[rank::ranks], y[rank::ranks]


@pytest.fixture
def train(on_ranks):
    """`train(processes, numbers, ...)`: train on the batches `numbers`; return the trainers."""

    def train(processes, numbers, folder, resume, accumulate=1):
        def work(store):
            found = trainer(None if processes == 1 else store, accumulate)
            if resume:
                found.resume(folder)
            for number in numbers:
                found.step(*batch(number, store.rank, processes))
            store.barrier()
            if store.rank == 0:
                found.save(folder)
            store.barrier()
            return found

        return on_ranks(work, processes)

    return train


class Batches:
    """Counts batches, and cannot be merged between ranks."""

    name = "batches"

    def reset(self):
        self.count = 0

    def update(self, output, target):
        self.count += 1

    @property
    def value(self):
        return float(self.count)


def test_a_metric_of_one_rank_is_monitored_by_its_name(on_ranks):
    data = gk.data.Dataset(*batch(0))

    def work(store):
        stop = gk.callbacks.EarlyStopping(3, monitor="batches of rank 0")
        trainer(store).fit(data, epochs=1, batch_size=2, metrics=[Batches()], callbacks=[stop])
        return stop.best

    assert on_ranks(work) == [2.0, 2.0]


@pytest.mark.parametrize("accumulate", [1, 2])
@default_at(0, 3)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_resume_with_another_number_of_processes(tmp_path, train, before, after, accumulate):
    (whole,) = train(1, range(8), tmp_path / "whole", False, accumulate)
    train(before, range(4), tmp_path / "run", False, accumulate)
    for found in train(after, range(4, 8), tmp_path / "run", True, accumulate):
        assert found.updates == whole.updates == 8 // accumulate
        for name, expected in whole.net.params.items():
            np.testing.assert_allclose(found.net.params[name], expected, rtol=1e-4, atol=1e-6)


def test_gradients_that_wait_go_to_one_of_the_processes(tmp_path, train):
    (whole,) = train(1, range(4), tmp_path / "whole", False, accumulate=2)
    train(1, range(3), tmp_path / "run", False, accumulate=2)  # one batch waits
    for found in train(2, range(3, 4), tmp_path / "run", True, accumulate=2):
        assert found.updates == whole.updates == 2
        for name, expected in whole.net.params.items():
            np.testing.assert_allclose(found.net.params[name], expected, rtol=1e-4, atol=1e-6)


def test_gradients_that_wait_in_several_processes_are_not_saved_in_part(tmp_path, train):
    with pytest.raises(UsageError, match="2 processes have accumulated gradients of 1 batches: call flush"):
        train(2, range(3), tmp_path / "run", False, accumulate=2)
    assert not (tmp_path / "run").exists()


def test_gradients_that_wait_need_a_trainer_that_accumulates(tmp_path, train):
    train(1, range(3), tmp_path / "run", False, accumulate=2)
    with pytest.raises(UsageError, match=r"resume with accumulate=2 \(--accumulate\), or more"):
        trainer().resume(tmp_path / "run")
    more = trainer(accumulate=4)
    more.resume(tmp_path / "run")
    for number in range(3):
        more.step(*batch(number))
    assert more.updates == 2  # the one of before, and one of the batch that waited and three more


@pytest.mark.parametrize("how", ["skip", "raise"])
def test_all_ranks_decide_alike_about_a_loss_that_is_not_finite(on_ranks, how):
    """One rank has a NaN in its part of a batch."""
    data = np.random.default_rng(0).standard_normal((4, 2, 3, 5)).astype(np.float32)
    data[2, 1, 0, 0] = np.nan

    def work(store):
        x = gk.input("x", ["N", 5])
        net = gk.Model(gk.nn.linear(x, 2, name="fc"), name="net", seed=0)
        trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1, momentum=0.9), kvstore=store, on_nonfinite=how)
        taken = []
        for batch in data:
            before = net.params["fc_weight"].tobytes()
            try:
                trainer.step(batch[store.rank], np.zeros((3, 2), np.float32))
            except NotFinite as error:
                return [*taken, str(error)]
            taken.append(net.params["fc_weight"].tobytes() != before)
        return [*taken, trainer.skipped, net.params["fc_weight"].tobytes()]

    first, second = on_ranks(work)
    if how == "skip":
        assert first == second
        assert first[:5] == [True, True, False, True, 1]
    else:
        assert first[:2] == second[:2] == [True, True]
        assert "from another process" in first[2]
        assert "from input 'x': 1 NaN" in second[2]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_rank_without_samples_draws_as_the_others_do(on_ranks, tmp_path, accumulate):
    """The last batch of an epoch has one sample; the generator in a checkpoint is rank 0's."""
    x, y = np.random.default_rng(0).random((5, 3), np.float32), np.zeros((5, 2), np.float32)

    def work(store):
        def made():
            h = gk.nn.dropout(gk.tanh(gk.nn.linear(gk.input("x", ["N", 3]), 8, name="a")), 0.5)
            net = gk.Model(gk.nn.linear(h, 2, name="b"), seed=0)
            return gk.Trainer(net, "mse", gk.optim.SGD(0.1), kvstore=store, accumulate=accumulate, threads=1, seed=1)

        straight, first, second = made(), made(), made()
        straight.fit((x, y), epochs=2, batch_size=1)
        first.fit((x, y), epochs=1, batch_size=1, folder=tmp_path)
        store.barrier()
        second.resume(tmp_path)
        second.fit((x, y), epochs=2, batch_size=1)
        assert first.executor.rng == (1, 6 + store.rank)
        for name, array in straight.net.params.items():
            np.testing.assert_array_equal(second.net.params[name], array)
        return True

    assert on_ranks(work) == [True, True]


def test_rank_0_alone_writes_what_all_save(on_ranks, tmp_path):
    def work(store):
        found = trainer(store)
        found.step(*batch(0, store.rank, 2))
        found.save(tmp_path / str(store.rank))

    on_ranks(work)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def classifier(store=None):
    x = gk.input("x", ["N", 3])
    net = gk.Model(gk.nn.linear(x, 2, name="only"))
    return gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.0), kvstore=store, threads=1, seed=3)


class Unmergeable:
    name = "seen"

    def reset(self):
        self.value = 0.0

    def update(self, output, target):
        self.value += len(target)


@default_at(0, 3)
@pytest.mark.parametrize("samples", [1, 2, 41, 64])
@pytest.mark.parametrize("processes", [2, 3])
def test_metrics_are_those_of_one_process_that_sees_all(tmp_path, on_ranks, processes, samples):
    rng = np.random.default_rng(samples)
    data = rng.standard_normal((samples, 3)).astype(np.float32), rng.integers(0, 2, samples)
    # A learning rate of 0: all batches are measured with the same parameters, whatever their sizes.
    names = ["accuracy", "f1", "auc", "perplexity"]
    expected = classifier().fit(data, epochs=1, batch_size=6, metrics=names, progress=False)[0]

    def work(store):
        measured = [*names, Unmergeable()]
        folder = tmp_path / "run"
        return classifier(store).fit(data, epochs=1, batch_size=2, metrics=measured, folder=folder, progress=False)

    records = on_ranks(work, processes)
    own = [record[0].pop(f"seen of rank {rank}") for rank, record in enumerate(records)]
    assert sum(own) == samples
    for (record,) in records:
        assert record.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(record[name], value, rtol=1e-6, err_msg=name)
    (line,) = [json.loads(text) for text in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert line["processes"] == processes
    np.testing.assert_allclose(line["loss"], expected["loss"], rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "second"),
    [(["accuracy"], []), ([], ["accuracy"]), (["accuracy", "auc"], ["auc", "accuracy"]), (["accuracy"], ["auc"])],
)
def test_metrics_that_differ_between_ranks_are_an_error_of_all(on_ranks, first, second):
    data = np.ones((8, 3), np.float32), np.arange(8) % 2

    def work(store):
        measured = first if store.rank == 0 else second
        with pytest.raises(UsageError) as caught:
            classifier(store).fit(data, epochs=1, batch_size=4, metrics=measured, progress=False)
        return str(caught.value)

    shown = [", ".join(names) or "none" for names in (first, second)]
    for message in on_ranks(work):
        assert message.endswith(f"rank 0 has {shown[0]}; rank 1 has {shown[1]}")
