"""Workers that take steps independently agree on a last step, whenever signals arrive and however fast they are."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.dist.job import departure
from graphkit.dist.job.departure import Departure
from graphkit.errors import RuntimeFailure

EPOCHS, BATCHES, EVERY = 2, 12, 5
TIMEOUT = 20.0


class Board:
    """The departures and steps of all processes. Other processes may see the number of steps late."""

    def __init__(self, workers, servers):
        self.told, self.steps = np.zeros(workers + servers, np.int64), np.zeros(workers + servers, np.int64)
        self.reason = None


class Communicator:
    def __init__(self, board, rank):
        self._board, self._rank, self.steps = board, rank, 0

    def depart(self, number):
        self._board.told[self._rank] = number

    def departures(self):
        return self._board.told.copy(), self._board.steps.copy()

    def waiting(self, for_progress):
        return contextlib.nullcontext()

    def lost(self):
        return self._board.reason

    def doing(self):
        self._board.steps[self._rank] = self.steps


class Job:
    """Threads that train like workers: steps, checkpoints, ends of epochs."""

    def __init__(self, seed, workers, bound):
        self.draw = random.Random(seed)
        self.board, self.bound, self.workers = Board(workers, 1), bound, workers
        self.barrier = threading.Barrier(workers, timeout=TIMEOUT)
        self.done = np.zeros(workers, np.int64)
        self.signalled = [False] * workers
        self.at = self.draw.randrange(EPOCHS * BATCHES)  # the number of steps at which a process gets the signal
        self.target = self.draw.randrange(workers + 1)  # its rank; the last one is the server
        self.ended, self.errors = [None] * workers, []
        self.pauses = [self.draw.choice([0, 1e-4, 1e-3]) for _ in range(workers)]

    def meet(self, communicator):
        communicator.doing()
        self.barrier.wait()

    def step(self, rank, communicator):
        communicator.steps += 1
        if communicator.steps == self.at + 1:
            if rank == self.target:
                self.signalled[rank] = True
            elif rank == 0 and self.target == self.workers:
                self.board.told[-1] = departure._VOTE
        if self.bound is not None:  # the answer to a pull waits for slower workers
            communicator.doing()
            end = time.monotonic() + TIMEOUT
            while self.done.min() < communicator.steps - 1 - self.bound:
                assert time.monotonic() < end, "workers wait for each other"
                time.sleep(1e-4)
        time.sleep(self.pauses[rank])
        self.done[rank] = communicator.steps
        if communicator.steps % EVERY == 0:
            self.meet(communicator)

    def work(self, rank):
        communicator = Communicator(self.board, rank)
        one = Departure(communicator, self.workers)
        self.barrier.wait()
        one.begin()
        for _ in range(EPOCHS):
            for _ in range(BATCHES):
                if one.must_stop(self.signalled[rank]):
                    self.ended[rank] = communicator.steps
                    self.meet(communicator)
                    return
                self.step(rank, communicator)
            self.signalled[rank] = self.signalled[rank] or one.is_wanted()
            self.meet(communicator)
            if any(self.signalled):  # all workers see the same, because all wait for each other before and after
                self.ended[rank] = communicator.steps
                self.meet(communicator)
                return
            self.meet(communicator)

    def run(self):
        def guarded(rank):
            try:
                self.work(rank)
            except BaseException as error:  # noqa: BLE001 - the test reports it
                self.errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.errors, self.errors
        return self.ended


@in_one_item("values")
@pytest.mark.parametrize("bound", [None, 0, 2])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_stop_after_the_same_step(monkeypatch, workers, bound):
    monkeypatch.setattr(departure, "_PAUSE", 1e-3)
    for seed in range(8):
        job = Job(seed, workers, bound)
        ended = job.run()
        assert len(set(ended)) == 1, (seed, ended)
        assert ended[0] is not None, seed
        assert ended[0] >= job.at + 1, seed


def test_nothing_happens_without_a_signal():
    job = Job(0, 3, None)
    job.at = EPOCHS * BATCHES
    assert job.run() == [None] * 3


def test_loss_of_a_worker_ends_the_wait():
    board = Board(2, 1)
    one = Departure(Communicator(board, 0), 2)
    one.begin()
    board.reason = "rank 1 is lost"
    with pytest.raises(RuntimeFailure, match="rank 1 is lost"):
        one.must_stop(True)
