"""`graphkit train --resume` of a run with several processes uses the processes and the store of the run."""

import json
import subprocess
import sys

import pytest

import graphkit as gk
from graphkit import config
from graphkit.cli import invoke
from graphkit.dist.job import launch, mpi

EVENTS = "options taken from the run: --data digits --batch-size 32"


@pytest.fixture
def net(tmp_path):
    x = gk.input("x", ["N", 1, 8, 8])
    gk.Model(gk.nn.linear(gk.flatten(x), 10), name="net").save(tmp_path / "net.json")
    return tmp_path


def arguments(net, *more):
    return ["train", str(net / "net.json"), "-o", str(net / "run"), *more]


@pytest.fixture
def resumed(net, monkeypatch):
    """`resumed(before, *options)`: how many processes --resume starts for a run with such options, and its status."""
    for name in mpi._LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert invoke(arguments(net, "--data", "digits", "--epochs", "1")) == 0
    manifest = net / "run" / "checkpoint.json"
    found = json.loads(manifest.read_text())

    def resume(before, *options):
        started = []
        monkeypatch.setattr(
            launch, "run_processes", lambda size, given, survives: started.append((size, survives)) or 0
        )
        notes = {name: value for name, value in (found["notes"] | before).items() if value != "unknown"}
        manifest.write_text(json.dumps(found | {"notes": notes}))
        return started, invoke(arguments(net, "--resume", "--epochs", "1", *options))

    return resume


SYNC = {"processes": 2, "kvstore": "dist_sync"}
ASYNC = {"processes": 3, "kvstore": "dist_async", "servers": 2, "replicate_servers": True}


@pytest.mark.parametrize(
    ("before", "options", "started"),
    [
        (SYNC, [], [(2, False)]),
        (ASYNC, [], [(5, True)]),
        (SYNC, ["--processes", "3"], [(3, False)]),
        (ASYNC, ["--kvstore", "dist_sync"], [(3, False)]),
        (ASYNC, ["--kvstore", "dist_bounded", "--staleness", "1"], [(4, False)]),
        (ASYNC, ["--kvstore", "local"], []),
        (ASYNC, ["--processes", "1"], []),
        (ASYNC, ["--kvstore", "local", "--processes", "1"], []),
        (SYNC | {"kvstore": "unknown"}, [], []),  # of a version that did not keep it
    ],
)
def test_options_of_processes_that_are_left_out_are_those_of_the_run(resumed, before, options, started):
    assert resumed(before, *options) == (started, 0)


def test_an_mpi_launcher_decides_how_many_processes_go_on(resumed, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    assert launch.launcher_sets_size()
    monkeypatch.setenv(config.JOB_SIZE.name, "2")
    assert not launch.launcher_sets_size()


def command(*given):
    return subprocess.run(given, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.full
def test_two_processes_go_on_as_two_and_as_many_as_mpiexec_starts(net):
    graphkit = [sys.executable, "-P", "-m", "graphkit"]
    begun = ["--data", "digits", "--batch-size", "32", "--processes", "2", "--kvstore", "dist_sync", "--epochs", "1"]
    done = command(*graphkit, *arguments(net, *begun))
    assert done.returncode == 0, done.stderr
    done = command(*graphkit, *arguments(net, "--resume", "--epochs", "2"))
    assert done.returncode == 0, done.stderr
    assert f"{EVENTS} --processes 2 --kvstore dist_sync\n" in done.stderr
    assert "resuming with 2 processes, as before; to resume with one process: --processes 1\n" in done.stderr
    settings = (net / "run" / "config.toml").read_text()
    assert 'processes = 2\nkvstore = "dist_sync"\n' in settings
    done = command(launch.find_mpiexec(), "-n", "3", *graphkit, *arguments(net, "--resume", "--epochs", "3"))
    assert done.returncode == 0, done.stderr
    assert 'processes = 3\nkvstore = "dist_sync"\n' in (net / "run" / "config.toml").read_text()
    for call in json.loads((net / "run" / "run.json").read_text())["calls"]:
        assert not {config.JOB_PIPE.name, config.JOB_SIZE.name} & call["settings"].keys()
    changed = "options changed by the command line or .toml file: --processes 3 (was --processes 2)"
    assert f"{EVENTS} --kvstore dist_sync\n{changed}" in done.stderr
    lines = [json.loads(line) for line in (net / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["processes"] for line in lines if line["event"] == "epoch"] == [2, 2, 3]
