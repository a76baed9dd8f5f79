"""The benchmark of first results in C programs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import first_c
import numpy as np
import pytest

import graphkit as gk

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.full
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_table_of_both_libraries(tmp_path: Path) -> None:
    x, ids = gk.input("x", ["N", 30]), gk.input("ids", ["N"], dtype="int64")
    outputs = {"y": gk.tanh(gk.nn.linear(x, 10, name="fc")), "next": ids + np.int64(1)}
    gk.Model(outputs, seed=0).save(tmp_path / "layer.onnx")
    np.savez(tmp_path / "layer.npz", x=np.ones((4, 30), np.float32), ids=np.arange(4))
    command = [sys.executable, str(BENCH / "first_c.py"), str(tmp_path), "--threads", "1", "--restarts", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    cells = done.stdout.split("| layer |")[1].splitlines()[0].split("|")
    assert all(float(cell.split()[0]) > 0 for cell in cells if cell.strip())
    unknown = subprocess.run([*command, "--only", "layer,other"], capture_output=True, text=True, timeout=300)
    assert unknown.returncode == 2
    assert "has no other.onnx with other.npz" in unknown.stderr


def test_results_that_differ_are_an_error(tmp_path: Path) -> None:
    results, expected = tmp_path / "results", np.float32([1, 2])
    results.write_bytes(np.float32([1, 2.0001]).tobytes())
    first_c.check(results, [expected])
    for wrong in (np.float32([1, 2.1]), np.float32([1, np.nan]), np.float32([1]), np.float32([])):
        results.write_bytes(wrong.tobytes())
        with pytest.raises(SystemExit, match="results"):
            first_c.check(results, [expected])
