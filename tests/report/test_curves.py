"""Curves are the numbers of the log, in the right chart and at the right place."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from graphkit.report.curves import MOST_POINTS, charts, summary, thinned
from graphkit.report.runs import read_run


def chart(runs, key):
    (found,) = [c for c in charts(runs) if c.key == key]
    return found


def test_training_and_validation_of_a_quantity_share_a_chart(run_folder, records):
    lines = [records.epoch(n, loss=3.0 / n, valid_loss=4.0 / n, accuracy=n / 10) for n in (1, 2)]
    run = read_run(run_folder("run", lines))
    assert [c.key for c in charts([run])] == ["loss", "accuracy", "epoch_seconds"]
    train, valid = chart([run], "loss").series
    assert (train.part, list(train.y), list(train.updates)) == ("train", [3.0, 1.5], [10, 20])
    assert (valid.part, list(valid.y), list(valid.seconds)) == ("valid", [4.0, 2.0], [2.0, 4.0])
    assert list(chart([run], "epoch_seconds").series[0].y) == [2.0, 2.0]


def test_speed_and_memory_are_apart_and_places_are_no_curves(run_folder, records):
    lines = [records.epoch(1, loss=1.0, learning_rate=0.1, samples_per_second=5.0, peak_memory=2**20, processes=4)]
    found = charts([read_run(run_folder("run", lines))])
    assert [(c.key, c.costs) for c in found] == [
        ("loss", False), ("learning_rate", False), ("samples_per_second", True), ("epoch_seconds", True),
        ("peak_memory", True),
    ]  # fmt: skip
    assert [c.kind for c in found] == ["number", "number", "number", "seconds", "bytes"]


def test_steps_lie_within_their_epochs(run_folder, records):
    lines = [records.step(u, loss=1.0) for u in (5, 10, 15, 20, 25, 40)]
    lines += [records.epoch(1, loss=1.0), records.epoch(2, loss=1.0)]
    steps = next(s for s in chart([read_run(run_folder("run", lines))], "loss").series if s.part == "step")
    # The third epoch is not over: it is taken to be as long as the second, and no longer.
    np.testing.assert_allclose(steps.epochs, [0.5, 1.0, 1.5, 2.0, 2.5, math.nan])


def test_of_a_first_epoch_nobody_knows_the_length(run_folder, records):
    run = read_run(run_folder("run", [records.step(u, loss=1.0) for u in (1, 2, 3)]))
    (steps,) = chart([run], "loss").series
    assert np.isnan(steps.epochs).all()
    assert json.loads(json.dumps(steps.to_json()))["x"]["epochs"] == ["nan"] * 3


def test_steps_that_are_fewer_than_epochs_are_left_out(run_folder, records):
    lines = [records.step(10, loss=9.0), records.epoch(1, loss=1.0, learning_rate=0.1), records.epoch(2, loss=1.0)]
    assert [s.part for s in chart([read_run(run_folder("run", lines))], "loss").series] == ["train"]


def test_what_is_not_finite_is_text(run_folder, records):
    run = read_run(run_folder("run", [records.step(1, loss=math.nan), records.step(2, loss=math.inf)]))
    assert chart([run], "loss").series[0].to_json()["y"] == ["nan", "inf"]


def test_an_epoch_without_its_beginning_has_no_duration(run_folder, records):
    run = read_run(run_folder("run", [records.epoch(3, loss=1.0), records.epoch(4, loss=1.0)]))
    (series,) = chart([run], "epoch_seconds").series
    assert list(series.updates) == [40]


def test_a_thinned_curve_keeps_ends_and_peaks():
    rng = np.random.default_rng(0)
    for length in (3, 2_000, 2_001, 54_321):
        y = rng.normal(size=length)
        y[length // 3], y[length // 2] = 50.0, -50.0
        kept = thinned(y, MOST_POINTS)
        assert len(kept) <= MOST_POINTS
        assert (kept[0], kept[-1]) == (0, length - 1)
        assert (np.diff(kept) > 0).all()
        assert {length // 3, length // 2} <= set(kept)
        assert length > MOST_POINTS or len(kept) == length


def test_a_thinned_curve_keeps_what_is_not_finite():
    y = np.zeros(100_000)
    y[77_777] = np.nan
    assert 77_777 in thinned(y, MOST_POINTS)
    assert len(thinned(np.full(10_000, np.nan), MOST_POINTS)) <= MOST_POINTS


def test_the_table_has_validation_first(run_folder, records):
    with_valid = read_run(run_folder("a", [records.epoch(1, loss=1.0, valid_loss=2.0, samples_per_second=3.0)]))
    without = read_run(run_folder("b", [records.epoch(1, loss=5.0)]))
    assert summary([with_valid, without]) == (["valid_loss", "loss"], [[2.0, 1.0], [None, 5.0]])


def test_numbers_survive_to_six_digits(run_folder, records):
    run = read_run(run_folder("run", [records.epoch(1, loss=1.23456789)]))
    assert chart([run], "loss").series[0].to_json()["y"] == [pytest.approx(1.23456789, rel=1e-5)]
