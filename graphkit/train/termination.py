"""After a SIGTERM to any process, all ranks stop after the same step and write one checkpoint."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from types import FrameType, TracebackType
from typing import Any, NoReturn

import numpy as np

from graphkit.dist.job.departure import Departure
from graphkit.dist.kvstore import KVStore
from graphkit.errors import GraphkitWarning


class Termination:
    """Context of `fit` on several ranks, in which the first SIGTERM takes effect after a step.

    A rank reports the signal in a collective that each step contains anyway: the all-reduce of the loss, or
    `Transport.meet` with `groups`. After that step, `is_due` is True on all ranks. A second SIGTERM takes effect at
    once.
    """

    def __init__(self, store: KVStore):
        self._store = store
        self._fingerprint = store.transport.fingerprint
        self._handler: Any = None

    def __enter__(self) -> Termination:
        self._fingerprint.leaving, self._fingerprint.leaving_ranks = False, 0
        self._handler = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and callable(self._handler):
            signal.signal(signal.SIGTERM, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()
        if self._fingerprint.leaving and error is None and callable(self._handler):
            self._handler(signal.SIGTERM, sys._getframe())

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._fingerprint.leaving:
            self._restore()
            self._handler(number, frame)
        self._fingerprint.leaving = True

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._arrived:
            signal.signal(signal.SIGTERM, self._handler)

    def must_stop(self, accumulated: int) -> bool:
        """Return whether this rank must stop before its next step. accumulated: number of accumulated batches.

        It is always False here: these ranks stop after a step (see `is_due`).
        """
        return False

    @property
    def is_due(self) -> bool:
        """Whether any rank had received the signal when the last step began. All ranks get the same answer."""
        return self._fingerprint.leaving_ranks > 0

    def is_due_now(self) -> bool:
        """Collective: return whether any rank has received the signal."""
        asked = self._store.pushpull("terminated ranks", np.array([int(self._fingerprint.leaving)], np.int64))
        return bool(asked.any())

    def take_effect(self) -> NoReturn:
        """Collective: end this rank with the previous handler of SIGTERM, after all ranks have called this method."""
        self._store.pushpull("ranks that end", np.zeros(1, np.int64))
        self._restore()
        self._fingerprint.leaving = False
        if callable(self._handler):
            self._handler(signal.SIGTERM, sys._getframe())
        raise KeyboardInterrupt


class WorkerTermination(Termination):
    """Termination with parameter servers: workers step independently, and agree on the last step."""

    def __init__(self, store: KVStore):
        super().__init__(store)
        self._departure = Departure(store.transport.communicator, store.num_workers)
        self.is_possible = self._departure.is_possible

    def __enter__(self) -> Termination:
        super().__enter__()
        self._departure.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._departure.end()
        super().__exit__(kind, error, at)

    def must_stop(self, accumulated: int) -> bool:
        return self._departure.must_stop(self._fingerprint.leaving) and not accumulated

    @property
    def is_due(self) -> bool:
        return False

    def is_due_now(self) -> bool:
        self._fingerprint.leaving = self._fingerprint.leaving or self._departure.is_wanted()
        return super().is_due_now()


def termination_of(store: KVStore | None) -> Termination | None:
    """Return the Termination of a `fit` with a folder, or None. Warns if the processes cannot end together."""
    if store is None or (store.num_workers == 1 and not store.is_remote):
        return None
    if not store.is_remote:
        return Termination(store)
    found = WorkerTermination(store)
    if found.is_possible:
        return found
    if store.rank == 0:
        warnings.warn(
            "SIGTERM ends this job at once, without a checkpoint, because the processes are on several hosts and MPI "
            "does not allow concurrent calls of threads (MPI_THREAD_MULTIPLE): write checkpoints within epochs "
            "(checkpoint_every=, --checkpoint-every)",
            GraphkitWarning,
            stacklevel=2,
        )
    return None
