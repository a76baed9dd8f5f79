"""Callbacks of `fit`: the numbers they receive, when they are called, and the effects of what they do."""

import contextlib
import json
import time

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.train import checkpoint


def trainer(**options):
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
    return gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1, seed=1, **options)


def data(n=24):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3), np.float32), rng.standard_normal((n, 2), np.float32)


class Adding(gk.Callback):
    """A callback that adds a number to those of an epoch."""

    def on_epoch_end(self, trainer, numbers):
        numbers["own"] = 1.0


class Recorder(gk.Callback):
    def __init__(self):
        self.seen = []

    def on_fit_begin(self, trainer, numbers):
        self.seen.append(("begin", dict(numbers)))

    def on_step_end(self, trainer, numbers):
        self.seen.append(("step", dict(numbers)))

    def on_epoch_end(self, trainer, numbers):
        self.seen.append(("epoch", dict(numbers)))

    def on_fit_end(self, trainer, numbers):
        self.seen.append(("end", dict(numbers)))


class StopAt(gk.Callback):
    def __init__(self, update):
        self.update = update

    def on_step_end(self, trainer, numbers):
        if numbers["updates"] == self.update:
            trainer.stop(f"update {self.update} is enough")


def lines(folder, event=None):
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in found if event in (None, line["event"])]


def test_a_number_that_another_callback_adds_is_monitored():
    stop = gk.callbacks.EarlyStopping(1, monitor="own")
    trainer().fit(data(), epochs=3, batch_size=8, callbacks=[Adding(), stop])
    assert stop.best == 1.0
    said = r"EarlyStopping: unknown monitor 'own' \(monitor=, --monitor\)\. The values of an epoch are learning_rate, "
    with pytest.raises(UsageError, match=said):
        trainer().fit(data(), epochs=1, callbacks=[gk.callbacks.EarlyStopping(1, monitor="own")])


def test_numbers_that_callbacks_receive(tmp_path):
    recorder = Recorder()
    trainer().fit(data(), data(8), epochs=2, batch_size=8, metrics=["mae"], folder=tmp_path, callbacks=[recorder])
    events = [event for event, _ in recorder.seen]
    assert events == ["begin", *(["step"] * 3 + ["epoch"]) * 2, "end"]
    assert recorder.seen[0][1] == {"epoch": 0, "until": 2, "updates": 0, "processes": 1, "resumed": False}
    steps = [numbers for event, numbers in recorder.seen if event == "step"]
    assert [(s["epoch"], s["batch"], s["updates"], s["samples"]) for s in steps] == [
        (1, 1, 1, 8), (1, 2, 2, 8), (1, 3, 3, 8), (2, 1, 4, 8), (2, 2, 5, 8), (2, 3, 6, 8)
    ]  # fmt: skip
    assert all(s["learning_rate"] == 0.1 for s in steps)
    epochs = [numbers for event, numbers in recorder.seen if event == "epoch"]
    for numbers, line in zip(epochs, lines(tmp_path, "epoch"), strict=True):
        assert numbers == {name: value for name, value in line.items() if name not in ("event", "seconds")}
        assert numbers["loss"] == pytest.approx(np.mean([s["loss"] for s in steps if s["epoch"] == numbers["epoch"]]))
        assert numbers["valid_mae"] > 0
        assert numbers["samples_per_second"] > 0
        assert numbers["peak_memory"] > 10e6
    assert recorder.seen[-1][1] == {"epoch": 2, "updates": 6, "finished": True, "stopped": None}


def test_log_every_sets_logged_steps(tmp_path):
    trainer().fit(data(), epochs=2, batch_size=4, folder=tmp_path, log_every=5)
    steps = lines(tmp_path, "step")
    assert [(s["epoch"], s["updates"]) for s in steps] == [(1, 5), (2, 10)]
    assert set(steps[0]) == {
        "event", "seconds", "epoch", "updates", "loss", "learning_rate", "samples_per_second"
    }  # fmt: skip
    trainer().fit(data(), batch_size=4, folder=tmp_path / "none", log_every=0)
    assert [line["event"] for line in lines(tmp_path / "none")] == ["epoch"]
    with pytest.raises(UsageError, match="log_every must be an integer of at least 0"):
        trainer().fit(data(), log_every=-1)


