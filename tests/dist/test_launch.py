"""How processes are started, and what is made of the status that launchers give."""

from __future__ import annotations

import os
import signal
import stat

import pytest

from graphkit import config
from graphkit.dist import launch


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """`launcher(text)`: an mpiexec that runs such a shell script, given the command line."""

    def make(text):
        path = tmp_path / "mpiexec"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setattr(launch, "find_mpiexec", lambda: str(path))

    return make


@pytest.mark.parametrize(
    ("status", "expected", "named"),
    [
        (0, 0, None),
        (1, 1, None),
        (2, 2, None),
        (5, 5, None),
        (130, 130, None),  # interrupted, and said so itself
        (143, 143, None),
        (9, 5, "SIGKILL"),  # as MPICH's says it
        (137, 5, "SIGKILL"),  # as Open MPI's does
        (11, 5, "SIGSEGV"),
        (139, 5, "SIGSEGV"),
        (77, 77, None),
    ],
)
def test_what_a_status_means(launcher, capfd, status, expected, named):
    launcher(f"exit {status}")
    assert launch.run_processes(2, []) == expected
    errors = capfd.readouterr().err
    assert (f"ended by {named}" in errors) if named else not errors


def test_a_launcher_that_a_signal_ends(launcher):
    launcher("kill -TERM $$")
    assert launch.run_processes(2, []) == 128 + signal.SIGTERM


def test_what_processes_are_told(launcher, tmp_path, monkeypatch):
    """Cores are divided; Open MPI starts more processes than cores, and starts them for root."""
    monkeypatch.setenv(config.NUM_THREADS.name, "4")
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "mine")
    launcher(f"printf '%s\\n' \"$@\" > {tmp_path}/arguments; env > {tmp_path}/environment")
    assert launch.run_processes(2, ["train", "a b"]) == 0
    told = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line)
    assert (tmp_path / "arguments").read_text().splitlines()[-2:] == ["train", "a b"]
    assert told[config.NUM_THREADS.name] == "4"  # as it was asked for
    assert told["OMPI_MCA_rmaps_base_oversubscribe"] == "mine"
    assert told["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert ("PRTE_ALLOW_RUN_AS_ROOT" in told) == (os.geteuid() == 0)
    monkeypatch.delenv(config.NUM_THREADS.name)
    assert launch.run_processes(1000, []) == 0
    told = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line)
    assert told[config.NUM_THREADS.name] == told["OMP_NUM_THREADS"] == "1"
    assert (tmp_path / "arguments").read_text().splitlines()[:2] == ["-n", "1000"]
