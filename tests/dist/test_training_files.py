"""A training in a file, by several processes."""

import json
import subprocess
import sys

import numpy as np
import pytest

import graphkit as gk


def run(*arguments):
    command = [sys.executable, "-P", "-m", "graphkit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder, name):
    return {parameter: array.tobytes() for parameter, array in gk.load(folder / name).params.items()}


@pytest.mark.full
def test_two_processes_by_a_file_end_early_together_and_again(tmp_path):
    """All ranks end with the epoch after which rank 0 has no patience left, and a run by the run's file is the same."""
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((120, 6), np.float32), y=rng.integers(0, 3, 120))
    (tmp_path / "config.toml").write_text(
        """
        data = "data.npz"
        epochs = 20
        batch-size = 8
        processes = 2
        kvstore = "dist_sync"
        lr-schedule = "cosine"
        warmup = 2
        mixup = 0.3
        early-stop = 2
        min-delta = 0.05
        keep-best = true
        deterministic = true

        [network]
        name = "mlp"
        hidden = [8]
        seed = 1
        """
    )
    out = run("train", tmp_path / "config.toml", "-o", tmp_path / "run")
    lines = [line for line in out.splitlines() if line.startswith("epoch")]
    assert 2 < len(lines) < 20
    assert "(2 processes)" in lines[0]
    (call,) = json.loads((tmp_path / "run" / "run.json").read_text())["calls"]
    assert call["processes"] == 2
    run("train", tmp_path / "run" / "config.toml", "-o", tmp_path / "again")
    for name in ("model.json", "best.json"):
        assert contents(tmp_path / "run", name) == contents(tmp_path / "again", name)
