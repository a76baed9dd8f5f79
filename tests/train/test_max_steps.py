"""Runs that end after a number of updates or batches: `max_steps` and `fast_dev_run` of `Trainer.fit`."""

import json
import math

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

SAMPLES, BATCH = 44, 4  # 11 batches an epoch


def data(n=SAMPLES, seed=5):
    rng = np.random.default_rng(seed)
    return gk.data.Dataset(rng.standard_normal((n, 6), np.float32), rng.integers(0, 3, n))


def trainer(optimizer=None, **options):
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    net = gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=optimizer or gk.optim.SGD(0.1, momentum=0.9), seed=3, threads=1, **options)


def same_bits(a, b):
    assert a.updates == b.updates
    assert all(a.net.params[n].tobytes() == b.net.params[n].tobytes() for n in a.net.params)
    assert all(a._stepper.slots[n].tobytes() == b._stepper.slots[n].tobytes() for n in a._stepper.slots)
    assert a.executor.rng == b.executor.rng


def log(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "samples_per_second", "peak_memory")
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


def resumed(folder, **options):
    made = trainer(**options)
    made.resume(folder)
    return made


@pytest.mark.parametrize(
    ("options", "cuts"),
    [
        ({"accumulate": 2, "ema": 0.9}, (3, 6)),
        *(pytest.param({}, cuts, marks=pytest.mark.full) for cuts in [(3,), (1, 6), (2, 5, 9), (6, 11)]),
        *(
            pytest.param({"accumulate": 2, "ema": 0.9}, cuts, marks=pytest.mark.full)
            for cuts in [(3,), (1, 6), (2, 5, 9), (6, 11)]
        ),
    ],
)
def test_resume_within_epoch_is_bit_identical(tmp_path, options, cuts):
    """The epochs have 11 batches: 11 updates, or 6 with `accumulate`, so some cuts end an epoch."""
    fit = {"batch_size": BATCH, "metrics": ["accuracy", "f1"], "log_every": 2}
    whole = trainer(**options)
    straight = whole.fit(data(), data(10), epochs=2, folder=tmp_path / "whole", **fit)
    last = trainer(**options)
    for cut in cuts:
        last.fit(data(), data(10), max_steps=cut, folder=tmp_path / "cut", **fit)
        assert last.updates == cut
        last = resumed(tmp_path / "cut", **options)
        assert last.updates == cut
    rest = last.fit(data(), data(10), epochs=2, folder=tmp_path / "cut", **fit)
    same_bits(whole, last)
    assert rest == straight[len(straight) - len(rest) :]
    assert log(tmp_path / "cut") == log(tmp_path / "whole")


def test_end_within_epoch_validates_and_saves_the_model(tmp_path):
    made = trainer()
    (record,) = made.fit(data(), data(10), max_steps=3, batch_size=BATCH, metrics=["accuracy"], folder=tmp_path)
    assert (made.epoch, made.batch, made.updates) == (0, 3, 3)
    by_hand = made.evaluate(data(10), ["loss", "accuracy"], batch_size=BATCH)
    assert {k: record[f"valid_{k}"] for k in by_hand} == by_hand
    assert math.isfinite(record["loss"])
    (end,) = [line for line in log(tmp_path) if line["event"] == "end"]
    assert end | record == end
    assert (end["epoch"], end["batch"], end["updates"]) == (1, 3, 3)
    assert gk.load(tmp_path).params["fc1_weight"].tobytes() == made.net.params["fc1_weight"].tobytes()


def test_end_at_last_batch_completes_the_epoch(tmp_path):
    made = trainer()
    (record,) = made.fit(data(), max_steps=11, batch_size=BATCH, folder=tmp_path)
    assert (made.epoch, made.batch) == (1, 0)
    assert [line["event"] for line in log(tmp_path)] == ["epoch"]
    assert record == trainer().fit(data(), batch_size=BATCH)[0]


def test_without_epochs_the_run_gets_as_many_as_needed():
    made = trainer()
    history = made.fit(data(), max_steps=25, batch_size=BATCH)
    assert (len(history), made.epoch, made.batch, made.updates) == (3, 2, 3, 25)
    made.fit(data(), epochs=1, max_steps=100, batch_size=BATCH)
    assert made.updates == 25 + 11, "with both, the run ends at whichever is reached first"
    assert made.epoch == 4, "a new run begins with a new epoch"


def test_max_steps_of_a_run_whose_steps_are_all_skipped_ends():
    bad = data()
    bad.arrays["x"][:] = np.nan
    made = trainer(on_nonfinite="skip")
    history = made.fit(bad, max_steps=5, batch_size=BATCH)
    assert len(history) == 1
    assert math.isnan(history[0]["loss"])
    assert made.updates == 0


def test_continued_run_counts_all_updates(tmp_path):
    trainer().fit(data(), max_steps=5, batch_size=BATCH, folder=tmp_path)
    for options, left in (({}, False), ({"max_steps": 5}, False), ({"max_steps": 6}, True), ({"epochs": 1}, True)):
        assert resumed(tmp_path).has_updates_left(**options) is left
    with pytest.warns(UserWarning, match=r"has made its 5 updates.*max_steps=6 continues it"):
        assert resumed(tmp_path).fit(data(), batch_size=BATCH, folder=tmp_path) == []
    assert log(tmp_path)[-1]["event"] == "end", "a run that does not continue keeps its last line"
    with pytest.raises(UsageError, match=r"max_steps=4 is too small.*has 5 updates"):
        resumed(tmp_path).fit(data(), max_steps=4, batch_size=BATCH)
    last = resumed(tmp_path)
    last.fit(data(), max_steps=13, batch_size=BATCH, folder=tmp_path)
    assert (last.updates, last.epoch, last.batch) == (13, 1, 2)


