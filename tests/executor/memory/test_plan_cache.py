"""Plans kept on disk: the same plan comes back, and a damaged entry is never used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.memory import plan_cache
from graphkit.executor.memory.planner import Request, is_valid_layout, plan_memory
from graphkit.executor.memory.schedule import is_topological_order
from graphkit.executor.memory.tasks import Task


def network(width: int = 8) -> gk.Model:
    x = gk.input("x", [4, width])
    h = x
    for i in range(80):
        h = gk.softmax(gk.nn.linear(h, width, name=f"fc{i}"), axis=-1)
    return gk.Model({"y": h})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHKIT_CACHE", str(tmp_path / "plans"))
    return tmp_path / "plans"


def entries(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_second_executor_reads_what_the_first_wrote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    first = net.compile().plan
    kept = entries(folder)
    assert sorted(name.split("-")[0] for name in kept) == ["layout", "schedule"]
    monkeypatch.setattr(plan_cache, "schedule", None)  # calling it would fail
    second = net.compile().plan
    assert (first.to_dict(), entries(folder)) == (second.to_dict(), kept)


def test_another_graph_has_another_entry(folder: Path) -> None:
    network(8).compile().specialise({})
    network(32).compile().specialise({})
    assert len(entries(folder)) == 4


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPHKIT_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    network().compile().specialise({})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["", "[1, 2]", "{}", "[true, 1]", "reversed", "zeros"])
def test_a_damaged_entry_is_replaced(folder: Path, damage: str) -> None:
    net = network()
    x = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    wanted = net.compile().run(x)["y"]
    kept = entries(folder)
    for name, text in kept.items():
        numbers = json.loads(text)
        spoiled = {"reversed": numbers[::-1], "zeros": [0] * len(numbers)}.get(damage)
        (folder / name).write_text(damage if spoiled is None else json.dumps(spoiled))
    np.testing.assert_array_equal(net.compile().run(x)["y"], wanted)
    assert entries(folder) == kept


def test_an_unusable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAPHKIT_CACHE", str(tmp_path / "file" / "plans"))
    with pytest.raises(RuntimeFailure, match="GRAPHKIT_CACHE"):
        network().compile().specialise({})


@pytest.mark.full
def test_processes_share_a_folder(folder: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_plan_cache as t; import graphkit as gk\n"
        "print(t.network().compile(threads=1).plan.arena_bytes)"
    )
    command = [sys.executable, "-P", "-c", script, str(Path(__file__).parent)]
    # Run in another folder, so that the installed package is imported and not the sources.
    elsewhere = folder.parent
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=elsewhere) for _ in range(3)]
    results = {process.communicate(timeout=300)[0] for process in running}
    assert all(process.returncode == 0 for process in running)
    assert len(results) == 1
    assert len(entries(folder)) == 2
    assert not [p for p in folder.iterdir() if p.suffix == ".tmp"]


def test_old_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_ENTRIES", 4)
    folder.mkdir()
    (folder / "notes.json").write_text("somebody else's")
    for width in range(8, 8 + 5):
        network(width).compile().specialise({})
    kept = [name for name in entries(folder) if name.startswith("layout")]
    assert len(kept) == 3, "a quarter goes at once, not one with every new entry"
    assert (folder / "notes.json").exists()


def test_offsets_that_overlap_do_not_fit() -> None:
    requests = [Request(100, 0, 2), Request(200, 1, 3), Request(100, 3, 4, (0,)), Request(0, 1, 1)]
    layout = plan_memory(requests)
    assert is_valid_layout(requests, layout.offsets)
    assert not is_valid_layout(requests, [0, 64, 128, 0])
    assert not is_valid_layout(requests, [0, 128, 384, 0][:3])
    assert not is_valid_layout(requests, [0, 100, 384, 0])
    assert not is_valid_layout(requests, [-64, 128, 384, 0])


def test_orders_are_checked() -> None:
    tasks = [Task((), (0,)), Task((0,), (1,), (0,)), Task((), (2,), (1,))]
    assert is_topological_order(tasks, (0, 1, 2))
    assert not is_topological_order(tasks, (1, 0, 2))
    assert not is_topological_order(tasks, (0, 2, 1))
    assert not is_topological_order(tasks, (0, 1))
    assert not is_topological_order(tasks, (0, 1, 1))
