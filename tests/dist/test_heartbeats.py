"""Processes that stop, stall or die: the others do not wait forever, and report the process they waited for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clocks import wait_until
from combinations import in_one_item
from job_server import command
from jobs import FAILED, TRAINER, finish, start

import graphkit as gk
from graphkit import config
from graphkit.cli._processes import run_job
from graphkit.dist.hosts.groups import Host
from graphkit.dist.hosts.heartbeats import ENDED, HeartbeatBoard, HeartbeatMonitor
from graphkit.dist.job import launch
from graphkit.errors import UsageError

# --- the signs, in one process ------------------------------------------------------------------------


@pytest.fixture
def watches(clock):
    """`watches(count)`: make monitors on one board, as if each were in its own process."""
    made = []

    def make(count, timeout=0.2):
        path = HeartbeatBoard.create(count)
        ranks = range(10, 10 + count)
        made.extend(HeartbeatMonitor(HeartbeatBoard(path, count), ranks, number, timeout) for number in range(count))
        Path(path).unlink()
        return made

    yield make
    for watch in made:
        watch.end()


def test_who_waits_for_one_that_goes_on_has_hope(watches, clock):
    one, two = watches(2)
    with one.for_progress, two.working():
        clock.forward(0.6, progress=(one, two))
        assert one.lost() is None


def test_who_stalls_is_named_with_the_place_where_it_was_seen(watches, clock):
    one, two = watches(2)
    two.doing(b"sum 'loss'", 7)
    with one.for_progress:
        assert one.lost() is None
        clock.forward(10, alive=(two,), progress=(one,))
        reason = one.lost()
    assert re.search(r"^rank 11 on .* made no progress for 10 s; it was last seen in step 7, after sum 'loss'", reason)


def test_code_of_the_user_that_does_not_return_is_named(watches, clock):
    """This holds inside of `working`, too. Calls of graphkit from the user's code count as work again."""
    one, two = watches(2)
    with one.for_progress, two.working(), two.running("callback mine.on_epoch_end", 7):
        with two.working():
            assert two.is_working
        assert not two.is_working
        clock.forward(10, alive=(two,), progress=(one,))
        reason = one.lost()
    assert re.search(r"made no progress for 10 s; it was last seen in step 7, in callback mine\.on_epoch_end$", reason)
    with two.working():
        with two.running("callback mine.on_epoch_end", 7):
            assert not two.is_working
        assert two.is_working
    with one.for_progress:
        clock.forward(10, alive=(two,), progress=(one,))
        assert one.lost().endswith("in step 7, after callback mine.on_epoch_end")


def test_who_waits_is_not_the_one_that_is_waited_for(watches, clock):
    one, two, three = watches(3)
    with one.for_progress, two.for_progress:
        clock.forward(0.6, alive=(three,), progress=(one, two))
        for waiting in (one, two):
            assert "rank 12" in waiting.lost()
            assert "rank 10" not in waiting.lost()
            assert "rank 11" not in waiting.lost()
    assert three.lost() is None


def test_at_the_end_only_life_counts(watches, clock):
    one, two = watches(2)
    with one.for_heartbeats:
        clock.forward(0.6, alive=(one, two))
        assert one.lost() is None  # the other may have work of its own to do
        two._ended.set()
        two._thread.join()
        clock.forward(0.5, alive=(one,))
        assert "no heartbeat" in one.lost()
    two.end()
    with one.for_progress:
        clock.forward(0.5, progress=(one,))
        assert one.lost() is None  # it has ended in order


def test_who_is_excused_is_not_given_up_nor_the_host_that_it_spoke_for(watches, clock):
    one, two, three = watches(3)
    assert one.process_of(11) == os.getpid()
    assert one.process_of(99) is None
    two._ended.set()
    two._thread.join()
    with one.for_progress, three.for_progress:
        clock.forward(0.5, progress=(one, three))
        assert "rank 11" in one.lost()
        one.exclude(11)
        assert "rank 11" not in one.lost()
        assert "rank 11" in three.lost()
    path = HeartbeatBoard.create(3, 2)
    far = HeartbeatMonitor(HeartbeatBoard(path, 3, 2), range(3), 0, 0.2, (Host("a", (0,)), Host("b", (1, 2))))
    Path(path).unlink()
    far._board.slots["state"] = 1
    with far.for_progress:
        clock.forward(0.5, progress=(far,))
        assert "host b (ranks 1, 2) has sent no heartbeat" in far.lost()
        far.exclude(2)
        assert "host b" in far.lost()
        far.exclude(1)
        assert far.lost() is None
    far.end()


