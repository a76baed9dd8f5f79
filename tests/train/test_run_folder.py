"""A folder contains one run, and one process at a time writes to it."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure, UsageError
from graphkit.train import run_folder
from graphkit.train.run_folder import LOCK, RunFolder


def data():
    rng = np.random.default_rng(5)
    return rng.standard_normal((40, 6), np.float32), rng.integers(0, 3, 40)


def trainer():
    x = gk.input("x", ["N", 6])
    return gk.Trainer(gk.Model({"logits": gk.nn.linear(x, 3, name="fc")}, seed=0), threads=1)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


HOLDER = """
    import sys, time
    from graphkit.train.run_folder import RunFolder
    with RunFolder(sys.argv[1]):
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the folder."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(HOLDER), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline().strip() == "held"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_two_processes_do_not_train_into_one_folder(tmp_path, holder, monkeypatch):
    before = set(contents(tmp_path))
    with pytest.raises(UsageError, match=f"process {holder.pid} on .* trains into this folder"):
        trainer().fit(data(), folder=tmp_path)
    monkeypatch.setattr("graphkit.train.saving._PATIENCE", 0.05)
    with pytest.raises(UsageError, match="trains into this folder"):
        trainer().save(tmp_path)
    assert set(contents(tmp_path)) == before
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    trainer().fit(data(), folder=tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_waits_for_a_folder_to_be_released(tmp_path):
    held = contextlib.ExitStack()
    held.enter_context(RunFolder(tmp_path))
    release = threading.Timer(0.1, held.close)
    release.start()
    with RunFolder(tmp_path, patience=60.0):
        pass
    release.join()


def test_two_trainers_do_not_share_a_folder(tmp_path):
    first = trainer()
    metric = type("Rival", (), {
        "name": "rival", "reset": lambda self: None, "value": 0.0, "state": dict, "restore": lambda self, state: None,
        "update": lambda self, output, target: trainer().fit(data(), folder=tmp_path),
    })()  # fmt: skip
    with pytest.raises(UsageError, match=f"process {os.getpid()} on"):
        first.fit(data(), folder=tmp_path, metrics=[metric])


def test_lock_is_taken_after_its_owner_removes_it(tmp_path, monkeypatch):
    """The lock file is removed between opening and locking."""
    gone = []
    lock = run_folder.try_lock

    def late(descriptor):
        if not gone:
            gone.append((tmp_path / LOCK).unlink())
        return lock(descriptor)

    monkeypatch.setattr(run_folder, "try_lock", late)
    with RunFolder(tmp_path), pytest.raises(UsageError), RunFolder(tmp_path):
        pass
    assert gone


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "try_lock", lambda descriptor: None)
    with pytest.warns(UserWarning, match="has no locks"), RunFolder(tmp_path):
        pass


def test_lock_is_released_if_disk_is_full(tmp_path, monkeypatch):
    def full(descriptor, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(RuntimeFailure, match="No space left on device"), RunFolder(tmp_path):
            pass
    with RunFolder(tmp_path):
        pass


@in_one_item()
@pytest.mark.parametrize("held", ["run", "model", "damaged"])
def test_another_run_is_refused(tmp_path, held):
    if held == "model":
        trainer().net.save(tmp_path / "model.json")
    else:
        trainer().fit(data(), epochs=2, folder=tmp_path)
    if held == "damaged":
        (tmp_path / "checkpoint.json").write_text("{")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"already contains a run .*--resume.*--overwrite"):
        trainer().fit(data(), folder=tmp_path)
    assert contents(tmp_path) == before
    other = trainer()
    other.fit(data(), folder=tmp_path, overwrite=True)
    assert [json.loads(line)["epoch"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1]
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    # The same run can continue, in this process and in another one.
    other.fit(data(), folder=tmp_path)
    resumed = trainer()
    resumed.resume(tmp_path)
    resumed.fit(data(), folder=tmp_path, epochs=2)  # the second call
    assert [json.loads(line)["epoch"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_leftover_files_of_killed_process_are_removed(tmp_path):
    found = trainer()
    found.save(tmp_path)
    leftovers = [
        ".state.safetensors.0123456789ab.graphkit.tmp", ".checkpoint.json.0123456789ab.graphkit.tmp",
        ".model.json.0123456789ab.graphkit.tmp", ".model.safetensors.0123456789ab.graphkit.tmp",
        "state.0123456789abcdef.safetensors", "model.0123456789abcdef.safetensors",
    ]  # fmt: skip
    others = [".model.json.swp", "notes.tmp", ".a.tmp"]
    for name in leftovers + others:
        (tmp_path / name).write_text("half")
    found.save(tmp_path)
    left = set(contents(tmp_path))
    assert not left & set(leftovers)
    assert set(others) <= left


def test_folders_that_stay_empty_are_removed(tmp_path):
    with RunFolder(tmp_path / "runs" / "one"):
        assert (tmp_path / "runs" / "one" / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with RunFolder(tmp_path / "mine"), RunFolder(tmp_path / "kept" / "two") as folder:
        (folder.path / "log.jsonl").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "mine"]
