"""Plans of cuDNN for the convolutions that graphkit requests, for GPUs that are not in this machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from emulator import COMPILER

needs_cudnn = pytest.mark.skipif(
    importlib.util.find_spec("cudnn") is None, reason="nvidia-cudnn-frontend is not installed"
)


def without_a_plan(what: str, architecture: str, folder: Path) -> tuple[list[str], int]:
    """Return the operations without a plan, and the number of operations. what: "convolutions" or "attention"."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    script = Path(__file__).with_name("cudnn_plans.py")
    command = [sys.executable, str(script), what, architecture, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *none, asked = done.stdout.splitlines()
    return none, int(asked.removeprefix("asked: "))
