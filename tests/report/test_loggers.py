"""Callbacks that pass the numbers of training on: the same numbers as in `log.jsonl`, once per epoch or step."""

from __future__ import annotations

import csv
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure, UsageError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 40)


def trainer(**options):
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": gk.nn.linear(x, 3, name="fc")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=gk.optim.SGD(0.1), **options)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Tracker:
    def __init__(self):
        self.calls = []

    def log(self, numbers, step):
        self.calls.append((step, numbers))


def test_csv_has_the_numbers_of_each_epoch(tmp_path):
    records = trainer().fit(
        (X, Y), (X, Y), epochs=3, batch_size=10, metrics=["accuracy"], callbacks=[gk.CSVLogger(tmp_path / "a/log.csv")]
    )
    rows = rows_of(tmp_path / "a/log.csv")
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert [int(row["updates"]) for row in rows] == [4, 8, 12]
    for row, record in zip(rows, records, strict=True):
        assert {name: float(row[name]) for name in record} == record


def test_csv_of_a_resumed_run_equals_that_of_a_whole_one(tmp_path):
    whole = gk.CSVLogger(tmp_path / "whole.csv")
    trainer().fit((X, Y), epochs=4, batch_size=10, callbacks=[whole])
    part = gk.CSVLogger(tmp_path / "part.csv")
    trainer().fit((X, Y), epochs=2, batch_size=10, folder=tmp_path / "run", callbacks=[part])
    with (tmp_path / "part.csv").open("a") as file:
        file.write("3,99\n4,99\n")  # of epochs after the checkpoint
    resumed = trainer()
    resumed.resume(tmp_path / "run")
    resumed.fit((X, Y), epochs=4, batch_size=10, folder=tmp_path / "run", callbacks=[gk.CSVLogger(part.path)])
    kept = ("epoch", "updates", "learning_rate", "loss")
    found, wanted = ([{n: r[n] for n in kept} for r in rows_of(p)] for p in (part.path, whole.path))
    assert found == wanted
    trainer().fit((X, Y), epochs=1, batch_size=10, callbacks=[gk.CSVLogger(part.path)])
    assert len(rows_of(part.path)) == 1, "a new run replaces the file"


def test_csv_gets_a_column_for_a_number_that_begins_later(tmp_path):
    class Adds(gk.Callback):
        def on_epoch_end(self, trainer, numbers):
            if numbers["epoch"] == 2:
                numbers["extra, quoted"] = float("nan")

    path = tmp_path / "log.csv"
    trainer().fit((X, Y), epochs=2, batch_size=10, callbacks=[Adds(), gk.CSVLogger(path)])
    assert [row["extra, quoted"] for row in rows_of(path)] == ["", "nan"]


def test_csv_that_cannot_be_written_or_continued(tmp_path):
    with pytest.raises(RuntimeFailure, match="cannot be written"):
        trainer().fit((X, Y), batch_size=10, epochs=1, callbacks=[gk.CSVLogger(tmp_path)])
    other = tmp_path / "other.csv"
    other.write_text("name,age\nx,3\n")
    one = trainer()
    one.fit((X, Y), batch_size=10, epochs=1)
    with pytest.raises(RuntimeFailure, match="was not written by CSVLogger"):
        one.fit((X, Y), batch_size=10, epochs=1, callbacks=[gk.CSVLogger(other)])
    assert other.read_text() == "name,age\nx,3\n"


@in_one_item()
@pytest.mark.parametrize("path", ["file/log.csv", "file/folder/log.csv", "folder"])
def test_csv_that_cannot_be_written_stops_before_training(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    one = trainer()
    before = {name: np.array(value) for name, value in one.net.params.items()}
    with pytest.raises(RuntimeFailure, match=r"cannot be written: (Not|Is) a directory"):
        one.fit((X, Y), batch_size=10, epochs=1, callbacks=[gk.CSVLogger(tmp_path / path)])
    for name, value in before.items():
        np.testing.assert_array_equal(one.net.params[name], value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.parametrize("as_function", [False, True])
def test_tracker_gets_steps_and_epochs(as_function):
    tracker = Tracker()
    logger = gk.RunLogger(tracker.log if as_function else tracker, every=3)
    records = trainer().fit((X, Y), (X, Y), epochs=2, batch_size=10, callbacks=[logger])
    assert [step for step, _ in tracker.calls] == [3, 4, 6, 8]
    assert tracker.calls[0][1].keys() == {"step/loss", "step/learning_rate"}
    for (_, numbers), record in zip(tracker.calls[1::2], records, strict=True):
        assert numbers["train/loss"] == record["loss"]
        assert numbers["valid/loss"] == record["valid_loss"]
        assert {"epoch", "learning_rate", "speed/samples_per_second"} <= numbers.keys()


def test_steps_can_be_left_out_and_accumulated_batches_are_no_steps():
    tracker = Tracker()
    trainer().fit((X, Y), epochs=1, batch_size=10, callbacks=[gk.RunLogger(tracker, every=0)])
    assert [step for step, _ in tracker.calls] == [4]
    tracker = Tracker()
    trainer(accumulate=2).fit((X, Y), epochs=1, batch_size=10, callbacks=[gk.RunLogger(tracker, every=1)])
    assert [step for step, _ in tracker.calls] == [1, 2, 2]


def test_object_without_log_is_an_error():
    for run in (None, 3):
        with pytest.raises(UsageError, match=r"run must have a method log\(numbers, step=...\)"):
            trainer().fit((X, Y), epochs=1, batch_size=10, callbacks=[gk.RunLogger(run)])


def test_messages_of_python_logging(caplog):
    with caplog.at_level(logging.INFO, logger="graphkit"):
        records = trainer().fit((X, Y), epochs=1, batch_size=10, callbacks=[gk.PythonLogger()])
    mine = [record for record in caplog.records if record.name == "graphkit"]
    first, epoch, last = (record.getMessage() for record in mine)
    assert first == "begin training 'small' after epoch 0"
    assert epoch.startswith(f"'small', epoch 1: learning_rate 0.1, loss {records[0]['loss']:.5g}")
    assert last == "end training 'small' after epoch 1"
    assert mine[1].numbers["loss"] == records[0]["loss"]
    assert {record.levelno for record in mine} == {logging.INFO}


def test_levels_of_python_logging(caplog):
    with caplog.at_level(logging.WARNING, logger="mine"):
        trainer().fit((X, Y), epochs=1, batch_size=10, callbacks=[gk.PythonLogger("mine", "DEBUG")])
    assert not [record for record in caplog.records if record.name == "mine"]
    with pytest.raises(UsageError, match="level must be a number or one of"):
        gk.PythonLogger(level="LOUD")


def test_only_rank_0_writes(tmp_path, caplog):
    other = SimpleNamespace(rank=1, net=SimpleNamespace(name="small"))
    numbers = {
        "epoch": 1, "updates": 10, "loss": 1.0, "learning_rate": 0.1, "resumed": False, "stopped": None,
        "finished": True,
    }  # fmt: skip
    for callback in (gk.CSVLogger(tmp_path / "a.csv"), gk.RunLogger(None), gk.PythonLogger()):
        callback.on_fit_begin(other, numbers)
        callback.on_step_end(other, numbers)
        callback.on_epoch_end(other, numbers)
    assert not list(tmp_path.iterdir())
    assert not [record for record in caplog.records if record.name == "graphkit"]
