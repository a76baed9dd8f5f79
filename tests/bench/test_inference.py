"""The measurements themselves, on the smallest workload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import engines
import numpy as np
import pytest
import worker
from combinations import in_one_item
from rows import TOLERANCE

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return {"workload": "mlp-1", "threads": 1, "folder": str(tmp_path_factory.mktemp("models"))}


def test_engines_side_by_side(task) -> None:
    both = {"engines": ["graphkit", "onnxruntime"], "rounds": 2, "seconds": 0.001, "seed": 0}
    measured = worker.time_engines(task | both)
    assert measured["graphkit"]["difference"] < TOLERANCE
    assert "difference" not in measured["onnxruntime"]
    for result in measured.values():
        assert len(result["rounds"]) == 2
        assert 0 < result["seconds"]["best"] <= result["seconds"]["p50"]


def test_an_engine_that_fails_leaves_the_others(task, monkeypatch) -> None:
    def broken(model, *_):
        raise RuntimeError(f"first line\n{model.path}")

    monkeypatch.setitem(engines._OPEN, "openvino", broken)
    options = {"engines": ["openvino", "onnxruntime"], "rounds": 1, "seconds": 0, "seed": 0}
    measured = worker.time_engines(task | options)
    assert measured["openvino"] == {"error": "RuntimeError: first line mlp-1.onnx"}
    assert measured["onnxruntime"]["rounds"]


@in_one_item()
@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -3.0], [1.0, -4.0], 0.25),
        ([np.nan, -4.0], [1.0, -4.0], np.inf),
        ([1.0], [1.0, -4.0], np.inf),
    ],
)
def test_differences(ours, theirs, expected) -> None:
    assert worker._difference([np.array(ours)], [np.array(theirs)]) == expected


def test_creation_and_new_batch_sizes(task) -> None:
    for engine in ("graphkit", "onnxruntime"):
        created = worker.creation(task | {"engine": engine})
        assert 0 < created["create"] < created["first_result"]
        resized = worker.resizing(task | {"engine": engine})
        assert len(resized["extra"]) == len(worker.BATCHES)
        assert len(resized["specialise"]) == (len(worker.BATCHES) if engine == "graphkit" else 0)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_peak_memory_in_a_process_of_its_own(task) -> None:
    whole = task | {"task": "memory", "engine": "onnxruntime"}
    done = subprocess.run(
        [sys.executable, BENCH / "worker.py", json.dumps(whole)], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    parameters = 4 * (784 * 512 + 512 * 512 + 512 * 10)
    assert parameters < measured["peak"] - measured["before"] < 100 * parameters


def test_a_task_that_fails_says_why(task) -> None:
    whole = task | {"task": "create", "engine": "nonsense"}
    done = subprocess.run(
        [sys.executable, BENCH / "worker.py", json.dumps(whole)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"error": "KeyError: 'nonsense'"}


def test_usage_errors() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "inference.py", "--only", "mlp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no workload 'mlp'; did you mean 'mlp-1'" in done.stderr


@pytest.mark.full
@pytest.mark.long
def test_the_command(tmp_path) -> None:
    options = ["--quick", "--only", "mlp-1", "--engines", "graphkit,onnxruntime", "--threads", "1"]
    places = ["--models", tmp_path / "models", "--output", tmp_path, "--name", "trial"]
    done = subprocess.run(
        [sys.executable, BENCH / "inference.py", *options, *places], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "trial.json").read_text())
    assert result["rows"][0]["ratio"]["onnxruntime"]["median"] > 0
    assert result["memory"][0]["engines"]["graphkit"]["peak"] > 0
    assert (tmp_path / "trial.md").read_text() == done.stdout.rstrip("\n") + "\n"
    assert (tmp_path / "trial.svg").read_text().startswith("<svg")
