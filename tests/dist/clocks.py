"""A clock that tests put forward, so that no test depends on how fast the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

from graphkit.dist.hosts.heartbeats import HeartbeatMonitor

# Seconds. Only a test that hangs reaches it.
_LONGEST = 120.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds. what: named in the AssertionError after a timeout."""
    end = time.monotonic() + _LONGEST
    while not condition():
        assert time.monotonic() < end, f"{what} within {_LONGEST:g} s"
        time.sleep(0.002)


class Clock:
    """Stands for the module `time` in `graphkit.dist.hosts.heartbeats`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def forward(
        self,
        seconds: float,
        alive: tuple[HeartbeatMonitor, ...] = (),
        progress: tuple[HeartbeatMonitor, ...] = (),
        waits: tuple[HeartbeatMonitor, ...] = (),
    ) -> None:
        """Advance the clock, and wait until the threads of the given monitors have reported at the new time.

        Args:
            seconds: Number of seconds.
            alive: Monitors that must send a heartbeat.
            progress: Monitors that must report progress.
            waits: Monitors of waiting ranks that must report progress.
        """
        self.now += seconds
        for watches, name in ((alive, "alive"), (progress + waits, "progress")):
            for watch in watches:
                wait_until(lambda w=watch, n=name: float(w._mine[n][0]) == self.now, f"a watch shows that it is {name}")