def test_stop_ends_epoch_after_current_batch(tmp_path):
    found = trainer()
    history = found.fit(data(), data(8), epochs=5, batch_size=4, folder=tmp_path, callbacks=[StopAt(8)])
    assert (len(history), found.updates, found.epoch) == (2, 8, 2)
    assert found.position.stopped == "update 8 is enough"
    assert lines(tmp_path)[-1]["event"] == "stopped"
    assert lines(tmp_path)[-1]["reason"] == "update 8 is enough"
    assert lines(tmp_path, "epoch")[-1]["updates"] == 8
    # The same `fit` trains nothing more, and a `fit` with more epochs continues the run.
    again = trainer()
    again.resume(tmp_path)
    assert (again.remaining_epochs(), again.remaining_epochs(5), again.remaining_epochs(6)) == (0, 0, 4)
    with pytest.warns(
        UserWarning, match=r"was ended after epoch 2 of 5: update 8 is enough\. After resume, .*: epochs=6 continues it"
    ):
        assert again.fit(data(), data(8), epochs=5, batch_size=4, folder=tmp_path, callbacks=[StopAt(8)]) == []
    again = trainer()
    again.resume(tmp_path)
    assert len(again.fit(data(), data(8), epochs=6, batch_size=4, folder=tmp_path)) == 4
    # Another run of the same Trainer starts with a new state.
    assert len(found.fit(data(), epochs=2, batch_size=4)) == 2


def test_stop_before_the_first_step():
    class Never(gk.Callback):
        def on_fit_begin(self, trainer, numbers):
            trainer.stop("there is nothing to learn")

    found = trainer()
    assert found.fit(data(), epochs=3, callbacks=[Never()]) == []
    assert (found.updates, found.position.stopped) == (0, "there is nothing to learn")


@in_one_item()
@pytest.mark.parametrize("method", ["on_fit_begin", "on_step_end", "on_epoch_end", "on_fit_end", "state"])
def test_callback_error_stops_training_with_a_note(tmp_path, method):
    def fails(self, *arguments):
        raise ValueError("no")

    broken = type("Broken", (gk.Callback,), {method: fails})()
    recorder = Recorder()
    found = trainer()
    with pytest.raises(ValueError, match=r"^no\nraised by Broken\.") as caught:
        found.fit(data(), epochs=2, batch_size=8, folder=tmp_path, callbacks=[recorder, broken])
    at = {"on_step_end": "in epoch 1 of 2, after batch 1", "on_epoch_end": "after the last batch of epoch 1 of 2"}
    if method in at:
        assert caught.value.__notes__ == [f"raised by Broken.{method}, {at[method]}"]
    assert caught.value.__notes__[0].startswith(f"raised by Broken.{method}, ")
    assert [event for event, _ in recorder.seen].count("end") == 1
    assert recorder.seen[-1][0] == "end"
    if method not in ("state", "on_fit_end"):
        assert not (tmp_path / "log.jsonl").exists()
        # Without the callback, the resumed run ends like a run that never had it.
        found.fit(data(), epochs=2, batch_size=8, folder=tmp_path)
        straight = trainer()
        straight.fit(data(), epochs=2, batch_size=8)
        np.testing.assert_array_equal(found.net.params["fc_weight"], straight.net.params["fc_weight"])


