"""Processes that train together on stand-ins for cards: sums travel by way of the host, and are those of processors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emulator import COMPILER

import graphkit as gk
from graphkit.dist.job import launch
from graphkit.errors import MissingDependency
from graphkit.executor.devices import cuda
from graphkit.executor.devices.loading import of_process

JOB = Path(__file__).with_name("card_job.py")


def mpiexec() -> str:
    pytest.importorskip("mpi4py")
    try:
        return launch.find_mpiexec()
    except MissingDependency as error:
        pytest.skip(str(error))


def job(folder: Path, options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    text = f"import sys; sys.path.insert(0, {str(JOB.parent)!r}); import card_job; card_job.main(*sys.argv[1:])"
    command = [mpiexec(), "-n", "2", sys.executable, "-u", "-P", "-c", text, str(folder), json.dumps(options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def facts(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What both ranks print."""
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ranks) == 2
    return ranks


def long(options: dict[str, Any]) -> Any:
    return pytest.param(options, marks=pytest.mark.full)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shard_optimizer": True},
        long({"sync_batch_norm": True}),
        long({"compression": "fp16"}),
        long({"accumulate": 2}),
        long({"precision": "bf16"}),
    ],
    ids=str,
)
def test_training(options: dict[str, Any], tmp_path: Path) -> None:
    done = job(tmp_path, options)
    ranks = facts(done)
    assert ranks[0]["total"] == ranks[1]["total"]
    for rank in ranks:
        rounded = "compression" in options or "precision" in options
        assert rank["apart"] < (0.02 if rounded else 1e-5)
        assert rank["replays"] > 0, "what lies between the sums is recorded"
        assert "SgdUpdate" in rank["launched"]


@pytest.mark.parametrize("options", [{}, long({"shard_optimizer": True})], ids=str)
def test_a_processor_and_a_card(options: dict[str, Any], tmp_path: Path) -> None:
    ranks = facts(job(tmp_path, {"mixed": True, **options}))
    assert sorted(bool(rank["launched"]) for rank in ranks) == [False, True]
    assert all(rank["apart"] < 1e-5 for rank in ranks)


@pytest.mark.parametrize("options", [{}, long({"shard_optimizer": True}), long({"accumulate": 2})], ids=str)
def test_scaled_losses(options: dict[str, Any], tmp_path: Path) -> None:
    """All skip the same steps, whoever's gradients were too large; the losses of whole updates are larger ones."""
    ranks = facts(job(tmp_path, {"precision": "f16", **options}))
    assert ranks[0]["total"] == ranks[1]["total"]
    assert ranks[0]["skipped"] == ranks[1]["skipped"]
    assert (ranks[0]["skipped"] > 0) == ("accumulate" not in options)


def test_tables_are_refused_by_name(tmp_path: Path) -> None:
    done = job(tmp_path, {"lazy": ["embed*"]})
    assert done.returncode != 0
    assert "RowSumStart" in done.stderr
    assert "sums of rows over processes are of tables in the host's memory" in done.stderr


def test_a_card_for_each_process_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cards", lambda: 2)
    assert [of_process("cuda", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [of_process(device, 1) for device in ("cpu", "cuda:0")] == ["cpu", "cuda:0"]
    assert gk.kvstore.create("local").local_rank == 0


def test_cards_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 3, CUDARuntimeError=RuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    assert cuda.card.cards() == 3
