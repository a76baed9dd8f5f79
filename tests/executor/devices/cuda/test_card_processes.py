"""Data-parallel training on fake GPUs: all-reduces between GPUs or through host memory have the results of the CPU."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emulator import COMPILER, shared_folder

import graphkit as gk
from graphkit.dist.job import launch
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices import cuda
from graphkit.executor.devices.loading import of_process

JOB = Path(__file__).with_name("card_job.py")


def mpiexec() -> str:
    pytest.importorskip("mpi4py")
    try:
        return launch.find_mpiexec()
    except MissingDependency as error:
        pytest.skip(str(error))


Options = dict[str, Any]
Facts = list[dict[str, Any]]
Job = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run `card_job.py` in two processes with a common folder, once for each of the options."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    kernels = shared_folder(tmp_path_factory.getbasetemp())
    text = f"import sys; sys.path.insert(0, {str(JOB.parent)!r}); import card_job; card_job.main(*sys.argv[1:])"
    command = [mpiexec(), "-n", "2", sys.executable, "-u", "-P", "-c", text]

    def run(folder: Path, *options: Options) -> subprocess.CompletedProcess[str]:
        given = [str(folder), str(kernels), *map(json.dumps, options)]
        return subprocess.run([*command, *given], capture_output=True, text=True, timeout=300, check=False)

    return run


def facts(done: subprocess.CompletedProcess[str]) -> Facts:
    """Return the output of both ranks for the first options, by rank."""
    return all_facts(done)[0]


def all_facts(done: subprocess.CompletedProcess[str]) -> list[Facts]:
    """Return the output of both ranks for each of the options, by rank."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda facts: facts["rank"])
    found = [[line for line in lines if line["job"] == number] for number in range(1 + max(f["job"] for f in lines))]
    assert all([rank["rank"] for rank in ranks] == [0, 1] for ranks in found)
    return found


def long(options: dict[str, Any]) -> Any:
    return pytest.param(options, marks=pytest.mark.full)


def long_case(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.full)


@pytest.mark.full
def test_training_in_one_job(job: Job, tmp_path: Path) -> None:
    """One job trains in all ways that the tests below have more options for. Sums of gradients are copied through host
    memory, but for the last ones.
    """
    sharded = {"shard_optimizer": True, "early": True, "sizes": [[4, 4, 4, 4, 6], [3, 4, 4, 4, 5]]}
    lazy, scaled = {"lazy": ["embed*"]}, {"precision": "f16"}
    jobs = [lazy, scaled, {"nccl": [0]}, sharded, {"nccl": [0, 1], **sharded}]
    done = job(tmp_path, *jobs)
    of_rows, of_scaled, of_one, staged, captured = all_facts(done)
    check_lazy(of_rows, lazy)
    check_scaled(of_scaled, {})
    assert "rank 1 has no NCCL (CuPy finds no NCCL)" in of_one[1]["because"]
    check_training(staged, sharded)
    check_same_sums(captured, staged)
    check_captured(captured, sharded)


@pytest.mark.parametrize(
    "options",
    [
        long({}),
        long({"shard_optimizer": True}),
        long({"sync_batch_norm": True}),
        long({"compression": "fp16"}),
        long({"accumulate": 2}),
        long({"precision": "bf16"}),
    ],
    ids=str,
)
def test_training(options: dict[str, Any], job: Job, tmp_path: Path) -> None:
    check_training(facts(job(tmp_path, options)), options)


def check_training(ranks: Facts, options: Options) -> None:
    assert ranks[0]["total"] == ranks[1]["total"]
    for rank in ranks:
        rounded = "compression" in options or "precision" in options
        assert rank["apart"] < (0.02 if rounded else 1e-5)
        assert rank["replays"] > 0, "what lies between the sums is recorded"
        assert "SgdUpdate" in rank["launched"]


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"shard_optimizer": True}], ids=str)
def test_a_processor_and_a_card(options: dict[str, Any], job: Job, tmp_path: Path) -> None:
    ranks = facts(job(tmp_path, {"mixed": True, **options}))
    assert sorted(bool(rank["launched"]) for rank in ranks) == [False, True]
    assert all(rank["apart"] < 1e-5 for rank in ranks)


@pytest.mark.full
@pytest.mark.parametrize("options", [{"shard_optimizer": True}, {"accumulate": 2}], ids=str)
def test_scaled_losses(options: dict[str, Any], job: Job, tmp_path: Path) -> None:
    """If the gradients of one rank are too large, all ranks skip the step. Losses are those of whole updates."""
    check_scaled(facts(job(tmp_path, {"precision": "f16", **options})), options)


def check_scaled(ranks: Facts, options: Options) -> None:
    assert ranks[0]["total"] == ranks[1]["total"]
    assert ranks[0]["skipped"] == ranks[1]["skipped"]
    assert (ranks[0]["skipped"] > 0) == ("accumulate" not in options)


def check_same_sums(ranks: Facts, staged: Facts) -> None:
    """ranks: of cards that sum among themselves. Sums that are copied through host memory have the same bits."""
    for found, kind in ((ranks, "nccl"), (staged, "staged")):
        assert all(rank["kinds"] == [kind] for rank in found)
    assert all(one["staging"] < other["staging"] for one, other in zip(ranks, staged, strict=True))
    assert [rank["bits"] for rank in ranks] == [rank["bits"] for rank in staged]


