"""The folder of a run as it is found: whole, live, damaged, lying."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys

import pytest

from graphkit.errors import UsageError
from graphkit.report import log
from graphkit.report.runs import holder, read_run, read_runs


def test_epochs_and_steps_are_those_of_the_log(run_folder, records):
    lines = [records.step(5, loss=2.0), records.epoch(1, loss=1.5, valid_accuracy=0.5), records.step(15, loss=1.0)]
    run = read_run(run_folder("run", lines))
    assert [dict(r) for r in run.steps] == [{k: v for k, v in line.items() if k != "event"} for line in lines[::2]]
    assert [dict(r) for r in run.epochs] == [{k: v for k, v in lines[1].items() if k != "event"}]
    assert run.notes == ()
    assert run.name == "run"
    assert not run.goes_on


def test_a_line_that_is_being_written_is_left_out(run_folder, records):
    whole = json.dumps(records.epoch(2, loss=1.0))
    for cut in (1, len(whole) // 2, len(whole)):
        run = read_run(run_folder(f"cut{cut}", [records.epoch(1, loss=2.0), whole[:cut]]))
        assert [r["epoch"] for r in run.epochs] == [1]
        assert run.notes == ()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"event": "epoch", "seconds"\n', "line 2"),
        ("[1, 2]\n", "it is not a JSON object with an event"),
        ('{"loss": 1.0}\n', "it is not a JSON object with an event"),
        ('{"event": "epoch", "seconds": 1, "epoch": "one", "updates": 3}\n', "'epoch' is \"one\", not a number"),
        ('{"event": "step", "seconds": 1, "epoch": 1, "updates": NaN}\n', "'updates' is NaN, not a number"),
        ('{"event": "step", "seconds": 1, "epoch": 1, "updates": true}\n', "'updates' is true, not a number"),
        ('{"event": "step", "seconds": 1, "epoch": 1, "updates": 1' + "0" * 400 + "}\n", "too large a number"),
        ('{"event": "step", "seconds": 1, "epoch": 1, "updates": 1' + "0" * 9000 + "}\n", "line 2"),
        ("[" * 100_000 + "\n", "line 2"),
        ("\n", "line 2"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_and_the_others_count(run_folder, records, line, says):
    folder = run_folder("run", [records.epoch(1, loss=2.0), line, records.epoch(2, loss=1.0)])
    run = read_run(folder)
    assert [r["epoch"] for r in run.epochs] == [1, 2]
    (note,) = run.notes
    assert str(folder / "log.jsonl") in note
    assert "skipped line 2, which is damaged" in note
    assert says in note


def test_bytes_that_are_no_text_are_a_damaged_line(run_folder, records):
    folder = run_folder("run", [records.epoch(1, loss=2.0)])
    with (folder / "log.jsonl").open("ab") as file:
        file.write(b'\xff\xfe{"event"\n' + json.dumps(records.epoch(2, loss=1.0)).encode() + b"\n")
    run = read_run(folder)
    assert [r["epoch"] for r in run.epochs] == [1, 2]
    assert "skipped line 2, which is damaged" in run.notes[0]


def test_many_damaged_lines_are_counted(run_folder, records):
    run = read_run(run_folder("run", [*["{\n"] * 1000, records.epoch(1, loss=1.0)]))
    assert len(run.notes) == 6
    assert run.notes[-1].endswith("skipped 995 more damaged lines")


def test_of_a_log_that_grows_only_what_is_new_is_read(run_folder, records, monkeypatch):
    folder = run_folder("run", [records.epoch(1, loss=2.0), "{\n", records.step(11, loss=1.0)])
    logs, seen = {}, []
    event = log._event
    monkeypatch.setattr(log, "_event", lambda line: (seen.append(line), event(line))[1])
    lines = [json.dumps(records.step(12, loss=0.5)) + "\n", json.dumps(records.epoch(2, loss=0.5)) + "\n"]
    (first,) = read_runs([folder], logs=logs)
    with (folder / "log.jsonl").open("a") as file:
        file.write(lines[0] + lines[1][:9])
        file.flush()
        (second,) = read_runs([folder], logs=logs)
        file.write(lines[1][9:] + "[]\n")
    (third,) = read_runs([folder], logs=logs)
    assert len(seen) == 6
    assert [len(r.steps) for r in (first, second, third)] == [1, 2, 2]
    assert [len(r.epochs) for r in (first, second, third)] == [1, 1, 2]
    assert ["line 2" in note or "line 6" in note for note in third.notes] == [True, True]
    assert third == read_run(folder)


@pytest.mark.parametrize("longer", [False, True])
def test_a_log_that_was_replaced_is_read_anew(run_folder, records, longer):
    folder, logs = run_folder("run", [records.epoch(1, loss=2.0), records.step(11, loss=1.0)]), {}
    read_runs([folder], logs=logs)
    lines = [records.epoch(1, loss=3.0), *(records.step(u, loss=4.0) for u in range(11, 20 if longer else 11))]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_runs([folder], logs=logs) == [read_run(folder)]
    assert read_run(folder).epochs[0]["loss"] == 3.0
    (folder / "log.jsonl").unlink()
    assert read_runs([folder], waiting=True, logs=logs)[0].epochs == ()


def test_losses_that_are_not_finite_stay(run_folder, records):
    run = read_run(run_folder("run", [records.step(1, loss=math.nan), records.step(2, loss=-math.inf)]))
    assert math.isnan(run.steps[0]["loss"])
    assert run.steps[1]["loss"] == -math.inf


def test_records_are_in_the_order_of_updates(run_folder, records):
    run = read_run(run_folder("run", [records.step(n, loss=float(n)) for n in (3, 1, 2)]))
    assert [r["updates"] for r in run.steps] == [1, 2, 3]


def test_what_is_no_run_is_refused(tmp_path, run_folder):
    with pytest.raises(UsageError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        read_run(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"is not the folder of a run: it contains no log\.jsonl"):
        read_run(tmp_path / "empty")
    assert read_run(tmp_path / "empty", waiting=True).epochs == ()
    assert read_run(run_folder("begun", [])).epochs == ()


def test_names_tell_folders_apart(run_folder, records, tmp_path):
    for name in ("a/run", "b/run", "b/other"):
        run_folder(name, [records.epoch(1, loss=1.0)])
    folders = [tmp_path / n for n in ("a/run", "b/run", "b/other")]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run", "b/other"]
    assert [run.name for run in read_runs(folders[1:])] == ["run", "other"]
    assert [run.name for run in read_runs([folders[0], folders[0]])] == ["run", "run (2)"]


# --- is it running? ------------------------------------------------------------------------------------


def lock(folder, **held):
    (folder / ".lock").write_text(json.dumps(held))


def test_a_run_goes_on_while_its_process_lives(run_folder, records):
    folder = run_folder("run", [records.epoch(1, loss=1.0)])
    with subprocess.Popen([sys.executable, "-P", "-c", "input()"], stdin=subprocess.PIPE) as process:
        lock(folder, pid=process.pid, host=platform.node(), since=0)
        assert read_run(folder).goes_on
        assert read_run(folder).status == "running: 1 epochs done"
        process.communicate()
    assert not read_run(folder).goes_on


def test_a_process_of_another_machine_counts_as_alive(run_folder, records):
    folder = run_folder("run", [records.epoch(1, loss=1.0)])
    lock(folder, pid=1, host="somewhere else", since=0)
    assert holder(folder) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"pid": -1, "host": ""}', '{"pid": "x", "host": ""}', "["])
def test_a_lock_that_says_nothing_is_none(run_folder, records, text):
    folder = run_folder("run", [records.epoch(1, loss=1.0)])
    (folder / ".lock").write_text(text)
    assert holder(folder) is None


def test_a_number_that_no_process_has_is_nobody(run_folder, records):
    folder = run_folder("run", [records.epoch(1, loss=1.0)])
    lock(folder, pid=10**30, host=platform.node(), since=0)
    assert holder(folder) is None


def test_the_lock_of_training_is_left_alone(run_folder, records):
    from graphkit.train.run_folder import RunFolder

    folder = run_folder("run", [records.epoch(1, loss=1.0)])
    with RunFolder(folder):
        assert holder(folder) == os.getpid()
        with pytest.raises(UsageError, match="trains into this folder"):
            RunFolder(folder).__enter__()
    assert holder(folder) is None


# --- settings -----------------------------------------------------------------------------------------


def test_settings_are_those_of_the_config(run_folder, records):
    text = 'seed = 3\nfree = false\n[optimizer]\ntype = "adam"\nbetas = [0.9, 0.99]\n[versions]\nnumpy = "2.4"\n'
    run = read_run(run_folder("run", [records.epoch(1, loss=1.0)], config_toml=text))
    assert dict(run.settings) == {
        "seed": "3", "free": "false", "optimizer.type": "adam", "optimizer.betas": "0.9, 0.99",
        "versions.numpy": "2.4",
    }  # fmt: skip


def test_versions_are_those_of_the_last_call(run_folder, records):
    calls = [
        {"command": ["graphkit", "train", "a b.json"], "versions": {"numpy": "2.3"}, "git": None},
        {"command": ["graphkit", "train", "-o", "a b"], "versions": {"numpy": "2.4"}, "git": {"commit": "ab12"}},
    ]
    record = json.dumps({"calls": calls})
    run = read_run(run_folder("run", [records.epoch(1, loss=1.0)], config_toml="seed = 3", run_json=record))
    assert dict(run.settings) == {
        "seed": "3", "command": "graphkit train -o 'a b'", "versions.numpy": "2.4", "git.commit": "ab12",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"calls": []}', '{"calls": [3]}', '{"calls": 1}', "[" * 100_000])
def test_a_damaged_record_is_named(run_folder, records, text):
    folder = run_folder("run", [records.epoch(1, loss=1.0)], run_json=text)
    (note,) = read_run(folder).notes
    assert str(folder / "run.json") in note


@pytest.mark.parametrize("text", ["seed = = 3", "a = [" + "[" * 10_000])
def test_a_damaged_config_is_named(run_folder, records, text):
    folder = run_folder("run", [records.epoch(1, loss=1.0)], config_toml=text)
    run = read_run(folder)
    assert dict(run.settings) == {}
    assert str(folder / "config.toml") in run.notes[0]


def test_without_a_config_the_checkpoint_tells(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("config.toml", "run.json"))
    run = read_run(tmp_path / "run")
    assert run.settings["optimizer.type"] == "sgd"
    assert run.settings["train.data_spec"] == "digits"
    assert run.planned == 3
    assert run.status == "finished: 3 epochs"


def test_a_damaged_checkpoint_is_named(run_folder, records):
    folder = run_folder("run", [records.epoch(1, loss=1.0)], checkpoint_json='{"format": "graphkit-checkpoint"')
    run = read_run(folder)
    assert str(folder / "checkpoint.json") in run.notes[0]
    assert run.planned is None


def test_a_run_that_was_stopped_says_why(run_folder, records):
    lines = [records.epoch(1, loss=1.0), {"event": "stopped", "seconds": 2, "epoch": 1, "reason": "no gain"}]
    assert read_run(run_folder("run", lines)).status == "stopped after 1 epoch: no gain"
    assert read_run(run_folder("on", [*lines, records.epoch(2, loss=1.0)])).stopped is None
