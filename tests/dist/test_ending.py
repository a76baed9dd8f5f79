"""How jobs of several processes end: together, or with an error in all of them; never by waiting for ever."""

import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest
from combinations import default_at
from jobs import FAILED, STEPS, TRAINER, finish, start, statuses

from graphkit.dist.job import ending
from graphkit.errors import InputError


def run(processes, code, before=STEPS):
    return finish(start(processes, code, before))


@pytest.mark.full
def test_processes_wait_at_the_end_for_one_that_works_and_forked_children_leave_alone(tmp_path):
    status, out, errors = run(
        2,
        f"""
        import os
        steps(1)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        steps(2)
        if kv.rank == 0:
            time.sleep(1)
            open({str(tmp_path / "written")!r}, "w").close()
        print("over")
        """,
    )
    assert (status, errors) == (0, "")
    assert out.count("over") == 2
    assert (tmp_path / "written").exists()


@pytest.mark.full
def test_processes_wait_at_the_end_for_one_that_saves(tmp_path):
    status, out, errors = run(
        3,
        f"""
        steps(3)
        if kv.rank == 0:
            time.sleep(1)
            trainer.save({str(tmp_path / "run")!r})
            print("saved")
        """,
        TRAINER,
    )
    assert (status, errors) == (0, "")
    assert "saved" in out
    assert (tmp_path / "run" / "checkpoint.json").exists()


@pytest.mark.parametrize(
    ("processes", "before", "loss"),
    [
        (2, STEPS, "'loss'"),
        pytest.param(2, TRAINER, "of loss", marks=pytest.mark.full),
        pytest.param(3, TRAINER, "of loss", marks=pytest.mark.full),
    ],
    ids=["steps-2", "trainer-2", "trainer-3"],
)
def test_uneven_numbers_of_steps_are_an_error_of_all_processes(processes, before, loss):
    status, out, errors = run(processes, "steps(4 if kv.rank == 0 else 2)\nprint('after', kv.rank)", before)
    assert status in FAILED
    assert "after 0" not in out
    others = "rank 1:" if processes == 2 else "ranks 1, 2:"
    message = rf"rank 0: sum {loss} float64\[\d\] in step 3; {others} ended after 2 steps"
    for rank in range(processes):
        assert re.search(f"graphkit: rank {rank}: .*{message}", errors), errors


@pytest.mark.full
def test_a_process_that_takes_no_step_is_named():
    status, _, errors = run(2, "if kv.rank == 0: steps(1)")
    assert status in FAILED
    assert "rank 1: ended after 0 steps" in errors


@pytest.mark.full
def test_other_calls_than_the_others_are_an_error_and_no_number():
    status, out, errors = run(
        2,
        """
        import numpy as np, graphkit as gk
        kv = gk.kvstore.create("dist_sync")
        kv.barrier()
        print(kv.pushpull("a" if kv.rank == 0 else "b", np.ones(2 + kv.rank)))
        """,
        before="",
    )
    assert status in FAILED
    assert out == ""
    assert "rank 0: sum 'a' float64[2] as call 2; rank 1: sum 'b' float64[3] as call 2" in errors


@pytest.mark.full
def test_who_catches_the_error_may_save_but_the_job_fails(tmp_path):
    status, out, _ = run(
        2,
        """
        from graphkit.errors import RuntimeFailure
        try:
            steps(1 + kv.rank)
        except RuntimeFailure:
            print("caught", kv.rank)
            try:
                kv.barrier()
            except RuntimeFailure as error:
                assert "ended after 1 steps" in str(error)
                print("still")
        """,
    )
    assert status in FAILED
    assert "caught 1" in out
    assert "still" in out