def test_who_is_stopped_ends_with_its_job(watches, clock):
    """If the launcher does not end processes, silent processes of the host are killed, and no others."""
    one, two, three = watches(3)
    children = [subprocess.Popen([sys.executable, "-P", "-c", "import time; time.sleep(100)"]) for _ in range(2)]
    try:
        for watch, child in zip((two, three), children, strict=True):
            watch._process = child.pid
            watch.doing(b"", 0)
        two._ended.set()
        two._thread.join()
        clock.forward(0.4, alive=(one, three))
        one.end_silent()
        assert children[0].wait(60) == -signal.SIGKILL
        assert children[1].poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()


def both_wait(one, two, clock, *others):
    """Two ranks make no progress for 10 s; the others do."""
    one.doing(b"sum of loss", 3)
    two.doing(b"gather bucket 0", 3)
    clock.forward(10, waits=(one, two), progress=others)


def test_ranks_that_all_wait_are_named_with_their_calls(watches, clock):
    one, two = watches(2)
    with one.for_progress, two.for_progress:
        both_wait(one, two, clock)
        for watch in (one, two):
            assert re.fullmatch(
                r"all ranks wait for each other: rank 10 on \S+ \(process \d+\) for 10 s in step 3, at sum of loss; "
                r"rank 11 on \S+ \(process \d+\) for 10 s in step 3, at gather bucket 0",
                watch.lost(),
            )


def test_ranks_that_wait_have_hope_while_one_goes_on(watches, clock):
    one, two, three = watches(3)
    with one.for_progress, two.for_progress:
        with three.working():
            both_wait(one, two, clock, three)
            assert one.lost() is None
        with three.for_heartbeats:  # it waits as well, from now on
            clock.forward(0.1, waits=(one, two, three))
            assert one.lost() is None
            clock.forward(0.3, waits=(one, two, three))
            assert "rank 12" in one.lost()
            three.made_progress()
            clock.forward(0.1, waits=(three,))
            assert one.lost() is None


def test_work_inside_of_a_wait_is_no_waiting(watches, clock):
    one, two = watches(2)
    with one.working(), two.working(), one.for_progress, two.for_progress:  # a step, which waits for its sums
        with two.working():  # what becomes of a sum
            both_wait(one, two, clock)
            assert one.lost() is None
        both_wait(one, two, clock)
        assert "all ranks wait" in one.lost()


def test_ranks_wait_not_for_those_who_have_ended_or_not_begun(watches, clock):
    one, two = watches(2)
    with one.for_progress, two.for_progress:
        both_wait(one, two, clock)
        for there in (0, ENDED):
            one._board.slots["state"][1] = there
            assert one.lost() is None


@in_one_item()
@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_timeouts_that_are_none(monkeypatch, text):
    monkeypatch.setenv(config.RANK_TIMEOUT.name, text)
    with pytest.raises(UsageError, match="GRAPHKIT_RANK_TIMEOUT"):
        config.RANK_TIMEOUT.get()


# --- jobs ---------------------------------------------------------------------------------------------

CALLS = """
import os, signal, time
def act(how):
    if how == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if how == "stall": time.sleep(1000)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
"""


