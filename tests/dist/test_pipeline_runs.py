"""Epochs through a pipeline, evaluation, and checkpoints that can be resumed with any placement."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import default_at, full
from pipelines import ABC, classifier, labelled

import graphkit as gk


def fitting(store, groups=ABC, **options):
    """A trainer of the classifier; in one process, one that accumulates the same micro-batches."""
    how = {"accumulate": 2} if store is None else {"kvstore": store, "groups": groups, "micro_batches": 2}
    return gk.Trainer(classifier(), optimizer=gk.optim.Adam(0.01), threads=1, seed=3, **how, **options)


def fit(trainer, folder, **options):
    """Micro-batches of 8 either way."""
    size = 16 if trainer.accumulate == 1 else 8
    given = {"metrics": ["accuracy"], "batch_size": size, "progress": False}
    return trainer.fit(labelled(48), labelled(20, 1), folder=folder, **given, **options)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_epochs_are_those_of_one_process(on_ranks, tmp_path, ema):
    one = fitting(None, ema=ema)
    # In one process the data come in batches of 8, in another order than in batches of 16 cut in two.
    history = None

    def work(store):
        trainer = fitting(store, ema=ema)
        found = fit(trainer, tmp_path / "run", epochs=2)
        scores = trainer.evaluate(labelled(20, 1), ["accuracy"])
        return found, scores

    found = on_ranks(work, 3)
    assert found[0] == found[1] == found[2]
    (history, scores), *_ = found
    assert len(history) == 2
    assert history[1]["valid_accuracy"] == scores["accuracy"]
    net = gk.load(tmp_path / "run")
    exe = net.compile()
    x, y = labelled(20, 1)
    (logits,) = exe.run({"x": x}).values()
    assert (logits.argmax(1) == y).mean() == pytest.approx(scores["accuracy"])
    one.resume(tmp_path / "run")
    assert one.updates == 6
    assert one.evaluate(labelled(20, 1), ["accuracy"]) == pytest.approx(scores)


@default_at(0)
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("before", [{"a": 0, "b": 1, "c": 2}, {"a": 1, "b": 0, "c": 0}, None])
@pytest.mark.parametrize("after", [{"a": 2, "b": 0, "c": 1}, full(None)])
def test_a_run_goes_on_in_another_placement(on_ranks, tmp_path, before, after, within):
    """One process with micro-batches of 16 can resume, too. Its measurements agree up to rounding."""

    class Stop(Exception):
        pass

    def start(store, groups, job):
        trainer = fitting_whole(store, groups)
        return job(trainer)

    def fitting_whole(store, groups):
        how = {} if store is None else {"kvstore": store, "groups": groups, "micro_batches": 1}
        return gk.Trainer(classifier(), optimizer=gk.optim.SGD(0.05, momentum=0.9), threads=1, seed=3, ema=0.9, **how)

    def run(groups, job):
        if groups is None:
            return job(fitting_whole(None, None))
        return on_ranks(lambda store: start(store, groups, job), len(set(groups.values())))[0]

    def options(folder):
        return {"folder": folder, "batch_size": 16, "metrics": ["accuracy"], "progress": False}

    def first(trainer):
        if not within:
            return trainer.fit(labelled(48), epochs=1, **options(tmp_path / "run"))
        calls = []
        step = trainer._step

        def stopping(*given):
            calls.append(given)
            if len(calls) == 3:
                raise Stop
            return step(*given)

        trainer._step = stopping
        with pytest.raises(Stop):
            trainer.fit(labelled(48), epochs=2, checkpoint_every=1, **options(tmp_path / "run"))
        return None

    def further(trainer):
        trainer.resume(tmp_path / "run")
        assert trainer.updates == (2 if within else 3)
        found = trainer.fit(labelled(48), epochs=2, **options(tmp_path / "run"))
        return found[-1]

    run(before, first)
    last = run(after, further)
    expected = fitting_whole(None, None).fit(labelled(48), epochs=2, **options(tmp_path / "whole"))[-1]
    assert last == pytest.approx(expected, rel=1e-4)
    found, whole = gk.load(tmp_path / "run"), gk.load(tmp_path / "whole")
    for name, array in whole.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_save_writes_what_one_process_writes(on_ranks, tmp_path):
    def work(store):
        trainer = fitting(store)
        for step in range(3):
            trainer.step(*labelled(16, step))
        trainer.save(tmp_path / "run")
        # Nothing of others stays in rank 0.
        return [name for name in trainer.net.params if trainer.net.params.holds(name)]

    held = on_ranks(work, 3)
    names = set(classifier().params)
    assert set().union(*held) == names
    assert sum(map(len, held)) == len(names)
    one = fitting(None)
    one.resume(tmp_path / "run")
    assert one.updates == 3
    for step in range(3):
        x, y = labelled(16, step)
        one.step(x[:8], y[:8])
        one.step(x[8:], y[8:])