@default_at(0)
@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        ("raise gk.errors.InputError('bad sample')", 2, "graphkit: rank 1: bad sample"),
        pytest.param(
            "raise ZeroDivisionError('no')", 5, "graphkit: rank 1: ZeroDivisionError: no", marks=pytest.mark.full
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 143, "rank 1: terminated"),
        pytest.param("sys.exit(3)", 5, "rank 1: ended after 2 steps", marks=pytest.mark.full),
        pytest.param("sys.exit(0)", 5, "rank 1: ended after 2 steps", marks=pytest.mark.full),
    ],
)
def test_a_process_that_fails_ends_the_job(failure, status, message):
    found, _, errors = run(2, f"steps(2)\nif kv.rank == 1:\n    {failure}\nsteps(1)")
    assert message in errors
    assert found in statuses(status)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("bad"), 2),
        (ZeroDivisionError("no"), 5),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (SystemExit("text"), 1),
    ],
    ids=repr,
)
def test_abort_has_the_exit_code_of_the_error(monkeypatch, error, code):
    """The status of a job may be that of a signal instead, see `statuses`."""
    codes = []
    rank = types.SimpleNamespace(
        processes=2, job_rank=1, disagreement=None, report_failure=lambda: None, abort=codes.append
    )
    monkeypatch.setattr(ending, "_running", rank)
    # An abort ends the process. Here, it returns, and the context then ends the job as after a success.
    monkeypatch.setattr(ending, "end", lambda: None)
    with ending.abort_on_error():
        raise error
    assert codes == [code]


@pytest.mark.full
def test_the_exit_status_of_a_process_is_that_of_the_job():
    assert run(2, "steps(1); sys.exit(3 if kv.rank == 1 else 0)")[0] == 3


@pytest.mark.full
def test_who_is_gone_when_mpi_is_closed_is_not_waited_for():
    status, out, errors = run(
        2,
        """
        import os, signal
        from graphkit.dist import kvstore
        from graphkit.dist.job import mpi
        mpi.LEAST_TIMEOUT = 1
        kv = kvstore.create("dist_sync", timeout=1)
        if kv.rank == 1:
            mpi.MpiCommunicator.finalize = lambda self: os.kill(os.getpid(), signal.SIGSTOP)
        kv.barrier()
        print("done")
        """,
        before="",
    )
    assert status in FAILED
    assert "done" in out
    assert re.search(r"graphkit: rank 0 of 2 on .*: not all processes of the job have finalised MPI within 1 s", errors)


@pytest.mark.parametrize("where", ["waits", pytest.param("works", marks=pytest.mark.full)])
def test_ctrl_c_in_one_process_ends_the_job(where):
    job = start(
        2,
        f"""
        import os
        steps(1)
        os.write(1, f"pid {{kv.rank}} {{os.getpid()}}\\n".encode())
        while kv.rank == 0 or {where == "works"}:
            steps(1)
        time.sleep(100)
        """,
    )
    pids = {}
    while len(pids) < 2:
        line = job.stdout.readline()
        assert line, job.stderr.read()
        pids |= {int(rank): int(pid) for rank, pid in re.findall(r"pid (\d) (\d+)", line)}
    time.sleep(0.5)
    os.kill(pids[0], signal.SIGINT)
    status, _, errors = finish(job)
    assert status in statuses(130)
    assert "graphkit: rank 0: interrupted; this ends the job" in errors


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_that_started_the_job_ends_the_job(tmp_path, number):
    import graphkit as gk

    x = gk.input("x", ["N", 1, 8, 8])
    gk.Model(gk.nn.linear(gk.flatten(x), 10), name="net").save(tmp_path / "net.json")
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(tmp_path / "net.json"), "--data", "digits"]
    command += ["--epochs", "1000000", "--processes", "2", "--kvstore", "dist_sync", "-o", str(tmp_path / "run")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "log.jsonl").exists():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    job.send_signal(number)
    status, _, errors = finish(job)
    assert status == 128 + number
    assert "interrupted" in errors or "terminated" in errors


@pytest.mark.full
def test_a_full_disk_ends_the_job_and_the_last_checkpoint_is_whole(tmp_path):
    """A limit on the size of files simulates a full disk: writing fails after the first epoch."""
    status, _, errors = run(
        2,
        f"""
        import resource
        def limit(epoch, record):
            if kv.rank == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        x, y = np.ones((32, 3), np.float32), np.zeros((32, 2), np.float32)
        trainer.fit((x, y), epochs=5, batch_size=4, folder={str(tmp_path / "run")!r}, on_epoch=limit, progress=False)
        """,
        TRAINER,
    )
    assert status in FAILED
    assert re.search(r"graphkit: rank 0: .*(cannot be written|File too large)", errors), errors
    import graphkit as gk

    net = gk.load(tmp_path / "run" / "model.json")
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1))
    trainer.resume(tmp_path / "run")
    assert trainer.epoch == 1
