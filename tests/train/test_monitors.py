"""Callbacks that monitor a number: EarlyStopping, KeepBest and ReduceOnPlateau."""

import json
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure, UsageError
from graphkit.train.run_folder import BEST


def trainer(**options):
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
    return gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1, seed=1, **options)


def data(n=24):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3), np.float32), rng.standard_normal((n, 2), np.float32)


class Script(gk.callbacks.EarlyStopping):
    """A callback that replaces the numbers of an epoch by given ones."""

    def __init__(self, numbers, patience, **options):
        self.numbers = numbers
        super().__init__(patience, "score", **options)

    def value(self, numbers):
        return self.numbers[numbers["epoch"] - 1]


@in_one_item()
@pytest.mark.parametrize(
    ("scores", "options", "ends"),
    [
        ([1, 2, 3, 4, 5, 6], {}, 6), ([1, 2, 2, 2, 9], {}, 4), ([3, 2, 4, 1, 1, 9], {}, 5),
        ([3, 2, 1, 1, 1, 9], {"mode": "min"}, 5), ([1, 1.1, 1.2, 1.3, 1.4], {"min_delta": 0.15}, 5),
        ([1, 1.1, 1.2, 1.3, 1.4], {"min_delta": 0.25}, 3), ([float("nan")] * 5, {}, 2),
        ([1, float("inf"), float("nan"), 9], {}, 3),
    ],
)  # fmt: skip
def test_training_ends_when_patience_does(scores, options, ends):
    found = trainer()
    history = found.fit(data(), epochs=len(scores), batch_size=8, callbacks=[Script(scores, 2, **options)])
    assert len(history) == ends
    assert (found.position.stopped is not None) == (ends < len(scores))


def test_monitor_mode_follows_from_the_name():
    modes = {"valid_loss": "min", "loss": "min", "valid_rmse": "min", "perplexity": "min", "valid_accuracy": "max",
             "top3": "max", "auc": "max"}  # fmt: skip
    assert {name: gk.callbacks.EarlyStopping(1, name).mode for name in modes} == modes


def test_a_number_that_no_epoch_has_is_named():
    for monitor, message in [
        ("valid_acuracy", "did you mean 'valid_accuracy'"),
        ("top5", "The values of an epoch are learning_rate, loss, accuracy"),
    ]:
        net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
        x, y = data()
        given = (x, (y[:, 0] > 0).astype(np.int64))
        with pytest.raises(UsageError, match=message):
            gk.Trainer(net).fit(given, given, metrics=["accuracy"], callbacks=[gk.callbacks.EarlyStopping(1, monitor)])
    with pytest.raises(UsageError, match="the monitor 'valid_loss' needs validation data: pass valid= to fit"):
        trainer().fit(data(), callbacks=[gk.callbacks.EarlyStopping(1)])