def test_schedule_without_steps_covers_max_steps():
    rates = []

    class Rates(gk.Callback):
        def on_step_end(self, trainer, numbers):
            rates.append(numbers["learning_rate"])

    trainer(gk.optim.SGD(gk.optim.Linear(1.0))).fit(data(), max_steps=20, batch_size=BATCH, callbacks=Rates())
    np.testing.assert_allclose(rates, [1 - n / 20 for n in range(1, 21)], atol=1e-12)


def test_iterables_end_within_epoch():
    def batches():
        return (tuple(batch) for batch in data().batches(BATCH, shuffle=False))

    made = trainer()
    made.fit(batches, max_steps=14)
    assert (made.updates, made.epoch, made.batch) == (14, 1, 3)
    made = trainer()
    made.fit(batches, max_steps=11)
    assert (made.epoch, made.batch) == (1, 0)


class Broken(gk.data.Dataset):
    """Validation data that interrupt the first read."""

    interrupts = True

    def take(self, index):
        if self.interrupts:
            raise KeyboardInterrupt
        return super().take(index)


def test_interrupt_in_last_validation_repeats_it(tmp_path):
    whole = trainer()
    straight = whole.fit(data(), data(10), max_steps=3, batch_size=BATCH)
    valid = Broken(data(10).inputs, data(10).targets)
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(data(), valid, max_steps=3, batch_size=BATCH, folder=tmp_path, prefetch=0)
    last = resumed(tmp_path)
    assert last.has_updates_left()
    assert last.fit(data(), data(10), batch_size=BATCH, folder=tmp_path) == straight
    same_bits(whole, last)
    assert not resumed(tmp_path).has_updates_left()


def test_ranks_end_at_the_same_step(tmp_path, on_ranks):
    options = {"batch_size": 2, "metrics": ["accuracy"]}

    def fitted(store, folder=None, resume=False, **length):
        made = trainer(kvstore=store)
        if resume:
            made.resume(tmp_path)
        history = made.fit(data(), data(10), folder=folder, **options, **length)
        return made, history

    whole = on_ranks(lambda store: fitted(store, epochs=2))
    cut = on_ranks(lambda store: fitted(store, tmp_path, max_steps=5))
    assert cut[0][1] == cut[1][1]
    last = on_ranks(lambda store: fitted(store, tmp_path, resume=True, epochs=2))
    for (a, straight), (b, history) in zip(whole, last, strict=True):
        same_bits(a, b)
        assert history == straight


@in_one_item()
@pytest.mark.parametrize("given", [0, -1, 1.5, "3", True])
def test_max_steps_must_be_a_positive_integer(given):
    with pytest.raises(UsageError, match="max_steps"):
        trainer().fit(data(), max_steps=given)


# --- fast_dev_run -----------------------------------------------------------------------------------


class Counted(gk.data.Dataset):
    """Counts the batches that are read."""

    reads = 0

    def take(self, index):
        self.reads += 1
        return super().take(index)


@pytest.mark.parametrize(
    ("given", "count"), [(True, 1), (3, 3), *(pytest.param(*n, marks=pytest.mark.full) for n in [(1, 1), (100, 11)])]
)
def test_fast_dev_run_reads_a_few_batches_and_writes_nothing(tmp_path, monkeypatch, given, count):
    monkeypatch.chdir(tmp_path)
    train, valid = Counted(data().inputs, data().targets), Counted(data().inputs, data().targets)
    ends = []

    class Ends(gk.Callback):
        def on_epoch_end(self, trainer, numbers):
            ends.append(numbers["valid_accuracy"])

    made = trainer()
    history = made.fit(
        train, valid, epochs=7, batch_size=BATCH, metrics=["accuracy"], fast_dev_run=given, prefetch=0,
        callbacks=Ends(),
    )  # fmt: skip
    assert (made.updates, train.reads, valid.reads, len(history), len(ends)) == (count, count, count, 1, 1)
    first = data().subset(np.arange(min(count * BATCH, SAMPLES)))
    assert history[0]["valid_loss"] == pytest.approx(made.evaluate(first, ["loss"])["loss"], rel=1e-6)
    assert list(tmp_path.iterdir()) == []


def test_fast_dev_run_updates_with_fewer_batches_than_accumulate():
    made = trainer(accumulate=4)
    made.fit(data(), batch_size=BATCH, fast_dev_run=2)
    assert made.updates == 1


def test_fast_dev_run_does_not_continue_a_run(tmp_path):
    trainer().fit(data(), max_steps=5, batch_size=BATCH, folder=tmp_path)
    with pytest.raises(UsageError, match=r"fast_dev_run .*tries a new run, but this trainer continues one in"):
        resumed(tmp_path).fit(data(), fast_dev_run=True)


@in_one_item()
@pytest.mark.parametrize("given", [-1, 1.5, "3"])
def test_fast_dev_run_must_be_a_number_of_batches(given):
    with pytest.raises(UsageError, match="fast_dev_run"):
        trainer().fit(data(), fast_dev_run=given)
