"""The benchmark of first results, on the smallest workload and on a file of a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import first
import numpy as np
import pytest

import graphkit as gk

BENCH = Path(__file__).parents[2] / "bench"
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x = gk.input("x", ["N", 300])
    gk.Model({"y": gk.tanh(gk.nn.linear(x, 1000, name="fc"))}, seed=0).save(tmp_path / "layer.onnx")
    np.savez(tmp_path / "layer.npz", x=np.ones((4, 300), np.float32))
    return tmp_path


@LINUX
@pytest.mark.parametrize("engine", first.ENGINES)
def test_a_session_and_its_first_result(folder: Path, engine: str) -> None:
    task = {"row": "layer", "threads": 1, "models": str(folder), "files": str(folder), "engine": engine}
    measured = first.measure(task)
    assert 0 < measured["session"] < measured["first"]


@pytest.mark.full
@LINUX
@pytest.mark.parametrize("restarts", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_process_of_its_own_for_each_measurement(folder: Path, restarts: int) -> None:
    task = {"row": "layer", "threads": 1, "models": str(folder), "files": str(folder)}
    found = first.measure_row(task, restarts)
    for measured in found.values():
        assert len(measured) == restarts
        # The parameters of the layer are there, and not much more.
        assert all(4 * 300 * 1000 < m["memory"] < 100 * 4 * 300 * 1000 for m in measured)


def test_quotients_are_of_paired_processes() -> None:
    def engine(*values: float) -> list[first.Measured]:
        return [{"session": v, "first": 2 * v, "process": 3 * v, "memory": 1e6 * v} for v in values]

    cells, quotients = first.row_cells({"onnxruntime": engine(2, 4, 6), "graphkit": engine(1, 8, 3)})
    assert quotients["session"] == quotients["memory"] == [[2.0], [0.5], [2.0]]
    assert cells[:3] == ["4e+03", "3e+03", "2.00 (0.50 to 2.00)"]
    assert cells[6:8] == ["1.2e+04", "9e+03"]
    assert cells[9:11] == ["4", "3"]
    means, medians = first.last_rows([quotients, {part: [[0.5]] * 3 for part in first.PARTS}])
    assert means[3].startswith("**1.00 (")
    assert medians[3] == "**1.25**"


def test_a_process_that_fails_says_why(folder: Path) -> None:
    task = {"row": "absent", "threads": 1, "models": str(folder), "files": str(folder)}
    with pytest.raises(SystemExit, match=r"absent\.npz"):
        first.measure_row(task, restarts=1)


@pytest.mark.full
@LINUX
def test_the_command(folder: Path) -> None:
    command = [BENCH / "first.py", "--only", "mlp-1", "--files", folder, "--models", folder / "models"]
    done = subprocess.run(
        [sys.executable, *command, "--threads", "1", "--restarts", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "imported in" in done.stdout
    rows = [line.split(" | ")[0] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows == ["| row", "| ---", "| mlp-1", "| layer", "| **geometric mean**", "| **median**"]
