"""Errors in workers, and lost workers: the error names the sample, comes in order, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from combinations import full

import graphkit as gk
from graphkit.data import MapDataset, Workers
from graphkit.data.workers import crew
from graphkit.errors import InputError, OutOfMemory, UsageError, WorkerError

SETS = Path(__file__).parent / "sets"


def until_it_fails(batches, kind):
    seen = []
    try:
        for batch in batches:
            seen += batch.inputs[:, 0].tolist()
    except kind as error:
        return seen, error
    pytest.fail("there is no error")


# Seconds in which a worker that does not hang makes progress, even if other programs run.
TIMEOUT = 2.0
HUNG = f"was ended, because it made no progress for {TIMEOUT:g} s (GRAPHKIT_WORKER_TIMEOUT), in sample 13 of harmful"


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("harm", "kind", "message"),
    [
        ("value", WorkerError, "harmful: sample 13: ValueError: odd sum"),
        full("graphkit", InputError, "no such key"),
        ("memory", OutOfMemory, "harmful: sample 13: MemoryError: 4 PB"),
        full("unpickled", WorkerError, "harmful: sample 13: made_by_workers.Unpickled: two parts"),
        full("exit", WorkerError, "harmful: sample 13: SystemExit: 4"),
        ("killed", WorkerError, "was ended by SIGKILL, in sample 13 of harmful"),
        full("gone", WorkerError, "has ended with the exit code 3, in sample 13 of harmful"),
        ("hang", WorkerError, HUNG),
        full("hold", WorkerError, HUNG),
    ],
    ids=["value", "graphkit", "memory", "unpickled", "exit", "killed", "gone", "hang", "hold"],
)
def test_an_error_comes_in_its_place(sets, gone, count, harm, kind, message):
    found = sets.Harmful(40, 13, harm)
    with Workers(count, timeout=TIMEOUT if harm in ("hang", "hold") else None) as workers:
        batches = iter(found.batches(3, shuffle=False, workers=workers))
        assert next(batches).inputs[:, 0].tolist() == [0, 1, 2]
        pids = workers.pids
        seen, error = until_it_fails(batches, kind)
        assert seen == list(range(3, 12)), "all that was before comes, and nothing behind"
        assert message in str(error)
        assert len(pids) == count
        assert not workers.pids
        assert gone(pids)
        # A later iteration starts new workers.
        whole = sets.Harmful(6, 99, harm)
        assert [len(b.inputs) for b in whole.batches(3, workers=workers)] == [3, 3]
    notes = "\n".join(error.__notes__) if harm in ("value", "graphkit", "memory", "exit") else ""
    if harm == "value":
        assert isinstance(error.__cause__, ValueError)
        assert "HARM[self.harm]()" in notes, "the lines of the worker"
    if harm == "graphkit":
        assert "in harmful: sample 13, made by worker process" in notes


def test_a_batch_that_nobody_wants_harms_no_other(sets):
    """A worker dies while it makes such a batch. Others make its remaining batches."""
    found = sets.Harmful(40, 13, "killed")
    with Workers(3, ahead=6) as workers:
        next(iter(found.batches(3, shuffle=False, workers=workers)))
        seen, error = until_it_fails(found.batches(3, shuffle=False, start=1, workers=workers), WorkerError)
    assert seen == list(range(3, 12))
    assert "in sample 13 of harmful" in str(error)


def test_a_worker_that_ends_between_batches(sets, gone):
    found = sets.Plain(40, np.arange(40))
    with Workers(2, ahead=1) as workers:
        batches = iter(found.batches(4, workers=workers))
        next(batches)
        time.sleep(0.3)
        killed = workers.pids[1]
        os.kill(killed, signal.SIGKILL)
        assert gone([killed])
        with pytest.raises(WorkerError, match="was ended by SIGKILL"):
            list(batches)
        assert len(list(found.batches(4, workers=workers))) == 10
        # All of them, of somebody who comes back later.
        pids = workers.pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert gone(pids)
        with pytest.raises(WorkerError, match="was ended by SIGKILL, between samples"):
            list(found.batches(4, workers=workers))
        assert len(list(found.batches(4, workers=workers))) == 10


def test_closing_does_not_wait_for_samples(sets, tmp_path, gone):
    told = []
    slow = sets.Told(40, tmp_path, slow=3)
    workers = Workers(2, ahead=4)
    next(iter(slow.batches(1, shuffle=False, workers=workers)))
    batches = iter(slow.batches(1, shuffle=False, start=3, workers=workers))
    thread = threading.Thread(target=lambda: told.append(until_it_fails(batches, WorkerError)))
    thread.start()
    wait_for(lambda: [*tmp_path.glob("*.bad")])
    pids = workers.pids
    workers.close()
    thread.join()
    assert "the worker processes have ended" in str(told[0][1])
    assert gone(pids), "a sample that takes an hour ends with them"


def in_time(work):
    """Return the result of `work`, which runs in a thread with a time limit."""
    done = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(120)
    assert done, "it hangs, or has failed"
    return done[0]


@pytest.fixture
def narrow(monkeypatch):
    """Limit the socket buffers between two processes to some kilobytes."""
    made = socket.socketpair

    def pair():
        found = made()
        for end in found:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return found

    monkeypatch.setattr(socket, "socketpair", pair)


def test_both_sides_may_have_much_to_say(sets, narrow):
    """A large batch is sent to a worker while the worker reports many damaged samples."""
    found = sets.Rusty(6000, set(range(0, 6000, 10))).configured(on_damaged="skip")
    with Workers(1) as workers, pytest.warns(gk.errors.GraphkitWarning, match="photos"):
        sizes = in_time(lambda: [len(b.inputs) for b in found.batches(2000, shuffle=False, workers=workers)])
    assert sizes == [2000] * 3


@pytest.mark.full
def test_a_worker_that_hangs_is_found_whatever_is_on_its_way_to_it(sets, narrow):
    found = sets.Harmful(6000, 13, "hang")
    with Workers(1, timeout=TIMEOUT) as workers:
        seen, error = in_time(lambda: until_it_fails(found.batches(2000, shuffle=False, workers=workers), WorkerError))
    assert seen == []
    assert HUNG in str(error)


@pytest.mark.full
def test_a_worker_that_hangs_outside_of_samples(sets, monkeypatch, gone):
    monkeypatch.setattr(crew, "_LEAST", TIMEOUT)
    found = sets.Reluctant(8)
    with Workers(2, timeout=0.2) as workers:
        workers.start()
        pids = workers.pids
        _, error = in_time(lambda: until_it_fails(found.batches(2, workers=workers), WorkerError))
        assert "was ended, because it made no progress for 2 s (GRAPHKIT_WORKER_TIMEOUT), between samples" in str(error)
        assert gone(pids)


def test_descriptors_of_any_number(sets, many_descriptors):
    """Workers inherit file descriptors. Some system calls only accept numbers below 1024."""
    batches = list(sets.Plain(8, np.arange(8)).batches(4, shuffle=False, workers=1))
    assert [b.inputs[:, 0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_pythons_import_passes_over(sets, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, 3, Path("elsewhere")])
    assert len(in_time(lambda: list(sets.Plain(8, np.arange(8)).batches(4, workers=1)))) == 2


@pytest.mark.parametrize(
    ("error", "kind"), [(OSError("no more processes"), WorkerError), (ValueError("embedded null byte"), ValueError)]
)
def test_processes_that_cannot_be_started(sets, monkeypatch, error, kind):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "Popen", fails)

    def work():
        with pytest.raises(kind, match=str(error)):
            Workers(1).start()
        return True

    assert in_time(work)


def test_data_that_cannot_be_sent(sets):
    found = MapDataset(sets.Mapped(8, extra=lambda: 0), ("x",))
    with pytest.raises(UsageError, match=r"Mapped cannot be sent to worker processes.*pickled.*workers=0"):
        next(iter(found.batches(2, workers=1)))
    with pytest.raises(UsageError, match="cannot be pickled"):
        next(iter(MapDataset(sets.Mapped(8, extra=threading.Lock())).batches(2, workers=1)))
    data = MapDataset(sets.Mapped(8), ("x",))
    assert next(iter(data.batches(2, shuffle=False, workers=1))).inputs.shape == (2, 6)


def test_what_a_worker_cannot_find(sets, monkeypatch):
    found = sets.Plain(8, np.arange(8))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(SETS)])
    with pytest.raises(WorkerError, match=r"in a worker process: ModuleNotFoundError: .*made_by_workers"):
        next(iter(found.batches(2, workers=1)))


def test_no_memory(sets, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    found = sets.Heavy(8)
    with Workers(1) as workers:
        workers.start()
        resource.prlimit(workers.pids[0], resource.RLIMIT_FSIZE, (1 << 20, hard))
        ctypes.CDLL(None)
        with pytest.raises((OutOfMemory, WorkerError), match=r"cannot allocate 4,194,304 bytes|SIGXFSZ"):
            next(iter(found.batches(4, workers=workers)))
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (soft, hard)


# --- scripts --------------------------------------------------------------------------------------------


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, "-P", str(path)]


SCRIPT = """
    import os, sys, time
    sys.path.append({sets!r})
    import numpy as np
    import graphkit as gk

    class Own(gk.data.LazyDataset):
        def sample(self, number, draw):
            return np.arange(6, dtype=np.float32) + number, number % 3

    def trainer():
        x = gk.input("x", ["N", 6])
        return gk.Trainer(gk.Model({{"logits": gk.nn.linear(x, 3, name="fc")}}, seed=0), seed=3, threads=1)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "uses",
    [
        "float(sum(b.inputs.sum() for b in Own(20).batches(4, workers=workers)))",
        pytest.param("trainer().fit(Own(20), batch_size=4, workers=workers)[0]['loss']", marks=pytest.mark.full),
    ],
    ids=["batches", "training"],
)
def test_classes_of_the_script(tmp_path, uses):
    begin = SCRIPT.format(sets=str(SETS))
    guarded = (
        begin
        + f"""
    if __name__ == "__main__":
        for workers in (0, 2):
            print({uses})
    """
    )
    done = subprocess.run(script(tmp_path, guarded), capture_output=True, text=True, timeout=300, check=True)
    first, second = done.stdout.split()
    assert first == second
    unguarded = (
        begin
        + f"""
    workers = 2
    print({uses})
    """
    )
    done = subprocess.run(script(tmp_path, unguarded), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "UsageError: a worker process tried to start worker processes" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    session = [sys.executable, "-P", "-c", textwrap.dedent(unguarded)]
    done = subprocess.run(session, capture_output=True, text=True, timeout=300, check=False)
    assert "they cannot import its class from an interactive session" in done.stderr


KILLED = """
    from made_by_workers import Told

    if __name__ == "__main__":
        workers = gk.data.Workers(2)
        workers.start()
        print(*workers.pids, flush=True)
        trainer().fit(Told(400, {folder!r}, {slow}, {harm!r}), batch_size=2, workers=workers, epochs=1000)
"""


@pytest.mark.parametrize(
    "moment", ["running", *(pytest.param(m, marks=pytest.mark.full) for m in ("start", "idle", "hang", "hold"))]
)
def test_nothing_outlives_the_process_that_trains(tmp_path, gone, moment):
    folder = tmp_path / "told"
    folder.mkdir()
    slow, harm = (100, moment) if moment in ("hang", "hold") else (10**9, "hang")
    text = (SCRIPT + KILLED).format(sets=str(SETS), folder=str(folder), slow=slow, harm=harm)
    if moment == "idle":
        text = text.replace("    trainer().fit", "    time.sleep(600)  #")
    trainer = subprocess.Popen(script(tmp_path, text), stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2
    if moment == "running":
        wait_for(lambda: len({path.suffix for path in folder.iterdir()}) == 2)
    if moment in ("hang", "hold"):
        wait_for(lambda: [*folder.glob("*.bad")])
        time.sleep(0.2)
    trainer.kill()
    assert trainer.wait() == -signal.SIGKILL
    trainer.stdout.close()
    assert gone(pids)


def wait_for(condition):
    # Count the attempts instead of reading the clock, because the machine may be suspended.
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it does not come to that")


@pytest.mark.full
def test_an_interrupt_is_for_the_process_that_trains(tmp_path, gone):
    """As a terminal sends it: to all of the group."""
    folder = tmp_path / "told"
    folder.mkdir()
    text = (SCRIPT + KILLED).format(sets=str(SETS), folder=str(folder), slow=10**9, harm="hang")
    text = text.replace("workers=workers", f"workers=workers, folder={str(tmp_path / 'run')!r}")
    trainer = subprocess.Popen(
        script(tmp_path, text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    wait_for(lambda: (tmp_path / "run" / "checkpoint.json").exists())
    assert not gone_now(pids)
    os.killpg(trainer.pid, signal.SIGINT)
    _, error = trainer.communicate(timeout=300)
    assert trainer.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in error
    assert "contains a checkpoint of this position" in error
    assert "WorkerError" not in error
    assert gone(pids)


def gone_now(pids):
    return not all(Path(f"/proc/{pid}").exists() for pid in pids)


FORKED = """
    if __name__ == "__main__":
        data = Own(40)
        with gk.data.Workers(1) as workers:
            batches = iter(data.batches(4, workers=workers))
            next(batches)
            child = os.fork()
            if not child:
                del batches
                workers.close()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(len(list(batches)))
"""


def test_a_forked_process_leaves_the_workers_alone(tmp_path):
    text = (SCRIPT + FORKED).format(sets=str(SETS))
    done = subprocess.run(script(tmp_path, text), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["9"], done.stderr


def test_a_script_that_ends_early(tmp_path):
    """With batches on their way, whether or not anything was closed."""
    text = (
        SCRIPT.format(sets=str(SETS))
        + """
    if __name__ == "__main__":
        data = Own(4000)
        for batch in data.batches(4, workers=2):
            break
        print(*data._pool(2).pids)
        raise SystemExit(7)
    """
    )
    done = subprocess.run(script(tmp_path, text), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    assert all(not Path(f"/proc/{pid}").exists() for pid in done.stdout.split())


def test_a_thread_that_started_them_may_end(sets):
    found = sets.Plain(40, np.arange(40))
    with Workers(2) as workers:
        thread = threading.Thread(target=lambda: next(iter(found.batches(4, workers=workers))))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert len(list(found.batches(4, workers=workers))) == 10
    assert gk.data.Workers is Workers
