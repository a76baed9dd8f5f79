"""Collectives between the GPUs of all ranks, without copies through host memory.

Before each run of a program, the ranks exchange on their hosts what they will launch. Ranks that are missing, or launch
something else, are found there, as for other collectives. Then the GPUs wait for each other, while the hosts check for
lost ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.dist.communicator import Communicator
from graphkit.dist.rounds.posted import Sum
from graphkit.dist.sums.fingerprint import Fingerprint, are_alike, powers
from graphkit.dist.sums.slices import Slices
from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cuda.libraries import nccl
from graphkit.executor.devices.cuda.libraries.nccl import Exchange
from graphkit.executor.devices.device import address_of
from graphkit.executor.lower.lowering import Meeting
from graphkit.ir.types import DType

# While this host waits for its GPU: seconds during which it only yields the core, the pause after that, and seconds
# between two checks for lost ranks.
_EAGER, _PAUSE, _LOOK = 0.02, 5e-5, 0.05
# Seconds that aborted kernels may take to end.
_ENDING = 10.0


class Group(Protocol):
    """An NCCL communicator of all GPUs; see CardGroup."""

    def launch(self, exchanges: Sequence[Exchange], dtype: DType, stream: int) -> None: ...
    def check(self) -> None: ...
    def abort(self) -> None: ...


class Card(Protocol):
    """The GPU of this process, such as a CudaDevice."""

    @property
    def current_stream(self) -> int: ...


class CardSums:
    """Collectives between the GPUs of all ranks; implements DeviceSums.

    Attributes:
        waited_seconds: Seconds that this rank waited for others before runs.
        sent_bytes: Bytes that this rank contributed to sums.
    """

    def __init__(self, communicator: Communicator, card: Card, group: Group, fingerprint: Fingerprint | None = None):
        self._communicator, self._card, self._group = communicator, card, group
        self._fingerprint = fingerprint or Fingerprint()
        self._recordings = 0
        self.broken = False
        self.waited_seconds = 0.0
        self.sent_bytes = 0

    def carries(self, dtype: DType) -> bool:
        return nccl.carries(dtype)

    def meet(self, order: str, nbytes: int, known: bool, recording: int, structure: int) -> Meeting:
        start = time.monotonic()
        numbers = [int(known), *powers(recording), *powers(structure), *powers(self._fingerprint.number)]
        total = self._told(f"all-reduces on GPUs, {order}", numbers)
        self.waited_seconds += time.monotonic() - start
        self.sent_bytes += nbytes
        size = self._communicator.size
        self._fingerprint.check(total[5:7], size)
        all_know = int(total[0]) == size and are_alike(total[3:5], size)
        common = recording if all_know and are_alike(total[1:3], size) else 0
        if all_know and not common:
            self._recordings += 1
        return Meeting(all_know, common, self._recordings)

    def _told(self, call: str, numbers: Sequence[int]) -> np.ndarray:
        """Return the sums of these numbers over all ranks, in one exchange of a few bytes."""
        array = np.array(numbers, np.int64)
        found: np.ndarray = self._communicator.perform(call, [array], Sum(array, None, _itself, alone=True))
        return found

    # --- launches -------------------------------------------------------------------------------------------------

    def all_reduce(self, arrays: Sequence[Any], dtype: DType) -> None:
        self._launch([Exchange("sum", address_of(a), a.size) for a in arrays if a.size], dtype)

    def reduce_scatter(self, arrays: Sequence[Any], dtype: DType) -> None:
        self._launch(self._parts("sum in one", arrays, dtype), dtype)

    def all_gather(self, wholes: Sequence[Any], dtype: DType) -> None:
        self._launch(self._parts("broadcast", wholes, dtype), dtype)

    def _parts(self, kind: Any, arrays: Sequence[Any], dtype: DType) -> list[Exchange]:
        """Return an exchange for each rank's slice of each array."""
        size, itemsize = self._communicator.size, dtype.numpy.itemsize
        slices = Slices.of([a.size for a in arrays], itemsize, size)
        found = []
        for rank in range(size):
            for index, array in enumerate(arrays):
                begin, end = slices.part(index, rank)
                if begin < end:
                    found.append(Exchange(kind, address_of(array) + begin * itemsize, end - begin, rank))
        return found

    def _launch(self, exchanges: Sequence[Exchange], dtype: DType) -> None:
        if exchanges:
            self._group.launch(exchanges, dtype, self._card.current_stream)

    # --- waiting --------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool]) -> None:
        if self.broken or done():
            return
        # GPUs compute meanwhile, so this rank does not only wait for others.
        with self._communicator.waiting(True), self._communicator.working():
            begun = looked = time.monotonic()
            while not done():
                now = time.monotonic()
                if now - begun < _EAGER:
                    os.sched_yield()
                else:
                    time.sleep(_PAUSE)
                if now - looked > _LOOK:
                    looked = now
                    if (reason := self._reason()) is not None:
                        self._end(reason, done)
                        raise RuntimeFailure(reason)

    def _reason(self) -> str | None:
        """Return why the launched collectives cannot complete; None if they still can."""
        if (reason := self._communicator.lost()) is not None:
            return reason
        try:
            self._group.check()
        except RuntimeFailure as error:
            return self._said(error)
        return None

    def _end(self, reason: str, done: Callable[[], bool]) -> None:
        """Abort the collectives, so that GPUs stop waiting. The abort itself may wait until recordings are freed."""
        self.broken = True
        self._communicator.fail(reason)
        threading.Thread(target=self._group.abort, name="graphkit-abort", daemon=True).start()
        end = time.monotonic() + _ENDING
        while not done() and time.monotonic() < end:
            time.sleep(_PAUSE)

    def fail(self, error: BaseException) -> None:
        if not self.broken:
            self._communicator.fail(self._said(error))

    def _said(self, error: BaseException) -> str:
        what = f"failed ({type(error).__name__}: {error})" if isinstance(error, Exception) else "was interrupted"
        rank, steps = self._communicator.rank, self._communicator.steps
        return f"rank {rank} {what} in step {steps}, in all-reduces on GPUs"


def _itself(total: Any) -> Any:
    return total
