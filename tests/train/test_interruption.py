"""Runs that are interrupted anywhere, also several times, have the results of runs without interruption."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from combinations import default_at

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.train import checkpoint, saving
from graphkit.train.average import Averages
from graphkit.train.run_folder import RunFolder

WORKER = Path(__file__).with_name("interrupted_worker.py")


@pytest.mark.parametrize(("cases", "seed"), [(4, 1), pytest.param(30, 2, marks=pytest.mark.full)], ids=["four", "many"])
@pytest.mark.long
def test_resume_after_random_sigkills_is_bit_identical(tmp_path, cases, seed):
    done = subprocess.run(
        [sys.executable, "-P", str(WORKER), str(tmp_path), str(cases), str(seed)], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert len(reports) == cases
    odd = [case for case in reports if case["end"] != 0 or case["differs"]]
    assert not odd, "\n".join([*map(str, odd), done.stderr])
    ends = {(number, code) for case in reports for number, _, code in case["stops"]}
    assert {("SIGKILL", -signal.SIGKILL), ("SIGINT", 130)} <= ends, "nothing was interrupted: the test proves nothing"


class Killed(BaseException):
    """An exception that ends a process; `fit` saves nothing before."""


class Deadly(gk.data.Dataset):
    """A data set that stops the process at read number `fatal`, from 1."""

    fatal = None
    taken = 0
    death = Killed

    def take(self, index):
        self.taken += 1
        if self.taken == self.fatal:
            raise self.death
        return super().take(index)


def data(n=92, fatal=None, death=Killed):
    rng = np.random.default_rng(5)
    made = Deadly(rng.standard_normal((n, 6), np.float32), rng.integers(0, 3, n))
    made.fatal, made.death = fatal, death
    return made


def trainer(**options):
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    net = gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=gk.optim.SGD(0.1, momentum=0.9), seed=3, threads=1, **options)


def same_bits(a, b):
    assert a.updates == b.updates
    assert all(a.net.params[n].tobytes() == b.net.params[n].tobytes() for n in a.net.params)
    assert all(a._stepper.slots[n].tobytes() == b._stepper.slots[n].tobytes() for n in a._stepper.slots)
    assert a.executor.rng == b.executor.rng


@pytest.fixture(autouse=True)
def interrupts_as_usual():
    """Let SIGINT interrupt: a shell that starts the tests in the background makes processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("death", [Killed, KeyboardInterrupt])
@pytest.mark.parametrize("times", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3))])
def test_interrupted_in_validation(tmp_path, death, times):
    options = {"epochs": 4, "batch_size": 4, "metrics": ["accuracy"]}
    whole = trainer()
    straight = whole.fit(data(), data(40), **options)
    assert whole.updates == 92
    for _ in range(times):
        part = trainer()
        if (tmp_path / "checkpoint.json").exists():
            part.resume(tmp_path)
        with pytest.raises(death):
            part.fit(data(), data(40, 2, death), folder=tmp_path, checkpoint_every=1, prefetch=0, **options)
        assert part.updates == 23
    last = trainer()
    last.resume(tmp_path)
    assert last.position.trained is not None
    rest = last.fit(data(), data(40), folder=tmp_path, **options)
    same_bits(whole, last)
    assert rest == straight, "the record of the epoch that was interrupted is whole"


@default_at(0, 3, 6)
@pytest.mark.parametrize("fatal", [1, 2, 3, 6, 7, 9, 12])
def test_killed_at_every_batch(tmp_path, fatal):
    options = {"epochs": 2, "batch_size": 8, "metrics": ["accuracy", "f1"], "prefetch": 0}
    whole = trainer(accumulate=2, ema=0.9)
    straight = whole.fit(data(44), data(8), **options)
    killed = trainer(accumulate=2, ema=0.9)
    with pytest.raises(Killed):
        killed.fit(data(44, fatal), data(8), folder=tmp_path, checkpoint_every=1, **options)
    last = trainer(accumulate=2, ema=0.9)
    if fatal > 2:  # an update takes two batches
        last.resume(tmp_path)
    history = last.fit(data(44), data(8), folder=tmp_path, **options)
    same_bits(whole, last)
    assert history == straight[-len(history) :]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert [{k: line[k] for k in straight[0]} for line in lines] == straight