@pytest.mark.full
@pytest.mark.parametrize("early", [False, True])
def test_sums_beside_copies_to_the_host(early: bool, job: Job, tmp_path: Path) -> None:
    """All-reduces and copies run concurrently to the steps, each on its own stream, in the same recordings."""
    found = {}
    for swaps in (False, True):
        own = tmp_path / str(swaps)
        own.mkdir()
        options = {"nccl": (0, 1), "early": early, "swaps": swaps, "sizes": [[4, 4, 4, 4, 6]] * 2}
        found[swaps] = facts(job(own, options))
    for plain, swapped in zip(found[False], found[True], strict=True):
        assert swapped["bits"] == plain["bits"]
        assert swapped["staging"] > plain["staging"]
        assert swapped["captured"] == plain["captured"] > 0


@pytest.mark.parametrize(
    "options",
    [
        long({"sizes": [[4, 4, 4, 4, 6], [3, 0, 0, 4, 5]]}),
        long({"early": True, "sizes": [[4, 4, 4, 4, 6]] * 2}),
        long({"accumulate": 2, "sizes": [[4, 4, 4, 4, 4, 4], [3, 0, 4, 4, 0, 4]]}),
        long({"precision": "f16", "sizes": [[4] * 9] * 2}),
        long({"on_nonfinite": "ignore", "sizes": [[4] * 4] * 2}),
    ],
    ids=str,
)
def test_cards_that_sum_among_themselves(options: dict[str, Any], job: Job, tmp_path: Path) -> None:
    """Where all ranks have met the same arrays twice, sums are in the recordings, which both make and replay alike: one
    of what comes before the update, and one of the update.
    """
    staged, ranks = all_facts(job(tmp_path, {"nccl": (), **options}, {"nccl": (0, 1), **options}))
    check_same_sums(ranks, staged)
    check_captured(ranks, options)


def check_captured(ranks: Facts, options: Options) -> None:
    for rank in ranks:
        # A processor skips no step.
        assert rank["skipped"] > 0 if "precision" in options else rank["apart"] < 1e-5
        assert rank["groups"] == 1
        assert rank["captured"] > 0
    for fact in ("total", "captured", "eager", "skipped"):
        assert ranks[0][fact] == ranks[1][fact]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        long_case({"nccl": [0]}, "rank 1 has no NCCL (CuPy finds no NCCL)"),
        long_case({"nccl": [0, 1], "places": ["here", "here"]}, "ranks 0, 1 share one GPU, here"),
        long_case({"nccl": [0, 1], "mixed": True}, "rank 0 computes on the CPU"),
        long_case({"nccl": [0, 1], "sync_batch_norm": True}, "statistics of all samples are merged on the CPU"),
        long_case({"nccl": [0, 1], "compression": "fp16"}, "gradients are compressed on the CPU"),
    ],
    ids=str,
)
def test_one_that_cannot_and_what_cards_do_not_sum(
    options: dict[str, Any], reason: str, job: Job, tmp_path: Path
) -> None:
    """The plan contains the reason. Rank 0 also prints it, unless an option chose this way."""
    done = job(tmp_path, options)
    ranks = facts(done)
    assert [rank["groups"] for rank in ranks] == [0, 0]
    assert ranks[1]["kinds"] == ["staged"]
    assert reason in ranks[1]["because"]
    said = [line for line in done.stderr.splitlines() if "RuntimeWarning: gradients on GPUs" in line]
    assert len(said) == reason.startswith("rank")
    assert all(line.endswith(reason) for line in said)


@pytest.mark.parametrize(
    ("ends", "messages"),
    [
        long_case(
            "stopped in a step",
            [r"rank 0: rank 1 on .* has sent no heartbeat for \d+ s; it was last seen in step 5, after all-reduces"],
        ),
        long_case("stopped", [r"rank 0: rank 1 on .* has sent no heartbeat for \d+ s; it was last seen in step 4"]),
        long_case("fails in a step", ["rank 1: ValueError: a step that fails; this ends the job"]),
        long_case("another order", ["processes make different calls: rank 0: all-reduces on GPUs", "another order"]),
    ],
)
def test_who_does_not_come_ends_the_job(
    ends: str, messages: list[str], job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the CPU, the error names the rank and its position, after the same time."""
    monkeypatch.setenv("GRAPHKIT_RANK_TIMEOUT", "4")
    done = job(tmp_path, {"nccl": [0, 1], "ends": ends})
    code = RuntimeFailure.exit_code
    # The launcher returns the code of the rank, the signal by which it ends the other one, or the bitwise or of both.
    assert done.returncode in (code, signal.SIGKILL, code | signal.SIGKILL)
    assert all(re.search(message, done.stderr) for message in messages), done.stderr[-3000:]


@pytest.mark.parametrize(
    "options",
    [
        long({"lazy": ["embed*"], "clip_norm": 0.5, "sizes": [[4, 0, 6], [3, 5, 0]]}),
        long({"lazy": ["embed*"], "mixed": True}),
        long({"lazy": ["embed*"], "precision": "bf16", "nccl": [0, 1]}),
    ],
    ids=str,
)
def test_rows_of_tables_go_by_way_of_the_host(options: dict[str, Any], job: Job, tmp_path: Path) -> None:
    """Rows that any rank reads are exchanged, even if a rank reads none. The rest of the step is recorded as usual."""
    check_lazy(facts(job(tmp_path, options)), options)


def check_lazy(ranks: Facts, options: Options) -> None:
    assert max(rank["apart"] for rank in ranks) < (0.02 if "precision" in options else 1e-6)
    assert ranks[0]["bits"] == ranks[1]["bits"]
    assert ranks[1]["kinds"] == ["staged"]
    assert "rows of tables are summed on the CPU (lazy)" in ranks[1]["because"]


def test_a_card_for_each_process_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cards", lambda: 2)
    assert [of_process("cuda", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [of_process(device, 1) for device in ("cpu", "cuda:0")] == ["cpu", "cuda:0"]
    assert gk.kvstore.create("local").local_rank == 0


def test_cards_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 3, CUDARuntimeError=RuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    assert cuda.card.cards() == 3
