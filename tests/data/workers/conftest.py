"""Fixtures of the tests of workers."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest

SETS = Path(__file__).parent / "sets"


@pytest.fixture
def sets(monkeypatch):
    """A module of data sets, which workers find too."""
    monkeypatch.syspath_prepend(str(SETS))
    return importlib.import_module("made_by_workers")


@pytest.fixture
def gone():
    """`gone(pids)`: wait until all processes have ended; return False after a timeout. Zombies count as ended."""

    def state(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "X"

    def wait(pids):
        # Count the attempts instead of reading the clock, because the machine may be suspended.
        for _ in range(1500):
            if all(state(pid) in "XZ" for pid in pids):
                return True
            time.sleep(0.02)
        return False

    return wait
