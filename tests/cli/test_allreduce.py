"""graphkit bench allreduce: the output of two real processes, and errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from graphkit import cli
from graphkit.cli import _allreduce
from graphkit.dist.job import launch
from graphkit.errors import MissingDependency

GRAPHKIT = [sys.executable, "-P", "-m", "graphkit"]
FAST = ["bench", "allreduce", "--sizes", "4,6KB,1MiB", "--rounds", "2"]


def finished(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("launcher", "compression"),
    [
        ("--processes", "2bit:0.5"),
        ("--processes", None),
        ("mpiexec", None),
    ],
)
@pytest.mark.full
def test_two_processes(capsys, launcher, compression):
    command = [*GRAPHKIT, *FAST, *(["--compression", compression] if compression else []), "--json"]
    started = (
        [*command, "--processes", "2"] if launcher == "--processes" else [launch.find_mpiexec(), "-n", "2", *command]
    )
    done = finished(started)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # of one rank alone
    assert result["schema"] == "graphkit.bench.allreduce"
    assert (result["processes"], result["rounds"], result["compression"]) == (2, 2, compression)
    assert [row["bytes"] for row in result["rows"]] == [4, 6000, 1 << 20]
    for row in result["rows"]:
        assert compression or row["sent_bytes"] == row["bytes"]
        for name, seconds in row["seconds"].items():
            assert len(seconds) == 2
            assert row["calls"][name] >= 1
            assert 0 < min(seconds) <= row["median"][name] <= max(seconds) < 60
            assert row["bytes_per_second"][name] == pytest.approx(row["bytes"] / row["median"][name])
        assert 0 < row["ratio"]["low"] <= row["ratio"]["high"]
    if compression:
        _allreduce._report(result, as_json=False)
        assert_is_table(capsys.readouterr().out)


@pytest.mark.full
def test_a_table_with_fewer_bytes():
    done = finished([*GRAPHKIT, *FAST, "--compression", "2bit:0.5"])
    assert done.returncode == 0, done.stderr
    assert_is_table(done.stdout)


def assert_is_table(text):
    title, head, *rows = text.splitlines()
    assert title.startswith("all-reduce of float32 arrays, 2 processes; ")
    assert title.rstrip().endswith("; compression 2bit:0.5")
    assert head.split("  ")[0] == "array"
    assert [row.split("  ")[0] for row in rows] == ["4 B", "5.9 KiB", "1.0 MiB"]
    assert rows[-1].endswith("64.0 KiB")  # two bits of 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "5"], "'5': expected a positive multiple of 4 bytes (float32), not 5"),
        (["--sizes", "0"], "'0': expected a positive multiple of 4 bytes (float32), not 0"),
        (["--sizes", "4,,8"], "'' is not an amount of memory"),
        (["--sizes", "-4"], "'-4' is not an amount of memory"),
        (["--sizes", "many"], "'many' is not an amount of memory"),
        (["--rounds", "0"], "--rounds"),
        (["--processes", "0"], "--processes"),
        (["--compression", "3bit"], "did you mean '2bit'"),
    ],
)
def test_what_is_refused_before_anything_starts(capfd, monkeypatch, options, message):
    monkeypatch.setattr(launch, "run_processes", lambda *_: pytest.fail("a job was started"))
    assert cli.invoke(["bench", "allreduce", *options]) == 2
    assert message in capfd.readouterr().err


def test_without_mpi(capfd, monkeypatch):
    def missing():
        raise MissingDependency("no mpiexec found; install an MPI with: pip install '.[mpi]'")

    monkeypatch.setattr(launch, "find_mpiexec", missing)
    assert cli.invoke(["bench", "allreduce", "--json"]) == 5
    out, errors = capfd.readouterr()
    assert "install an MPI" in errors
    assert json.loads(out)["kind"] == "MissingDependency"


@pytest.mark.full
def test_arrays_that_memory_does_not_hold():
    done = finished([*GRAPHKIT, "bench", "allreduce", "--sizes", "4000000000GB", "--rounds", "1"])
    assert done.returncode == 5
    assert "three arrays of 4000000000000000000 bytes" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_that_name_is_a_model_by_its_path(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.invoke(["build", "mlp", "-p", "inputs=4", "-o", "net.onnx"]) == 0
    (tmp_path / "net.onnx").rename(tmp_path / "allreduce")
    code = cli.invoke(["bench", "./allreduce", "--against", "nothing", "--runs", "1"])
    assert code == 0
    assert capfd.readouterr().out.startswith("mlp: x[")