def failing(how: str, where: str = "") -> str:
    return f"{CALLS}\nsteps(3)\nif kv.rank == 1:\n    {where or f'act({how!r})'}\nsteps(2)"


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setenv(config.RANK_TIMEOUT.name, "2")


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "ranks"),
    [("stop", 2), pytest.param("stop", 3, marks=pytest.mark.full), pytest.param("stall", 3, marks=pytest.mark.full)],
)
def test_a_rank_that_does_not_come_ends_the_job(soon, how, ranks):
    status, _, errors = finish(start(ranks, failing(how)))
    assert status in FAILED
    what = "has sent no heartbeat" if how == "stop" else "has made no progress"
    # The first of them to see it ends the other.
    assert re.search(rf"graphkit: rank [02]: rank 1 on \S+ \(process \d+\) {what} for \d+ s; .* in step 3", errors)


@pytest.mark.full
def test_a_callback_that_never_returns_ends_the_job(soon):
    code = """
        class Mine(gk.Callback):
            def on_epoch_end(self, trainer, numbers):
                if kv.rank == 1:
                    time.sleep(600)
        x, y = np.ones((32, 3), np.float32), np.zeros((32, 2), np.float32)
        trainer.fit((x, y), epochs=2, batch_size=8, callbacks=[Mine()], progress=False)
    """
    status, _, errors = finish(start(2, code, TRAINER))
    assert status in FAILED
    seen = r"has made no progress for \d+ s; it was last seen in step 2, in callback \w+\.on_epoch_end"
    assert re.search(rf"graphkit: rank 0: rank 1 on \S+ \(process \d+\) {seen}", errors), errors


@pytest.mark.full
def test_a_rank_that_stops_inside_of_a_collective_ends_the_job(soon):
    where = "kv.transport.communicator.allreduce = lambda *_: act('stop')"
    status, _, errors = finish(start(2, failing("stop", where), TRAINER))
    assert status in FAILED
    assert re.search(r"graphkit: rank 0: rank 1 .* no heartbeat", errors)


@pytest.mark.full
def test_a_rank_that_is_killed_ends_the_job(soon):
    status, _, _ = finish(start(2, failing("kill")))
    assert status != 0


@pytest.mark.full
def test_a_rank_that_works_for_long_is_waited_for(soon):
    where = "with kv.working():\n        time.sleep(5)"
    status, _, errors = finish(start(2, failing("", where)))
    assert (status, errors) == (0, "")


EXPECTS = """
from graphkit.dist.wire.messages import Kind
steps(1)
arrival = kv.transport.messages.expect(1 - kv.rank, [Kind(np.dtype(np.float32), 1)])
kv.transport.messages.receive(arrival, f"the value of group {kv.rank}")
"""


@pytest.mark.full
def test_ranks_that_all_wait_end_the_job(soon):
    """Each waits for a message of the other one that is never sent."""
    status, _, errors = finish(start(2, EXPECTS))
    assert status in FAILED
    assert re.search(
        r"all ranks wait for each other: rank 0 on \S+ \(process \d+\) for \d+ s in step 1, at the value of group 0 of "
        r"rank 1; rank 1 on \S+ \(process \d+\) for \d+ s in step 1, at the value of group 1 of rank 0",
        errors,
    )


@pytest.mark.full
def test_ranks_wait_for_one_that_computes_for_long(soon):
    """Its work is within a step, and then within an updater, for three timeouts each."""
    code = """
    steps(1)
    kv.init("w", np.zeros(2))
    if kv.rank:
        with kv.working():
            time.sleep(6)
    steps(1)
    kv.set_updater(lambda key, total, stored: time.sleep(6))
    kv.push("w", np.ones(2))
    kv.pull("w")
    """
    status, _, errors = finish(start(2, code))
    assert (status, errors) == (0, "")


@pytest.mark.full
def test_no_process_is_left(soon):
    says = r"import os; print(f'process {os.getpid()}\n', end='', flush=True)"
    status, out, _ = finish(start(2, f"{says}\n{failing('stop')}"))
    assert status in FAILED
    processes = [int(n) for n in re.findall(r"process (\d+)", out)]
    assert len(processes) == 2
    wait_until(lambda: not any(Path(f"/proc/{p}").exists() for p in processes), "all processes have ended")


# --- resuming -----------------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path):
    x = gk.input("x", ["N", 6])
    gk.Model(gk.nn.linear(gk.tanh(gk.nn.linear(x, 8, name="a")), 3, name="b"), seed=0).save(tmp_path / "net.json")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((64, 6), np.float32), y=rng.integers(0, 3, 64))
    return tmp_path


