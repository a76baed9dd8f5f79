"""Jobs of several processes that are a pipeline, how they end, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from jobs import FAILED, finish, start, statuses
from pipelines import classifier, labelled

import graphkit as gk
from graphkit import config
from graphkit.cli import invoke
from graphkit.dist import pipeline

JOB = """
    import os, signal, sys, numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_sync")
    x = gk.input("x", ["N", 6])
    h = x
    for index, name in enumerate("abc"[:kv.num_workers]):
        with gk.attr_scope(ctx_group=name):
            h = gk.tanh(gk.nn.linear(h, 512, name=name))
    groups = {name: index for index, name in enumerate("abc"[:kv.num_workers])}
    trainer = gk.Trainer(gk.Model(h, seed=1), "mse", gk.optim.Adam(0.01), kvstore=kv, threads=1, groups=groups,
                         micro_batches=4)
    def batch(step):
        rng = np.random.default_rng(step)
        return rng.standard_normal((1024, 6), np.float32), rng.standard_normal((1024, 512), np.float32)
"""


@pytest.mark.parametrize(
    ("ranks", "per_host", "steps"),
    [(2, None, 2), pytest.param(3, None, 3, marks=pytest.mark.full), pytest.param(3, 1, 3, marks=pytest.mark.full)],
)
def test_a_pipeline_of_processes_computes_what_one_does(jobs, tmp_path, ranks, per_host, steps):
    """Arrays of half a megabyte go between them, on one host and as if on three."""
    done = f"""
    for step in range({steps}): trainer.step(*batch(step))
    trainer.save({str(tmp_path / "run")!r})
    """
    jobs.run(JOB + done, ranks, ranks_per_host=per_host)
    found = gk.load(tmp_path / "run")
    h = gk.input("x", ["N", 6])
    for name in "abc"[:ranks]:
        h = gk.tanh(gk.nn.linear(h, 512, name=name))
    one = gk.Trainer(gk.Model(h, seed=1), "mse", gk.optim.Adam(0.01), accumulate=4, threads=1)
    for step in range(steps):
        rng = np.random.default_rng(step)
        x, y = rng.standard_normal((1024, 6), np.float32), rng.standard_normal((1024, 512), np.float32)
        for part in pipeline.bounds(pipeline.sizes(1024, 4)):
            one.step(x[part], y[part])
    for name, array in one.net.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-6, atol=1e-6)


CAUGHT = """
    for step in range(3): trainer.step(*batch(step))
    runner = trainer._exchange._runner
    backward = runner.backward
    def failing(number, *given):
        if kv.rank == 1 and number == 1: raise MemoryError("too much")
        return backward(number, *given)
    runner.backward = failing
    for step in range(2):
        try:
            trainer.step(*batch(step))
        except BaseException as error:
            print(f"rank {kv.rank}: {type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])
def test_who_catches_the_error_of_a_rank_leaves_nobody_waiting(ranks):
    status, out, errors = finish(start(ranks, JOB + CAUGHT, before=""))
    assert status in FAILED, errors
    assert "rank 1: RuntimeFailure: rank 1 failed in the step of update 4: MemoryError: too much" in out
    assert "graphkit: rank 1: rank 1 failed in the step of update 4" in errors
    assert "rank 1: MemoryError: too much" in out


@pytest.mark.full
def test_a_rank_that_takes_no_step_is_an_error_of_all():
    status, _, errors = finish(
        start(
            3,
            JOB
            + """
    if kv.rank != 1: trainer.step(*batch(0))
    """,
            before="",
        )
    )
    assert status in FAILED
    assert "the processes make different calls" in errors


@pytest.mark.full
def test_batches_that_differ_between_ranks_are_an_error_of_all():
    status, _, errors = finish(
        start(
            3,
            JOB
            + """
    trainer.step(*(a[: 64 + kv.rank // 2] for a in batch(0)))
    """,
            before="",
        )
    )
    assert status in FAILED
    assert "the processes make different calls" in errors


ACTS = {
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)", 5, r"of rank 1 failed: rank 1 .* no heartbeat"),
    "error": ("raise MemoryError('of rank 1')", 5, r"rank 1: MemoryError: of rank 1; this ends the job"),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT)", 130, r"rank 1: interrupted; this ends the job"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("how", ACTS)
