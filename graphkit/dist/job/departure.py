"""SIGTERM with parameter servers: workers agree on the step after which all of them stop.

Workers take steps independently: they agree through heartbeats, not through a collective. A worker that has received
SIGTERM, or sees that another process has, votes with the number of its completed steps. When all workers have voted,
all stop after the step of the largest vote.

A worker that has voted takes a further step only in two cases: another worker has voted for a later step, or another
worker has begun more steps and has not voted yet. Each worker votes for at least as many steps as it has begun. So no
worker takes more steps than the largest vote.

This cannot deadlock: a worker that waits inside a step for a slower worker has begun more steps, so the slower worker
takes its next step.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import RuntimeFailure

if TYPE_CHECKING:
    from graphkit.dist.communicator import Communicator
    from graphkit.dist.job.mpi import MpiCommunicator

# Arguments of `depart`. _READY: this process can stop together with the others. _NOTHING: it cannot. _VOTE + n: it
# votes to stop after n steps.
_NOTHING, _READY, _VOTE = 0, 1, 2
_PAUSE = 0.01


class Departure:
    """The end of this worker, together with the others.

    Args:
        workers: Number of workers, whose job ranks come before those of the servers.
    """

    def __init__(self, communicator: Communicator, workers: int):
        self._communicator, self._workers = communicator, workers
        self._voted = False
        communicator.depart(_NOTHING)

    @property
    def is_possible(self) -> bool:
        """Whether this worker hears the heartbeats of all processes of the job."""
        return self._communicator.departures() is not None

    def begin(self) -> None:
        self._communicator.depart(_READY)

    def end(self) -> None:
        self._communicator.depart(_NOTHING)

    def is_wanted(self) -> bool:
        return bool((self._departures()[0] >= _VOTE).any())

    def must_stop(self, wanted: bool) -> bool:
        """Return whether this worker must stop before its next step, possibly after waiting for votes.

        Raises RuntimeFailure if another process is lost meanwhile.
        """
        if not self._voted and not (wanted or self.is_wanted()):
            return False
        done = self._communicator.steps
        if not self._voted:
            self._voted = True
            self._communicator.depart(_VOTE + done)
        while True:
            departures, steps = (each[: self._workers] for each in self._departures())
            has_voted = departures >= _VOTE
            largest = int(np.where(has_voted, departures - _VOTE, steps).max())
            if has_voted.all() or done < largest:
                return done >= largest
            with self._communicator.waiting(False):
                time.sleep(_PAUSE)
                if (reason := self._communicator.lost()) is not None:
                    raise RuntimeFailure(reason)

    def _departures(self) -> tuple[np.ndarray, np.ndarray]:
        departures = self._communicator.departures()
        assert departures is not None, "see is_possible"
        return departures


def leave_to_workers(communicator: MpiCommunicator) -> None:
    """On a server: let the first SIGTERM stop the workers together, or end the job if they cannot."""
    before: Any = signal.getsignal(signal.SIGTERM)
    if not callable(before):
        return
    workers = communicator.processes - communicator.servers

    def arrived(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        departures = communicator.departures()
        if departures is None or (departures[0][:workers] < _READY).any():
            before(number, frame)
        communicator.depart(_VOTE)

    signal.signal(signal.SIGTERM, arrived)