def test_validation_loss_follows_its_definition():
    found = trainer(ema=0.5)
    x, y = data()
    (record,) = found.fit((x, y), (x[:11], y[:11]), batch_size=4)
    with found.averaged() as net:
        expected = np.mean((net(x[:11]) - y[:11]) ** 2)
    assert record["valid_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert found.evaluate((x[:11], y[:11]), ["mae", "loss"])["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert list(found.evaluate((x, y), "loss")) == ["loss"]


def test_two_ranks_stop_together(on_ranks, tmp_path):
    """Ranks measure different numbers on their parts of the data. Both decide by those of rank 0."""

    def work(store):
        x, y = data(48)
        found = trainer(kvstore=store)
        valid = (x + store.rank, y)
        chosen = [gk.callbacks.EarlyStopping(2, min_delta=0.01), gk.callbacks.KeepBest()]
        history = found.fit((x, y), valid, epochs=40, batch_size=8, folder=tmp_path, callbacks=chosen)
        return len(history), found.position.stopped

    first, second = on_ranks(work)
    assert first == second
    assert 2 < first[0] < 40
    assert "valid_loss has not improved for 2 epochs" in first[1]
    assert int(gk.load(tmp_path / BEST).meta["best_epoch"]) <= first[0]


# --- the best model --------------------------------------------------------------------------------


def test_the_best_model_is_that_of_its_epoch(tmp_path):
    class Copies(gk.Callback):
        def __init__(self):
            self.weights, self.losses = [], []

        def on_epoch_end(self, trainer, numbers):
            with trainer.averaged() as net:
                self.weights.append(net.params["fc_weight"].copy())
            self.losses.append(numbers["valid_loss"])

    x, y = data()
    copies = Copies()
    found = trainer(ema=0.8)
    found.optimizer = gk.optim.SGD(0.5)  # this rate is too high for steady improvement
    found.fit((x, y), (x[:6], y[:6]), epochs=8, batch_size=4, folder=tmp_path, callbacks=[
        gk.callbacks.KeepBest(), copies
    ])  # fmt: skip
    best = int(np.argmin(copies.losses))
    assert 0 < best < 7, "neither the first nor the last, or this shows nothing"
    kept = gk.load(tmp_path / BEST)
    np.testing.assert_array_equal(kept.params["fc_weight"], copies.weights[best])
    assert kept.meta["best_epoch"] == str(best + 1)
    assert float(kept.meta["best_valid_loss"]) == copies.losses[best]
    assert len(list(tmp_path.glob("best.*.safetensors"))) == 1
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    # A new run in the folder removes the best model.
    trainer().fit(data(), folder=tmp_path, overwrite=True)
    assert not list(tmp_path.glob("best*"))


def test_resumed_run_keeps_its_best(tmp_path):
    scores = [3.0, 1.0, 2.0, 1.5, 0.5]

    class Best(gk.callbacks.KeepBest):
        def value(self, numbers):
            return scores[numbers["epoch"] - 1]

    found = trainer()
    found.fit(data(), epochs=2, batch_size=8, folder=tmp_path, callbacks=[Best()])
    for epochs, best in [(4, "2"), (5, "5")]:
        again = trainer()
        again.resume(tmp_path)
        again.fit(data(), epochs=epochs, batch_size=8, folder=tmp_path, callbacks=[Best()])
        assert gk.load(tmp_path / BEST).meta["best_epoch"] == best


def test_full_disk_at_best_model_repeats_epoch_end(tmp_path, monkeypatch):
    def run(folder, full):
        found = trainer()
        stops, plateau = gk.callbacks.EarlyStopping(1, "loss"), gk.callbacks.ReduceOnPlateau(1, 0.5, "loss")
        best = gk.callbacks.KeepBest("loss")
        options = {"epochs": 3, "batch_size": 8, "folder": folder, "callbacks": [stops, plateau, best]}
        if full:
            with monkeypatch.context() as patched:
                patched.setattr(gk.Trainer, "save_model", refused)
                with pytest.raises(RuntimeFailure, match="No space left"):
                    found.fit(data(), **options)
        found.fit(data(), **options)
        return found.epoch, found.learning_rate, best.state(), stops.state(), plateau.state()

    def refused(*_):
        raise RuntimeFailure("best.json cannot be written: No space left on device")

    straight = run(tmp_path / "straight", False)
    assert straight[0] == 3
    assert run(tmp_path / "run", True) == straight
    assert (tmp_path / "run" / BEST).exists()


class Scored(gk.callbacks.KeepBest):
    """Monitors given numbers instead of those of the epochs."""

    scores = (3.0, 1.0, float("nan"), 2.0, 1.0, 0.5, 2.5)

    def value(self, numbers):
        return self.scores[numbers["epoch"] - 1]


def kept_epochs(folder):
    found = sorted(folder.glob("best-epoch-*.json"))
    weights = sorted(path.name.split(".")[0] for path in folder.glob("best-epoch-*.safetensors"))
    assert weights == [path.stem for path in found], "each model has its weights, and no other weights remain"
    for path in found:
        assert path.name == f"best-epoch-{gk.load(path).meta['best_epoch']}.json"
    return {int(gk.load(path).meta["best_epoch"]) for path in found}


@pytest.mark.parametrize("cuts", [(3,), *(pytest.param(cuts, marks=pytest.mark.full) for cuts in ((), (1, 4, 5)))])
def test_several_best_models_are_those_of_the_best_epochs(tmp_path, cuts):
    expected = {1: {1}, 2: {1, 2}, 3: {1, 2}, 4: {1, 2, 4}, 5: {2, 4, 5}, 6: {2, 5, 6}, 7: {2, 5, 6}}
    (tmp_path / "best-epoch-notes.json").write_text("{}")  # of the user
    for until in (*cuts, 7):
        made = trainer()
        if (tmp_path / "checkpoint.json").exists():
            made.resume(tmp_path)
        made.fit(data(), epochs=until, batch_size=8, folder=tmp_path, callbacks=[Scored(keep=3)])
        (tmp_path / "best-epoch-notes.json").unlink(missing_ok=True)
        assert kept_epochs(tmp_path) == expected[until]
        (tmp_path / "best-epoch-notes.json").write_text("{}")
    assert gk.load(tmp_path / BEST).meta["best_epoch"] == "6"
    trainer().fit(data(), folder=tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.glob("best*")] == ["best-epoch-notes.json"]


def test_fewer_models_are_kept_after_resume_with_a_smaller_number(tmp_path):
    trainer().fit(data(), epochs=5, batch_size=8, folder=tmp_path, callbacks=[Scored(keep=3)])
    made = trainer()
    made.resume(tmp_path)
    made.fit(data(), epochs=6, batch_size=8, folder=tmp_path, callbacks=[Scored(keep=2)])
    assert kept_epochs(tmp_path) == {2, 6}


def test_ranks_keep_several_best_models(on_ranks, tmp_path):
    def work(store):
        made = trainer(kvstore=store)
        made.fit(data(), epochs=5, batch_size=8, folder=tmp_path, callbacks=[Scored(keep=2)])

    on_ranks(work)
    assert kept_epochs(tmp_path) == {2, 5}


@in_one_item()
@pytest.mark.parametrize("keep", [0, -1, 1.5, "2"])
def test_number_of_best_models_must_be_positive(keep):
    with pytest.raises(UsageError, match="keep"):
        gk.callbacks.KeepBest(keep=keep)


def test_the_best_model_needs_a_folder():
    with pytest.raises(UsageError, match="no folder for the best model"):
        trainer().fit(data(), data(8), callbacks=[gk.callbacks.KeepBest()])


# One process imports graphkit and forks another one for each run. It prints the results as JSON.
KILLED = """
    import json, os, signal, sys, traceback
    from pathlib import Path
    import numpy as np
    import graphkit as gk
    from graphkit.ir.atomic import PendingFile

    root = Path(sys.argv[1])

    def made():
        net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
        return gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1, seed=1)

    def watch(at):
        # Counts the moments around every write and rename, and kills this process at one of them.
        seen = [0]

        def happens():
            seen[0] += 1
            if seen[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

        def around(method):
            original = getattr(PendingFile, method)

            def counted(*arguments, **options):
                happens()
                result = original(*arguments, **options)
                happens()
                return result

            setattr(PendingFile, method, counted)

        for method in ("write", "finish", "commit"):
            around(method)
        return seen

    def train(folder, at):
        seen, trainer = watch(at), made()
        rng = np.random.default_rng(0)
        data = rng.standard_normal((24, 3), np.float32), rng.standard_normal((24, 2), np.float32)
        if (folder / "checkpoint.json").exists():
            trainer.resume(folder)
        trainer.fit(data, epochs=3, batch_size=8, folder=folder, callbacks=[gk.callbacks.KeepBest("loss")])
        return seen[0]

    def attempt(folder, at=0):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, str(train(folder, at)).encode())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as pipe:
            return os.waitstatus_to_exitcode(status), pipe.read()

    made()  # what it imports is there for the children
    code, count = attempt(root / "straight")
    events, results = int(count), []
    for at in range(1, events, max(events // 14, 1)):
        folder = root / f"at{at}"
        killed, _ = attempt(folder, at)
        best = folder / "best.json"
        epoch = gk.load(best).meta["best_epoch"] if best.exists() else None
        results.append([folder.name, killed, epoch, attempt(folder)[0]])
    print(json.dumps({"events": events, "results": results}))
"""


@pytest.mark.full
def test_best_model_is_complete_after_any_sigkill(tmp_path):
    """Kill the process around every write and rename. A resumed run has the same best model as an uninterrupted one."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(KILLED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["events"] > 30
    wanted = (tmp_path / "straight" / BEST).read_bytes()
    for name, killed, _, ended in found["results"]:
        folder = tmp_path / name
        assert (killed, ended) == (-signal.SIGKILL, 0), done.stderr
        assert (folder / BEST).read_bytes() == wanted
        assert len(list(folder.glob("best.*.safetensors"))) == 1
    epochs = [epoch for _, _, epoch, _ in found["results"] if epoch is not None]
    assert len(epochs) > 5
    assert set(epochs) <= set("123")


def test_plateaus_are_part_of_a_checkpoint(tmp_path):
    def run(folder, *stops):
        for epochs in stops:
            found = trainer()
            if found.rank == 0 and (folder / "checkpoint.json").exists():
                found.resume(folder)
            plateau = gk.callbacks.ReduceOnPlateau(1, 0.5, "loss", min_delta=0.05)
            found.fit(data(), epochs=epochs, batch_size=8, folder=folder, callbacks=[plateau])
        return found, json.loads((folder / "log.jsonl").read_text().splitlines()[-1])

    straight, line = run(tmp_path / "straight", 8)
    assert straight.learning_rate < 0.1
    assert line["learning_rate"] in (straight.learning_rate, 2 * straight.learning_rate)
    parts, _ = run(tmp_path / "parts", 3, 5, 8)
    assert parts.learning_rate == straight.learning_rate
    np.testing.assert_array_equal(parts.net.params["fc_weight"], straight.net.params["fc_weight"])