def test_a_rank_that_ends_in_the_middle_of_a_pipeline_ends_the_job(monkeypatch, how):
    monkeypatch.setenv(config.RANK_TIMEOUT.name, "2")
    act, code, message = ACTS[how]
    status, _, errors = finish(
        start(
            3,
            JOB
            + f"""
    for step in range(3): trainer.step(*batch(step))
    runner = trainer._exchange._runner
    backward = runner.backward
    def failing(number, *given):
        if kv.rank == 1 and number == 1:
            {act}
        return backward(number, *given)
    runner.backward = failing
    for step in range(3): trainer.step(*batch(step))
    """,
            before="",
        )
    )
    assert status in statuses(code), errors
    assert re.search(message, errors), errors


@pytest.fixture
def network(tmp_path):
    classifier().save(tmp_path / "net.json")
    x, y = labelled(64)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path


def command(network, *further):
    given = [
        sys.executable,
        "-P",
        "-m",
        "graphkit",
        "train",
        str(network / "net.json"),
        "--data",
        str(network / "data.npz"),
        *further,
    ]
    return subprocess.run(given, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.full
def test_the_command_trains_a_pipeline_and_one_process_goes_on(network):
    placed = ["--processes", "2", "--kvstore", "dist_sync", "--place", "a=0", "--place", "b=1", "--place", "c=1"]
    run = ["-o", str(network / "run"), "--batch-size", "16"]
    done = command(network, *placed, "--micro-batches", "4", "--epochs", "2", *run)
    assert done.returncode == 0, done.stderr
    assert "epoch 2 (2 processes): loss" in done.stdout
    done = command(network, "-o", str(network / "run"), "--resume", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line)["epoch"] for line in (network / "run" / "log.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]


@pytest.mark.full
def test_a_process_that_is_killed_ends_the_command_and_another_call_goes_on(network, monkeypatch):
    """Rank 1 dies during an epoch."""
    hook = network / "hook"
    hook.mkdir()
    log = network / "run" / "log.jsonl"
    (hook / "sitecustomize.py").write_text(f"""
import os, pathlib, signal, threading, time
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    def kill():
        while not pathlib.Path({str(log)!r}).exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
""")
    monkeypatch.setenv("PYTHONPATH", str(hook))
    placed = ["--processes", "2", "--kvstore", "dist_sync", "--place", "a=0", "--place", "b=1", "--place", "c=1"]
    run = ["-o", str(network / "run"), "--batch-size", "16", "--micro-batches", "4"]
    done = command(network, *placed, *run, "--epochs", "100000", "--rank-timeout", "5")
    assert done.returncode == 5, done.stderr
    monkeypatch.delenv("PYTHONPATH")
    epochs = len(log.read_text().splitlines())
    done = command(network, *placed, "--resume", *run, "--epochs", str(epochs + 2))
    assert done.returncode == 0, done.stderr


def test_inspect_shows_groups(network, capsys):
    assert invoke(["inspect", str(network / "net.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["groups"]
    assert {name: group["parameters"] for name, group in found.items()} == {"a": 140 + 2 * 20, "b": 630, "c": 93}
    assert invoke(["inspect", str(network / "net.json")]) == 0
    assert re.search(r"^b +\d+ +630$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--place", "a=first"], "--place a=first: expected the rank of a process, from 0"),
        (["--place", "a=0"], "groups= needs several processes"),
        (["--micro-batches", "4"], "micro_batches= (--micro-batches) only works with groups= (--place)"),
    ],
)
def test_places_that_do_not_fit(network, capsys, options, message):
    given = ["train", str(network / "net.json"), "--data", str(network / "data.npz"), *options]
    assert invoke(given) == 2
    assert message in capsys.readouterr().err
