"""Modules that tests of several processes share are found here, and so are jobs that run the code of many tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clocks import Clock
from job_server import Jobs, running

from graphkit.dist.hosts import heartbeats


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """`jobs.run(code, ranks)`: what each rank of a real job prints. See `job_server`."""
    with running() as found:
        yield found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of `graphkit.dist.hosts.heartbeats`, which a test sets."""
    found = Clock()
    monkeypatch.setattr(heartbeats, "time", found)
    return found
