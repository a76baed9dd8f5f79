"""The connection between the ranks of a job, which stores and training share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.agreement import compare, powers
from graphkit.dist.collectives.buckets import ProgramCollectives
from graphkit.dist.collectives.operations import Collectives
from graphkit.dist.communicator import Communicator
from graphkit.dist.progress.pending import Sum, unchanged
from graphkit.dist.wire.messages import Messages
from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.dist.collectives.gpu import GpuGroups

# Bytes of a bucket without a measurement, and bounds of a measured size.
FIXED_BUCKET, _LEAST_BUCKET, _LARGEST_BUCKET = 4 << 20, 256 << 10, 64 << 20
# The time to send the chosen bucket is about _LATENCIES times the latency. Each all-reduce is timed _TRIALS times.
_LATENCIES, _TRIALS = 20, 5


class Transport(Collectives):
    """Sends arrays and messages between ranks, compares their settings, and reports the state of this rank.

    Training uses it for everything that MXNet's interface of stores lacks.

    Args:
        bucket_bytes: Bytes of gradients that are all-reduced together (default: from the measured latency).
        servers_of: The type of the store if it has servers, else "". With servers, workers do not sum gradients inside
            programs.
    """

    def __init__(self, communicator: Communicator, bucket_bytes: int | None = None, servers_of: str = ""):
        super().__init__(communicator, every_rank_compresses=bool(servers_of))
        self._bucket_bytes = bucket_bytes
        self._servers_of = servers_of
        self._gpu_groups: GpuGroups | None = None

    @property
    def local_rank(self) -> int:
        return self.communicator.local

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes + (0 if self._gpu_groups is None else self._gpu_groups.sent_bytes)

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this rank exchanged with other hosts, if it is the leader of its host."""
        return self.communicator.sent_between_hosts

    @property
    def messages(self) -> Messages:
        return self.communicator.messages

    def collectives(self, ordered: bool = False, device: str | None = None, staged: str = "") -> ProgramCollectives:
        """Return the collectives that a program uses.

        Args:
            device: Device of the program. If given, the call is collective, and GPUs all-reduce without host memory if
                NCCL works on all ranks.
            staged: Why arrays of GPUs must be copied through host memory, or "".
        """
        if self._servers_of:
            raise UsageError(f"a {self._servers_of!r} store does not sum gradients inside a program; push them")
        if self.size == 1 or device is None:
            return ProgramCollectives(self, ordered, staged=staged)
        if self._gpu_groups is None:
            from graphkit.dist.collectives.gpu import GpuGroups

            self._gpu_groups = GpuGroups(self.communicator, self.fingerprint)
        return ProgramCollectives(self, ordered, *self._gpu_groups.sums(device, staged))

    # --- agreement --------------------------------------------------------------------------------

    def barrier(self, call: str = "barrier", arrays: Sequence[np.ndarray] = ()) -> None:
        """Wait until every rank has made this call with arrays of the same types."""
        self.communicator.perform(call, arrays)

    def meet(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        """Collective: wait for all pending operations and for all ranks, with arrays of the same types.

        It compares the fingerprints of the ranks, and counts the ranks that leave. Raises the first error of a pending
        operation, and RanksDiffer if fingerprints differ.
        """
        self.communicator.flush()
        mine = np.array([*powers(self.fingerprint.number), int(self.fingerprint.leaving)], np.int64)
        sums = self.communicator.perform(call, arrays, Sum(mine, None, unchanged, alone=True))
        self.fingerprint.check(sums[:2], self.size)
        self.fingerprint.leaving_ranks = int(sums[2])

    def compare(self, what: str, facts: Mapping[str, Any], advice: str = "") -> None:
        """Collective: raise RanksDiffer on all ranks if their `facts` (settings by name) differ.

        what: name of the call in errors. advice: a sentence that errors add.
        """
        compare(self.communicator, what, facts, advice)

    # --- state of this rank -----------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.communicator.steps

    def begin_step(self) -> None:
        self.communicator.steps += 1

    def working(self) -> AbstractContextManager[None]:
        """Context of long work: other ranks do not count this one as stalled."""
        return self.communicator.working()

    def running(self, code: str) -> AbstractContextManager[None]:
        """Context in which code of the user runs. If other ranks wait for it too long, their error names `code`."""
        return self.communicator.running(code)

    # --- bucket size ------------------------------------------------------------------------------

    @property
    def known_bucket_bytes(self) -> int | None:
        return self._bucket_bytes

    def bucket_bytes(self, fixed: bool = False) -> int:
        """Return how many bytes of gradients are all-reduced together; equal on all ranks.

        The measured number makes the latency a small part of an all-reduce. fixed: do not measure.
        """
        if self._bucket_bytes is None and (fixed or self.size == 1):
            return FIXED_BUCKET
        if self._bucket_bytes is None:
            mine = np.array(self._measured_bucket())
            self._bucket_bytes = int(self.broadcast("broadcast of the measured bucket_bytes", [mine])[0])
        return self._bucket_bytes

    def _measured_bucket(self) -> int:
        """Return a bucket size, from the times of a small and a larger all-reduce.

        The model is time = latency + bytes / bandwidth (Hockney, 1994).
        """
        small, large = np.zeros(16, np.float32), np.zeros(1 << 18, np.float32)
        times = {}
        for array in (small, large):
            spent = []
            for _ in range(_TRIALS):
                start = time.perf_counter()
                self.communicator.perform("bucket_bytes", [array], Sum(array, array, unchanged))
                spent.append(time.perf_counter() - start)
            times[array.nbytes] = float(np.median(spent))
        latency, longer = times[small.nbytes], times[large.nbytes]
        per_byte = max(longer - latency, 0.1 * longer) / large.nbytes
        return int(np.clip(_LATENCIES * latency / per_byte, _LEAST_BUCKET, _LARGEST_BUCKET))