def arguments(network, out):
    """Return the arguments of a training of five epochs."""
    return [
        "train", str(network / "net.json"), "--data", str(network / "data.npz"), "--epochs", "5", "--batch-size", "8",
        "--threads", "1", "--kvstore", "dist_sync", "-o", str(out),
    ]  # fmt: skip


def train(network, out, *further):
    given = [sys.executable, "-P", "-m", "graphkit", *arguments(network, out), "--processes", "2", *further]
    return subprocess.run(given, capture_output=True, text=True, timeout=300, check=False)


def killed_once(network, monkeypatch):
    """From now on rank 1 of a job is killed in its sixth step, the first time."""
    hook = network / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'graphkit' in ' '.join(sys.orig_argv) and '--epochs' in sys.orig_argv:\n"
        "    import threading\n"
        + "\n".join(f"    {line}" for line in GUARD.format(mark=str(network / "mark")).splitlines())
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))


# Patched when the trainer is imported: a hook of the interpreter's start may not import graphkit itself.
GUARD = """
import importlib.abc, importlib.util, os, signal
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "graphkit.train.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            step, count = module.Trainer._step, [0]
            def dying(trainer, *args, **options):
                count[0] += 1
                if trainer.kvstore.rank == 1 and count[0] == 6 and not os.path.exists({mark!r}):
                    open({mark!r}, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(trainer, *args, **options)
            module.Trainer._step = dying
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.full
def test_a_job_goes_on_from_its_last_checkpoint(jobs, network, monkeypatch):
    jobs.run(command(*arguments(network, network / "whole")))
    killed_once(network, monkeypatch)
    done = train(network, network / "run", "--max-restarts", "1")
    assert done.returncode == 0, done.stderr
    assert "restarting it from its last checkpoint (restarts left: 0)" in done.stderr
    assert (network / "mark").exists()
    expected, found = gk.load(network / "whole"), gk.load(network / "run")
    for name, array in expected.params.items():
        np.testing.assert_array_equal(found.params[name], array)
    epochs = [json.loads(line)["epoch"] for line in (network / "run" / "log.jsonl").read_text().splitlines()]
    assert epochs == sorted(set(epochs))


@pytest.mark.full
def test_without_restarts_a_killed_rank_is_a_failure_and_its_checkpoint_is_whole(network, monkeypatch):
    killed_once(network, monkeypatch)
    done = train(network, network / "run")
    assert done.returncode == 5
    assert re.search(rf"graphkit: rank 1 on .* was killed, or .* \({signal.SIGKILL.name}\)", done.stderr)
    gk.load(network / "run")


@pytest.mark.parametrize("began", [False, True])
def test_a_run_that_was_to_be_replaced_is_not_gone_on_with(network, monkeypatch, began):
    """The first job dies, before the old run is out of the folder or after the new one is in it."""

    def train_alone():
        trainer = gk.Trainer(gk.load(network / "net.json"))
        trainer.fit((np.zeros((8, 6), np.float32), np.zeros(8, np.int64)), folder=network / "run", overwrite=True)

    train_alone()
    calls = []

    def run_processes(processes, arguments, survives):
        calls.append(arguments)
        if began:
            train_alone()
        return 5 if len(calls) == 1 else 0

    monkeypatch.setattr(launch, "run_processes", run_processes)
    given = ["train", "net.json", "-o", "run", "--overwrite"]
    assert run_job(2, given, str(network / "run"), 1) == 0
    assert calls == [given, [*given[:-1], "--resume"] if began else given]


def test_restarts_are_of_jobs_that_are_started_here(network):
    done = subprocess.run(
        [launch.find_mpiexec(), "-n", "1", sys.executable, "-P", "-m", "graphkit", "train", "net.json", "--data",
         "digits", "--kvstore", "dist_sync", "--max-restarts", "2"],
        capture_output=True, text=True, timeout=300, check=False, cwd=network,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--max-restarts needs --processes" in done.stderr
