"""Modules that tests of several processes share are found here, and so are jobs that run the code of many tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clocks import Clock
from job_server import Jobs, running

from graphkit.dist.hosts import heartbeats

HERE = Path(__file__).parent
_RUNNING = pytest.StashKey[Jobs]()


@pytest.fixture(scope="session")
def jobs(pytestconfig: pytest.Config) -> Iterator[Jobs]:
    """`jobs.run(code, ranks)`: what each rank of a real job prints. See `job_server`."""
    with running() as found:
        pytestconfig.stash[_RUNNING] = found
        yield found


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End all jobs after the last test of this folder: servers that wait for messages take processor time."""
    found = item.config.stash.get(_RUNNING, None)
    if found is not None and (nextitem is None or not nextitem.path.is_relative_to(HERE)):
        found.end()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of `graphkit.dist.hosts.heartbeats`, which a test sets."""
    found = Clock()
    monkeypatch.setattr(heartbeats, "time", found)
    return found