def test_resume_rewrites_log_lines_without_checkpoint(tmp_path, monkeypatch):
    """Kill the process between the log line of an epoch and its checkpoint, and within a line."""
    trainer().fit(data(), epochs=2, batch_size=32, folder=tmp_path)
    before = (tmp_path / "checkpoint.json").read_bytes()
    killed = trainer()
    killed.resume(tmp_path)
    monkeypatch.setattr(saving, "write", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        killed.fit(data(), epochs=4, batch_size=32, folder=tmp_path)
    monkeypatch.undo()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "epo')
    assert (tmp_path / "checkpoint.json").read_bytes() == before
    last = trainer()
    last.resume(tmp_path)
    last.fit(data(), epochs=4, batch_size=32, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("part", ["model", "checkpoint"])
def test_killed_in_the_last_save(tmp_path, monkeypatch, part, after):
    """Kill the process around the writes of model and checkpoint. A resumed run writes both."""
    whole = trainer()
    whole.fit(data(), epochs=2, batch_size=32)
    killed = trainer()
    owner, name = (gk.Model, "save") if part == "model" else (checkpoint, "save")
    save = getattr(owner, name)

    def deadly(*arguments, **options):
        if after:
            save(*arguments, **options)
        raise Killed

    with pytest.raises(Killed):
        killed.fit(
            data(), epochs=2, batch_size=32, folder=tmp_path,
            on_epoch=lambda epoch, record: monkeypatch.setattr(owner, name, deadly),
        )  # fmt: skip
    monkeypatch.undo()
    last = trainer()
    last.resume(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        last.fit(data(), epochs=2, batch_size=32, folder=tmp_path)
    same_bits(whole, last)
    saved = gk.load(tmp_path)
    assert all(saved.params[n].tobytes() == whole.net.params[n].tobytes() for n in saved.params)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("part", ["model", "checkpoint"])
def test_killed_in_the_first_save(tmp_path, monkeypatch, part, after, times):
    """After SIGKILL during the first save, the next process can start a new run in the folder."""
    whole = trainer()
    whole.fit(data(), epochs=2, batch_size=32)
    owner, name = (gk.Model, "save") if part == "model" else (checkpoint, "save")
    save = getattr(owner, name)

    def deadly(*arguments, **options):
        if after:
            save(*arguments, **options)
        raise Killed

    monkeypatch.setattr(owner, name, deadly)
    for _ in range(times):
        killed = trainer()
        if checkpoint.exists(tmp_path):
            killed.resume(tmp_path)
        with pytest.raises(Killed):
            killed.fit(data(), epochs=2, batch_size=32, folder=tmp_path)
    monkeypatch.undo()
    last = trainer()
    if part == "checkpoint" and after:
        last.resume(tmp_path)
    else:
        assert not checkpoint.exists(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        last.fit(data(), epochs=2, batch_size=32, folder=tmp_path)
    same_bits(whole, last)
    saved = gk.load(tmp_path)
    assert all(saved.params[n].tobytes() == whole.net.params[n].tobytes() for n in saved.params)
    assert [json.loads(line)["epoch"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1, 2]
    assert {p.name.split(".")[0] for p in tmp_path.iterdir()} == {"checkpoint", "log", "model", "state"}


def test_killed_while_an_incomplete_first_save_is_removed(tmp_path, monkeypatch):
    """Whichever file was removed last, the next process removes the rest."""
    remains = []
    for number in range(10):
        folder = tmp_path / str(number)
        monkeypatch.setattr(checkpoint, "save", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            trainer().fit(data(), batch_size=32, folder=folder)
        (folder / "log.jsonl").write_text("{}\n")
        unlink, left = Path.unlink, [number]

        def deadly(path, *, missing_ok=False, left=left, unlink=unlink):
            if path.exists() and path.name != ".lock":
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", deadly)
        with contextlib.suppress(Killed), RunFolder(folder) as held:
            held.claim("another")
            left[0] = 100
        monkeypatch.undo()
        remains.append(len(list(folder.iterdir())) if folder.exists() else 0)
        with RunFolder(folder) as held:
            held.claim("another")
            assert [path.name for path in folder.iterdir()] == [".lock"]
    assert remains[0] > remains[1] > remains[2] > remains[-1] == 0


def test_model_from_elsewhere_is_kept_after_killed_save(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "save", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        trainer().fit(data(), batch_size=32, folder=tmp_path)
    monkeypatch.undo()
    other = trainer().net
    other.params["fc1_bias"] = other.params["fc1_bias"] + 1
    other.save(tmp_path / "model.json")
    before = (tmp_path / "model.json").read_bytes()
    with pytest.raises(UsageError, match=r"already contains a run \(model.json\)"):
        trainer().fit(data(), batch_size=32, folder=tmp_path)
    assert (tmp_path / "model.json").read_bytes() == before
    trainer().fit(data(), batch_size=32, folder=tmp_path, overwrite=True)
    assert not (tmp_path / ".first-save").exists()


@pytest.mark.parametrize("held", [True, False], ids=["held", "at once"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_interrupt_while_averages_are_swapped(tmp_path, monkeypatch, number, after, held):
    """Interrupt the swaps of a validation. The checkpoint contains parameters and averages, each under its own name.

    held: interrupt by a signal, which a block may delay; otherwise by an exception, which it cannot.
    """
    options = {"epochs": 2, "batch_size": 32}
    whole = trainer(ema=0.9)
    straight = whole.fit(data(), data(40), **options)
    part = trainer(ema=0.9)
    exchange, calls = Averages.swap, iter(range(1, 100))

    def interrupt():
        if held:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            raise KeyboardInterrupt

    def interrupted(self):
        mine = next(calls) == number
        if mine and not after:
            interrupt()
        exchange(self)
        if mine and after:
            interrupt()

    monkeypatch.setattr(Averages, "swap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        part.fit(data(), data(40), folder=tmp_path, **options)
    monkeypatch.undo()
    last = trainer(ema=0.9)
    last.resume(tmp_path)
    assert last.fit(data(), data(40), **options) == straight
    same_bits(whole, last)
    assert part.fit(data(), data(40), **options) == straight, "in the same process too"
    same_bits(whole, part)


class NotedInterrupt(KeyboardInterrupt):
    """An interrupt to which a loader, or the engine, has added a note."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.add_note("while a sample was read")


@pytest.mark.parametrize("death", [KeyboardInterrupt, NotedInterrupt])
def test_interrupt_writes_checkpoint_and_notes_position(tmp_path, death):
    found = trainer()
    with pytest.raises(KeyboardInterrupt) as caught:
        found.fit(data(92, 30, death), epochs=4, batch_size=4, folder=tmp_path, prefetch=0)
    note = caught.value.__notes__[-1]
    assert note == f"stopped in epoch 2 of 4, after batch 6; {tmp_path} contains a checkpoint of this position"
    whole, last = trainer(), trainer()
    whole.fit(data(), epochs=4, batch_size=4)
    last.resume(tmp_path)
    assert (last.epoch, last.batch) == (1, 6)
    last.fit(data(), batch_size=4)
    same_bits(whole, last)


def test_first_interrupt_waits_for_step_second_does_not(tmp_path):
    found = trainer()
    step = found._step

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    found._step = interrupted
    with pytest.raises(KeyboardInterrupt):
        found.fit(data(), batch_size=4, folder=tmp_path)
    assert (found.batch, found.updates) == (1, 1)

    def torn(*arguments):
        interrupted(*arguments)
        os.kill(os.getpid(), signal.SIGINT)

    before = (tmp_path / "checkpoint.json").read_bytes()
    found._step = torn
    with pytest.raises(KeyboardInterrupt) as caught:
        found.fit(data(), batch_size=4, folder=tmp_path)
    assert (tmp_path / "checkpoint.json").read_bytes() == before
    assert "within a step" in caught.value.__notes__[0]
    with pytest.raises(UsageError, match="the last step was interrupted"):
        found.fit(data(), batch_size=4)
    found._step = step
    found.resume(tmp_path)
    found.fit(data(), batch_size=4)
    assert found.updates == 23


class Plain:
    """A metric without `state`."""

    name = "plain"

    def reset(self):
        self.count = 0

    def update(self, output, target):
        self.count += len(target)

    @property
    def value(self):
        return float(self.count)


def test_resume_warns_about_metric_without_state(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(data(92, 11, KeyboardInterrupt), batch_size=4, metrics=[Plain()], folder=tmp_path, prefetch=0)
    last = trainer()
    last.resume(tmp_path)
    with pytest.warns(UserWarning, match="'plain' of epoch 1 leaves out the 40 samples"):
        (record,) = last.fit(data(), batch_size=4, metrics=[Plain()])
    assert record["plain"] == 52


def test_checkpoint_of_version_1_can_be_read(tmp_path):
    """Version 1 stores epoch and batch. After the last batch, it was written before or during validation."""
    whole = trainer()
    whole.fit(data(), epochs=2, batch_size=4)
    for fatal, batch in ((30, 6), (47, 23)):
        with pytest.raises(KeyboardInterrupt):
            trainer().fit(
                data(92, fatal, KeyboardInterrupt), data(8, 1, KeyboardInterrupt) if batch == 23 else None, epochs=2,
                batch_size=4, folder=tmp_path, overwrite=True, prefetch=0,
            )  # fmt: skip
        manifest = json.loads((tmp_path / "checkpoint.json").read_text())
        position = manifest.pop("position")
        del manifest["parts"], manifest["run"], manifest["notes"]
        manifest |= {"version": 1, "epoch": position["epoch"], "batch": position["batch"]}
        (tmp_path / "checkpoint.json").write_text(json.dumps(manifest))
        last = trainer()
        last.resume(tmp_path)
        assert last.batch == batch
        last.fit(data(), epochs=2, batch_size=4, folder=tmp_path)
        same_bits(whole, last)


def test_progress_shows_each_epoch(tmp_path, capsys):
    trainer().fit(data(), data(8), epochs=2, batch_size=4, progress=True)
    first, second = capsys.readouterr().err.split("\n")[:2]
    assert "epoch 1/2" in first
    assert "epoch 2/2" in second
    assert "23/23" in second


# --- the meaning of epochs ------------------------------------------------------------------------------


def test_epochs_counts_per_call_of_fit():
    found = trainer()
    assert [len(found.fit(data(), epochs=n, batch_size=46)) for n in (1, 1, 2)] == [1, 1, 2]
    with pytest.warns(UserWarning, match="epochs=0: this fit trains nothing"):
        assert found.fit(data(), epochs=0, batch_size=46) == []
    assert (found.epoch, found.updates) == (4, 8)
    with pytest.raises(UsageError, match="epochs must be an integer of at least 0"):
        found.fit(data(), epochs=-1)


def test_epochs_counts_from_start_of_resumed_run(tmp_path):
    trained = trainer()
    trained.fit(data(), epochs=1, batch_size=46)
    with pytest.raises(KeyboardInterrupt):
        trained.fit(data(92, 4, KeyboardInterrupt), epochs=3, batch_size=46, folder=tmp_path, prefetch=0)
    for epochs, until in ((None, 4), (3, 4), (5, 6)):
        last = trainer()
        last.resume(tmp_path)
        assert str(last.position) == "in epoch 3 of 4, after batch 1"
        last.fit(data(), epochs=epochs, batch_size=46)
        assert last.epoch == until
    last.resume(tmp_path)
    with pytest.raises(UsageError, match="epochs=1 is too small: the run that this fit continues is in epoch 3"):
        last.fit(data(), epochs=1, batch_size=46)
    # Also in the same process.
    assert len(trained.fit(data(), batch_size=46)) == 2
    assert len(trained.fit(data(), batch_size=46)) == 1


def test_resumed_complete_run_warns_and_trains_nothing(tmp_path):
    trainer().fit(data(), epochs=2, batch_size=46, folder=tmp_path)
    last = trainer()
    last.resume(tmp_path)
    with pytest.raises(UsageError, match=r"epochs=1 is too small: the run .* is after epoch 2 of 2"):
        last.fit(data(), epochs=1, batch_size=46)
    # An error does not start another run.
    said = r"the run has finished its 2 epochs\. After resume, .* whole run: epochs=3 continues it"
    with pytest.warns(UserWarning, match=f"nothing is left to train: {said}"):
        assert last.fit(data(), epochs=2, batch_size=46) == []
    # Both settings that the message suggests.
    assert len(last.fit(data(), epochs=3, batch_size=46)) == 3
    last.resume(tmp_path)
    assert len(last.fit(data(), epochs=3, batch_size=46)) == 1


# --- other batches, other data ----------------------------------------------------------------------


class Seen(Deadly):
    """A data set that records the samples it returned."""

    def take(self, index):
        self.given = [*getattr(self, "given", []), *np.arange(len(self))[index]]
        return super().take(index)


def test_resume_with_other_batch_size_continues_samples(tmp_path):
    rng = np.random.default_rng(5)
    arrays = rng.standard_normal((92, 6), np.float32), rng.integers(0, 3, 92)
    first, second = Seen(*arrays), Seen(*arrays)
    first.fatal, first.death = 6, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(first, epochs=2, batch_size=8, folder=tmp_path, prefetch=0)
    last = trainer()
    last.resume(tmp_path)
    last.fit(second, batch_size=16, prefetch=0)
    assert sorted(first.given[:40] + second.given[:52]) == list(range(92)), "every sample once in the first epoch"
    assert sorted(second.given[52:]) == list(range(92))
    assert last.updates == 5 + 4 + 6
    last.resume(tmp_path)
    with pytest.raises(UsageError, match=r"data has 90 samples.* began with 92 samples"):
        last.fit(data(90), batch_size=8)


def test_other_batch_size_fails_if_order_changes(tmp_path):
    words = gk.data.Vocabulary.build(["abcde"], "char")
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, 7, n) for n in rng.integers(1, 30, 40)]

    class DeadlySentences(Deadly, gk.data.Sentences):
        pass

    source = DeadlySentences(rows, rng.integers(0, 2, 40), words)
    source.fatal, source.death = 4, KeyboardInterrupt
    net = gk.models.build("text_classifier", vocab=len(words), width=4, hidden=4)
    with pytest.raises(KeyboardInterrupt):
        gk.Trainer(net, seed=0).fit(source, batch_size=4, folder=tmp_path, prefetch=0)
    last = gk.Trainer(gk.load(tmp_path), seed=0)
    last.resume(tmp_path)
    with pytest.raises(UsageError, match=r"a batch has 8 samples.* began with batches of 4 .*The order"):
        last.fit(source, batch_size=8)
    last.fit(source, batch_size=4)
    assert last.updates == 10


# --- several processes ------------------------------------------------------------------------------


@default_at(1)
@pytest.mark.parametrize("carries", [False, True])
def test_ranks_restore_their_own_states(tmp_path, on_ranks, carries):
    words = gk.data.Vocabulary.build(["abcde"], "char")
    tokens = np.random.default_rng(5).integers(2, 7, 161)

    def make(store):
        if not carries:
            return trainer(kvstore=store), data(44), ["accuracy"]
        net = gk.models.build("lstm_lm", vocab=len(words), hidden=6, layers=1, stateful=True)
        carry = {"h": "last_h", "c": "last_c"}
        found = gk.Trainer(net, optimizer="adam", output="logits", carry=carry, seed=3, threads=1, kvstore=store)
        return found, gk.data.TokenStream(tokens, words, length=9), ["perplexity"]

    def fitted(store, fatal=None, resume=False):
        found, source, metrics = make(store)
        if resume:
            found.resume(tmp_path)
        step, count = found._step, iter(range(10**6 if fatal is None else fatal))

        def limited(*arguments):
            if next(count, None) is None:
                raise Killed
            return step(*arguments)

        found._step = limited
        folder = tmp_path if fatal is not None or resume else None
        history = found.fit(
            source, epochs=2, batch_size=2 if carries else 4, metrics=metrics, folder=folder, checkpoint_every=1,
        )  # fmt: skip
        return found, history

    whole = on_ranks(fitted)
    on_ranks(lambda store: fitted(store, fatal=3), ends=Killed)
    last = on_ranks(lambda store: fitted(store, resume=True))
    for (a, straight), (b, history) in zip(whole, last, strict=True):
        same_bits(a, b)
        assert history == straight


def test_between_epochs_the_number_of_processes_may_change(tmp_path, on_ranks):
    alone = trainer()
    alone.fit(data(44), epochs=2, batch_size=8)
    on_ranks(lambda store: trainer(kvstore=store).fit(data(44), epochs=1, batch_size=4, folder=tmp_path))
    last = trainer()
    last.resume(tmp_path)
    last.fit(data(44), epochs=2, batch_size=8)
    assert last.updates == alone.updates

    def more(store):
        found = trainer(kvstore=store)
        found.resume(tmp_path)
        found.fit(data(44), epochs=2, batch_size=4)
        return found.updates

    assert on_ranks(more) == [alone.updates] * 2
