"""The load test of the server runs, finds no wrong answer and loses none."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import server
from combinations import in_one_item

SCRIPT = Path(__file__).parents[2] / "bench" / "server.py"


@pytest.mark.full
def test_a_short_load():
    options = {
        "clients": 4, "seconds": 2, "phases": 1, "alone": 0.1, "warm-up": 0.3, "max-batch": 4, "size": 32, "threads": 1,
    }  # fmt: skip
    command = [sys.executable, "-P", str(SCRIPT), *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(
        [*command, "--disturb", "--reload=0.2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["requests"] > 4
    assert (found["wrong"], found["failed"], found["lost"], found["exit code"]) == (0, 0, 0, 0)
    assert found["disturbances"].keys() >= {"malformed", "oversized", "no HTTP", "aborted", "load again"}


def test_small_outputs_are_told_apart():
    first, second = np.array([1e-10, 2e-10]), np.array([1e-10, 3e-10])
    assert server.agrees(first * (1 + 1e-5), first)
    assert not server.agrees(first, second)
    server.check_distinct([first, second])
    with pytest.raises(RuntimeError, match="input 2 do not differ"):
        server.check_distinct([first, second, first * (1 + 1e-5)])


@in_one_item()
@pytest.mark.parametrize("bad", ["wrong", "failed", "lost", "exit code", None])
def test_exit_code_of_the_server_counts(monkeypatch, bad):
    found = {name: int(name == bad) for name in ("wrong", "failed", "lost", "exit code")}
    monkeypatch.setattr(server, "measure", lambda options, folder: found)
    monkeypatch.setattr(sys, "argv", ["server.py"])
    assert server.main() == (bad is not None)