def test_objects_that_are_no_callbacks_are_errors():
    for given, message in [
        (print, "must be a gk.Callback or a list of them, not a function; on_epoch= calls a function"),
        ([print], "must be a gk.Callback or a list of them"), ([Recorder], "a list of them, not a class, Recorder"),
        ([Recorder(), Recorder()], "two callbacks are called 'Recorder'"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            trainer().fit(data(), callbacks=given)
    odd = type("Odd", (gk.Callback,), {"state": lambda self: {"array": np.zeros(2)}})()
    with pytest.raises(UsageError, match="state of callback 'Odd' cannot be written as JSON"):
        trainer().fit(data(), callbacks=[odd])
    odd = type("Odd", (gk.Callback,), {"state": lambda self: [1]})()
    with pytest.raises(UsageError, match="state of callback 'Odd' must be a dict"):
        trainer().fit(data(), callbacks=[odd])


@pytest.mark.parametrize("wanting", [0, 1])
def test_all_ranks_stop_after_the_same_step(on_ranks, tmp_path, wanting):
    def work(store):
        found = trainer(kvstore=store)
        chosen = [StopAt(5)] if store.rank == wanting else []
        history = found.fit(data(48), epochs=4, batch_size=8, folder=tmp_path, callbacks=chosen)
        return len(history), found.updates, found.position.stopped, found.net.params["fc_weight"].copy()

    first, second = on_ranks(work)
    assert first[:3] == second[:3] == (2, 5, "update 5 is enough")
    np.testing.assert_array_equal(first[3], second[3])


def test_all_ranks_get_numbers_of_rank_0(on_ranks):
    def work(store):
        recorder = Recorder()
        trainer(kvstore=store).fit(data(48), epochs=2, batch_size=8, callbacks=[recorder])
        return [numbers for event, numbers in recorder.seen if event == "epoch"]

    first, second = on_ranks(work)
    assert len(first) == 2
    assert first == second


def test_interrupted_fit_restores_callback_state(tmp_path):
    """A new callback restores the state of the checkpoint, not the one of the interrupted callback."""

    class Count(gk.Callback):
        at = None

        def reset(self):
            self.steps = 0

        def on_step_end(self, trainer, numbers):
            self.steps += 1
            if self.steps == self.at:
                raise KeyboardInterrupt

        def state(self):
            return {"steps": self.steps}

        def restore(self, state):
            self.steps = state["steps"]

    first = Count()
    first.at = 4
    found = trainer()
    with pytest.raises(KeyboardInterrupt):
        found.fit(data(), epochs=2, batch_size=8, folder=tmp_path, callbacks=[first])
    second, recorder = Count(), Recorder()
    again = trainer()
    again.resume(tmp_path)
    again.fit(data(), epochs=2, batch_size=8, folder=tmp_path, callbacks=[second, recorder])
    assert second.steps == 6
    assert recorder.seen[0][1]["resumed"]
    # The state survives calls without the callback, and another Trainer does not have it.
    again.fit(data(), batch_size=8, folder=tmp_path)
    again.fit(data(), batch_size=8, folder=tmp_path, callbacks=[second])
    assert second.steps == 9
    trainer().fit(data(), batch_size=8, callbacks=[second])
    assert second.steps == 3


def test_ranks_wait_for_checkpoints_without_time_limit(tmp_path, monkeypatch):
    """Other ranks wait for a checkpoint without a time limit, and for a callback only until their timeout."""
    store = gk.kvstore.create()
    now, seen = [], {}

    @contextlib.contextmanager
    def inside(what):
        now.append(what)
        yield
        now.pop()

    class Slow(gk.Callback):
        def on_step_end(self, trainer, numbers):
            seen["step"] = now[-1]

        def on_epoch_end(self, trainer, numbers):
            seen["epoch"] = now[-1]

    def save(*arguments):
        seen["checkpoint"] = now[-1]
        return original(*arguments)

    original = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(store.transport, "working", lambda: inside("work"))
    monkeypatch.setattr(store.transport, "running", inside)

    def on_epoch(number, record):
        seen["on_epoch"] = now[-1]

    trainer(kvstore=store).fit(data(), folder=tmp_path, callbacks=[Slow()], on_epoch=on_epoch)
    name = Slow().name
    assert seen == {
        "checkpoint": "work",
        "epoch": f"callback {name}.on_epoch_end",
        "on_epoch": "on_epoch",
        "step": f"callback {name}.on_step_end",
    }


def test_durations_ignore_changes_of_system_clock(tmp_path, monkeypatch):
    def back(number, record):
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 3600 * number)

    trainer().fit(data(), epochs=3, batch_size=8, folder=tmp_path, on_epoch=back)
    seconds = [line["seconds"] for line in lines(tmp_path)]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] <= seconds[-1] < 3600
