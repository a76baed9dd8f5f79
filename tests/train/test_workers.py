"""Training with worker processes: the same bits for any number of workers, and after an interruption."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import graphkit as gk
from graphkit.cli import train as command
from graphkit.cores import allowed_cores, loading_workers
from graphkit.data import Workers, sources
from graphkit.errors import UsageError

SETS = Path(__file__).parents[1] / "data" / "workers" / "sets"


@pytest.fixture
def sets(monkeypatch):
    monkeypatch.syspath_prepend(str(SETS))
    return importlib.import_module("made_by_workers")


def trainer(store=None):
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    return gk.Trainer(gk.Model({"logits": gk.nn.linear(h, 3, name="fc")}, seed=0), seed=3, threads=1, kvstore=store)


def bits(found):
    return {name: found.net.params[name].tobytes() for name in found.net.params}


OPTIONS = {"epochs": 3, "batch_size": 8, "metrics": ["accuracy"]}


@pytest.mark.parametrize(
    ("workers", "prefetch"), [(3, 2), *(pytest.param(*c, marks=pytest.mark.full) for c in ((1, 0), (1, 2), (3, 0)))]
)
def test_training_does_not_depend_on_workers(sets, workers, prefetch):
    train, valid = sets.Rusty(50, ()).split(0.2, stratify=False)
    straight = trainer()
    expected = straight.fit(train, valid, **OPTIONS)
    found = trainer()
    assert found.fit(train, valid, workers=workers, prefetch=prefetch, **OPTIONS) == expected
    assert bits(found) == bits(straight)
    score = straight.evaluate(valid)
    assert found.evaluate(valid, workers=workers, prefetch=prefetch) == score
    with Workers(workers) as shared:
        again = trainer()
        assert again.fit(train.configured(workers=shared), valid, **OPTIONS) == expected
        assert len(shared.pids) == workers, "the worker processes of the caller still run"


def test_find_lr_works_with_workers(sets):
    data = sets.Rusty(50, ())
    straight = gk.find_lr(trainer(), data, batch_size=8)
    assert gk.find_lr(trainer(), data, batch_size=8, workers=2) == straight
    assert len(straight.rates) > 7, "more than one epoch"


def test_resume_with_another_number_of_workers(sets, tmp_path):
    data = sets.Rusty(50, ())
    straight = trainer()
    straight.fit(data, **OPTIONS)
    stopped, left = trainer(), iter(range(10))
    step = stopped._step

    def killed(*arguments):
        if next(left, None) is None:
            raise SystemExit
        return step(*arguments)

    stopped._step = killed
    with pytest.raises(SystemExit):
        stopped.fit(data, folder=tmp_path, checkpoint_every=1, workers=2, **OPTIONS)
    last = trainer()
    last.resume(tmp_path)
    assert (last.epoch, last.batch) == (1, 3)
    last.fit(data, workers=1, **{**OPTIONS, "batch_size": 8})
    assert bits(last) == bits(straight)


@pytest.mark.full
def test_ranks_with_workers_of_their_own(sets, on_ranks):
    def work(workers):
        def on_rank(store):
            found = trainer(store)
            return found.fit(sets.Rusty(37, ()), workers=workers, **OPTIONS), bits(found)

        return on_rank

    assert on_ranks(work(2), 2) == on_ranks(work(0), 2)


def test_workers_for_map_style_datasets(sets):
    straight, found = trainer(), trainer()
    straight.fit(sets.Mapped(40), **OPTIONS)
    found.fit(sets.Mapped(40), sets.Mapped(40), workers=2, **OPTIONS)
    assert bits(found) == bits(straight)
    with pytest.raises(UsageError, match=r"Mapped cannot be sent to worker processes.*pickled"):
        trainer().fit(sets.Mapped(40, extra=lambda: 0), workers=2, **OPTIONS)


def test_data_that_workers_cannot_make():
    arrays = np.zeros((8, 6), np.float32), np.zeros(8, np.int64)
    with pytest.raises(UsageError, match=r"workers=2 \(--workers\): train cannot use workers"):
        trainer().fit(arrays, workers=2)
    with pytest.raises(UsageError, match=r".* cannot use workers"):
        trainer().evaluate(lambda: iter([arrays]), workers=1)
    with pytest.raises(UsageError, match="workers must be a number of processes, not -1"):
        trainer().fit(arrays, workers=-1)
    trainer().fit(arrays, workers=0)


def test_default_number_of_workers():
    assert 1 <= loading_workers() <= max(1, min(16, allowed_cores() // 2))


def test_command_starts_workers(sets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    employed = []

    def load(path, *, test_fraction=0.25, seed=0):
        found = sets.Rusty(24, {3, 5})
        return found if test_fraction is None else found.split(test_fraction, seed)

    fit = gk.Trainer.fit

    def watched(self, *arguments, **options):
        employed.append(options["workers"])
        return fit(self, *arguments, **options)

    monkeypatch.setattr(gk.Trainer, "fit", watched)
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, sources.Source("rusty", "nowhere:load")))
    before = sources._imported
    monkeypatch.setattr(sources, "_imported", lambda where: load if where == "nowhere:load" else before(where))
    trainer().net.save(tmp_path / "net.json")
    given = [str(tmp_path / "net.json"), "--data", "rusty:x", "--batch-size", "4", "-o", str(tmp_path / "run")]

    def run(*further):
        return CliRunner().invoke(command.command, [*given, *further], catch_exceptions=True)

    done = run()
    assert type(done.exception).__name__ == "DamagedSample"
    with pytest.warns(gk.GraphkitWarning, match="is replaced by the next readable one"):
        done = run("--on-damaged", "skip", "--epochs", "2")
    assert done.exit_code == 0, done.exception
    assert "data.damaged 2" in done.output
    with pytest.warns(gk.GraphkitWarning, match="is replaced by the next readable one"):
        done = run("--resume", "--epochs", "3", "--workers", "2")
    assert done.exit_code == 0, done.exception
    assert "data.damaged 2" in done.output, "only --workers differs from the interrupted run"
    assert employed == [loading_workers(), loading_workers(), 2]
    digits = [given[0], "--data", "digits", "--on-damaged", "skip"]
    done = CliRunner().invoke(command.command, digits)
    assert "these data are loaded into memory at once" in str(done.exception)
    done = CliRunner().invoke(command.command, [*digits[:3], "--workers", "2"])
    assert "cannot use workers" in str(done.exception)
